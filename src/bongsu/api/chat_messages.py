"""Messages of chat rooms over HTTP, by seq. A server acts for a `senderId`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import TypeAdapter

from bongsu.api.auth import SERVER_OR_MEMBER_CALL, Authenticator
from bongsu.api.bodies import SMALL_BODY_LIMIT, described, read_as
from bongsu.api.chat_models import (
    EditedMessage,
    HistoryQuery,
    MessageList,
    OutgoingMessage,
    SentMessageItem,
    SeqInPath,
    message_item,
    sent_item,
)
from bongsu.api.path_ids import PathId
from bongsu.api.problems import ProblemError, problems
from bongsu.chat.history import History
from bongsu.chat.order import ChatOrder
from bongsu.chat.rooms import as_room_id
from bongsu.model import Id

OF_A_BODY = problems(400, 413, 415)
# A text of a megabyte, the most that BONGSU_CHAT_MAX_BYTES allows, in which every character is escaped.
SEND_BODY_LIMIT = 6 * 1_048_576 + SMALL_BODY_LIMIT

_outgoing = TypeAdapter(OutgoingMessage)
_edited = TypeAdapter(EditedMessage)

_MESSAGES = "/{room_id}/messages"
_A_MESSAGE = {"clientMessageId": "5f0c9a52-1c1d-4d3c-9a5e-0f8f6a4b2e11", "message": "See you at nine!"}


def add_message_routes(routes: APIRouter, auth: Authenticator, history: History, order: ChatOrder) -> None:
    _add_list(routes, auth, history)
    _add_send(routes, auth, order)
    _add_changes(routes, auth, order)


def _add_list(routes: APIRouter, auth: Authenticator, history: History) -> None:
    @routes.get(
        _MESSAGES, openapi_extra=SERVER_OR_MEMBER_CALL, responses=problems(404), summary="List messages of a chat room"
    )
    async def list_messages(
        room_id: PathId, query: Annotated[HistoryQuery, Query()], caller: str | None = Depends(auth.caller)
    ) -> MessageList:
        """In the order of the room, in both directions: after a seq, before one, or without either the newest."""
        room = as_room_id(room_id)
        if query.after_seq is not None:
            found = await history.after(caller, room, query.after_seq, query.limit)
        else:
            found = await history.before(caller, room, query.before_seq, query.limit)
        return MessageList(items=[message_item(message) for message in found])


def _add_send(routes: APIRouter, auth: Authenticator, order: ChatOrder) -> None:
    @routes.post(
        _MESSAGES,
        openapi_extra=described(OutgoingMessage, example=_A_MESSAGE) | SERVER_OR_MEMBER_CALL,
        responses=OF_A_BODY,
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
        return sent_item(sent)


def _add_changes(routes: APIRouter, auth: Authenticator, order: ChatOrder) -> None:
    path = _MESSAGES + "/{seq}"

    @routes.patch(
        path,
        openapi_extra=described(EditedMessage, example={"message": "See you at ten!"}) | SERVER_OR_MEMBER_CALL,
        responses=OF_A_BODY | problems(404, 409),
        summary="Edit a message of a chat room",
    )
    async def edit_message(
        room_id: PathId, seq: SeqInPath, request: Request, caller: str | None = Depends(auth.caller)
    ) -> SentMessageItem:
        """By its sender, who is in the room. A deleted message cannot be edited."""
        given = await read_as(request, _edited, limit=SEND_BODY_LIMIT)
        sender_id = _sender(caller, given.sender_id)
        return sent_item(await order.edit(as_room_id(room_id), sender_id, seq, given.message))

    @routes.delete(
        path,
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
        """By its sender, who is in the room. The text is deleted, the seq stays. Succeeds also if it was deleted before."""
        await order.delete(as_room_id(room_id), _sender(caller, sender_id), seq)
        return Response(status_code=204)


def _sender(caller: str | None, given: str | None) -> str:
    """A member is the sender; a server names one."""
    if caller is not None:
        if given is not None:
            raise ProblemError(403, "Only server calls name a senderId: leave it out, the sender is you")
        return caller
    if given is None:
        raise ProblemError(422, "A server call names the senderId of a member of the room")
    return given
