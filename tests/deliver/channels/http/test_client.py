"""The wire against servers that misbehave: what goes out, and what it says became of it."""

from __future__ import annotations

import asyncio
import re

import pytest

from bongsu.deliver.channels.http.client import MOST_HEADS, Answer, HttpClient, NotSent, ResponseLost
from bongsu.deliver.channels.http.http1 import MOST_BYTES, MOST_HEAD_BYTES
from tests.deliver.channels.http.servers import OK, Peer, answering, hanging_up_after, in_use, serving

JSON = {"Content-Type": "application/json"}


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_a_request_is_a_head_with_its_length_and_the_body(wire: HttpClient) -> None:
    async with serving(answering(OK)) as server:
        assert await wire.post(server.url, {**JSON, "X-Name": "caf\xe9"}, b"{}") == Answer(
            200, {"content-length": "2"}, b"ok"
        )
        assert await wire.post(f"{server.url}?a=b%20c#d", {}, b"") == Answer(200, {"content-length": "2"}, b"ok")
    host = f"Host: 127.0.0.1:{server.port}\r\nUser-Agent: bongsu\r\nAccept-Encoding: identity\r\n"
    own = "Content-Type: application/json\r\nX-Name: caf\xe9\r\n"
    assert server.requests == [
        f"POST /send HTTP/1.1\r\n{host}{own}Content-Length: 2\r\n\r\n{{}}".encode("latin-1"),
        f"POST /send?a=b%20c HTTP/1.1\r\n{host}Content-Length: 0\r\n\r\n".encode(),
    ]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Name": "a\r\nX-Other: b"},
        {"X-Name": "a\nb"},
        {"X-Name": "가격"},
        {"X-Name": "\0"},
        {"X Name": "a"},
        {"X-Name\r\n": "a"},
        {"": "a"},
        {"content-length": "3"},
        {"Transfer-Encoding": "chunked"},
    ],
)
async def test_a_header_that_no_request_can_carry_is_not_sent(wire: HttpClient, headers: dict[str, str]) -> None:
    async with serving(answering(OK)) as server:
        outcome = await wire.post(server.url, headers, b"{}")
        assert isinstance(outcome, NotSent)
        assert "header" in outcome.detail
        assert server.connections == 0


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/send",
        "ftp://127.0.0.1/",
        "http://",
        "http://:80/",
        "http://[::1/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/\r\nX: y",
        "http://user:secret@127.0.0.1/",
        "http://127.0.0.1/가격",
        f"http://{'a' * 64}.example/",
    ],
)
async def test_a_bad_url_is_not_sent(wire: HttpClient, url: str) -> None:
    outcome = await wire.post(url, {}, b"")
    assert isinstance(outcome, NotSent)
    assert outcome.detail
    assert "secret" not in outcome.detail


async def test_heads_are_remembered_and_not_without_end(wire: HttpClient) -> None:
    async with serving(answering(OK)) as server:
        for number in range(3 * MOST_HEADS):
            assert isinstance(await wire.post(server.url, {"X-Number": str(number)}, b""), Answer)
            assert len(wire._heads) <= MOST_HEADS
        assert server.connections == 1
    numbers = [re.findall(rb"X-Number: (\d+)", request) for request in server.requests]
    assert numbers == [[str(number).encode()] for number in range(3 * MOST_HEADS)]


# --- answers ----------------------------------------------------------------------------------------------------------

CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{"\r\n4;x=y\r\na":1\r\n1\r\n}\r\n0\r\nX-Sum: 1\r\n\r\n'
KEPT = {
    "length": (OK, 200, b"ok"),
    "chunked": (CHUNKED, 200, b'{"a":1}'),
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "304": (b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n", 304, b""),
    "100": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok"),
    "103": (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + OK, 200, b"ok"),
    "1.0": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
    "redirect": (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", 302, b""),
    "500": (b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno", 500, b"no"),
}


@pytest.mark.parametrize("name", KEPT)
async def test_an_answer_is_read_and_its_connection_used_again(wire: HttpClient, name: str) -> None:
    said, status, body = KEPT[name]
    async with serving(answering(said)) as server:
        for _ in range(3):
            answer = await wire.post(server.url, JSON, b"{}")
            assert isinstance(answer, Answer)
            assert (answer.status, answer.body) == (status, body)
            assert "link" not in answer.headers
        assert server.connections == 1


ENDING = {
    "close": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    "1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    "one more": (OK + OK, b"ok"),
    "a piece of one": (OK + b"HTT", b"ok"),
    "garbage behind": (OK + b"\0\0", b"ok"),
}


@pytest.mark.parametrize("name", ENDING)
async def test_an_answer_that_ends_its_connection_is_an_answer(wire: HttpClient, name: str) -> None:
    said, body = ENDING[name]
    async with serving(answering(said)) as server:
        for _ in range(3):
            answer = await wire.post(server.url, JSON, b"{}")
            assert isinstance(answer, Answer)
            assert (answer.status, answer.body) == (200, body)
        assert server.connections == 3


@pytest.mark.parametrize("body", [b"", b"all of it"])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_an_answer_without_a_length_ends_where_the_connection_does(
    wire: HttpClient, version: bytes, body: bytes
) -> None:
    async with serving(hanging_up_after(b"HTTP/%b 200 OK\r\nX-A: b\r\n\r\n" % version, body)) as server:
        assert await wire.post(server.url, JSON, b"{}") == Answer(200, {"x-a": "b"}, body)


async def test_headers_are_found_in_capitals_or_not(wire: HttpClient) -> None:
    async with serving(answering(b"HTTP/1.1 429 Busy\r\nRetry-AFTER: 7\r\nX: \xe9\r\nContent-Length: 0\r\n\r\n")) as server:
        answer = await wire.post(server.url, JSON, b"{}")
    assert isinstance(answer, Answer)
    assert answer.headers["Retry-After"] == answer.headers.get("retry-after") == "7"
    assert "RETRY-AFTER" in answer.headers
    assert "X-Other" not in answer.headers
    assert dict(answer.headers) == {"retry-after": "7", "x": "\xe9", "content-length": "0"}


LOST = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
    "half a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nok",
    "no last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
    "only 100": b"HTTP/1.1 100 Continue\r\n\r\n",
    "garbage": b"SSH-2.0-OpenSSH_9.6\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc",
    "a head without end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * MOST_HEAD_BYTES,
    "many hints": b"HTTP/1.1 103 Early Hints\r\nLink: xxxxxxxxxxxxxxxxxxxxxxxx\r\n\r\n" * 2000,
    "a long body": b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + b"x" * MOST_BYTES,
    "many chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (MOST_BYTES // 6),
}


@pytest.mark.parametrize("name", LOST)
async def test_what_is_no_answer_is_lost_and_so_is_its_connection(wire: HttpClient, name: str) -> None:
    async with serving(hanging_up_after(LOST[name])) as server:
        outcome = await wire.post(server.url, JSON, b"{}")
        assert isinstance(outcome, ResponseLost)
        assert not outcome.is_timeout
        assert outcome.detail
        assert in_use(wire) == 0
        assert len(server.requests) == 1, "a repeat is the dispatcher's to decide"


@pytest.mark.parametrize("name", ["a head without end", "a long body", "many chunks", "many hints", "garbage"])
async def test_nobody_waits_for_the_end_of_what_has_none(wire: HttpClient, name: str) -> None:
    async with serving(answering(LOST[name])) as server:
        outcome = await wire.post(server.url, JSON, b"{}")
    assert isinstance(outcome, ResponseLost)
    assert not outcome.is_timeout


async def test_a_callback_that_raises_does_not_stop_the_timeouts_of_others() -> None:
    async def script(peer: Peer) -> None:
        await peer.hear()
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        while await peer.hear():
            pass

    def raises(_: Answer | NotSent | ResponseLost) -> bool:
        raise RuntimeError("a bug of the caller")

    loop, complaints = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    wire = HttpClient(0.2, uses_proxy=False)
    async with serving(script) as server:
        await asyncio.gather(*(wire.post(server.url, JSON, b"{}") for _ in range(2)))
        wire.start(server.url, JSON, b"{}", raises)
        await asyncio.sleep(0.1)  # so that their times end apart
        outcome = await asyncio.wait_for(wire.post(server.url, JSON, b"{}"), 5)
        assert isinstance(outcome, ResponseLost)
        assert outcome.is_timeout
        await wire.close()
    assert len(complaints) == 1


async def test_a_reset_after_the_request_is_lost(wire: HttpClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.hear()  # and the transport is aborted

    async with serving(script) as server:
        assert isinstance(await wire.post(server.url, JSON, b"{}"), ResponseLost)


# --- nothing was sent -------------------------------------------------------------------------------------------------


async def test_where_nobody_listens_nothing_was_sent(wire: HttpClient, closed_port: int) -> None:
    outcome = await wire.post(f"http://127.0.0.1:{closed_port}/", JSON, b"{}")
    assert isinstance(outcome, NotSent)
    assert "onnect" in outcome.detail


async def test_a_name_that_nobody_has_is_not_sent() -> None:
    wire = HttpClient(10)
    assert isinstance(await wire.post("http://nowhere.invalid/", JSON, b"{}"), NotSent)
    await wire.close()


async def test_a_wire_is_made_anywhere_and_used_in_a_loop(closed_port: int) -> None:
    wire = await asyncio.to_thread(HttpClient, 5)
    assert isinstance(await wire.post(f"http://127.0.0.1:{closed_port}/", JSON, b"{}"), NotSent)
    await wire.close()
