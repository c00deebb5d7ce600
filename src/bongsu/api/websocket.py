"""WebSocket `/api/chat/ws`: who may open one, the frames that clients send, and the inbox on it if they ask for that.

The member token comes in a header, in the session cookie, or in the first frame `{"op": "auth", "token": …}`. A client that
asks for `notifications` gets what SSE streams get, from the cursor `after` on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import orjson
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from bongsu.api.auth import Gate, has_key, is_by_cookie
from bongsu.api.problems import problem, problem_of
from bongsu.api.security_headers import with_security_headers
from bongsu.api.ws_protocol import TRANSPORT
from bongsu.errors import BadKey, BongsuError, WrongKind
from bongsu.live.connection import LAST_FRAME_SECONDS, Connection
from bongsu.live.gateway import Gateway
from bongsu.live.serving import Reader, read_cursor
from bongsu.live.wire_ws import WS, frame

PATH = "/api/chat/ws"
# A client that has not authenticated within this time is closed. It only has to send one frame.
AUTH_SECONDS = 5.0
# Errors that a client is told of before it is closed: more than a mistake explains.
ERROR_LIMIT = 40


class BadFrame(Exception):
    """A frame that is answered with an error, by code and detail."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


Frame = Mapping[str, Any]
# What to do with a frame of the member.
Op = Callable[["Socket", Frame], Awaitable[None]]


async def _unsupported(_socket: Socket, given: Frame) -> None:
    raise BadFrame("UNSUPPORTED", f"There is no chat here: `{given['op']}` does nothing")


async def _again(_socket: Socket, _given: Frame) -> None:
    raise BadFrame("BAD_FRAME", "You are authenticated already")


# What members may send, by `op`.
OPS: dict[str, Op] = {
    "auth": _again,
    "send": _unsupported,
    "read": _unsupported,
    "typing": _unsupported,
    "resume": _unsupported,
}


class Sockets:
    def __init__(self, gateway: Gateway, gate: Gate) -> None:
        self._gateway = gateway
        self._gate = gate

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
        socket = Socket(self._gateway.connection(WS, cast(asyncio.Transport, transport), send), receive)
        reader = reader or await self._from_frame(socket, request)
        if reader is None:
            socket.connection.finish("unauthenticated", LAST_FRAME_SECONDS)
            await socket.until_closed()
        else:
            await self._gateway.serve(reader, socket.connection, socket.until_closed)

    async def _from_head(self, request: HTTPConnection) -> Reader:
        member_id, expires_at = await self._gate.member_until(request)
        return Reader(member_id, expires_at, is_by_cookie(request), *_wishes(request))

    async def _from_frame(self, socket: Socket, request: HTTPConnection) -> Reader | None:
        """Who the first frame says the member is. None if it is not a valid token, or does not come in time."""
        try:
            async with asyncio.timeout(AUTH_SECONDS):
                while (given := await socket.next_frame()) is not None:
                    if given["op"] != "auth":
                        socket.answer_error("UNAUTHORIZED", "Send `auth` with a member token first")
                    elif (wishes := _wishes_in(given, request)) is None or not isinstance(given.get("token"), str):
                        socket.answer_error("BAD_FRAME", "`auth` takes `token`, and may have `notifications` and `after`")
                    else:
                        member_id, expires_at = await self._gate.member_of_token(given["token"])
                        return Reader(member_id, expires_at, False, *wishes)
        except TimeoutError:
            socket.answer_error("UNAUTHORIZED", f"No `auth` came within {AUTH_SECONDS:g} seconds")
        except (BadKey, WrongKind) as error:
            socket.answer_error("UNAUTHORIZED", str(error))
        except BongsuError as error:
            # Calls too often, or the key server is away.
            socket.answer_error("UNAVAILABLE", str(type(error)()))
        return None


class Socket:
    """An accepted WebSocket: its frames in, as JSON objects, and answers to those that are not."""

    __slots__ = ("_errors", "_receive", "connection")

    def __init__(self, connection: Connection, receive: Receive) -> None:
        self.connection = connection
        self._receive = receive
        self._errors = 0

    async def until_closed(self) -> None:
        """Do what the member's frames ask for, until the socket has ended."""
        while (given := await self.next_frame()) is not None:
            try:
                op = OPS.get(given["op"])
                if op is None:
                    raise BadFrame("UNKNOWN_OP", f"There is no op `{given['op'][:100]}`")
                await op(self, given)
            except BadFrame as bad:
                self.answer_error(bad.code, bad.detail)

    async def next_frame(self) -> Frame | None:
        """The next frame that is a JSON object with an `op`; None when the socket has ended. Others are answered."""
        while (message := await self._receive())["type"] == "websocket.receive":
            try:
                return _read(message)
            except BadFrame as bad:
                self.answer_error(bad.code, bad.detail)
        return None

    def answer_error(self, code: str, detail: str) -> None:
        self._errors += 1
        self.connection.write(frame("error", code=code, detail=detail))
        if self._errors >= ERROR_LIMIT:
            self.connection.finish("flood", LAST_FRAME_SECONDS)


def _read(message: Message) -> Frame:
    try:
        given = orjson.loads(message.get("text") or b"")
    except orjson.JSONDecodeError:
        raise BadFrame("BAD_FRAME", "A frame is a text with a JSON object in it") from None
    if not isinstance(given, dict) or not isinstance(given.get("op"), str):
        raise BadFrame("BAD_FRAME", "A frame is a JSON object with an `op`")
    return given


def _wishes(request: HTTPConnection) -> tuple[int | None, bool]:
    """From the query: the cursor, and whether notifications are asked for."""
    return read_cursor(request.query_params.get("after")), request.query_params.get("notifications") in ("true", "1")


def _wishes_in(given: Frame, request: HTTPConnection) -> tuple[int | None, bool] | None:
    """From the frame, or from the query what the frame does not say. None if it is not a boolean."""
    after, with_notifications = _wishes(request)
    wanted = given.get("notifications", with_notifications)
    if not isinstance(wanted, bool):
        return None
    return read_cursor(given["after"]) if "after" in given else after, wanted


async def _refuse(send: Send, answer: Any) -> None:
    headers = with_security_headers(answer.raw_headers)
    await send({"type": "websocket.http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": bytes(answer.body)})
