"""What a connection may send and how slowly, by bytes on a socket: no client library would send most of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from bongsu.api import admission, http_protocol
from bongsu.api.admission import Admission
from bongsu.api.http_limits import HttpLimits
from bongsu.api.server import bind, serving
from bongsu.api.ws_protocol import TRANSPORT
from tests.support.waiting import until

LIMITS = HttpLimits(head_bytes=8_192, headers=20, request_seconds=60, keep_alive_seconds=60)
# Short, for tests that wait until it is over.
HASTY = replace(LIMITS, request_seconds=0.2)
HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class App:
    """Answers with what it was sent, when it may."""

    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[Scope] = field(default_factory=list)
    # The requests that were told of the end of their connection.
    disconnected: list[str] = field(default_factory=list)
    answer: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append(scope)
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        else:
            self.disconnected.append(scope["path"])
            return
        if scope["path"] == "/wait":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.disconnected.append(scope["path"])
            return
        await self.may_answer.wait()
        answer = body if self.answer is None else self.answer
        headers = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@contextlib.asynccontextmanager
async def served(app: App, limits: HttpLimits = LIMITS) -> AsyncIterator[Open]:
    listener = bind("127.0.0.1", 0)
    writers = []

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writers.append(writer)
        return reader, writer

    async with asyncio.timeout(30), serving(app, listener, limits=limits):
        try:
            yield connect
        finally:
            app.may_answer.set()
            for writer in writers:
                writer.transport.abort()


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


@pytest.fixture
def app() -> App:
    app = App()
    app.may_answer.set()
    return app


async def answer_to(connect: Open, *parts: bytes) -> tuple[int, dict[str, str], bytes]:
    """The only answer on a connection that the server closes after it."""
    reader, writer = await connect()
    with contextlib.suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert len(body) == int(headers["content-length"])
    return int(status.split()[1]), headers, body


# --- heads ------------------------------------------------------------------------------------------------------------

MEGABYTES = [b"x" * 65_536] * 80


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([HEAD, *[b"X-Line: %b\r\n" % (b"x" * 60) * 1_000] * 80], 431),
        ([HEAD, b"X-Value: ", *MEGABYTES], 431),
        ([HEAD, b"X-Name", *MEGABYTES], 431),
        ([HEAD, b"Cookie: a=", *MEGABYTES], 431),
        ([b"GET /", *MEGABYTES], 414),
        ([b"CONNECT / HTTP/1.1\r\nHost: x\r\n\r\n"], 400),
        ([HEAD, b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", *[b"X-Trailer: x\r\n" * 5_000] * 80], 431),
        ([HEAD, b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Trailer: ", *MEGABYTES], 431),
        ([HEAD, b"Transfer-Encoding: chunked\r\n\r\n1;ext=", *MEGABYTES], 431),
        ([b"\r\n" * 32_768] * 80, 431),
        # Complete within one read, in which nothing but its own size shows that it is too large.
        ([HEAD, b"X-Value: %b\r\n\r\n" % (b"x" * 9_000)], 431),
        ([HEAD, b"X-Line: x\r\n" * 20, b"\r\n"], 431),
        ([b"GARBAGE\x00\r\n\r\n"], 400),
        ([b"GET / HTTP/1.1\r\nHost : x\r\n\r\n"], 400),
    ],
)
async def test_what_is_too_large_or_not_http_is_refused_as_a_problem(app: App, parts: list[bytes], status: int) -> None:
    async with served(app) as connect:
        answered, headers, body = await answer_to(connect, *parts)
    assert answered == status
    assert headers["content-type"] == "application/problem+json"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["connection"] == "close"
    assert json.loads(body)["status"] == status


async def test_a_head_within_the_limits_and_many_chunks_are_taken(app: App) -> None:
    chunks = b"1\r\na\r\n" * 50_000
    async with served(app) as connect:
        reader, writer = await connect()
        writer.write(HEAD + b"X-Line: x\r\n" * 17 + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(50_000) == b"a" * 50_000


async def test_a_connection_with_much_to_read_leaves_others_their_turn(app: App) -> None:
    """By what its transport does: the event loop of the service reads many times from one connection in a row."""
    async with served(app) as connect:
        _, writer = await connect()
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        await until(lambda: len(app.requests) == 1)
        transport = app.requests[0]["extensions"][TRANSPORT]
        transport.get_protocol().data_received(b"1\r\na\r\n" * (http_protocol.LARGE_READ // 6))
        assert transport.is_reading()
        transport.get_protocol().data_received(b"1\r\na\r\n" * (http_protocol.LARGE_READ // 5))
        assert not transport.is_reading()
        await until(transport.is_reading)


async def test_a_trailer_does_not_become_a_header(app: App) -> None:
    async with served(app) as connect:
        reader, writer = await connect()
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    assert b"authorization" not in dict(app.requests[0]["headers"])


# --- several requests on one connection -------------------------------------------------------------------------------


async def test_a_request_with_others_behind_it_gets_the_disconnect(app: App) -> None:
    async with served(app) as connect:
        _, writer = await connect()
        writer.write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
        await until(lambda: len(app.requests) == 1)
        # Reading is paused behind the second request: the server notices the end when a write fails.
        app.requests[0]["extensions"][TRANSPORT].abort()
        await until(lambda: app.disconnected)
        assert app.disconnected == ["/wait"]


async def test_requests_before_one_that_is_refused_are_answered(app: App) -> None:
    app.may_answer.clear()
    async with served(app) as connect:
        reader, writer = await connect()
        writer.write(GET + GET + b"GARBAGE\r\n\r\n")
        await until(lambda: len(app.requests) == 1)
        app.may_answer.set()
        assert (await reader.read()).count(b"HTTP/1.1 200 ") == 2


async def test_no_more_requests_wait_on_one_connection_than_the_limit(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "PIPELINE_LIMIT", 3)
    app.may_answer.clear()
    async with served(app) as connect:
        reader, writer = await connect()
        writer.write(GET * 1_000)
        await until(lambda: len(app.requests) == 1)
        app.may_answer.set()
        assert (await reader.read()).count(b"HTTP/1.1 200 ") == 4


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HT",
        HEAD,
        HEAD + b"Content-Length: 10\r\n\r\nabc",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
    ids=["line", "head", "body", "chunk"],
)
async def test_a_request_that_does_not_arrive_in_time_is_answered_408(app: App, sent: bytes) -> None:
    async with served(app, HASTY) as connect:
        status, _, _ = await answer_to(connect, sent)
    assert status == 408
    assert app.disconnected == [scope["path"] for scope in app.requests]


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
async def test_a_connection_without_a_request_is_closed_without_an_answer(app: App, sent: bytes) -> None:
    async with served(app, HASTY) as connect:
        reader, writer = await connect()
        writer.write(sent)
        assert await reader.read() == b""


async def test_line_ends_after_an_answer_do_not_keep_the_connection_open(app: App) -> None:
    async with served(app, HASTY) as connect:
        reader, writer = await connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\r\n")
        assert await reader.read() == b""


async def test_a_body_that_comes_slowly_but_fast_enough_is_taken(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked several times on the way: each time enough has come."""
    monkeypatch.setattr(http_protocol, "BYTES_PER_SECOND", 5)
    checks = []
    check = http_protocol.HttpProtocol._check_progress

    def counted(self: http_protocol.HttpProtocol) -> None:
        check(self)
        checks.append(self)

    monkeypatch.setattr(http_protocol.HttpProtocol, "_check_progress", counted)
    sent = 0
    async with served(app, HASTY) as connect:
        reader, writer = await connect()
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        while len(checks) < 3:
            writer.write(b"1\r\na\r\n")
            sent += 1
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        assert len(await reader.readexactly(sent)) == sent


async def test_a_request_that_is_being_answered_is_not_hurried(app: App) -> None:
    app.may_answer.clear()
    async with served(app, HASTY) as connect:
        reader, writer = await connect()
        writer.write(GET)
        await until(lambda: len(app.requests) == 1)
        # Another connection shows that the time is over.
        assert (await answer_to(connect, HEAD))[0] == 408
        app.may_answer.set()
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")


async def test_a_client_that_does_not_read_its_answer_is_cut(app: App) -> None:
    app.answer = bytes(30_000_000)
    async with served(app, HASTY) as connect:
        reader, writer = await connect()
        writer.write(GET)
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        # The system knows that a connection was reset, without a look at what is in it.
        poll = select.poll()
        poll.register(writer.get_extra_info("socket").fileno(), 0)
        await until(lambda: bool(poll.poll(0)))


async def test_the_time_for_a_request_begins_with_its_first_byte(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Browsers open connections before they need them."""
    timers: list[Any] = []
    set_timer = http_protocol.HttpProtocol._set_timer

    def kept(self: http_protocol.HttpProtocol) -> None:
        set_timer(self)
        timers.append(self._timer)

    monkeypatch.setattr(http_protocol.HttpProtocol, "_set_timer", kept)
    async with served(app) as connect:
        _, writer = await connect()
        await until(lambda: len(timers) == 1)
        writer.write(HEAD)
        await until(lambda: len(timers) == 2)
        assert [timer.cancelled() for timer in timers] == [True, False]


def protocol_of(app: App) -> http_protocol.HttpProtocol:
    protocol: http_protocol.HttpProtocol = app.requests[-1]["extensions"][TRANSPORT].get_protocol()
    return protocol


async def test_a_body_that_was_not_read_for_long_is_not_late_when_it_is_read_again() -> None:
    may_read = asyncio.Event()

    class Busy(App):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            self.requests.append(scope)
            await may_read.wait()
            await super().__call__(scope, receive, send)

    app = Busy()
    app.may_answer.set()
    async with served(app) as connect:
        reader, writer = await connect()
        writer.write(HEAD + b"Content-Length: 200001\r\n\r\n" + bytes(200_000))
        await until(lambda: bool(app.requests) and protocol_of(app).flow.read_paused)
        protocol = protocol_of(app)
        # As if the time were over, twice: while the client has to wait for us, and when that has just ended.
        for is_held in (True, False):
            if not is_held:
                may_read.set()
                await until(lambda: not protocol.flow.read_paused and not protocol.cycle.body)
                protocol._received = 0
            protocol._cancel_timer()
            protocol._check_progress()
        writer.write(b"x")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")


async def test_a_connection_is_kept_after_an_answer_that_came_before_the_body() -> None:
    """As long as after any other answer: a proxy counts on that."""

    class Early(App):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            self.requests.append(scope)
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

    app = Early()
    async with served(app) as connect:
        reader, writer = await connect()
        writer.write(HEAD + b"Content-Length: 3\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        protocol = protocol_of(app)
        assert protocol._timer is not None
        writer.write(b"abc")
        await until(lambda: protocol._timer is None)
        assert protocol.timeout_keep_alive_task is not None
        writer.write(HEAD)
        # The rest of a head is waited for, and not for as long as an idle connection is kept.
        await until(lambda: protocol._timer is not None)
        assert protocol.timeout_keep_alive_task is None


async def test_a_client_that_reads_a_large_answer_slowly_gets_all_of_it(app: App) -> None:
    app.answer = bytes(30_000_000)
    async with served(app) as connect:
        reader, writer = await connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        protocol = protocol_of(app)
        waiting = protocol.transport.get_write_buffer_size()
        assert waiting
        read = 0
        while protocol.transport.get_write_buffer_size() > waiting - protocol._least_bytes():
            read += len(await reader.read(100_000))
        # As if the time were over.
        protocol._cancel_write_timer()
        protocol._check_reader(waiting)
        await reader.readexactly(len(app.answer) - read)


# --- other protocols --------------------------------------------------------------------------------------------------

UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: %d\r\n\r\n%b" % (len(GET), GET),
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(GET), GET),
    ],
    ids=["length", "chunked"],
)
async def test_a_body_after_an_upgrade_request_is_a_body(app: App, body: bytes, is_split: bool) -> None:
    """Java's client wishes for HTTP/2 with every request that is not https. What looks like a request in a body is none."""
    async with served(app) as connect:
        reader, writer = await connect()
        for _ in range(2):
            head, end, rest = (HEAD + UPGRADE + body).partition(b"\r\n\r\n")
            count = len(app.requests)
            writer.write(head + end)
            if is_split:
                await until(lambda count=count: len(app.requests) > count)  # type: ignore[misc]
            writer.write(rest)
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(GET)) == GET
        writer.write(HEAD + UPGRADE + b"\r\n" + GET)
        for _ in range(2):
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    assert [scope["path"] for scope in app.requests] == ["/echo", "/echo", "/echo", "/"]
    assert all(b"upgrade" not in dict(scope["headers"]) for scope in app.requests)


async def test_an_upgrade_request_in_a_trailer_is_ignored(app: App) -> None:
    async with served(app) as connect:
        reader, writer = await connect()
        head = HEAD + b"Connection: Upgrade\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write((head + b"1\r\na\r\n0\r\nUpgrade: h2c\r\n\r\n") * 2)
        for _ in range(2):
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(1) == b"a"


# --- connections ------------------------------------------------------------------------------------------------------


async def test_one_address_has_only_so_many_connections(app: App, monkeypatch: pytest.MonkeyPatch, log: list[Any]) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "192.0.2.1")
    async with served(app, replace(LIMITS, connections_per_address=2)) as connect:
        (_, first), _ = await connect(), await connect()
        refused, _ = await connect()
        assert await _is_closed(refused)
        first.transport.abort()
        # As soon as the end of the first has been noticed.
        while await _is_closed((taken := await connect())[0], GET, taken[1]):
            pass
    lines = [line for line in log if line["event"].startswith("too many connections")]
    assert [line["address"] for line in lines] == ["127.0.0.1"]
    assert "FORWARDED_ALLOW_IPS" in lines[0]["cure"]


async def test_connections_of_a_trusted_proxy_are_not_limited(app: App) -> None:
    """This one is trusted as long as FORWARDED_ALLOW_IPS does not say otherwise."""
    async with served(app, replace(LIMITS, connections_per_address=2)) as connect:
        for _ in range(10):
            reader, writer = await connect()
            writer.write(GET)
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")


async def test_the_last_descriptors_are_not_given_to_connections(
    app: App, monkeypatch: pytest.MonkeyPatch, log: list[Any]
) -> None:
    monkeypatch.setattr(admission, "descriptor_limit", lambda: 3)
    async with served(app) as connect:
        for _ in range(5):
            assert await _is_closed((await connect())[0])
    lines = [line for line in log if line["event"].startswith("out of file descriptors")]
    assert len(lines) == 1
    assert "ulimit -n" in lines[0]["cure"]


@pytest.mark.parametrize(
    ("host", "other", "are_one"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_ipv6_addresses_are_counted_by_network(host: str, other: str, are_one: bool) -> None:
    assert (admission._group(host) == admission._group(other)) is are_one


def test_addresses_without_connections_are_forgotten() -> None:
    class Transport:
        def get_extra_info(self, _name: str) -> Any:
            return self

        def fileno(self) -> int:
            return 3

    here = Admission(2, lambda _host: False)
    entered = [here.enter(Transport(), (f"192.0.2.{n}", 1)) for n in range(9)]  # type: ignore[arg-type]
    assert len(here) == 9
    for address in entered:
        assert address is not None
        here.leave(address)
    assert len(here) == 0


async def _is_closed(reader: asyncio.StreamReader, ask: bytes = b"", writer: asyncio.StreamWriter | None = None) -> bool:
    try:
        if writer is not None:
            writer.write(ask)
        return await reader.read(1) == b""
    except ConnectionError:
        return True
