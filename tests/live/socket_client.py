"""A reader over WebSocket, made of the `websockets` package, with the same interface as EventSource."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from tests.live.client import WAIT_SECONDS, EventSource, Frame

SOCKET_PATH = "/api/chat/ws"


def socket_url(address: str, **query: str) -> str:
    host = urlsplit(address).netloc
    return f"ws://{host}{SOCKET_PATH}{'?' + urlencode(query) if query else ''}"


@dataclass(eq=False)
class SocketReader(EventSource):
    """Comes back as an app does: after the time that `bye` gave, with its cursor."""

    # With which code and reason the last socket was closed.
    close_code: int | None = None
    close_reason: str | None = None

    async def _read(self, address: str) -> bool:
        query = {"notifications": "true", **({"after": self.last_id} if self.last_id else {})}
        try:
            # A reader that has stopped takes no more than the system keeps for it: see `stall`.
            opening = connect(
                socket_url(address, **query), additional_headers=self.headers, proxy=None, max_size=None, max_queue=1,
                ping_interval=None, close_timeout=1, open_timeout=WAIT_SECONDS,
            )  # fmt: skip
            socket = await opening
        except InvalidStatus as refused:
            await self._say(status=refused.response.status_code)
            return False
        except InvalidHandshake as error:
            raise OSError from error
        self.connections += 1
        await self._say(status=200, is_open=True)
        try:
            return await self._take_frames(socket)
        except ConnectionClosed:
            return True
        finally:
            self.close_code, self.close_reason = socket.close_code, socket.close_reason
            socket.transport.abort()

    async def _take_frames(self, socket: ClientConnection) -> bool:
        async for text in socket:
            await self._reads.wait()
            frame: dict[str, Any] = json.loads(text)
            op = frame.pop("op")
            self.last_id = frame.pop("cursor", self.last_id)
            if op == "bye":
                self.retry = frame.pop("retry")
            if op == "bye" and frame["reason"] == "unavailable":
                self.frames.append(Frame("unavailable", {}, self.last_id))
            elif op not in ("ready", "cursor"):
                self.frames.append(Frame(op, frame, self.last_id))
            await self._say()
            if self.stays_away and op == "bye" and frame["reason"] == "replaced":
                return False
        return True

    @property
    def is_cut(self) -> bool:
        raise NotImplementedError


async def receive_op(socket: ClientConnection, op: str) -> dict[str, Any]:
    """The next frame of that kind."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            frame: dict[str, Any] = json.loads(await socket.recv())
            if frame["op"] == op:
                return frame


async def closed_with(socket: ClientConnection) -> int | None:
    """The code of the close frame, once it has come; what comes before it is not looked at."""
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                await socket.recv()
    return socket.close_code
