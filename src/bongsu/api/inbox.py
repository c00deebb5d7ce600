"""The inbox: what a member sees of their notifications, and what they do with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Depends, Query
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from bongsu.api.auth import Authenticator
from bongsu.api.models import ApiModel, QueryModel, Timestamp
from bongsu.api.paging import CursorText, not_a_cursor
from bongsu.api.problems import ProblemError, problems
from bongsu.api.query import CURSOR
from bongsu.store import Store
from bongsu.store import inbox as statements
from bongsu.store.core.query import LARGEST_ID
from bongsu.store.inbox import Act, InboxRow, PageKind, Place, State

# Called with a member's id after the commit of a change that the member's open pages should show.
OnChange = Callable[[str], None]

# Marked in one transaction: well under a second, so that neither a fan-out to the same member nor SQLite's other writers
# wait long for its lock, and no statement comes near its time limit however many are unread.
MARK_CHUNK = 10_000

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


def _yes_or_no(name: str, given: str) -> bool:
    answer = _YES_OR_NO.get(given.lower())
    if answer is None:
        raise PydanticCustomError(
            "yes_or_no",
            "send `{name}` or `{name}=true` for the {name} alone, `{name}=false` for the inbox",
            {"name": name},
        )
    return answer


def _flag(name: str) -> BeforeValidator:
    return BeforeValidator(partial(_yes_or_no, name), json_schema_input_type=bool | Literal["", "1", "0"])


class PageQuery(QueryModel):
    """Which part of the inbox is asked for."""

    unread: Annotated[bool, _flag("unread")] = Field(False, description="Only the unread")
    archived: Annotated[bool, _flag("archived")] = Field(
        False, description="The archived, which are in no other list. They are read: not together with `unread`"
    )
    limit: int = Field(20, ge=1, le=100, description="How many at most")
    cursor: Annotated[int, BeforeValidator(_cursor, json_schema_input_type=CursorText)] | None = CURSOR

    @model_validator(mode="after")
    def _one_list(self) -> Self:
        if self.unread and self.archived:
            raise PydanticCustomError("two_lists", "what is archived is read: send `unread` or `archived`, not both")
        return self

    @property
    def kind(self) -> PageKind:
        if self.archived:
            return PageKind.ARCHIVE
        return PageKind.UNREAD if self.unread else PageKind.INBOX


class InboxItem(ApiModel):
    id: str
    type: str
    title: str
    message: str
    ref_id: str | None
    data: dict[str, Any]
    created_at: Timestamp
    read_at: Timestamp | None
    seen_at: Timestamp | None = Field(description="When it was first seen in the list")
    archived_at: Timestamp | None
    updated_at: Timestamp | None = Field(description="When its content last changed: it stands for several events then")


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

    def __init__(self, store: Store, on_change: OnChange | None = None) -> None:
        self._store = store
        self._on_change = on_change

    async def page(self, member_id: str, query: PageQuery) -> InboxPage:
        """Newest first. What arrives meanwhile is above the page, so going on from `next` repeats and skips nothing."""
        async with self._store.read() as tx:
            # One more than asked for, to know whether there is a next page.
            before = LARGEST_ID if query.cursor is None else query.cursor
            rows, unread = await statements.find_page(tx, member_id, before, query.limit + 1, query.kind)
        shown = rows[: query.limit]
        more = str(shown[-1].notification_id) if len(rows) > len(shown) else None
        return InboxPage(items=[_item(row) for row in shown], next=more, unread=unread)

    async def unread_count(self, member_id: str) -> UnreadCount:
        async with self._store.read() as tx:
            return UnreadCount(unread=await statements.count_unread(tx, member_id))

    async def act(self, member_id: str, notification_id: int, act: Act) -> State | None:
        """Do this to one notification; None when the member has no such notification, or not any more.

        Where there is nothing to change, it is answered without a lock.
        """
        async with self._store.read() as tx:
            state = await statements.find_state(tx, member_id, notification_id)
        if state is not None and statements.moved(act, state.position) not in (None, state.position):
            work = partial(statements.apply_act, member_id=member_id, notification_id=notification_id, act=act)
            state, is_changed = await self._store.run(work)
            if is_changed:
                self._report(member_id)
        if state is None or (state.position.place is Place.DELETED and act is not Act.DELETE):
            return None
        if statements.moved(act, state.position) is None:
            raise ProblemError(409, "What is archived stays read: POST /api/notifications/{id}/unarchive it first")
        return state

    async def read(self, member_id: str, notification_id: int) -> ReadNotification | None:
        """Mark one as read; None when the member has no such notification."""
        state = await self.act(member_id, notification_id, Act.READ)
        if state is None or state.read_at is None:
            return None
        return ReadNotification(id=str(notification_id), read_at=state.read_at, unread=state.unread)

    async def read_all(self, member_id: str) -> ReadAll:
        """Mark what was there when the call came, and nothing that arrives later. If it fails, the rest stays unread."""
        async with self._store.read() as tx:
            newest = await statements.find_newest_unread(tx, member_id)
            unread = await statements.count_unread(tx, member_id)
        read = end = 0
        try:
            while newest is not None and end < newest:
                work = partial(statements.mark_read, member_id=member_id, last=newest, limit=MARK_CHUNK)
                marked = await self._store.run(work)
                read, unread, end = read + marked.read, marked.unread, marked.end
        finally:
            # Once for all of them: open pages are sent one mark, not one for each chunk.
            if read:
                self._report(member_id)
        return ReadAll(read=read, unread=unread)

    async def seen(self, member_id: str) -> None:
        """Mark what was in the inbox when the call came as seen. Nothing new since the last call: one read, no lock."""
        async with self._store.read() as tx:
            newest = await statements.find_newest_unseen(tx, member_id)
        end = 0
        while newest is not None and end < newest:
            work = partial(statements.mark_seen, member_id=member_id, last=newest, limit=MARK_CHUNK)
            end = await self._store.run(work)
        if newest is not None:
            self._report(member_id)

    def _report(self, member_id: str) -> None:
        if self._on_change is not None:
            self._on_change(member_id)


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
        seen_at=row.seen_at,
        archived_at=row.archived_at,
        updated_at=row.updated_at,
    )


def _missing() -> ProblemError:
    return ProblemError(404, "You have no such notification: GET /api/notifications lists the ids of yours")


def router(auth: Authenticator, store: Store, on_change: OnChange | None = None) -> APIRouter:
    routes = APIRouter(tags=["inbox"], responses=problems(401, 403, 429, 503))
    inbox = Inbox(store, on_change)
    _add_list_routes(routes, auth, inbox)
    _add_routes_of_one(routes, auth, inbox)
    return routes


def _add_list_routes(routes: APIRouter, auth: Authenticator, inbox: Inbox) -> None:
    @routes.get("/api/notifications", responses=problems(422), summary="List your notifications")
    async def page(query: Annotated[PageQuery, Query()], member_id: str = Depends(auth.member)) -> InboxPage:
        """Newest first, with the number of unread ones. What arrives meanwhile is above the page: going on from `next`
        repeats and skips nothing."""
        return await inbox.page(member_id, query)

    @routes.get("/api/notifications/unread-count", summary="Count your unread notifications")
    async def unread_count(member_id: str = Depends(auth.member)) -> UnreadCount:
        """For a badge: cheaper than a page."""
        return await inbox.unread_count(member_id)

    @routes.post("/api/notifications/read-all", summary="Mark all notifications as read")
    async def read_all(member_id: str = Depends(auth.member)) -> ReadAll:
        """Those that were there when the call came, and none that arrive later."""
        return await inbox.read_all(member_id)

    @routes.post("/api/notifications/seen", status_code=204, summary="Mark all notifications as seen")
    async def seen(member_id: str = Depends(auth.member)) -> None:
        """Sets `seenAt` of those in the inbox that have none; they stay unread. For when the list is opened."""
        await inbox.seen(member_id)


def _add_routes_of_one(routes: APIRouter, auth: Authenticator, inbox: Inbox) -> None:
    of_one, answers = "/api/notifications/{notification_id}", problems(404, 422)

    async def act_on_one(member_id: str, given: str, act: Act) -> None:
        known = as_id(given)
        if known is None or await inbox.act(member_id, known, act) is None:
            raise _missing()

    @routes.post(f"{of_one}/read", responses=answers, summary="Mark a notification as read")
    async def read(notification_id: str, member_id: str = Depends(auth.member)) -> ReadNotification:
        """A repeated call answers the same `readAt`."""
        known = as_id(notification_id)
        answer = None if known is None else await inbox.read(member_id, known)
        if answer is None:
            raise _missing()
        return answer

    @routes.post(
        f"{of_one}/unread", status_code=204, responses=answers | problems(409), summary="Mark a notification as unread"
    )
    async def unread(notification_id: str, member_id: str = Depends(auth.member)) -> None:
        """409 for one that is archived: unarchive it first."""
        await act_on_one(member_id, notification_id, Act.UNREAD)

    @routes.post(f"{of_one}/archive", status_code=204, responses=answers, summary="Archive a notification")
    async def archive(notification_id: str, member_id: str = Depends(auth.member)) -> None:
        """It is marked as read, and leaves the inbox for the list of the archived (`?archived=true`)."""
        await act_on_one(member_id, notification_id, Act.ARCHIVE)

    @routes.post(f"{of_one}/unarchive", status_code=204, responses=answers, summary="Unarchive a notification")
    async def unarchive(notification_id: str, member_id: str = Depends(auth.member)) -> None:
        """It is in the inbox again, where it was; it stays read."""
        await act_on_one(member_id, notification_id, Act.UNARCHIVE)

    @routes.delete(of_one, status_code=204, responses=answers, summary="Delete a notification")
    async def delete(notification_id: str, member_id: str = Depends(auth.member)) -> None:
        """From the inbox or from the archive, for good. The operators' history keeps it."""
        await act_on_one(member_id, notification_id, Act.DELETE)
