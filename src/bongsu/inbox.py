"""The inbox: what a member sees of their notifications, and marks as read."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from bongsu.http.auth import Gate
from bongsu.http.problems import PROBLEMS, ProblemError
from bongsu.store import Store
from bongsu.store import inbox as statements
from bongsu.store.inbox import LARGEST_ID, InboxRow

# Told whose unread count has become what, after the commit. A hint: of two at once, the later may bring the older count.
OnRead = Callable[[str, int], Awaitable[None]]

# Read at once, under one hold of the member's row: well under a second, so that neither a fan-out to the same member nor
# SQLite's other writers wait long, and no statement comes near its time limit however much is unread.
READ_ALL_CHUNK = 10_000

_ID = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


def as_id(given: str) -> int | None:
    """The id that a text is, or None if it can be no notification's."""
    number = int(given) if _ID.fullmatch(given) else 0
    return number if 0 < number <= LARGEST_ID else None


def _cursor(given: str) -> int:
    number = as_id(given)
    if number is None:
        raise PydanticCustomError("cursor", "is no cursor: send what `next` said, or leave it out to begin with the newest")
    return number


# Not every word that pydantic takes for a boolean, but also the name alone; and True, as Python would write it.
_YES_OR_NO = {"": True, "true": True, "1": True, "false": False, "0": False}


def _yes_or_no(given: str) -> bool:
    answer = _YES_OR_NO.get(given.lower())
    if answer is None:
        raise PydanticCustomError("yes_or_no", "send `unread` or `unread=true` for the unread alone, `unread=false` for all")
    return answer


class PageQuery(BaseModel):
    """Which part of the inbox is asked for. An unknown name is refused: a misspelt cursor would begin anew for ever."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unread: Annotated[bool, BeforeValidator(_yes_or_no, json_schema_input_type=str)] = Field(
        False, description="Only what is unread"
    )
    limit: int = Field(20, ge=1, le=100, description="How many at most")
    cursor: Annotated[int, BeforeValidator(_cursor, json_schema_input_type=str)] = Field(
        LARGEST_ID, description="What `next` of the page before said"
    )


class Inbox:
    """What a member can ask of their inbox and do with it."""

    def __init__(self, store: Store, on_read: OnRead | None = None) -> None:
        self._store = store
        self._on_read = on_read

    async def page(self, member_id: str, query: PageQuery) -> dict[str, Any]:
        """Newest first. What arrives meanwhile stands above, so that going on from `next` repeats and skips nothing."""
        async with self._store.read() as connection:
            # One more than asked for, to know whether there is a next page.
            rows, unread = await statements.find_page(connection, member_id, query.cursor, query.limit + 1, query.unread)
        shown = rows[: query.limit]
        more = str(shown[-1].notification_id) if len(rows) > len(shown) else None
        return {"items": [_item(row) for row in shown], "next": more, "unread": unread}

    async def unread_count(self, member_id: str) -> dict[str, Any]:
        async with self._store.read() as connection:
            return {"unread": await statements.count_unread(connection, member_id)}

    async def read(self, member_id: str, notification_id: int) -> dict[str, Any] | None:
        """Read one; None when it is not the member's. A look comes first: reading again need not wait for a lock."""
        async with self._store.read() as connection:
            reading = await statements.find_reading(connection, member_id, notification_id)
        if reading is not None and reading.read_at is None:
            async with self._store.write() as tx:
                changed = await statements.read_between(tx, member_id, notification_id - 1, notification_id)
                reading = await statements.find_reading(tx, member_id, notification_id)
            await self._tell(member_id, changed)
        if reading is None or reading.read_at is None:
            return None
        return {"id": str(notification_id), "readAt": reading.read_at.isoformat(), "unread": reading.unread}

    async def read_all(self, member_id: str) -> dict[str, Any]:
        """Read what was there when the call came, and nothing that arrives after. Breaking off leaves the rest unread."""
        async with self._store.read() as connection:
            newest = await statements.find_newest_unread(connection, member_id)
            unread = await statements.count_unread(connection, member_id)
        read = end = 0
        while newest is not None and end < newest:
            async with self._store.write() as tx:
                begin, end = end, await statements.find_end(tx, member_id, end, newest, READ_ALL_CHUNK)
                changed = await statements.read_between(tx, member_id, begin, end)
            await self._tell(member_id, changed)
            read, unread = read + changed.read, changed.unread
        return {"read": read, "unread": unread}

    async def _tell(self, member_id: str, changed: statements.Changed) -> None:
        if self._on_read is not None and changed.read:
            await self._on_read(member_id, changed.unread)


def _item(row: InboxRow) -> dict[str, Any]:
    return {
        "id": str(row.notification_id),
        "type": row.type,
        "title": row.title,
        "message": row.body,
        "refId": row.ref_id,
        "data": row.data,
        "createdAt": row.created_at.isoformat(),
        "readAt": row.read_at and row.read_at.isoformat(),
    }


def router(gate: Gate, store: Store, on_read: OnRead | None = None) -> APIRouter:
    routes = APIRouter(tags=["inbox"], responses=PROBLEMS)
    inbox = Inbox(store, on_read)

    @routes.get("/api/notifications", summary="Your notifications, newest first")
    async def page(query: Annotated[PageQuery, Query()], member_id: str = Depends(gate.member)) -> Response:
        return JSONResponse(await inbox.page(member_id, query))

    @routes.get("/api/notifications/unread-count", summary="How many are unread")
    async def unread_count(member_id: str = Depends(gate.member)) -> Response:
        return JSONResponse(await inbox.unread_count(member_id))

    @routes.post("/api/notifications/{notification_id}/read", summary="Mark one as read")
    async def read(notification_id: str, member_id: str = Depends(gate.member)) -> Response:
        known = as_id(notification_id)
        answer = None if known is None else await inbox.read(member_id, known)
        if answer is None:
            raise ProblemError(404, "You have no such notification: GET /api/notifications lists the ids of yours")
        return JSONResponse(answer)

    @routes.post("/api/notifications/read-all", summary="Mark all as read")
    async def read_all(member_id: str = Depends(gate.member)) -> Response:
        return JSONResponse(await inbox.read_all(member_id))

    return routes
