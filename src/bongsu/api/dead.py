"""Dead letters: list them by filters and replay those that match.

A replay goes in batches, newest first, and visits each dead letter once: one that fails again meanwhile is not replayed a
second time. Its audit row is written before it begins and updated in the transaction of every batch.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from bongsu.api.auth import Gate, key_ending
from bongsu.api.bodies import described, read_as
from bongsu.api.history import Moment, refuse_repeats
from bongsu.api.paging import is_id, no_cursor, unwrap, wrap
from bongsu.api.problems import PROBLEMS
from bongsu.errors import ReplayWithoutFilter
from bongsu.model import Id, Name
from bongsu.model.channels import ChannelName
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import DELIVERIES_TOPIC, EVENTS_TOPIC
from bongsu.store import Store, Transaction
from bongsu.store.desk import dead_letters as statements
from bongsu.store.desk.dead_letters import DeadPage, DeadRow, Filters, Kind, PageCursor, State
from bongsu.store.desk.history import LARGEST_ID

# Rows that one transaction replays.
BATCH = 1_000
# A replay of more is bulk.
FEW = 100


# --- requests ---------------------------------------------------------------------------------------------------------


def _dead_id(given: object) -> int | UUID:
    """A delivery's number or an event's UUID, which also says which kind it is."""
    text = str(given)
    if re.fullmatch(r"[0-9]{1,19}", text) and int(text) <= LARGEST_ID:
        return int(text)
    try:
        return UUID(text)
    except ValueError:
        raise PydanticCustomError("id", "must be a delivery's number or an event's UUID") from None


def _storable(code: str) -> str:
    if "\x00" in code:
        raise PydanticCustomError("code", "must not hold a NUL character")
    return code


class DeadFilter(BaseModel):
    """What the dead letters have in common. An unknown name is refused: a misspelt filter would match everything."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    id: Annotated[int | UUID, BeforeValidator(_dead_id, json_schema_input_type=str)] | None = None
    kind: Kind | None = None
    state: State | None = Field(None, description="FAILED and UNHANDLED of events, FAIL and UNKNOWN of deliveries")
    code: Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_storable)] | None = None
    channel: ChannelName | None = None
    type: Name | None = Field(None, description="The notification's type, or the event's")
    user_id: Id | None = None
    event_id: UUID | None = None
    since: Moment | None = Field(None, alias="from", description="Died at this moment or later")
    until: Moment | None = Field(None, alias="to", description="Died before this moment")

    @model_validator(mode="after")
    def _possible(self) -> DeadFilter:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise PydanticCustomError("order", "`from` must lie before `to`")
        if not self.filters.kinds:
            raise PydanticCustomError(
                "kinds",
                "nothing fits: an event is FAILED or UNHANDLED and has no channel or userId, a delivery is FAIL or UNKNOWN",
            )
        return self

    @property
    def filters(self) -> Filters:
        return Filters(
            self.id, self.kind, self.state, self.code, self.channel, self.type, self.user_id, self.event_id, self.since,
            self.until,
        )  # fmt: skip

    @property
    def is_empty(self) -> bool:
        return self.filters == Filters()

    @property
    def text(self) -> str:
        """As it is stored with the replay."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


def _bare(cursor: str) -> PageCursor:
    match unwrap(cursor):
        case ["d", delivery_id] if is_id(delivery_id):
            return PageCursor(Kind.DELIVERY, delivery_id=delivery_id)
        case ["e", str(died_at), str(event_id)]:
            with contextlib.suppress(ValueError, OverflowError):
                moment = datetime.fromisoformat(died_at)
                if moment.tzinfo is not None and moment.astimezone(UTC).year >= 1970:
                    return PageCursor(Kind.EVENT, moment, UUID(event_id))
    raise no_cursor()


def wrapped(place: PageCursor) -> str:
    """A place as a cursor."""
    if place.kind is Kind.EVENT:
        return wrap("e", place.died_at.isoformat(), str(place.event_id))
    return wrap("d", place.delivery_id)


class DeadQuery(DeadFilter):
    limit: int = Field(50, ge=1, le=200, description="How many at most")
    cursor: Annotated[PageCursor, BeforeValidator(_bare, json_schema_input_type=str)] | None = Field(
        None, description="What `next` of the page before said"
    )


class ReplayRequest(BaseModel):
    """Which dead letters to replay, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    filter: DeadFilter | None = Field(None, description="At least one of its names must be given")
    dry_run: bool = Field(False, description="Count them and change nothing")
    new_collapse_id: bool = Field(False, description="Show it beside what may have arrived already, not in its place")


_request: TypeAdapter[ReplayRequest] = TypeAdapter(ReplayRequest)


# --- replaying --------------------------------------------------------------------------------------------------------


class Replay:
    """One replay of the dead letters that match a filter."""

    def __init__(
        self, store: Store, signals: Signals, who: str, asked: DeadFilter, *, new_series: bool = False, batch: int = BATCH
    ) -> None:
        if asked.is_empty:
            raise ReplayWithoutFilter("A replay needs a filter")
        self._store = store
        self._signals = signals
        self._who = who
        self._asked = asked
        # Cancelled events are replayed only by a filter that names them.
        is_named = asked.filters.event_id is not None or asked.filters.id is not None
        self._filters = replace(asked.filters, with_cancelled=is_named)
        self._new_series = new_series
        self._batch = batch

    async def count(self) -> int:
        """How many it would be now."""
        return await count_dead(self._store, self._filters)

    async def run(self, progress: Callable[[int], None] = lambda _done: None) -> tuple[int, int]:
        """How many matched, and how many were replayed. Workers are woken after each batch."""
        audit = await self._store.run(lambda tx: statements.begin_audit(tx, self._who, self._what(), self._asked.text))
        matched = replayed = 0
        place: PageCursor | None = PageCursor()
        while place is not None:
            rows, place, again = await self._store.run(partial(self._replay_batch, audit, place, matched))
            matched, replayed = matched + len(rows), replayed + again
            self._wake({row.kind for row in rows})
            progress(len(rows))
        return matched, replayed

    async def _replay_batch(
        self, audit: int, place: PageCursor, before: int, tx: Transaction
    ) -> tuple[Sequence[DeadRow], PageCursor | None, int]:
        """Those that match behind a place, where to go on, and how many were replayed; `before` have matched so far."""
        rows, behind = await statements.find_page(tx, self._filters, place, self._batch)
        # Many at once go behind everything else that is to be sent, unless they are critical.
        is_bulk = before + len(rows) > FEW
        again = await statements.replay(tx, rows, new_series=self._new_series, is_bulk=is_bulk)
        await statements.continue_audit(tx, audit, len(rows), again)
        return rows, behind, again

    def _what(self) -> str:
        names = {Kind.EVENT: "events", Kind.DELIVERY: "deliveries"}
        kinds = " and ".join(names[kind] for kind in self._asked.filters.kinds)
        return f"{kinds}, with new collapse ids" if self._new_series else kinds

    def _wake(self, kinds: set[Kind]) -> None:
        for kind, topic in ((Kind.EVENT, EVENTS_TOPIC), (Kind.DELIVERY, DELIVERIES_TOPIC)):
            if kind in kinds:
                self._signals.send(topic)


async def count_dead(store: Store, filters: Filters) -> int:
    """How many match. Each part is a read of its own, so that a long search keeps no connection."""
    total, place = 0, None
    while True:
        async with store.read() as tx:
            matched, place = await statements.count_page(tx, filters, place)
        total += matched
        if place is None:
            return total


async def find_dead(store: Store, query: DeadQuery) -> DeadPage:
    """A page that is full, unless no more match. Where few match, that takes several bounded searches."""
    rows: list[DeadRow] = []
    place, is_last = query.cursor, False
    while len(rows) < query.limit and not is_last:
        async with store.read() as tx:
            page = await statements.find_page(tx, query.filters, place, query.limit - len(rows))
        rows += page.rows
        place, is_last = page.next, page.next is None
    return DeadPage(rows, place)


# --- responses --------------------------------------------------------------------------------------------------------


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class DeadItem(_Wire):
    kind: Kind
    id: str = Field(description="A delivery's number or an event's UUID")
    state: State
    code: str | None = Field(description="Of an event, the kind of error")
    error: str | None
    type: str
    event_id: UUID
    member_id: str | None
    channel: str | None
    device_id: str | None
    notification_id: str | None
    title: str | None
    tries: int
    rounds: int = Field(description="How often the recovery job has retried it")
    retryable: bool = Field(description="Whether the recovery job may retry it again")
    created_at: datetime
    finished_at: datetime


class DeadList(_Wire):
    items: list[DeadItem] = Field(description="May be fewer than `limit`, or none, although there is a next page")
    next: str | None = Field(description="The cursor of the next page, if there is one")


class Replayed(_Wire):
    matched: int
    replayed: int


def router(gate: Gate, store: Store, signals: Signals) -> APIRouter:
    routes = APIRouter(prefix="/api/admin", tags=["operations"], dependencies=[Depends(gate.server)], responses=PROBLEMS)

    @routes.get("/dead", response_model=DeadList, summary="List dead letters: events, then deliveries, newest first")
    async def find(query: Annotated[DeadQuery, Query()], request: Request) -> Response:
        refuse_repeats(request)
        async with store.read() as tx:
            page = await statements.find_page(tx, query.filters, query.cursor, query.limit)
        more = None if page.next is None else wrapped(page.next)
        return JSONResponse({"items": [_item(row) for row in page.rows], "next": more})

    @routes.post(
        "/dead/replay",
        response_model=Replayed,
        openapi_extra=described(ReplayRequest),
        summary="Replay dead letters",
    )
    async def replay(request: Request) -> Response:
        asked = await read_as(request, _request)
        replay = Replay(store, signals, key_ending(request), asked.filter or DeadFilter(), new_series=asked.new_collapse_id)
        matched, replayed = (await replay.count(), 0) if asked.dry_run else await replay.run()
        return JSONResponse({"matched": matched, "replayed": replayed})

    return routes


def _item(row: DeadRow) -> dict[str, Any]:
    return {
        "kind": row.kind.value,
        "id": row.id,
        "state": row.state.value,
        "code": row.code,
        "error": row.error,
        "type": row.type,
        "eventId": str(row.event_id),
        "memberId": row.member_id,
        "channel": row.channel,
        "deviceId": row.device_id,
        "notificationId": None if row.notification_id is None else str(row.notification_id),
        "title": row.title,
        "tries": row.attempts,
        "rounds": row.rounds,
        "retryable": row.is_retryable,
        "createdAt": row.created_at.isoformat(),
        "finishedAt": row.died_at.isoformat(),
    }
