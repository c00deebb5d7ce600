"""Why a member got a notification or did not: everything known of the member, read at one moment, and reasons as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import TypeAdapter, ValidationError

from bongsu.decide.quiet_hours import Quiet, local_day, quiet_until
from bongsu.errors import BadCommand
from bongsu.model import DeviceStatus, Id, Member, Preferences
from bongsu.model.channels import Address, ChannelSpec, describe_channel
from bongsu.rules import Rules, catalogue
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.clock import find_now
from bongsu.store.desk import history
from bongsu.store.desk.cancellations import Cancellation, find_cancellation
from bongsu.store.desk.history import Filters, HistoryRow, Status
from bongsu.store.desk.unfinished import find_unfinished
from bongsu.store.members import address_of, find_member, find_preferences, minute_of_day
from bongsu.store.members.devices import DeviceRow, find_devices
from bongsu.store.outbox import EventRow, find

_member_id = TypeAdapter(Id)
_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True)
class View:
    """What is known of a member, and of an event if one was named."""

    settings: Settings
    now: datetime
    member_id: str
    member: Member
    preferences: Preferences
    devices: Sequence[DeviceRow]
    counted_today: int
    rows: Sequence[HistoryRow]
    event: EventRow | None = None
    cancellation: Cancellation | None = None
    # Whether the store knows the member. One whose first event waits or has failed is not known yet.
    is_known: bool = True
    # Events about the member that are not DONE and have led to none of the rows.
    unfinished: Sequence[EventRow] = ()
    # The rules of the user's own, if they were named.
    app: Rules | None = None

    @property
    def rules(self) -> Rules:
        return catalogue(self.settings, self.app)

    @property
    def zone(self) -> ZoneInfo:
        return _zone(self.settings, self.member)

    def is_quiet_before(self, moment: datetime) -> bool:
        """Whether it is quiet now, or quiet hours end at that moment. What waits may wait for the end of a digest too."""
        if (hours := self.preferences.quiet_hours) is None:
            return False
        quiet = Quiet(minute_of_day(hours.start), minute_of_day(hours.end))
        return any(quiet_until(at, self.zone, quiet) for at in (self.now, moment - _MOMENT))


async def find_view(
    store: Store, settings: Settings, member_id: str, event_id: UUID | None, limit: int, app: Rules | None = None
) -> View:
    try:
        _member_id.validate_python(member_id)
    except ValidationError:
        raise BadCommand("MEMBER must be a member's id: 1 to 255 characters, none of them a control character") from None
    async with store.read() as tx:
        # Due times are compared with it, and they are the store's.
        now = await find_now(tx)
        member = await find_member(tx, member_id)
        day, count = await history.find_daily_count(tx, member_id)
        rows, _ = await history.find_page(tx, Filters(member_id=member_id, event_id=event_id), limit=limit)
        event = None if event_id is None else await find(tx, event_id)
        if event_id is not None and event is None and not rows:
            raise BadCommand(f"There is no event {event_id}: it was never stored here, or has been deleted since")
        unfinished = [] if event_id is not None else await find_unfinished(tx, member_id, limit)
        if member is None and event is None and not unfinished:
            raise BadCommand(f"There is no member {member_id}, and no event that waits or has failed names that id")
        shown = {row.event_id for row in rows}
        return View(
            settings=settings,
            now=now,
            member_id=member_id,
            member=member or Member(),
            is_known=member is not None,
            preferences=await find_preferences(tx, member_id),
            devices=await find_devices(tx, member_id),
            counted_today=count if day >= local_day(now, _zone(settings, member or Member())) else 0,
            rows=rows,
            event=event,
            cancellation=None if event_id is None else await find_cancellation(tx, event_id),
            unfinished=[event for event in unfinished if event.event_id not in shown],
            app=app,
        )


def _zone(settings: Settings, member: Member) -> ZoneInfo:
    return ZoneInfo(member.timezone) if member.timezone else settings.zone


# --- why there is no notification -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DailyLimit:
    """The member had as many as the daily limit allows."""

    limit: int


@dataclass(frozen=True)
class Duplicate:
    """The same was sent within the dedup window. Not certain: rules that were not named may give the type other hours."""

    type: str
    subject: str
    hours: float
    is_certain: bool
    # Or the digest, which may be open for longer, has its actor.
    is_digest: bool = False


@dataclass(frozen=True)
class SameActor:
    """Its actor was in the digest already, and counts once."""


@dataclass(frozen=True)
class AllOff:
    """The member has turned all notifications off."""


@dataclass(frozen=True)
class TypeOff:
    """The member has turned the type off. Not any more: it is on again by now."""

    type: str
    is_still: bool


@dataclass(frozen=True)
class OtherChannels:
    """The member wants the type only by channels on which it is not sent."""

    type: str
    wanted: Sequence[str]
    offered: Sequence[str]


@dataclass(frozen=True)
class NoAddress:
    """The member had none of these addresses. Not any more: one of them is known by now."""

    missing: Sequence[str]
    is_still: bool


Reason = DailyLimit | Duplicate | SameActor | AllOff | TypeOff | OtherChannels | NoAddress


def reason_of(view: View, row: HistoryRow) -> Reason:
    """Why the notification was suppressed, by what is known of the member now."""
    match row.status:
        case Status.RATE_LIMITED:
            return DailyLimit(view.settings.daily_limit)
        case Status.DUPLICATE:
            return _duplicate(view, row)
        case Status.NO_ADDRESS:
            return _no_address(view, row)
    return _opted_out(view.preferences, row)


def _duplicate(view: View, row: HistoryRow) -> Duplicate | SameActor:
    declared = view.rules.types.get(row.type)
    # No other event is about this event. Of a type that is not known here, its digest is the likely cause.
    if row.subject == str(row.event_id) and (declared is None or declared.digest is not None):
        return SameActor()
    own = declared.duplicate_hours if declared else None
    hours = view.settings.duplicate_hours if own is None else own
    # It may be a type of a direct send, or of the user's own rules, which may give it other hours.
    is_digest = declared is not None and declared.digest is not None
    return Duplicate(row.type, row.subject, hours, declared is not None or view.app is not None, is_digest)


def _opted_out(preferences: Preferences, row: HistoryRow) -> Reason:
    own = preferences.types.get(row.type)
    if not preferences.enabled and not row.is_critical:
        return AllOff()
    if own is not None and own.enabled and own.channels is not None and not own.channels & set(row.channels):
        return OtherChannels(row.type, tuple(own.channels), row.channels)
    return TypeOff(row.type, is_still=own is not None and not own.enabled)


def _no_address(view: View, row: HistoryRow) -> NoAddress:
    own = view.preferences.types.get(row.type)
    wanted = [name for name in row.channels if own is None or own.channels is None or name in own.channels]
    specs = [spec for spec in map(describe_channel, wanted) if spec.address is not Address.NONE]
    names = tuple(_address_name(view, spec) for spec in specs)
    return NoAddress(names, is_still=not any(_is_reachable(view, spec) for spec in specs))


def _address_name(view: View, spec: ChannelSpec) -> str:
    return "device that can be pushed to" if spec.address is Address.DEVICES and view.devices else spec.address_name


def _is_reachable(view: View, spec: ChannelSpec) -> bool:
    if spec.address is Address.DEVICES:
        return any(row.status is DeviceStatus.ACTIVE and row.device.push_consent for row in view.devices)
    return address_of(view.member, spec) is not None
