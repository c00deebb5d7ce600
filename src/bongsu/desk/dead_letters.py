"""Dead letters: list them by filters, show one, replay those that match.

A replay is a run of the job `replay`. It goes in batches, newest first, and visits each dead letter once: one that fails
again meanwhile is not replayed a second time. The run says who requested it, with which filter, and how many were replayed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, NamedTuple, Protocol, Self
from uuid import UUID

from pydantic import BeforeValidator, Field, PlainSerializer, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from bongsu.chat.fanout import Fanout
from bongsu.clock.run import Run
from bongsu.clock.runs import Runs
from bongsu.desk.lists import ListFilter
from bongsu.errors import NoSuchDeadLetter, ReplayWithoutFilter
from bongsu.model import Id, Member, Name, new_id
from bongsu.model.channels import ChannelName
from bongsu.model.job import Job
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import DELIVERIES_TOPIC, EVENTS_TOPIC
from bongsu.store import Store
from bongsu.store.chat.dead_letters import CHAT_MESSAGE_SENT
from bongsu.store.chat.dead_letters import replay as replay_chat
from bongsu.store.desk import dead_letters as statements
from bongsu.store.desk.dead_letters import DeadPage, DeadRow, Filters, Kind, PageCursor, State
from bongsu.store.desk.delivery_history import Attempt, find_attempts
from bongsu.store.desk.history import LARGEST_ID
from bongsu.store.members import find_member
from bongsu.store.members.devices import DeviceRow, find_devices
from bongsu.store.messages.content import MessageContent, find_content

# Rows that one transaction replays.
BATCH = 1_000
# A replay of more is bulk.
FEW = 100
# Millions of dead letters take minutes; a replay that takes a day is stuck.
REPLAY_AT_MOST = timedelta(days=1)

Progress = Callable[[int], None]


# --- what is asked for ------------------------------------------------------------------------------------------------


def _dead_id(given: object) -> int | UUID:
    """A delivery's number or an event's UUID, which also says which kind it is."""
    text = given if isinstance(given, str) else ""
    if re.fullmatch(r"[0-9]{1,19}", text) and int(text) <= LARGEST_ID:
        return int(text)
    try:
        return UUID(text)
    except ValueError:
        raise PydanticCustomError("id", "must be a delivery's number or an event's UUID") from None


# For the API's document. Numbers of 19 digits fit in part.
_Number = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,18}$")]
# As text in a replay's input too, which is read again by a process that continues the replay.
DeadId = Annotated[
    int | UUID, BeforeValidator(_dead_id, json_schema_input_type=_Number | UUID), PlainSerializer(str, when_used="json")
]


class DeadFilter(ListFilter):
    """What the dead letters have in common; `from` and `to` are about the time of death."""

    id: DeadId | None = None
    kind: Kind | None = None
    state: State | None = Field(None, description="FAILED and UNHANDLED of events, FAIL and UNKNOWN of deliveries")
    code: Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00]+$")] | None = None
    channel: ChannelName | None = None
    type: Name | None = Field(None, description="The notification's type, or the event's")
    user_id: Id | None = None
    event_id: UUID | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not self.filters.kinds:
            raise PydanticCustomError(
                "kinds",
                "nothing fits: an event is FAILED or UNHANDLED and has no channel or userId, a delivery is FAIL or UNKNOWN",
            )
        return self

    @property
    def filters(self) -> Filters:
        return Filters(
            id=self.id,
            kind=self.kind,
            state=self.state,
            code=self.code,
            channel=self.channel,
            type=self.type,
            member_id=self.user_id,
            event_id=self.event_id,
            since=self.since,
            until=self.until,
        )

    @property
    def is_empty(self) -> bool:
        return self.filters == Filters()

    @property
    def as_json(self) -> dict[str, Any]:
        """As it is stored with the replay."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, include=set(DeadFilter.model_fields))


# --- where dead letters are -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeadLetter:
    """Everything known about one dead letter. An event has no content, attempts, member and device."""

    row: DeadRow
    content: MessageContent | None = None
    attempts: Sequence[Attempt] = ()
    # As they are known now.
    member: Member | None = None
    device: DeviceRow | None = None


class Replayed(NamedTuple):
    matched: int
    replayed: int


class DeadLetterSource(Protocol):
    """A system that holds dead letters."""

    async def list(self, asked: DeadFilter, after: PageCursor | None, limit: int) -> DeadPage:
        """One bounded search: it may find fewer than `limit`, or none, and have a next page."""

    async def show(self, dead_id: int | UUID) -> DeadLetter:
        """Raises NoSuchDeadLetter."""

    async def count(self, asked: DeadFilter) -> int:
        """How many a replay would match now."""

    async def replay(
        self, asked: DeadFilter, requested_by: str, *, new_collapse_id: bool = False, progress: Progress | None = None
    ) -> Replayed:
        """Raises ReplayWithoutFilter. `progress` is called after each batch with how many matched so far."""


class StoreDeadLetters:
    """The dead letters of the store: failed and unhandled events, failed and unknown deliveries."""

    def __init__(self, store: Store, signals: Signals, lease_seconds: float = 60.0, batch: int = BATCH) -> None:
        """`lease_seconds`: after so long without a sign of this process, a clock goes on with its replays."""
        self._store = store
        self._runs = Runs(store, lease_seconds)
        self._job = replay_job(signals, batch)

    async def list(self, asked: DeadFilter, after: PageCursor | None, limit: int) -> DeadPage:
        async with self._store.read() as tx:
            return await statements.find_page(tx, asked.filters, after, limit)

    async def show(self, dead_id: int | UUID) -> DeadLetter:
        async with self._store.read() as tx:
            rows, _ = await statements.find_page(tx, Filters(id=dead_id), limit=1)
            if not rows:
                raise NoSuchDeadLetter(f"There is no dead letter {dead_id}")
            row = rows[0]
            if row.message_id is None or row.member_id is None:
                return DeadLetter(row)
            contents = await find_content(tx, [row.message_id])
            attempts = await find_attempts(tx, [int(row.id)])
            member = await find_member(tx, row.member_id)
            devices = {device.device_id: device for device in await find_devices(tx, row.member_id)}
        return DeadLetter(
            row, contents.get(row.message_id), attempts.get(int(row.id), ()), member, devices.get(row.device_id or "")
        )

    async def count(self, asked: DeadFilter) -> int:
        return await count_dead(self._store, _filters_of_replay(asked))

    async def replay(
        self, asked: DeadFilter, requested_by: str, *, new_collapse_id: bool = False, progress: Progress | None = None
    ) -> Replayed:
        ended = await self._runs.run_by_hand(
            self._job,
            requested_by,
            input=_describe_replay(asked, new_collapse_id=new_collapse_id),
            # Any number of replays may be under way at once.
            subject=str(new_id()),
            on_step=None if progress is None else lambda run: progress(run.done),
        )
        if ended.raised is not None:
            raise ended.raised
        return Replayed(ended.run.counts.get("matched", 0), ended.run.counts.get("replayed", 0))


async def count_dead(store: Store, filters: Filters) -> int:
    """How many match. Each part is a read of its own, so that a long search keeps no connection."""
    total, after = 0, None
    while True:
        async with store.read() as tx:
            matched, after = await statements.count_page(tx, filters, after)
        total += matched
        if after is None:
            return total


# --- replaying --------------------------------------------------------------------------------------------------------


def replay_job(signals: Signals, batch: int = BATCH) -> Job:
    """For those who request replays, and for clocks, which go on with those of dead processes."""
    return Job(
        "replay",
        "Makes the dead letters that match a filter due again.",
        partial(_replay, signals, batch),
        at_most_for=REPLAY_AT_MOST,
    )


def _describe_replay(asked: DeadFilter, *, new_collapse_id: bool) -> dict[str, Any]:
    """The input of the run."""
    names = {Kind.EVENT: "events", Kind.DELIVERY: "deliveries"}
    kinds = [names[kind] for kind in _filters_of_replay(asked).kinds]
    return {"filter": asked.as_json, "kinds": kinds, "newCollapseId": new_collapse_id}


def _filters_of_replay(asked: DeadFilter) -> Filters:
    """Raises ReplayWithoutFilter. Cancelled events are replayed only by a filter that names them."""
    if asked.is_empty:
        raise ReplayWithoutFilter
    is_named = asked.event_id is not None or asked.id is not None
    return replace(asked.filters, with_cancelled=is_named)


async def _replay(signals: Signals, batch: int, run: Run) -> str:
    """Workers are woken after each batch."""
    filters = _filters_of_replay(DeadFilter.model_validate(run.input["filter"]))
    while (after := _read_cursor(run.cursor)) is not None:
        async with run.step() as step:
            rows, end = await statements.find_page(step, filters, after, batch)
            # Many at once go behind everything else that is to be sent, unless they are critical.
            is_bulk = run.counts["matched"] + len(rows) > FEW
            chat, others = _split(rows)
            messages = await replay_chat(step, [row.event_id for row in chat])
            replayed = await statements.replay(step, others, new_series=run.input["newCollapseId"], is_bulk=is_bulk)
            counts = {"matched": len(rows), "replayed": messages.stored + replayed}
            step.save(cursor=_END if end is None else _write_cursor(end), counts=counts, done=len(rows))
        _wake(signals, {row.kind for row in others})
        for room_id in {message.room_id for message in messages.new}:
            Fanout(signals).changed(room_id)
    return f"{run.counts['matched']} matched, {run.counts['replayed']} replayed"


def _split(rows: Sequence[DeadRow]) -> tuple[list[DeadRow], list[DeadRow]]:
    """Chat messages that could not be stored, which a replay stores itself; and all others."""
    parts: tuple[list[DeadRow], list[DeadRow]] = ([], [])
    for row in rows:
        is_chat = row.kind is Kind.EVENT and row.state is State.FAILED and row.type == CHAT_MESSAGE_SENT
        parts[not is_chat].append(row)
    return parts


# The cursor of a replay that has seen all.
_END = "end"


def _write_cursor(after: PageCursor) -> dict[str, Any]:
    return {
        "kind": after.kind.value,
        "diedAt": after.died_at.isoformat(),
        "eventId": str(after.event_id),
        "deliveryId": after.delivery_id,
    }


def _read_cursor(saved: Any) -> PageCursor | None:
    if saved is None:
        return PageCursor()
    if saved == _END:
        return None
    died_at = datetime.fromisoformat(saved["diedAt"])
    return PageCursor(Kind(saved["kind"]), died_at, UUID(saved["eventId"]), saved["deliveryId"])


def _wake(signals: Signals, kinds: set[Kind]) -> None:
    for kind, topic in ((Kind.EVENT, EVENTS_TOPIC), (Kind.DELIVERY, DELIVERIES_TOPIC)):
        if kind in kinds:
            signals.send(topic)
