"""The WebSocket of apps: who gets one, what is answered to bad frames, and how it ends. Read with `websockets`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode

from bongsu.api import websocket
from bongsu.api.http_limits import HttpLimits
from bongsu.live import connection
from bongsu.settings import Settings
from bongsu.store import Store
from tests.live import harness
from tests.live.client import ask
from tests.live.harness import Live, bearer, live_on, token, write
from tests.live.socket_client import SOCKET_PATH, SocketReader, closed_with, receive_op, socket_url

SHOP = "https://shop.example"
Embedded = tuple[Store, Settings]
# What a client sees of a connection that is closed without an answer.
CLOSED = (OSError, EOFError, InvalidHandshake)


@pytest.fixture
async def live(embedded: Embedded) -> AsyncIterator[Live]:
    store, settings = embedded
    changes = {"cors_origins": SHOP, "sse_ping_seconds": 600}
    async with live_on(store, settings.model_copy(update=changes), "ws") as everything:
        yield everything


@contextlib.asynccontextmanager
async def opened(live: Live, headers: dict[str, str] | None = None, **query: str) -> AsyncIterator[ClientConnection]:
    async with connect(socket_url(live.address, **query), additional_headers=headers, proxy=None, max_queue=None) as socket:
        yield socket


def auth(live: Live, **fields: Any) -> str:
    return json.dumps({"op": "auth", "token": token(live.settings, "m-1"), **fields})


async def refused(live: Live, headers: dict[str, str]) -> int:
    with pytest.raises(InvalidStatus) as error:
        async with opened(live, headers):
            pass
    answer = error.value.response
    assert json.loads(answer.body or b"")["status"] == answer.status_code
    return answer.status_code


# --- who gets one -----------------------------------------------------------------------------------------------------


async def test_the_token_may_come_in_the_first_frame_with_the_cursor(live: Live) -> None:
    ids, _ = await write(live.store, "m-1", 3)
    async with opened(live) as socket:
        await socket.send(auth(live, notifications=True, after=str(ids[0])))
        assert json.loads(await socket.recv()) == {"op": "ready"}
        assert json.loads(await socket.recv()) == {"op": "badge", "unread": 3}
        for notification in ids[1:]:
            shown = await receive_op(socket, "notification")
            assert (shown["cursor"], shown["id"], shown["type"]) == (str(notification), str(notification), "POST_LIKE")


async def test_the_token_may_come_in_a_header_and_the_wishes_in_the_query(live: Live) -> None:
    ids, _ = await write(live.store, "m-1", 2)
    async with opened(live, bearer(live.settings, "m-1"), notifications="true", after=str(ids[0])) as socket:
        assert json.loads(await socket.recv()) == {"op": "ready"}
        assert (await receive_op(socket, "notification"))["id"] == str(ids[1])


async def test_without_a_cursor_the_last_unread_come_and_then_where_the_reader_is(live: Live) -> None:
    ids, _ = await write(live.store, "m-1", 12)
    async with opened(live, bearer(live.settings, "m-1"), notifications="true") as socket:
        shown = [(await receive_op(socket, "notification"))["id"] for _ in range(10)]
        assert shown == [str(one) for one in ids[2:]]
    async with opened(live, bearer(live.settings, "nobody"), notifications="true") as socket:
        assert await receive_op(socket, "cursor") == {"op": "cursor", "cursor": "0"}


async def test_without_asking_for_notifications_none_come(live: Live) -> None:
    async with opened(live, bearer(live.settings, "m-1")) as socket, live.open() as other:
        assert json.loads(await socket.recv()) == {"op": "ready"}
        await other.until_live()
        await other.until_told(await live.ring())
        await socket.send("{}")
        assert json.loads(await socket.recv())["op"] == "error"


async def test_the_cookie_works_for_our_own_pages_and_for_named_ones(live: Live) -> None:
    cookie = {"Cookie": f"bongsu_session={token(live.settings, 'm-1')}"}
    for headers in (cookie, {**cookie, "Origin": live.address}, {**cookie, "Origin": SHOP}):
        async with opened(live, headers) as socket:
            assert json.loads(await socket.recv()) == {"op": "ready"}
    assert await refused(live, {**cookie, "Origin": "https://evil.example"}) == 403


async def test_a_bad_token_is_refused_before_the_socket_is_open(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    assert await refused(live, {"Authorization": "Bearer nonsense"}) == 401
    assert await refused(live, {"Authorization": "Bearer server-key-of-the-tests"}) == 403
    assert await refused(live, bearer(live.settings, "m-1", hours=-1)) == 401
    await until_none_is_served()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("given", ["nonsense", "", "server-key-of-the-tests"])
async def test_a_bad_token_in_the_frame_closes_with_4401(live: Live, given: str) -> None:
    async with opened(live) as socket:
        await socket.send(json.dumps({"op": "auth", "token": given}))
        assert (await receive_op(socket, "error"))["code"] == "UNAUTHORIZED"
        assert await closed_with(socket) == 4401


async def test_a_later_auth_begins_anew_on_the_same_socket(live: Live) -> None:
    """A browser sends its cookie by itself, and cannot say with it what it wants."""
    cookie = {"Cookie": f"bongsu_session={token(live.settings, 'm-1')}"}
    [first, second], _ = await write(live.store, "m-1", 2)
    async with opened(live, cookie) as socket:
        await receive_op(socket, "ready")
        await socket.send(auth(live, notifications=True, after=str(first)))
        await receive_op(socket, "ready")
        assert (await receive_op(socket, "notification"))["id"] == str(second)
        assert len(live.gateway.open_streams) == 1
        await socket.send(json.dumps({"op": "auth", "token": "nonsense"}))
        assert await closed_with(socket) == 4401


async def test_a_later_auth_goes_on_where_the_socket_is(live: Live) -> None:
    """With a new token before the old one ends: nothing is sent twice, whatever cursor the address has."""
    [first, second, third], _ = await write(live.store, "m-1", 3)
    async with opened(live, bearer(live.settings, "m-1"), notifications="true", after=str(first)) as socket:
        assert [(await receive_op(socket, "notification"))["id"] for _ in range(2)] == [str(second), str(third)]
        [stream] = live.gateway.open_streams
        before = stream.connection.connection_id
        await socket.send(auth(live))
        await receive_op(socket, "ready")
        [told] = await live.ring()
        assert (await receive_op(socket, "notification"))["id"] == str(told)
        # Another id: Redis may hear of the end of the first entry after the second was made.
        [stream] = live.gateway.open_streams
        assert stream.connection.connection_id != before


async def test_a_later_auth_of_another_member_begins_anew(live: Live) -> None:
    [first, _], _ = await write(live.store, "m-1", 2)
    [other], _ = await write(live.store, "m-2")
    async with opened(live, bearer(live.settings, "m-2"), notifications="true", after=str(other)) as socket:
        await receive_op(socket, "cursor")
        await socket.send(auth(live))
        assert (await receive_op(socket, "notification"))["id"] == str(first)


async def test_who_authenticates_too_often_is_asked_to_come_back_later(embedded: Embedded) -> None:
    store, settings = embedded
    slow = settings.model_copy(update={"member_rate": 0.001, "member_burst": 1})
    async with live_on(store, slow, "ws") as live, opened(live, bearer(slow, "m-1")) as socket:
        await receive_op(socket, "ready")
        await socket.send(auth(live))
        assert (await receive_op(socket, "error"))["code"] == "UNAVAILABLE"
        assert (await receive_op(socket, "bye"))["reason"] == "unavailable"
        assert await closed_with(socket) == 1013


async def test_nobody_waits_for_a_reader_that_has_left(live: Live) -> None:
    async with opened(live, bearer(live.settings, "m-1")) as socket:
        await receive_op(socket, "ready")
        [stream] = live.gateway.open_streams
        socket.transport.abort()
    await until_none_is_served()
    await stream.connection.drain()


async def test_who_does_not_authenticate_in_time_is_closed_with_4401(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "AUTH_SECONDS", 0.2)
    async with opened(live) as socket:
        await socket.send('{"op": "send"}')
        assert (await receive_op(socket, "error"))["code"] == "UNAUTHORIZED"
        assert await closed_with(socket) == 4401


async def test_other_paths_and_plain_requests_are_no_sockets(live: Live) -> None:
    plain = await ask(live.address, bearer(live.settings, "m-1"), SOCKET_PATH)
    assert plain.status == 404
    await plain.close()
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    elsewhere = await ask(live.address, {**upgrade, "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}, "/healthz")
    assert elsewhere.status == 200
    await elsewhere.close()
    without_key = await ask(live.address, upgrade, SOCKET_PATH)
    assert without_key.status == 400
    await without_key.close()


async def begin(live: Live, *headers: str, then: bytes = b"") -> bytes:
    """All that the server answers to the request for a WebSocket with these headers, until it closes."""
    host, _, port = live.address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    upgrade = ("Host: x", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    lines = [f"GET {SOCKET_PATH} HTTP/1.1", *upgrade, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", *headers, "", ""]
    writer.write("\r\n".join(lines).encode() + then)
    answer = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(20):
            while piece := await reader.read(65_536):
                answer += piece
    writer.close()
    return answer


@pytest.mark.parametrize("header", [f"Cookie: a={'x' * 9_000}", "Transfer-Encoding: chunked", "Content-Length: 5"])
async def test_a_request_that_cannot_begin_a_socket_is_answered_and_closed(live: Live, header: str) -> None:
    assert (await begin(live, header)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "early",
    [b"\xff" * 4, Frame(Opcode.TEXT, b"\xff").serialize(mask=True), Frame(Opcode.TEXT, b"x" * 70_000).serialize(mask=True)],
    ids=["no frame", "no text", "too large"],
)
async def test_who_sends_frames_before_the_answer_is_cut(live: Live, early: bytes) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    assert await begin(live, then=early) == b""
    await until_none_is_served()
    assert faults == []


async def until_none_is_served() -> None:
    async with asyncio.timeout(20):
        while any("run_asgi" in repr(task.get_coro()) for task in asyncio.all_tasks()):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_authenticated", [True, False])
async def test_a_socket_that_is_lost_without_a_close_frame_leaves_no_task(live: Live, is_authenticated: bool) -> None:
    async with opened(live, bearer(live.settings, "m-1") if is_authenticated else None) as socket:
        if is_authenticated:
            await receive_op(socket, "ready")
        socket.transport.abort()
    await until_none_is_served()


# --- what it sends ----------------------------------------------------------------------------------------------------

BAD_FRAMES: list[str | bytes] = [
    "",
    "nonsense",
    "[]",
    "1",
    '"auth"',
    "{}",
    '{"op": 1}',
    '{"op": "dance"}',
    '{"op": "auth"}',
    "{" * 10_000,
    b"{}",
]


async def test_every_bad_frame_is_answered_and_the_socket_stays(live: Live) -> None:
    async with opened(live, bearer(live.settings, "m-1"), notifications="true") as socket:
        for bad in BAD_FRAMES:
            await socket.send(bad)
            assert (await receive_op(socket, "error")).keys() == {"op", "code", "detail"}
        for op in ("send", "read", "typing", "resume"):
            await socket.send(json.dumps({"op": op, "roomId": "r", "seq": "one", "afterSeq": -1}))
            error = await receive_op(socket, "error")
            assert (error["code"], error["roomId"]) == ("BAD_FRAME", "r")
        [told] = await live.ring()
        assert (await receive_op(socket, "notification"))["id"] == str(told)


@pytest.mark.parametrize("is_authenticated", [True, False])
async def test_who_sends_nothing_but_bad_frames_is_closed_with_4429(live: Live, is_authenticated: bool) -> None:
    async with opened(live, bearer(live.settings, "m-1") if is_authenticated else None) as socket:
        with contextlib.suppress(ConnectionClosed):
            for _ in range(websocket.MISTAKE_LIMIT + 10):
                await socket.send("nonsense")
        assert await closed_with(socket) == 4429


async def test_a_frame_that_is_too_large_or_no_text_is_the_end(live: Live) -> None:
    for bad, code in (("x" * 70_000, 1009), (b"\xff", 1007)):
        async with opened(live, bearer(live.settings, "m-1")) as socket:
            await receive_op(socket, "ready")
            if isinstance(bad, str):
                with contextlib.suppress(ConnectionClosed):
                    await socket.send(bad)
            else:
                socket.transport.write(Frame(Opcode.TEXT, bad).serialize(mask=True))
            assert await closed_with(socket) == code
    assert len(live.gateway.open_streams) == 0


async def test_text_that_is_no_text_before_a_goodbye_is_the_end_too(live: Live) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    async with opened(live, bearer(live.settings, "m-1")) as socket:
        await receive_op(socket, "ready")
        goodbye = Frame(Opcode.CLOSE, (1000).to_bytes(2)).serialize(mask=True)
        socket.transport.write(Frame(Opcode.TEXT, b"\xff").serialize(mask=True) + goodbye)
        await closed_with(socket)
    await until_none_is_served()
    assert faults == []


# --- how it ends ------------------------------------------------------------------------------------------------------


async def test_logging_out_closes_those_opened_with_the_cookie(live: Live) -> None:
    cookie = {"Cookie": f"bongsu_session={token(live.settings, 'm-1')}"}
    async with opened(live, cookie) as by_cookie, opened(live, bearer(live.settings, "m-1")) as by_header:
        for socket in (by_cookie, by_header):
            await receive_op(socket, "ready")
        async with httpx.AsyncClient(base_url=live.address, headers=cookie, timeout=60) as caller:
            await caller.delete("/api/session")
        assert (await receive_op(by_cookie, "bye"))["reason"] == "logout"
        assert await closed_with(by_cookie) == 4401
        await by_header.send("{}")
        await receive_op(by_header, "error")


async def test_sockets_and_streams_count_together(live: Live) -> None:
    async with opened(live, bearer(live.settings, "m-1")) as first:
        await receive_op(first, "ready")
        async with contextlib.AsyncExitStack() as stack:
            for wire in ("sse", "ws", "sse"):
                reader = harness.READERS[wire]([live.address], bearer(live.settings, "m-1"))
                await (await stack.enter_async_context(reader)).until_live()
            assert (await receive_op(first, "bye"))["reason"] == "replaced"
            assert await closed_with(first) == 4409


async def test_a_reader_that_stops_reading_is_closed_with_4408_when_little_waits_for_it(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STALLED_BYTES", 128 * 1024)
    async with opened(live, bearer(live.settings, "m-1"), notifications="true") as socket, live.open("m-2") as other:
        await receive_op(socket, "ready")
        await other.until_live()
        socket.transport.pause_reading()
        [stream] = live.gateway.open_streams.of("m-1")
        most = 0
        async with asyncio.timeout(60):
            while not stream.connection.is_ended:
                await live.ring("m-1", 10, body="가" * 20_000)
                most = max(most, stream.connection.transport.get_write_buffer_size())
                await asyncio.sleep(0)
        assert most < 4 * 1024 * 1024
        await other.until_told(await live.ring("m-2"))
        socket.transport.resume_reading()
        assert await closed_with(socket) == 4408


async def test_after_a_restart_it_comes_back_with_its_cursor(embedded: Embedded) -> None:
    store, settings = embedded
    async with live_on(store, settings, "ws") as live, live.open() as page:
        assert isinstance(page, SocketReader)
        await page.until_live()
        ids = await live.ring()
        await page.until_told(ids)
        await live.gateway.drain()
        await page.until_seen("bye")
        await page.until(lambda page: not page.is_open)
        assert page.close_code == 1012
    async with live_on(store, settings, "ws") as after:
        page.addresses = [after.address]
        again = SocketReader([after.address], page.headers, last_id=page.last_id)
        async with again:
            await again.until_told(await after.ring())


async def test_it_outlives_the_time_that_a_request_may_take(embedded: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of the request that began it are over with it."""
    store, settings = embedded
    hasty = HttpLimits(request_seconds=0.1, keep_alive_seconds=0.1)
    monkeypatch.setattr(harness, "LIMITS", hasty)
    async with live_on(store, settings.model_copy(update={"sse_ping_seconds": 0.2}), "ws") as live, live.open() as page:
        await page.until_seen("ping", 3)
        await page.until_told(await live.ring())
        assert page.connections == 1


async def test_sockets_count_among_the_connections_of_an_address(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, settings = embedded
    monkeypatch.setattr(harness, "LIMITS", HttpLimits(connections_per_address=1))
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.0.0.1")
    async with live_on(store, settings, "ws") as live:
        async with opened(live, bearer(settings, "m-1")) as socket:
            await receive_op(socket, "ready")
            with pytest.raises(CLOSED):
                async with opened(live, bearer(settings, "m-2")):
                    pass
        # It is free again when the socket has ended.
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(*CLOSED):
                    async with opened(live, bearer(settings, "m-2")) as socket:
                        await receive_op(socket, "ready")
                        break
