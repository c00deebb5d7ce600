"""The inbox: what a member sees of their notifications, and marks as read."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from bongsu.api.auth import Gate
from bongsu.api.models import ApiModel, Timestamp
from bongsu.api.paging import CursorText, not_a_cursor
from bongsu.api.problems import ProblemError, problems
from bongsu.api.query import CURSOR
from bongsu.store import Store, Transaction
from bongsu.store import inbox as statements
from bongsu.store.core.query import LARGEST_ID
from bongsu.store.inbox import InboxRow, MarkedRead, ReadState

# Called after the commit with a member's id and new unread count. Of two calls at once, the later may have the older count.
OnRead = Callable[[str, int], Awaitable[None]]

# Marked in one transaction: well under a second, so that neither a fan-out to the same member nor SQLite's other writers
# wait long for its lock, and no statement comes near its time limit however many are unread.
READ_ALL_CHUNK = 10_000

_ID = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


def as_id(given: str) -> int | None:
    """The id a text denotes, or None if no notification can have it."""
    number = int(given) if _ID.fullmatch(given) else 0
    return number if 0 < number <= LARGEST_ID else None


def _cursor(given: str) -> int:
    number = as_id(given)
    if number is None:
        raise not_a_cursor()
    return number


# Fewer spellings than pydantic takes for a boolean, but also the name alone; and True, as Python would write it.
_YES_OR_NO = {"": True, "true": True, "1": True, "false": False, "0": False}


def _yes_or_no(given: str) -> bool:
    answer = _YES_OR_NO.get(given.lower())
    if answer is None:
        raise PydanticCustomError("yes_or_no", "send `unread` or `unread=true` for the unread alone, `unread=false` for all")
    return answer


class PageQuery(BaseModel):
    """Which part of the inbox is asked for. An unknown name is refused: without its cursor every page is the first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unread: Annotated[bool, BeforeValidator(_yes_or_no, json_schema_input_type=bool | Literal["", "1", "0"])] = Field(
        False, description="Only the unread"
    )
    limit: int = Field(20, ge=1, le=100, description="How many at most")
    cursor: Annotated[int, BeforeValidator(_cursor, json_schema_input_type=CursorText)] | None = CURSOR


class InboxItem(ApiModel):
    id: str
    type: str
    title: str
    message: str
    ref_id: str | None
    data: dict[str, Any]
    created_at: Timestamp
    read_at: Timestamp | None


class InboxPage(ApiModel):
    items: list[InboxItem]
    next: str | None = Field(description="The cursor of the next page, if there is one")
    unread: int = Field(description="How many are unread in all")


class UnreadCount(ApiModel):
    unread: int


class ReadNotification(ApiModel):
    id: str
    read_at: Timestamp
    unread: int = Field(description="How many are unread now")


class ReadAll(ApiModel):
    read: int = Field(description="How many this call has marked")
    unread: int = Field(description="How many are unread now: those that arrived meanwhile")


class Inbox:
    """The calls a member can make on their inbox."""

    def __init__(self, store: Store, on_read: OnRead | None = None) -> None:
        self._store = store
        self._on_read = on_read

    async def page(self, member_id: str, query: PageQuery) -> InboxPage:
        """Newest first. What arrives meanwhile is above the page, so going on from `next` repeats and skips nothing."""
        async with self._store.read() as tx:
            # One more than asked for, to know whether there is a next page.
            before = LARGEST_ID if query.cursor is None else query.cursor
            rows, unread = await statements.find_page(tx, member_id, before, query.limit + 1, query.unread)
        shown = rows[: query.limit]
        more = str(shown[-1].notification_id) if len(rows) > len(shown) else None
        return InboxPage(items=[_item(row) for row in shown], next=more, unread=unread)

    async def unread_count(self, member_id: str) -> UnreadCount:
        async with self._store.read() as tx:
            return UnreadCount(unread=await statements.count_unread(tx, member_id))

    async def read(self, member_id: str, notification_id: int) -> ReadNotification | None:
        """Mark one as read; None when the member has no such notification. Already read: answered without a lock."""
        async with self._store.read() as tx:
            state = await statements.find_read_state(tx, member_id, notification_id)
        if state is not None and state.read_at is None:
            marked, state = await self._store.run(partial(_mark_one, member_id, notification_id))
            await self._report(member_id, marked)
        if state is None or state.read_at is None:
            return None
        return ReadNotification(id=str(notification_id), read_at=state.read_at, unread=state.unread)

    async def read_all(self, member_id: str) -> ReadAll:
        """Mark what was there when the call came, and nothing that arrives later. If it fails, the rest stays unread."""
        async with self._store.read() as tx:
            newest = await statements.find_newest_unread(tx, member_id)
            unread = await statements.count_unread(tx, member_id)
        read = end = 0
        while newest is not None and end < newest:
            marked, end = await self._store.run(partial(_mark_chunk, member_id, end, newest))
            await self._report(member_id, marked)
            read, unread = read + marked.read, marked.unread
        return ReadAll(read=read, unread=unread)

    async def _report(self, member_id: str, marked: MarkedRead) -> None:
        if self._on_read is not None and marked.read:
            await self._on_read(member_id, marked.unread)


async def _mark_one(member_id: str, notification_id: int, tx: Transaction) -> tuple[MarkedRead, ReadState | None]:
    marked = await statements.mark_read(tx, member_id, notification_id - 1, notification_id)
    return marked, await statements.find_read_state(tx, member_id, notification_id)


async def _mark_chunk(member_id: str, begin: int, newest: int, tx: Transaction) -> tuple[MarkedRead, int]:
    """Also the id up to which it marked."""
    end = await statements.find_end(tx, member_id, begin, newest, READ_ALL_CHUNK)
    return await statements.mark_read(tx, member_id, begin, end), end


def _item(row: InboxRow) -> InboxItem:
    return InboxItem(
        id=str(row.notification_id),
        type=row.type,
        title=row.title,
        message=row.body,
        ref_id=row.ref_id,
        data=row.data,
        created_at=row.created_at,
        read_at=row.read_at,
    )


def router(gate: Gate, store: Store, on_read: OnRead | None = None) -> APIRouter:
    routes = APIRouter(tags=["inbox"], responses=problems(401, 403, 429, 503))
    inbox = Inbox(store, on_read)

    @routes.get("/api/notifications", responses=problems(422), summary="List your notifications")
    async def page(query: Annotated[PageQuery, Query()], member_id: str = Depends(gate.member)) -> InboxPage:
        """Newest first, with the number of unread ones. What arrives meanwhile is above the page: going on from `next`
        repeats and skips nothing."""
        return await inbox.page(member_id, query)

    @routes.get("/api/notifications/unread-count", summary="Count your unread notifications")
    async def unread_count(member_id: str = Depends(gate.member)) -> UnreadCount:
        """For a badge: cheaper than a page."""
        return await inbox.unread_count(member_id)

    @routes.post(
        "/api/notifications/{notification_id}/read", responses=problems(404, 422), summary="Mark a notification as read"
    )
    async def read(notification_id: str, member_id: str = Depends(gate.member)) -> ReadNotification:
        """A repeated call answers the same `readAt`."""
        known = as_id(notification_id)
        answer = None if known is None else await inbox.read(member_id, known)
        if answer is None:
            raise ProblemError(404, "You have no such notification: GET /api/notifications lists the ids of yours")
        return answer

    @routes.post("/api/notifications/read-all", summary="Mark all notifications as read")
    async def read_all(member_id: str = Depends(gate.member)) -> ReadAll:
        """Those that were there when the call came, and none that arrive later."""
        return await inbox.read_all(member_id)

    return routes
