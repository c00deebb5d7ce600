"""The wire over TLS: whom it trusts, and that nothing was sent to whom it does not."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from bongsu.deliver.channels.http.client import Answer, HttpClient, NotSent, ResponseLost
from tests.deliver.channels.http.authority import Authority
from tests.deliver.channels.http.servers import OK, Peer, answering, hanging_up_after, serving, silence


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """The only one that the wire trusts."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    return authority


async def test_a_server_with_a_good_certificate_is_spoken_to_in_http_1(wire: HttpClient, authority: Authority) -> None:
    protocols: list[str | None] = []

    async def script(peer: Peer) -> None:
        tls: ssl.SSLObject = peer.writer.get_extra_info("ssl_object")
        protocols.append(tls.selected_alpn_protocol())
        await answering(OK)(peer)

    async with serving(script, authority.server("localhost", "127.0.0.1")) as server:
        for host in ("127.0.0.1", "localhost"):
            for _ in range(3):
                answer = await wire.post(f"https://{host}:{server.port}/send", {}, b"{}")
                assert answer == Answer(200, {"content-length": "2"}, b"ok")
        assert server.connections == 2, "one for each name, and used again"
        assert protocols == ["http/1.1"] * 2
        await wire.close()


async def test_a_certificate_for_another_name_is_not_sent_to(wire: HttpClient, authority: Authority) -> None:
    async with serving(answering(OK), authority.server("other.example")) as server:
        outcome = await wire.post(f"https://127.0.0.1:{server.port}/send", {}, b"{}")
        assert isinstance(outcome, NotSent)
        assert "certificate" in outcome.detail
        assert "127.0.0.1" in outcome.detail
        assert server.requests == []


async def test_a_server_with_a_certificate_of_an_unknown_authority_is_not_sent_to(
    wire: HttpClient, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stranger = Authority(tmp_path_factory.mktemp("stranger"))
    async with serving(answering(OK), stranger.server("127.0.0.1")) as server:
        outcome = await wire.post(f"https://127.0.0.1:{server.port}/send", {}, b"{}")
        assert isinstance(outcome, NotSent)
        assert "certificate verify failed" in outcome.detail
        assert server.requests == []


async def test_a_certificate_that_has_ended_is_not_sent_to(wire: HttpClient, authority: Authority) -> None:
    async with serving(answering(OK), authority.server("127.0.0.1", days=-1)) as server:
        outcome = await wire.post(f"https://127.0.0.1:{server.port}/send", {}, b"{}")
        assert isinstance(outcome, NotSent)
        assert "expired" in outcome.detail
        assert server.requests == []


async def test_a_server_that_speaks_no_tls_is_not_sent_to(wire: HttpClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.read(1)
        await peer.say(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await peer.reader.read()

    async with serving(script) as server:
        outcome = await wire.post(f"https://127.0.0.1:{server.port}/send", {}, b"{}")
        assert isinstance(outcome, NotSent)
        assert outcome.detail


async def test_a_handshake_without_end_is_not_sent(authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.read()

    wire = HttpClient(0.4)
    async with serving(script) as server:
        outcome = await wire.post(f"https://127.0.0.1:{server.port}/send", {}, b"{}")
        assert outcome == NotSent("no connection to 127.0.0.1 within 0.2 s")
        await server.ended.wait()
        await wire.close()


async def test_an_answer_lost_over_tls_is_lost(wire: HttpClient, authority: Authority) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"
    async with serving(hanging_up_after(half), authority.server("127.0.0.1")) as server:
        outcome = await wire.post(f"https://127.0.0.1:{server.port}/send", {}, b"{}")
        assert isinstance(outcome, ResponseLost)
        assert not outcome.is_timeout
        assert len(server.requests) == 1


async def test_a_timeout_over_tls_closes_the_connection(authority: Authority) -> None:
    wire = HttpClient(1)
    async with serving(silence, authority.server("127.0.0.1")) as server:
        outcome = await wire.post(f"https://127.0.0.1:{server.port}/send", {}, b"{}")
        assert isinstance(outcome, ResponseLost)
        assert outcome.is_timeout
        await server.ended.wait()
        await wire.close()
        assert wire._connections() == []
