"""Chat over HTTP: rooms and who is in them. Members and servers call. Messages are in chat_messages.py."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import TypeAdapter

from bongsu.api.auth import SERVER_OR_MEMBER_CALL, Authenticator
from bongsu.api.bodies import described, read_as
from bongsu.api.chat_messages import OF_A_BODY, add_message_routes
from bongsu.api.chat_models import (
    MemberCursor,
    MemberOfRoomItem,
    MembersQuery,
    NewRoom,
    ReadMarkItem,
    ReadUpTo,
    RoomItem,
    RoomList,
    RoomOfMemberItem,
)
from bongsu.api.models import Page
from bongsu.api.paging import encode_cursor
from bongsu.api.path_ids import PathId
from bongsu.api.problems import problems
from bongsu.chat.history import History
from bongsu.chat.order import ChatOrder
from bongsu.chat.rooms import Rooms, as_room_id
from bongsu.live.presence import Presence

_new_room = TypeAdapter(NewRoom)
_read_up_to = TypeAdapter(ReadUpTo)

_MEMBERS = "/{room_id}/members"
_A_ROOM = {"name": "Weekend trip", "memberIds": ["min-ji", "joon"]}


def router(auth: Authenticator, rooms: Rooms, history: History, order: ChatOrder, presence: Presence) -> APIRouter:
    routes = APIRouter(prefix="/api/chat/rooms", tags=["chat"], responses=problems(401, 403, 422, 429, 503))
    _add_room_routes(routes, auth, rooms)
    _add_member_list(routes, auth, rooms, presence)
    _add_member_routes(routes, auth, rooms)
    _add_own_routes(routes, auth, rooms)
    add_message_routes(routes, auth, history, order)
    return routes


def _add_room_routes(routes: APIRouter, auth: Authenticator, rooms: Rooms) -> None:
    @routes.post(
        "",
        status_code=201,
        openapi_extra=described(NewRoom, example=_A_ROOM) | SERVER_OR_MEMBER_CALL,
        responses=OF_A_BODY | problems(409),
        summary="Create a chat room",
    )
    async def create_room(request: Request, caller: str | None = Depends(auth.caller)) -> RoomItem:
        """A member who creates a room is in it. More members than one call takes are added one by one."""
        given = await read_as(request, _new_room)
        room = await rooms.create(caller, given.name, given.member_ids)
        return RoomItem(room_id=str(room.room_id), name=room.name, member_ids=list(room.member_ids))

    @routes.get("", summary="List your chat rooms")
    async def list_rooms(member_id: str = Depends(auth.member)) -> RoomList:
        """All of them, those with the newest message first, with how many messages are unread in each."""
        return RoomList(
            items=[
                RoomOfMemberItem(
                    room_id=str(room.room_id),
                    name=room.name,
                    first_seq=room.first_seq,
                    last_seq=room.last_seq,
                    read_seq=room.read_seq,
                    unread=room.unread,
                    muted=room.is_muted,
                    last_sent_at=room.last_sent_at,
                )
                for room in await rooms.of_member(member_id)
            ]
        )


def _add_member_list(routes: APIRouter, auth: Authenticator, rooms: Rooms, presence: Presence) -> None:
    @routes.get(
        _MEMBERS, openapi_extra=SERVER_OR_MEMBER_CALL, responses=problems(404), summary="List the members of a chat room"
    )
    async def list_members(
        room_id: PathId, query: Annotated[MembersQuery, Query()], caller: str | None = Depends(auth.caller)
    ) -> Page[MemberOfRoomItem]:
        """By id, with how far each has read, and whether they are online."""
        after = "" if query.cursor is None else query.cursor.member_id
        found = await rooms.members(caller, as_room_id(room_id), after, query.limit + 1)
        shown = found[: query.limit]
        online = await presence.online([member.member_id for member in shown])
        items = [
            MemberOfRoomItem(
                member_id=member.member_id,
                joined_at=member.joined_at,
                read_seq=member.read_seq,
                online=None if online is None else member.member_id in online,
            )
            for member in shown
        ]
        more = encode_cursor(MemberCursor(shown[-1].member_id)) if len(found) > len(shown) else None
        return Page(items=items, next=more)


def _add_member_routes(routes: APIRouter, auth: Authenticator, rooms: Rooms) -> None:
    path = _MEMBERS + "/{member_id}"

    @routes.post(
        path,
        status_code=204,
        openapi_extra=SERVER_OR_MEMBER_CALL,
        responses=problems(404, 409),
        summary="Add a member to a chat room",
    )
    async def add_member(room_id: PathId, member_id: PathId, caller: str | None = Depends(auth.caller)) -> Response:
        """Servers and members of the room may add any member. A new member can read the whole history, and what was there
        before does not count as unread. Succeeds also if the member is in the room."""
        await rooms.add(caller, as_room_id(room_id), member_id)
        return Response(status_code=204)

    @routes.delete(
        path,
        status_code=204,
        openapi_extra=SERVER_OR_MEMBER_CALL,
        responses=problems(404),
        summary="Remove a member from a chat room",
    )
    async def remove_member(room_id: PathId, member_id: PathId, caller: str | None = Depends(auth.caller)) -> Response:
        """Servers may remove any member, members only themselves. For servers it succeeds also if the member is not in the
        room."""
        await rooms.remove(caller, as_room_id(room_id), member_id)
        return Response(status_code=204)


def _add_own_routes(routes: APIRouter, auth: Authenticator, rooms: Rooms) -> None:
    @routes.post(
        "/{room_id}/read",
        openapi_extra=described(ReadUpTo, example={"seq": 42}),
        responses=OF_A_BODY,
        summary="Mark messages of a chat room as read",
    )
    async def mark_read(room_id: PathId, request: Request, member_id: str = Depends(auth.member)) -> ReadMarkItem:
        """All up to this seq. The mark only moves forward: an earlier seq changes nothing."""
        given = await read_as(request, _read_up_to)
        mark = await rooms.mark_read(member_id, as_room_id(room_id), given.seq)
        return ReadMarkItem(read_seq=mark.read_seq, last_seq=mark.last_seq, unread=mark.unread)

    @routes.post("/{room_id}/mute", status_code=204, summary="Mute a chat room")
    async def mute(room_id: PathId, member_id: str = Depends(auth.member)) -> Response:
        """No push about this room any more. Its messages arrive and are counted as before."""
        await rooms.mute(member_id, as_room_id(room_id), True)
        return Response(status_code=204)

    @routes.post("/{room_id}/unmute", status_code=204, summary="Unmute a chat room")
    async def unmute(room_id: PathId, member_id: str = Depends(auth.member)) -> Response:
        """Push about this room again."""
        await rooms.mute(member_id, as_room_id(room_id), False)
        return Response(status_code=204)
