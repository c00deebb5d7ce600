"""Dead letters: list them by filters, show one, replay those that match.

A replay goes in batches, newest first, and visits each dead letter once: one that fails again meanwhile is not replayed a
second time. Its audit row is written before it begins and updated in the transaction of every batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, NamedTuple, Protocol, Self
from uuid import UUID

from pydantic import BeforeValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from bongsu.desk.lists import ListFilter
from bongsu.errors import NoSuchDeadLetter, ReplayWithoutFilter
from bongsu.model import Id, Member, Name
from bongsu.model.channels import ChannelName
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import DELIVERIES_TOPIC, EVENTS_TOPIC
from bongsu.store import Store, Transaction
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
DeadId = Annotated[int | UUID, BeforeValidator(_dead_id, json_schema_input_type=_Number | UUID)]


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
    def text(self) -> str:
        """As it is stored with the replay."""
        return self.model_dump_json(by_alias=True, exclude_none=True, include=set(DeadFilter.model_fields))


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
        """Raises ReplayWithoutFilter. `progress` is called after each batch with the number it matched."""


class StoreDeadLetters:
    """The dead letters of the store: failed and unhandled events, failed and unknown deliveries."""

    def __init__(self, store: Store, signals: Signals) -> None:
        self._store = store
        self._signals = signals

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
        return await Replay(self._store, self._signals, "", asked).count()

    async def replay(
        self, asked: DeadFilter, requested_by: str, *, new_collapse_id: bool = False, progress: Progress | None = None
    ) -> Replayed:
        replay = Replay(self._store, self._signals, requested_by, asked, new_collapse_id=new_collapse_id)
        return await replay.run(progress or (lambda _matched: None))


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


class _Batch(NamedTuple):
    """What matched, how many of it were replayed, and where the next batch begins."""

    rows: Sequence[DeadRow]
    replayed: int
    next: PageCursor | None


class Replay:
    """One replay of the dead letters that match a filter."""

    def __init__(
        self,
        store: Store,
        signals: Signals,
        requested_by: str,
        asked: DeadFilter,
        *,
        new_collapse_id: bool = False,
        batch: int = BATCH,
    ) -> None:
        if asked.is_empty:
            raise ReplayWithoutFilter
        self._store = store
        self._signals = signals
        self._requested_by = requested_by
        self._asked = asked
        # Cancelled events are replayed only by a filter that names them.
        is_named = asked.event_id is not None or asked.id is not None
        self._filters = replace(asked.filters, with_cancelled=is_named)
        self._new_collapse_id = new_collapse_id
        self._batch = batch

    async def count(self) -> int:
        """How many it would be now."""
        return await count_dead(self._store, self._filters)

    async def run(self, progress: Progress = lambda _matched: None) -> Replayed:
        """How many matched, and how many were replayed. Workers are woken after each batch."""
        audit = await self._store.run(
            lambda tx: statements.begin_audit(tx, self._requested_by, self._description(), self._asked.text)
        )
        matched = replayed = 0
        after: PageCursor | None = PageCursor()
        while after is not None:
            batch = await self._store.run(partial(self._replay_batch, audit, after, matched))
            matched, replayed, after = matched + len(batch.rows), replayed + batch.replayed, batch.next
            self._wake({row.kind for row in batch.rows})
            progress(len(batch.rows))
        return Replayed(matched, replayed)

    async def _replay_batch(self, audit: int, after: PageCursor, matched_before: int, tx: Transaction) -> _Batch:
        rows, end = await statements.find_page(tx, self._filters, after, self._batch)
        # Many at once go behind everything else that is to be sent, unless they are critical.
        is_bulk = matched_before + len(rows) > FEW
        replayed = await statements.replay(tx, rows, new_series=self._new_collapse_id, is_bulk=is_bulk)
        await statements.continue_audit(tx, audit, len(rows), replayed)
        return _Batch(rows, replayed, end)

    def _description(self) -> str:
        names = {Kind.EVENT: "events", Kind.DELIVERY: "deliveries"}
        kinds = " and ".join(names[kind] for kind in self._filters.kinds)
        return f"{kinds}, with new collapse ids" if self._new_collapse_id else kinds

    def _wake(self, kinds: set[Kind]) -> None:
        for kind, topic in ((Kind.EVENT, EVENTS_TOPIC), (Kind.DELIVERY, DELIVERIES_TOPIC)):
            if kind in kinds:
                self._signals.send(topic)
