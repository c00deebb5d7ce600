"""What `bongsu why MEMBER` prints. The functions that make the lines are pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from rich.console import Console
from rich.text import Text

from bongsu.cli.terminal import local_time, plain, print_lines
from bongsu.deliver.codes import in_words, meaning
from bongsu.deliver.withheld import WITHHELD
from bongsu.desk.why import (
    AllOff,
    DailyLimit,
    Duplicate,
    NoAddress,
    OtherChannels,
    Reason,
    SameActor,
    TypeOff,
    View,
    find_view,
    reason_of,
)
from bongsu.model import EventStatus, Preferences
from bongsu.model.channels import Address, Channel, channels, in_order
from bongsu.rules import Rules
from bongsu.service import runtime
from bongsu.settings import Settings
from bongsu.store.desk.delivery_history import DeliveryRow
from bongsu.store.desk.history import HistoryRow, Status
from bongsu.store.members import address_of
from bongsu.store.members.devices import DeviceRow
from bongsu.store.outbox import EventRow

_COLOURS = {Status.SENT: "green", Status.FAILED: "red", Status.PENDING: "cyan", Status.UNKNOWN: "magenta"}
_A_MOMENT = timedelta(seconds=1)


async def explain(
    settings: Settings, member_id: str, event_id: UUID | None, limit: int, console: Console, app: Rules | None = None
) -> None:
    async with runtime(settings) as base:
        view = await find_view(base.store, settings, member_id, event_id, limit, app)
    print_lines(console, lines_of(view))


def lines_of(view: View) -> Iterator[Text]:
    """The page, line by line."""
    yield Text(plain(view.member_id), "bold")
    if not view.is_known:
        yield Text("  No member of this id is stored: nothing was ever decided for it, and no call has named it.")
    for name, fact in facts(view) if view.is_known else ():
        yield Text.assemble("  ", (f"{name:<12}", "dim"), plain(fact))
    if view.event is not None:
        yield Text()
        yield Text(plain(event_sentence(view, view.event)), "bold")
    for event in view.unfinished:
        yield Text()
        yield Text(plain(event_sentence(replace(view, rows=()), event)), "bold")
    for row in view.rows:
        yield Text()
        status = row.status.value, _COLOURS.get(row.status, "yellow")
        yield Text.assemble(f"{_time(view, row.created_at)}  ", status, f"  {plain(row.type)}  ", (plain(row.title), "bold"))
        for line in row_sentences(view, row):
            yield Text(f"    {plain(line)}")
        # Without a subject of its own, a notification's subject is its event.
        about = "" if row.subject == str(row.event_id) else f"about {plain(row.subject)}, "
        yield Text(f"    {about}event {row.event_id}", "dim")
    if not view.rows and view.event is None and not view.unfinished:
        yield Text()
        yield Text("No notifications for this member, or they have been deleted since.")


def _time(view: View, moment: datetime) -> str:
    return local_time(moment, view.zone)


# --- the member -------------------------------------------------------------------------------------------------------


def facts(view: View) -> Iterator[tuple[str, str]]:
    member, preferences, quiet = view.member, view.preferences, view.preferences.quiet_hours
    yield "locale", member.locale or "not known"
    where = member.timezone or f"{view.settings.timezone}, as for all whose own is not known"
    yield "time zone", f"{where}; times below are in it"
    yield "e-mail", "known" if member.email else "none"
    yield "phone", "known" if member.phone else "none"
    yield "devices", ", ".join(map(_device, view.devices)) or "none"
    for spec in channels():
        if spec.address is Address.OWN:
            yield spec.name, "known" if address_of(member, spec) else "none"
    yield "switch", "on" if preferences.enabled else "off: only critical ones get through"
    if preferences.types:
        yield "preferences", "; ".join(_preference(preferences, name) for name in preferences.types)
    yield "quiet hours", f"{quiet.start} to {quiet.end}" if quiet else "none"
    yield "today", _today(view.counted_today, view.settings.daily_limit)


def _today(counted: int, limit: int) -> str:
    """The service may run with another limit than this command was given, as the demo does."""
    return f"{counted} of {limit}" if counted <= limit else f"{counted}; the service allows more than the {limit} set here"


def _device(row: DeviceRow) -> str:
    consent = "" if row.device.push_consent else ", without consent to push"
    return f"{row.device_id} ({row.device.platform.value}, {row.status.value}{consent})"


def _preference(preferences: Preferences, type_name: str) -> str:
    own = preferences.types[type_name]
    if not own.enabled:
        return f"{type_name} off"
    return f"{type_name} on" if own.channels is None else f"{type_name} by {_listed(own.channels)}"


def _listed(names: frozenset[str] | Sequence[str]) -> str:
    return ", ".join(in_order(names)) or "no channel"


# --- an event ---------------------------------------------------------------------------------------------------------


def event_sentence(view: View, event: EventRow) -> str:
    """What has become of the event as far as this member is concerned."""
    name = f"Event {event.event_id} ({event.event_type})"
    failed = f" {event.attempts} attempts have failed, the last with: {event.error}" if event.attempts else ""
    if event.status is EventStatus.CANCELLED:
        return f"{name} was CANCELLED{_by_whom(view)}.{'' if view.rows else _without_rows(view, event)}"
    if event.status is EventStatus.FAILED:
        return f"{name} has FAILED: it sends nothing more unless it is replayed.{failed}"
    if event.status is EventStatus.UNHANDLED:
        then = "Replay it: a rule handles that type now"
        if not view.rules.knows(event.event_type):
            then = _UNHANDLED[view.app is None]
        return f"{name} is UNHANDLED: no rule handled its type, so it led to no notification. {then}."
    if event.status is EventStatus.PENDING:
        return f"{name} is PENDING: {_pending(view, event)}.{failed}"
    return f"{name} is DONE." if view.rows else f"{name} is DONE, and {view.member_id} was not in its audience."


# With the user's own rules named, and without.
_UNHANDLED = (
    "Still none does; replay it once one does",
    "No built-in rule does; if one of your own should, start the workers with --app and replay it",
)


def _by_whom(view: View) -> str:
    done = view.cancellation
    if done is None:
        return ""
    withdrawn = ", and withdrawn from the inboxes" if done.withdraw else ""
    return f" at {_time(view, done.requested_at)} by {done.requested_by}{withdrawn}"


def _without_rows(view: View, event: EventRow) -> str:
    """Of a cancelled event, about a member whom it did not notify."""
    done = view.cancellation
    # Cancelling ends what is not decided yet, at that moment.
    is_decided = done is not None and event.finished_at is not None and event.finished_at < done.requested_at - _A_MOMENT
    if is_decided:
        return f" {view.member_id} was not in its audience."
    return f" {view.member_id} was not decided before that, if they were in its audience at all."


def _pending(view: View, event: EventRow) -> str:
    if event.is_begun:
        return "its audience is being decided, and not all of it has been reached yet"
    if event.is_leased:
        return "a worker has claimed it"
    return f"it is due at {_time(view, event.due)}" if event.due > view.now else "it waits for a worker"


# --- a notification ---------------------------------------------------------------------------------------------------


def row_sentences(view: View, row: HistoryRow) -> Iterator[str]:
    """On which channels they got it and with what result, or why they did not get it."""
    if row.status is Status.MERGED:
        digest = (
            "a digest that was deleted since" if row.merged_into is None else f"notification {row.merged_into}, a digest"
        )
        yield f"merged into {digest}"
        if row.left_at is not None:
            yield f"taken out of it {_time(view, row.left_at)}: its event was cancelled"
        return
    if row.notification_id is None:
        yield f"not notified: {reason_sentence(reason_of(view, row))}"
        return
    if Channel.IN_APP in row.channels:
        yield f"inbox: {_in_inbox(view, row)}"
    for delivery in row.deliveries:
        to = f" to {delivery.device_id}" if delivery.device_id else ""
        simulated = f" ({_SIMULATED})" if delivery.is_simulated else ""
        yield f"{delivery.channel}{to}: {delivery_sentence(view, delivery)}{simulated}"
    if row.status is Status.CANCELLED and not row.deliveries:
        yield "inbox: withdrawn, because its event was cancelled"


def _in_inbox(view: View, row: HistoryRow) -> str:
    """What the member has done with it."""
    read = f"read {_time(view, row.read_at)}" if row.read_at else "not read"
    if row.deleted_at is not None:
        return f"{read}, deleted by the member {_time(view, row.deleted_at)}"
    if row.archived_at is not None:
        return f"{read}, archived by the member {_time(view, row.archived_at)}"
    return read if row.read_at else "not read yet"


_SIMULATED = "simulated: the channel is not configured, so nothing was sent"


def delivery_sentence(view: View, delivery: DeliveryRow) -> str:
    """What has become of one delivery."""
    code = f" ({in_words(delivery.code)})" if delivery.code else ""
    tries = f"{delivery.attempts} attempt{'s' * (delivery.attempts != 1)}"
    match delivery.status:
        case "SUCCESS":
            return f"sent {_time(view, delivery.finished_at or delivery.due)}"
        case "FAIL":
            return f"failed after {tries}{code}"
        case "UNKNOWN":
            return f"it is not known whether it arrived{code}"
        case "SENDING":
            return "being sent"
        case "CANCELLED":
            return _cancelled(delivery, f"cancelled after {tries}{code}")
    return _waiting(view, delivery, f"{tries} failed{code}")


def _cancelled(delivery: DeliveryRow, after_attempts: str) -> str:
    if delivery.code in WITHHELD:
        return f"not sent: {meaning(delivery.code).means}"
    return after_attempts if delivery.attempts else "cancelled before it was sent"


def _waiting(view: View, delivery: DeliveryRow, so_far: str) -> str:
    if delivery.due <= view.now:
        return "due now"
    if delivery.attempts:
        return f"{so_far}, next attempt at {_time(view, delivery.due)}"
    if delivery.code:
        return f"waits until {_time(view, delivery.due)} ({in_words(delivery.code)})"
    quiet = " for the end of quiet hours" if view.is_quiet_before(delivery.due) else ""
    return f"waits until {_time(view, delivery.due)}{quiet}"


_SAME_ACTOR = "its actor is in the digest already"


def _duplicate_sentence(reason: Duplicate | SameActor) -> str:
    if isinstance(reason, SameActor):
        return _SAME_ACTOR
    unless = "" if reason.is_certain else f", or the hours that your own rules give {reason.type} (--app)"
    same_actor = f", or {_SAME_ACTOR}" if reason.is_digest else ""
    return f"the same about {reason.subject} was sent within {reason.hours:g} h{unless}{same_actor}"


def reason_sentence(reason: Reason) -> str:
    match reason:
        case DailyLimit(limit):
            return f"daily limit of {limit} reached"
        case Duplicate() | SameActor():
            return _duplicate_sentence(reason)
        case TypeOff(type_name, is_still):
            return f"has turned {type_name} off" if is_still else f"had turned {type_name} off, and has it on again by now"
        case OtherChannels(type_name, wanted, offered):
            return f"wants {type_name} by {_listed(wanted)}, and it is sent by {_listed(offered)}"
        case NoAddress(missing, is_still):
            has, then = ("has", "") if is_still else ("had", " then")
            none = f"neither {' nor '.join(missing)}" if len(missing) > 1 else f"no {''.join(missing) or 'address'}"
            return f"{has} {none}{then}"
        case AllOff():
            return "has turned all notifications off"
