"""Members who talk over sockets, and callers of the chat API."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from tests.live.client import WAIT_SECONDS
from tests.live.harness import Live, bearer
from tests.live.socket_client import receive_op, socket_url
from tests.support.chat import api_headers


class Talker:
    """A socket of a member, and what it was sent."""

    def __init__(self, live: Live, member_id: str, socket: ClientConnection) -> None:
        self.live, self.member_id, self.socket = live, member_id, socket

    async def do(self, op: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"op": op, **fields}))

    async def say(self, room: str, *texts: str) -> list[int]:
        for text in texts:
            await self.do("send", roomId=room, clientMessageId=text, message=text)
        return [(await self.next("ack"))["seq"] for _ in texts]

    async def next(self, op: str) -> dict[str, Any]:
        return await receive_op(self.socket, op)

    async def until(self, op: str, **fields: Any) -> list[dict[str, Any]]:
        """All frames up to one of that kind with these fields, without pings."""
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while not found or found[-1]["op"] != op or any(found[-1].get(name) != value for name, value in fields.items()):
                frame = json.loads(await self.socket.recv())
                if frame["op"] != "ping":
                    found.append(frame)
        return found

    async def messages(self, last: int) -> list[int]:
        """The seqs of the messages up to this one."""
        return [frame["seq"] for frame in await self.until("message", seq=last) if frame["op"] == "message"]


@contextlib.asynccontextmanager
async def talking(live: Live, *member_ids: str) -> AsyncIterator[list[Talker]]:
    async with contextlib.AsyncExitStack() as stack:
        talkers = []
        for member_id in member_ids:
            opening = connect(
                socket_url(live.address), additional_headers=bearer(live.settings, member_id), proxy=None, max_queue=None
            )
            talker = Talker(live, member_id, await stack.enter_async_context(opening))
            await talker.next("ready")
            talkers.append(talker)
        yield talkers


@contextlib.asynccontextmanager
async def calling(live: Live, member_id: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    headers = api_headers(live.settings) if member_id is None else bearer(live.settings, member_id)
    async with httpx.AsyncClient(base_url=f"{live.address}/api/chat", headers=headers, timeout=60) as caller:
        yield caller


async def new_room(live: Live, *member_ids: str) -> str:
    async with calling(live) as server:
        answer = await server.post("/rooms", json={"name": "room", "memberIds": member_ids})
        assert answer.status_code == 201
        return str(answer.json()["roomId"])
