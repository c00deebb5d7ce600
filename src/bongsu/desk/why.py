"""`bongsu why MEMBER`: what became of a member's notifications, and why they did not get others, for people who answer them.

Looking is one function, and what is said about it others, which are plain and know no store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.text import Text

from bongsu.cli.terminal import plain
from bongsu.decide.quiet_hours import local_day
from bongsu.deliver.codes import in_words
from bongsu.errors import BadCommand
from bongsu.model import DeviceStatus, EventStatus, Id, Member, Preferences
from bongsu.model.channels import Address, Channel, ChannelSpec, channels, describe_channel, in_order
from bongsu.rules import Rules, catalogue
from bongsu.service import runtime
from bongsu.settings import Settings
from bongsu.store.core.clock import find_now
from bongsu.store.desk import history
from bongsu.store.desk.cancellations import Cancellation, find_cancellation
from bongsu.store.desk.delivery_history import DeliveryRow
from bongsu.store.desk.history import Filters, HistoryRow, Status
from bongsu.store.desk.unfinished import UnfinishedEvent, find_unfinished
from bongsu.store.members import address_of, find_member, find_preferences
from bongsu.store.members.devices import DeviceRow, find_devices
from bongsu.store.outbox import schedule
from bongsu.store.outbox.schedule import Progress

_member_id = TypeAdapter(Id)


@dataclass(frozen=True)
class View:
    """What is known of a member, and of an event if one was named."""

    settings: Settings
    now: datetime
    member_id: str
    member: Member
    wish: Preferences
    devices: Sequence[DeviceRow]
    counted_today: int
    rows: Sequence[HistoryRow]
    event_id: UUID | None = None
    event: Progress | None = None
    cancellation: Cancellation | None = None
    # Whether the store knows the member. One whose first event waits or has failed is not known yet.
    is_known: bool = True
    # Events about the member that are not DONE and have led to none of the rows.
    unfinished: Sequence[UnfinishedEvent] = ()
    # The rules of the user's own, if they were named.
    app: Rules | None = None

    @property
    def rules(self) -> Rules:
        return catalogue(self.settings, self.app)

    @property
    def zone(self) -> ZoneInfo:
        return _zone(self.settings, self.member)

    def time(self, moment: datetime) -> str:
        return moment.astimezone(self.zone).strftime("%Y-%m-%d %H:%M:%S")


async def explain(
    settings: Settings, member_id: str, event_id: UUID | None, limit: int, console: Console, app: Rules | None = None
) -> None:
    view = replace(await look(settings, member_id, event_id, limit), app=app)
    for line in told(view):
        # Unwrapped where no terminal is: a line is a fact, and may be searched for.
        console.print(line, highlight=False, soft_wrap=not console.is_terminal)


# --- looking ----------------------------------------------------------------------------------------------------------


async def look(settings: Settings, member_id: str, event_id: UUID | None, limit: int) -> View:
    try:
        _member_id.validate_python(member_id)
    except ValidationError:
        raise BadCommand("MEMBER must be a member's id: 1 to 255 characters, none of them a control character") from None
    async with runtime(settings) as base, base.store.read() as tx:
        # Due times are compared with it, and they are the store's.
        now = await find_now(tx)
        member = await find_member(tx, member_id)
        day, count = await history.find_daily_count(tx, member_id)
        rows, _ = await history.find_page(tx, Filters(member_id=member_id, event_id=event_id), limit=limit)
        event = None if event_id is None else await schedule.find_progress(tx, event_id)
        if event_id is not None and event is None and not rows:
            raise BadCommand(f"There is no event {event_id}: it was never stored here, or has been deleted since")
        unfinished = [] if event_id is not None else await find_unfinished(tx, member_id, limit)
        if member is None and event is None and not unfinished:
            raise BadCommand(f"There is no member {member_id}, and no event that waits or has failed names that id")
        return View(
            settings=settings,
            now=now,
            member_id=member_id,
            member=member or Member(),
            is_known=member is not None,
            wish=await find_preferences(tx, member_id),
            devices=await find_devices(tx, member_id),
            counted_today=count if day >= local_day(now, _zone(settings, member or Member())) else 0,
            rows=rows,
            event_id=event_id,
            event=event,
            cancellation=None if event_id is None else await find_cancellation(tx, event_id),
            unfinished=_without_rows(unfinished, rows),
        )


def _without_rows(events: Sequence[UnfinishedEvent], rows: Sequence[HistoryRow]) -> list[UnfinishedEvent]:
    shown = {row.event_id for row in rows}
    return [event for event in events if event.event_id not in shown]


def _zone(settings: Settings, member: Member) -> ZoneInfo:
    return ZoneInfo(member.timezone) if member.timezone else settings.zone


# --- telling ----------------------------------------------------------------------------------------------------------

_COLOURS = {Status.SENT: "green", Status.FAILED: "red", Status.PENDING: "cyan", Status.UNKNOWN: "magenta"}


def told(view: View) -> Iterator[Text]:
    """The page, line by line."""
    yield Text(plain(view.member_id), "bold")
    if not view.is_known:
        yield Text("  No member of this id is stored: nothing was ever decided for it, and no call has named it.")
    for name, fact in facts(view) if view.is_known else ():
        yield Text.assemble("  ", (f"{name:<12}", "dim"), plain(fact))
    if view.event is not None:
        yield Text()
        yield Text(plain(event_sentence(view, view.event)), "bold")
    for each in view.unfinished:
        yield Text()
        of_event = replace(view, event_id=each.event_id, rows=())
        yield Text(plain(event_sentence(of_event, each.progress)), "bold")
    for row in view.rows:
        yield Text()
        status = row.status.value, _COLOURS.get(row.status, "yellow")
        yield Text.assemble(f"{view.time(row.created_at)}  ", status, f"  {plain(row.type)}  ", (plain(row.title), "bold"))
        for line in row_sentences(view, row):
            yield Text(f"    {plain(line)}")
        # What nothing was said of is about itself.
        about = "" if row.subject == str(row.event_id) else f"about {plain(row.subject)}, "
        yield Text(f"    {about}event {row.event_id}", "dim")
    if not view.rows and view.event is None and not view.unfinished:
        yield Text()
        yield Text("No notification was ever decided for this member, or it has been deleted since.")


def facts(view: View) -> Iterator[tuple[str, str]]:
    member, wish, quiet = view.member, view.wish, view.wish.quiet_hours
    yield "locale", member.locale or "not known"
    where = member.timezone or f"{view.settings.timezone}, as for all whose own is not known"
    yield "time zone", f"{where}; times below are in it"
    yield "e-mail", "known" if member.email else "none"
    yield "phone", "known" if member.phone else "none"
    yield "devices", ", ".join(_device(one) for one in view.devices) or "none"
    for spec in channels():
        if spec.address is Address.OWN:
            yield spec.name, "known" if address_of(member, spec) else "none"
    yield "switch", "on" if wish.enabled else "off: only critical ones get through"
    if wish.types:
        yield "wishes", "; ".join(_wish(wish, name) for name in wish.types)
    yield "quiet hours", f"{quiet.start} to {quiet.end}" if quiet else "none"
    yield "today", _today(view.counted_today, view.settings.daily_limit)


def _today(counted: int, limit: int) -> str:
    """The service may run with another limit than this command was given, as the demo does."""
    return f"{counted} of {limit}" if counted <= limit else f"{counted}; the service allows more than the {limit} set here"


def _device(row: DeviceRow) -> str:
    consent = "" if row.device.push_consent else ", without consent to push"
    return f"{row.device_id} ({row.device.platform.value}, {row.status.value}{consent})"


def _wish(wish: Preferences, name: str) -> str:
    one = wish.types[name]
    if not one.enabled:
        return f"{name} off"
    if one.channels is None:
        return f"{name} on"
    return f"{name} by {_listed(one.channels)}"


def _listed(names: frozenset[str] | Sequence[str]) -> str:
    return ", ".join(in_order(names)) or "no channel"


def event_sentence(view: View, event: Progress) -> str:
    """What has become of the event as far as this member is concerned."""
    name = f"Event {view.event_id} ({event.event_type})"
    failed = f" {event.attempts} attempts have failed, the last with: {event.error}" if event.attempts else ""
    if event.status is EventStatus.CANCELLED:
        return f"{name} was CANCELLED{_by_whom(view)}.{'' if view.rows else _not_among(view, event)}"
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


def _by_whom(view: View) -> str:
    done = view.cancellation
    if done is None:
        return ""
    withdrawn = ", and withdrawn from the inboxes" if done.withdraw else ""
    return f" at {view.time(done.requested_at)} by {done.requested_by}{withdrawn}"


def _not_among(view: View, event: Progress) -> str:
    """Of a cancelled event, about a member whom it did not notify."""
    done = view.cancellation
    # Cancelling ends what is not decided yet, at that moment.
    is_decided = done is not None and event.finished_at is not None and event.finished_at < done.requested_at - _A_MOMENT
    if is_decided:
        return f" {view.member_id} was not in its audience."
    return f" {view.member_id} was not decided before that, if they were in its audience at all."


_A_MOMENT = timedelta(seconds=1)


def _pending(view: View, event: Progress) -> str:
    if event.is_begun:
        return "it is going out, and not everybody has been reached yet"
    if event.is_held:
        return "a worker has it in hand"
    return f"it is due at {view.time(event.due)}" if event.due > view.now else "it waits for a worker"


# With the user's own rules named, and without.
_UNHANDLED = (
    "Still none does; replay it once one does",
    "No built-in rule does; if one of your own should, start the workers with --app and replay it",
)


def row_sentences(view: View, row: HistoryRow) -> Iterator[str]:
    """By which ways they got it and with what result, or why they did not get it."""
    if row.notification_id is None:
        yield f"not told: {reason(view, row)}"
        return
    if Channel.IN_APP in row.channels:
        yield f"inbox: {f'read {view.time(row.read_at)}' if row.read_at else 'not read yet'}"
    for delivery in row.deliveries:
        to = f" to {delivery.device_id}" if delivery.device_id else ""
        simulated = f" ({_SIMULATED})" if delivery.is_simulated else ""
        yield f"{delivery.channel}{to}: {way(view, delivery)}{simulated}"
    if row.status is Status.CANCELLED and not row.deliveries:
        yield "inbox: withdrawn, because its event was cancelled"


_SIMULATED = "simulated: the channel is not configured, so nothing left the house"


def way(view: View, delivery: DeliveryRow) -> str:
    """What has become of one delivery."""
    code = f" ({in_words(delivery.code)})" if delivery.code else ""
    tries = f"{delivery.attempts} attempt{'s' * (delivery.attempts != 1)}"
    match delivery.status:
        case "SUCCESS":
            return f"sent {view.time(delivery.finished_at or delivery.due)}"
        case "FAIL":
            return f"failed after {tries}{code}"
        case "UNKNOWN":
            return f"nobody knows whether it arrived{code}"
        case "SENDING":
            return "on its way"
        case "CANCELLED":
            return f"cancelled after {tries}{code}" if delivery.attempts else "cancelled before it was sent"
    return _waiting(view, delivery, f"{tries} failed{code}")


def _waiting(view: View, delivery: DeliveryRow, so_far: str) -> str:
    if delivery.due <= view.now:
        return "about to go"
    if delivery.attempts:
        return f"{so_far}, tried again at {view.time(delivery.due)}"
    if delivery.code:
        return f"waits until {view.time(delivery.due)} ({in_words(delivery.code)})"
    return f"waits until {view.time(delivery.due)}{' for the end of quiet hours' if view.wish.quiet_hours else ''}"


def reason(view: View, row: HistoryRow) -> str:
    """Why they did not get it, as far as it can be told by what is known of them now."""
    match row.status:
        case Status.RATE_LIMITED:
            return f"daily limit of {view.settings.daily_limit} reached"
        case Status.DUPLICATE:
            return f"the same about {row.subject} was sent within {_window(view, row.type)}"
        case Status.NO_ADDRESS:
            return _no_address(view, row)
    return _opted_out(view.wish, row)


def _window(view: View, type_name: str) -> str:
    declared = view.rules.types.get(type_name)
    own = declared.duplicate_hours if declared else None
    hours = f"{view.settings.duplicate_hours if own is None else own:g} h"
    # It may be a type of a direct send, or of the user's own rules, which may say otherwise.
    is_sure = declared is not None or view.app is not None
    return hours if is_sure else f"{hours}, or the hours that your own rules give {type_name} (--app)"


def _opted_out(wish: Preferences, row: HistoryRow) -> str:
    own = wish.types.get(row.type)
    if not wish.enabled and not row.is_critical:
        return "has turned all notifications off"
    if own is not None and not own.enabled:
        return f"has turned {row.type} off"
    if own is not None and own.channels is not None and not own.channels & set(row.channels):
        return f"wants {row.type} by {_listed(own.channels)}, and it comes by {_listed(row.channels)}"
    return f"had turned {row.type} off, and has it on again by now"


def _no_address(view: View, row: HistoryRow) -> str:
    own = view.wish.types.get(row.type)
    wanted = [one for one in row.channels if own is None or own.channels is None or one in own.channels]
    specs = [spec for spec in map(describe_channel, wanted) if spec.address is not Address.NONE]
    names = [_missing(view, spec) for spec in specs]
    since = "had" if any(_is_reachable(view, spec) for spec in specs) else "has"
    then = " then" if since == "had" else ""
    if len(names) < 2:
        return f"{since} no {''.join(names) or 'address'}{then}"
    return f"{since} neither {' nor '.join(names)}{then}"


def _missing(view: View, spec: ChannelSpec) -> str:
    return "device that can be pushed to" if spec.address is Address.DEVICES and view.devices else spec.address_name


def _is_reachable(view: View, spec: ChannelSpec) -> bool:
    if spec.address is Address.DEVICES:
        return any(one.status is DeviceStatus.ACTIVE and one.device.push_consent for one in view.devices)
    return address_of(view.member, spec) is not None
