"""WebSocket `/api/chat/ws`: who may open one, the frames that clients send, chat, and the inbox if they ask for it.

The member token comes in a header, in the session cookie, or in a frame `{"op": "auth", "token": …}`. A client that asks for
`notifications` gets what SSE streams get, from the cursor `after` on. A later `auth` is for another token before the first
expires, or for another cursor or `notifications`. It goes on from where the socket is, or from the start for another member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import orjson
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from bongsu.api.auth import Authenticator, has_key, is_by_cookie
from bongsu.api.chat_ops import ChatOps, ChatSocket, Refused
from bongsu.api.problems import problem, problem_of
from bongsu.api.security_headers import with_security_headers
from bongsu.api.ws_protocol import TRANSPORT
from bongsu.errors import BadKey, BongsuError, WrongKind
from bongsu.live.connection import LAST_FRAME_SECONDS, Connection
from bongsu.live.encode import retry_milliseconds
from bongsu.live.gateway import Gateway
from bongsu.live.member_state import Stream
from bongsu.live.serving import Reader, read_cursor
from bongsu.live.wire_ws import WS, frame

PATH = "/api/chat/ws"
# A client that has not authenticated within this time is closed. It only has to send one frame.
AUTH_SECONDS = 5.0
# Frames that cannot be understood, and others that are refused, that a client may send before it is closed: more than a
# mistake explains, or a burst.
MISTAKE_LIMIT = 40
REFUSAL_LIMIT = 2_000
# Not the client's fault.
FAULTLESS = "UNAVAILABLE"
MISTAKES = frozenset({"BAD_FRAME", "UNKNOWN_OP", "UNSUPPORTED", "UNAUTHORIZED"})


Frame = Mapping[str, Any]
# What members send about chat, by `op`.
CHAT_OPS = frozenset({"send", "read", "typing", "resume"})


class Sockets:
    def __init__(self, gateway: Gateway, auth: Authenticator, chat: ChatOps | None) -> None:
        self._gateway = gateway
        self._auth = auth
        self._chat = chat

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One WebSocket, from its handshake to its end."""
        await receive()  # websocket.connect
        request = HTTPConnection(scope)
        transport = scope.get("extensions", {}).get(TRANSPORT)
        if scope["path"] != PATH or transport is None:
            await _refuse(send, problem(404, f"There is no WebSocket at {scope['path']} here"))
            return
        reader = None
        if has_key(request):
            try:
                reader = await self._from_head(request)
            except BongsuError as error:
                await _refuse(send, problem_of(error))
                return
        await send({"type": "websocket.accept"})
        socket = Socket(self._gateway.connection(WS, cast(asyncio.Transport, transport), send), receive, self._chat)
        if reader is None:
            reader = await self._first_auth(socket, request)
        while reader is not None:
            cursor = await self._gateway.serve(reader, socket.connection, socket.until_closed)
            reader = await self._next_auth(socket, replace(reader, after=cursor))
            # The registry may process the end of the last entry after the beginning of this one.
            self._gateway.give_new_id(socket.connection)
        await socket.until_ended()

    async def _from_head(self, request: HTTPConnection) -> Reader:
        member_id, expires_at = await self._auth.member_until(request)
        return Reader(member_id, expires_at, is_by_cookie(request), *_subscription(request))

    async def _first_auth(self, socket: Socket, request: HTTPConnection) -> Reader | None:
        """The member whose token the first frame has. None if it does not come in time, or is refused: the socket is
        closed."""
        try:
            async with asyncio.timeout(AUTH_SECONDS):
                while socket.auth is None and (given := await socket.next_frame()) is not None:
                    if given["op"] == "auth":
                        socket.take_auth(given)
                    else:
                        socket.answer_error("UNAUTHORIZED", "Send `auth` with a member token first")
        except TimeoutError:
            socket.refuse("UNAUTHORIZED", f"No `auth` came within {AUTH_SECONDS:g} seconds")
            return None
        return await self._next_auth(socket, _subscription(request))

    async def _next_auth(self, socket: Socket, before: Reader | Subscription) -> Reader | None:
        """The member of the frame `auth` that the socket has stopped for; None if it has ended, or ends now. What
        the frame leaves out is as before: as the query has it, or as it was for the same member."""
        given, socket.auth = socket.auth, None
        if given is None or socket.connection.is_ended:
            return None
        try:
            member_id, expires_at = await self._auth.member_of_token(given["token"])
        except (BadKey, WrongKind) as error:
            socket.refuse("UNAUTHORIZED", str(error))
        except BongsuError as error:
            # The member calls too often, or the key server is away: another token would not help.
            socket.answer_error("UNAVAILABLE", str(type(error)()))
            socket.connection.end("unavailable", retry_milliseconds())
        else:
            after = None if isinstance(before, Reader) and before.member_id != member_id else before.after
            after = read_cursor(given["after"]) if "after" in given else after
            return Reader(member_id, expires_at, False, after, given.get("notifications", before.with_notifications))
        return None


class Socket:
    """An accepted WebSocket: its frames in, as JSON objects, and answers to those that are not."""

    __slots__ = ("_chat", "_is_closed", "_receive", "_weight", "auth", "connection")

    def __init__(self, connection: Connection, receive: Receive, chat: ChatOps | None) -> None:
        self.connection = connection
        self._receive = receive
        self._chat = chat
        self._weight = 0.0
        # Its end was received. It comes once: a second receive would wait for ever.
        self._is_closed = False
        # The last frame `auth`, until it is looked at.
        self.auth: Frame | None = None

    async def until_closed(self, stream: Stream) -> None:
        """Do what the member's frames ask for, until the socket has ended or an `auth` came."""
        chat = ChatSocket(self._chat, stream, self.answer_refusal) if self._chat is not None else None
        while self.auth is None and (given := await self.next_frame()) is not None:
            if self.connection.is_ended:
                # What comes behind our last frame cannot be answered.
                return
            if given["op"] == "auth":
                self.take_auth(given)
                continue
            try:
                await self._do(chat, given)
            except Refused as refused:
                self.answer_refusal(refused)

    async def _do(self, chat: ChatSocket | None, given: Frame) -> None:
        if given["op"] not in CHAT_OPS:
            raise Refused("UNKNOWN_OP", f"There is no op `{given['op'][:100]}`")
        if chat is None:
            raise Refused("UNSUPPORTED", f"There is no chat here: `{given['op']}` does nothing")
        await chat.do(given)

    async def until_ended(self) -> None:
        """Read on until the other end knows that it is closed."""
        while await self.next_frame() is not None:
            pass

    async def next_frame(self) -> Frame | None:
        """The next frame that is a JSON object with an `op`; None when the socket has ended. Others are answered."""
        while not self._is_closed:
            message = await self._receive()
            if message["type"] != "websocket.receive":
                self._is_closed = True
                break
            try:
                return _read(message)
            except Refused as bad:
                self.answer_error(bad.code, bad.detail)
        return None

    def take_auth(self, given: Frame) -> None:
        if isinstance(given.get("token"), str) and isinstance(given.get("notifications", False), bool):
            self.auth = given
        else:
            self.answer_error("BAD_FRAME", "`auth` takes `token`, and may have `notifications` and `after`")

    def refuse(self, code: str, detail: str) -> None:
        self.answer_error(code, detail)
        self.connection.finish("unauthenticated", LAST_FRAME_SECONDS)

    def answer_error(self, code: str, detail: str) -> None:
        self.answer_refusal(Refused(code, detail))

    def answer_refusal(self, refused: Refused) -> None:
        """Answer with an error. A client that sends invalid frames is closed after some dozens of them; one that is refused
        what it may not do now, after many more."""
        if refused.code != FAULTLESS:
            self._weight += 1 if refused.code in MISTAKES else MISTAKE_LIMIT / REFUSAL_LIMIT
        self.connection.write(frame("error", code=refused.code, detail=refused.detail, **refused.about))
        if self._weight >= MISTAKE_LIMIT:
            self.connection.finish("flood", LAST_FRAME_SECONDS)


def _read(message: Message) -> Frame:
    try:
        given = orjson.loads(message.get("text") or b"")
    except orjson.JSONDecodeError:
        raise Refused("BAD_FRAME", "A frame is a text with a JSON object in it") from None
    if not isinstance(given, dict) or not isinstance(given.get("op"), str):
        raise Refused("BAD_FRAME", "A frame is a JSON object with an `op`")
    return given


class Subscription(NamedTuple):
    """The cursor, and whether notifications are asked for."""

    after: int | None
    with_notifications: bool


def _subscription(request: HTTPConnection) -> Subscription:
    """From the query."""
    query = request.query_params
    return Subscription(read_cursor(query.get("after")), query.get("notifications") in ("true", "1"))


async def _refuse(send: Send, answer: Any) -> None:
    headers = with_security_headers(answer.raw_headers)
    await send({"type": "websocket.http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": bytes(answer.body)})
