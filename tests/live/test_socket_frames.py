"""What clients send over a WebSocket in one go, however much: it is taken in a slice at a time, and a flood is the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from bongsu.api import ws_protocol
from bongsu.api.websocket import MISTAKE_LIMIT
from bongsu.api.ws_protocol import FRAMES, SLICE
from bongsu.settings import Settings
from bongsu.store import Store
from tests.live.harness import Live, bearer, live_on
from tests.live.socket_client import closed_with, receive_op
from tests.live.test_websocket import opened, until_none_is_served

TINY = [Opcode.PING, Opcode.PONG, Opcode.TEXT, Opcode.BINARY]


@pytest.fixture
async def live(embedded: tuple[Store, Settings], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    # After a flood nothing is read, the client's answer to the close frame neither: the connection ends after this time.
    monkeypatch.setattr(ws_protocol, "LAST_FRAME_SECONDS", 0.5)
    async with live_on(*embedded, "ws") as everything:
        yield everything


def frames(*texts: str) -> bytes:
    return b"".join(Frame(Opcode.TEXT, text.encode()).serialize(mask=True) for text in texts)


def send_at_once(socket: ClientConnection, data: bytes) -> None:
    """As one piece, as far as the network goes."""
    socket.transport.write(data)


@pytest.mark.parametrize("is_authenticated", [True, False])
@pytest.mark.parametrize("opcode", TINY, ids=lambda opcode: opcode.name)
async def test_hundreds_of_frames_without_content_are_a_flood(live: Live, opcode: Opcode, is_authenticated: bool) -> None:
    async with opened(live, bearer(live.settings, "m-1") if is_authenticated else None) as socket:
        send_at_once(socket, Frame(opcode, b"").serialize(mask=True) * 10 * FRAMES)
        assert await closed_with(socket) == 4429


@pytest.mark.parametrize("opcode", TINY, ids=lambda opcode: opcode.name)
async def test_who_says_goodbye_behind_a_flood_is_let_go(
    live: Live, opcode: Opcode, caplog: pytest.LogCaptureFixture
) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    async with opened(live, bearer(live.settings, "m-1")) as socket:
        await receive_op(socket, "ready")
        goodbye = Frame(Opcode.CLOSE, (1000).to_bytes(2)).serialize(mask=True)
        send_at_once(socket, Frame(opcode, b"").serialize(mask=True) * 2 * FRAMES + goodbye)
        assert await closed_with(socket) in (1000, 4429)
    await until_none_is_served()
    assert faults == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_pings_that_come_one_by_one_are_answered(live: Live) -> None:
    async with opened(live, bearer(live.settings, "m-1")) as socket:
        for _ in range(2 * FRAMES):
            await (await socket.ping())


async def test_what_comes_in_one_go_is_taken_in_a_slice_at_a_time(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    receive = ServerProtocol.receive_data

    def recording(protocol: ServerProtocol, data: bytes) -> None:
        taken.append(len(data))
        receive(protocol, data)

    async with opened(live, bearer(live.settings, "m-1")) as socket:
        await receive_op(socket, "ready")
        monkeypatch.setattr(ServerProtocol, "receive_data", recording)
        said = [json.dumps({"op": f"op-{number}", "more": "x" * 5_000}) for number in range(MISTAKE_LIMIT - 1)]
        send_at_once(socket, frames(*said))
        for number in range(MISTAKE_LIMIT - 1):
            assert f"`op-{number}`" in (await receive_op(socket, "error"))["detail"]
    assert sum(taken) > 5_000 * (MISTAKE_LIMIT - 1)
    assert max(taken) <= SLICE


async def test_who_says_goodbye_behind_much_else_is_let_go(live: Live) -> None:
    """Also if the server has closed before it has come so far."""
    for count, code in ((MISTAKE_LIMIT - 1, 1000), (MISTAKE_LIMIT + 10, 4429)):
        async with opened(live, bearer(live.settings, "m-1")) as socket:
            await receive_op(socket, "ready")
            goodbye = Frame(Opcode.CLOSE, (1000).to_bytes(2)).serialize(mask=True)
            send_at_once(socket, frames(*["x" * 3_000] * count) + goodbye)
            assert await closed_with(socket) == code
    async with asyncio.timeout(20):
        while len(live.gateway.open_streams):
            await asyncio.sleep(0)
