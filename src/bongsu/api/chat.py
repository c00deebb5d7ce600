"""Chat over HTTP: rooms and who is in them, messages by seq. Members and servers call; a server acts for a `senderId`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from bongsu.api.auth import SERVER_OR_MEMBER_CALL, Authenticator
from bongsu.api.bodies import SMALL_BODY_LIMIT, described, read_as
from bongsu.api.models import ApiModel, Page, Timestamp
from bongsu.api.paging import cursor_of, encode_cursor
from bongsu.api.path_ids import PathId
from bongsu.api.problems import ProblemError, problems
from bongsu.api.query import CURSOR
from bongsu.chat.history import History
from bongsu.chat.order import ChatOrder
from bongsu.chat.rooms import MEMBERS_AT_ONCE, Rooms, as_room_id
from bongsu.live.presence import Presence
from bongsu.model import Id, Name, Wire
from bongsu.store.chat import ChatMessage
from bongsu.store.core.query import LARGEST_ID

_OF_A_BODY = problems(400, 413, 415)
# A text of a megabyte, the most that BONGSU_CHAT_MAX_BYTES allows, in which every character is escaped.
SEND_BODY_LIMIT = 6 * 1_048_576 + SMALL_BODY_LIMIT

# --- what is sent -----------------------------------------------------------------------------------------------------

Text = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00]+$")]
SeqInPath = Annotated[int, Path(ge=1, le=LARGEST_ID, description="The message's place in the room")]


class NewRoom(Wire):
    """A chat room to create."""

    name: Name
    member_ids: Annotated[list[Id], Field(max_length=MEMBERS_AT_ONCE)] = Field(default_factory=list)


class OutgoingMessage(Wire):
    """A message to send."""

    client_message_id: Name = Field(max_length=255, description="Your own id of the message: sent twice, it is stored once")
    message: Text = Field(description="At most BONGSU_CHAT_MAX_BYTES bytes of UTF-8")
    sender_id: Id | None = Field(None, description="Server calls only: the member who sends it")


class EditedMessage(Wire):
    """The new text of a message."""

    message: Text = Field(description="At most BONGSU_CHAT_MAX_BYTES bytes of UTF-8")
    sender_id: Id | None = Field(None, description="Server calls only: the member who sent it")


class ReadUpTo(Wire):
    """How far a member has read."""

    seq: Annotated[int, Field(ge=0, le=LARGEST_ID)] = Field(description="Beyond the last message, it means the last one")


class HistoryQuery(BaseModel):
    """Which part of the history is asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    after_seq: int | None = Field(None, ge=0, le=LARGEST_ID, description="The first messages after this one")
    before_seq: int | None = Field(None, ge=0, le=LARGEST_ID, description="The last messages before this one")
    limit: int = Field(50, ge=1, le=100, description="How many at most")

    @model_validator(mode="after")
    def _has_one_direction(self) -> Self:
        if self.after_seq is not None and self.before_seq is not None:
            raise PydanticCustomError("direction", "give afterSeq or beforeSeq, not both")
        return self


@dataclass(frozen=True)
class MemberCursor:
    """The last member of a page."""

    member_id: str


class MembersQuery(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: int = Field(50, ge=1, le=100, description="How many at most")
    cursor: Annotated[MemberCursor, cursor_of(MemberCursor)] | None = CURSOR


_new_room = TypeAdapter(NewRoom)
_outgoing = TypeAdapter(OutgoingMessage)
_edited = TypeAdapter(EditedMessage)
_read_up_to = TypeAdapter(ReadUpTo)

_A_ROOM = {"name": "Weekend trip", "memberIds": ["min-ji", "joon"]}
_A_MESSAGE = {"clientMessageId": "5f0c9a52-1c1d-4d3c-9a5e-0f8f6a4b2e11", "message": "See you at nine!"}

# --- what is answered -------------------------------------------------------------------------------------------------


class RoomItem(ApiModel):
    room_id: str
    name: str
    member_ids: list[str]


class RoomOfMemberItem(ApiModel):
    room_id: str
    name: str
    first_seq: int = Field(description="The oldest message that is kept")
    last_seq: int = Field(description="The newest message; 0 if there is none yet")
    read_seq: int = Field(description="Up to where you have read")
    unread: int = Field(description="Messages of others after that")
    muted: bool
    last_sent_at: Timestamp = Field(description="When the newest message was sent, or the room was created")


class RoomList(ApiModel):
    items: list[RoomOfMemberItem]


class MemberOfRoomItem(ApiModel):
    member_id: str
    joined_at: Timestamp
    read_seq: int
    online: bool | None = Field(description="Whether they have a stream or socket open; null if that is not known now")


class MessageItem(ApiModel):
    seq: int = Field(description="1, 2, 3, … without holes")
    sender_id: str | None = Field(description="null if the sender was erased")
    message: str | None = Field(description="null if it was deleted")
    client_message_id: str | None
    sent_at: Timestamp
    edited_at: Timestamp | None
    deleted_at: Timestamp | None


class SentMessageItem(MessageItem):
    room_id: str


class MessageList(ApiModel):
    items: list[MessageItem] = Field(description="Ascending")


class ReadMarkItem(ApiModel):
    read_seq: int
    last_seq: int
    unread: int


def _message_item(message: ChatMessage) -> MessageItem:
    return MessageItem(
        seq=message.seq,
        sender_id=message.sender_id,
        message=message.message,
        client_message_id=message.client_message_id,
        sent_at=message.sent_at,
        edited_at=message.edited_at,
        deleted_at=message.deleted_at,
    )


def _sent_item(message: ChatMessage) -> SentMessageItem:
    return SentMessageItem(room_id=str(message.room_id), **_message_item(message).model_dump())


def _sender(caller: str | None, given: str | None) -> str:
    """A member is the sender; a server names one."""
    if caller is not None:
        if given is not None:
            raise ProblemError(403, "Only server calls name a senderId: leave it out, the sender is you")
        return caller
    if given is None:
        raise ProblemError(422, "A server call names the senderId of a member of the room")
    return given


# --- routes -----------------------------------------------------------------------------------------------------------


def router(auth: Authenticator, rooms: Rooms, history: History, order: ChatOrder, presence: Presence) -> APIRouter:
    routes = APIRouter(prefix="/api/chat/rooms", tags=["chat"], responses=problems(401, 403, 422, 429, 503))
    _add_room_routes(routes, auth, rooms)
    _add_member_routes(routes, auth, rooms, presence)
    _add_own_routes(routes, auth, rooms)
    _add_message_routes(routes, auth, history, order)
    return routes


def _add_room_routes(routes: APIRouter, auth: Authenticator, rooms: Rooms) -> None:
    @routes.post(
        "",
        status_code=201,
        openapi_extra=described(NewRoom, example=_A_ROOM) | SERVER_OR_MEMBER_CALL,
        responses=_OF_A_BODY | problems(409),
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


def _add_member_routes(routes: APIRouter, auth: Authenticator, rooms: Rooms, presence: Presence) -> None:
    path = "/{room_id}/members"

    @routes.get(
        path, openapi_extra=SERVER_OR_MEMBER_CALL, responses=problems(404), summary="List the members of a chat room"
    )
    async def list_members(
        room_id: PathId, query: Annotated[MembersQuery, Query()], caller: str | None = Depends(auth.caller)
    ) -> Page[MemberOfRoomItem]:
        """By id, with how far each has read, and whether they are online."""
        after = "" if query.cursor is None else query.cursor.member_id
        found = await rooms.members(caller, as_room_id(room_id), after, query.limit + 1)
        shown = found[: query.limit]
        online = await presence.online([one.member_id for one in shown])
        items = [
            MemberOfRoomItem(
                member_id=one.member_id,
                joined_at=one.joined_at,
                read_seq=one.read_seq,
                online=None if online is None else one.member_id in online,
            )
            for one in shown
        ]
        more = encode_cursor(MemberCursor(shown[-1].member_id)) if len(found) > len(shown) else None
        return Page(items=items, next=more)

    @routes.post(
        path + "/{member_id}",
        status_code=204,
        openapi_extra=SERVER_OR_MEMBER_CALL,
        responses=problems(404, 409),
        summary="Add a member to a chat room",
    )
    async def add_member(room_id: PathId, member_id: PathId, caller: str | None = Depends(auth.caller)) -> Response:
        """Servers and members of the room add anybody. A new member can read the whole history, and what was there before
        does not count as unread. Succeeds also if the member is in the room."""
        await rooms.add(caller, as_room_id(room_id), member_id)
        return Response(status_code=204)

    @routes.delete(
        path + "/{member_id}",
        status_code=204,
        openapi_extra=SERVER_OR_MEMBER_CALL,
        responses=problems(404),
        summary="Remove a member from a chat room",
    )
    async def remove_member(room_id: PathId, member_id: PathId, caller: str | None = Depends(auth.caller)) -> Response:
        """Servers remove anybody, members themselves. For servers it succeeds also if the member is not in the room."""
        await rooms.remove(caller, as_room_id(room_id), member_id)
        return Response(status_code=204)


def _add_own_routes(routes: APIRouter, auth: Authenticator, rooms: Rooms) -> None:
    @routes.post(
        "/{room_id}/read",
        openapi_extra=described(ReadUpTo, example={"seq": 42}),
        responses=_OF_A_BODY,
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


def _add_message_routes(routes: APIRouter, auth: Authenticator, history: History, order: ChatOrder) -> None:
    path = "/{room_id}/messages"

    @routes.get(path, openapi_extra=SERVER_OR_MEMBER_CALL, responses=problems(404), summary="List messages of a chat room")
    async def list_messages(
        room_id: PathId, query: Annotated[HistoryQuery, Query()], caller: str | None = Depends(auth.caller)
    ) -> MessageList:
        """In the order of the room, in both directions: after a seq, before one, or without either the newest."""
        room = as_room_id(room_id)
        if query.after_seq is not None:
            found = await history.after(caller, room, query.after_seq, query.limit)
        else:
            found = await history.before(caller, room, query.before_seq, query.limit)
        return MessageList(items=[_message_item(message) for message in found])

    @routes.post(
        path,
        openapi_extra=described(OutgoingMessage, example=_A_MESSAGE) | SERVER_OR_MEMBER_CALL,
        responses=_OF_A_BODY,
        summary="Send a message to a chat room",
    )
    async def send_message(room_id: PathId, request: Request, caller: str | None = Depends(auth.caller)) -> SentMessageItem:
        """Answers when it is stored and has its place in the room's order. The same clientMessageId of the same sender gives
        the same answer, whatever its text, so repeat a call whose answer got lost."""
        given = await read_as(request, _outgoing, limit=SEND_BODY_LIMIT)
        sender_id = _sender(caller, given.sender_id)
        sent = await order.send(
            as_room_id(room_id), sender_id, given.client_message_id, given.message, is_limited=caller is not None
        )
        return _sent_item(sent)

    @routes.patch(
        path + "/{seq}",
        openapi_extra=described(EditedMessage, example={"message": "See you at ten!"}) | SERVER_OR_MEMBER_CALL,
        responses=_OF_A_BODY | problems(404, 409),
        summary="Edit a message of a chat room",
    )
    async def edit_message(
        room_id: PathId, seq: SeqInPath, request: Request, caller: str | None = Depends(auth.caller)
    ) -> SentMessageItem:
        """By its sender, who is in the room. A deleted message cannot be edited."""
        given = await read_as(request, _edited, limit=SEND_BODY_LIMIT)
        sender_id = _sender(caller, given.sender_id)
        return _sent_item(await order.edit(as_room_id(room_id), sender_id, seq, given.message))

    @routes.delete(
        path + "/{seq}",
        status_code=204,
        openapi_extra=SERVER_OR_MEMBER_CALL,
        responses=problems(404),
        summary="Delete a message of a chat room",
    )
    async def delete_message(
        room_id: PathId,
        seq: SeqInPath,
        sender_id: Annotated[
            Id | None, Query(alias="senderId", description="Server calls only: the member who sent it")
        ] = None,
        caller: str | None = Depends(auth.caller),
    ) -> Response:
        """By its sender, who is in the room. The text is gone, the seq stays. Succeeds also if it was deleted before."""
        await order.delete(as_room_id(room_id), _sender(caller, sender_id), seq)
        return Response(status_code=204)
