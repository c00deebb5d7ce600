"""Through a proxy, as the environment says: a tunnel for https, whole addresses for http."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from bongsu.deliver.channels.http.client import Answer, HttpClient, NotSent
from bongsu.deliver.channels.http.proxy import Proxies, Proxy
from tests.deliver.channels.http.authority import Authority
from tests.deliver.channels.http.servers import OK, Peer, Script, answering, serving

LOGIN = "Proxy-Authorization: Basic " + base64.b64encode(b"us er:p@ss").decode()


async def tunnels(peer: Peer) -> None:
    """A proxy that does as it is asked by CONNECT."""
    host, _, port = (await peer.hear()).split()[1].decode().partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await peer.say(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n")

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()

    try:
        await asyncio.gather(pass_on(peer.reader, writer), pass_on(reader, peer.writer))
    finally:
        writer.transport.abort()


def saying(text: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.hear()
        await peer.say(text)
        await peer.reader.read()

    return script


async def closing(peer: Peer) -> None:
    await peer.hear()


async def test_https_goes_through_a_tunnel_that_the_proxy_cannot_look_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    async with serving(tunnels) as proxy, serving(answering(OK), authority.server("127.0.0.1")) as server:
        monkeypatch.setenv("HTTPS_PROXY", f"http://us%20er:p%40ss@127.0.0.1:{proxy.port}")
        wire = HttpClient(30)
        for _ in range(3):
            answer = await wire.post(f"https://127.0.0.1:{server.port}/send", {"Authorization": "secret"}, b"{}")
            assert answer == Answer(200, {"content-length": "2"}, b"ok")
        await wire.close()
        goal = f"127.0.0.1:{server.port}"
        assert proxy.requests == [f"CONNECT {goal} HTTP/1.1\r\nHost: {goal}\r\n{LOGIN}\r\n\r\n".encode()]
        assert len(server.requests) == 3
        assert b"Proxy-Authorization" not in b"".join(server.requests)


async def test_a_bad_certificate_behind_a_proxy_is_not_sent_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    async with serving(tunnels) as proxy, serving(answering(OK), authority.server("127.0.0.1")) as server:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")
        wire = HttpClient(30)
        outcome = await wire.post(f"https://127.0.0.1:{server.port}/send", {}, b"{}")
        await wire.close()
        assert isinstance(outcome, NotSent)
        assert "certificate" in outcome.detail
        assert server.requests == []


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (saying(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"), "the proxy answered 407 Proxy"),
        (saying(b"HTTP/1.0 403 Forbidden\r\n\r\nno"), "the proxy answered 403 Forbidden"),
        (saying(b"SSH-2.0-x\r\n\r\n"), "does not speak HTTP"),
        (saying(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20000), "does not speak HTTP"),
        (saying(b"HTTP/1.1 200 OK\r\n\r\nearly"), "before the TLS handshake"),
        (closing, "closed the connection"),
    ],
)
async def test_a_proxy_that_opens_no_tunnel_is_not_sent_to(
    monkeypatch: pytest.MonkeyPatch, script: Script, says: str
) -> None:
    async with serving(script) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        wire = HttpClient(30)
        outcome = await wire.post("https://fcm.example/send", {}, b"{}")
        await wire.close()
        assert isinstance(outcome, NotSent)
        assert says in outcome.detail
        await proxy.ended.wait()


async def test_a_proxy_that_says_nothing_is_not_sent_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(saying(b"")) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        wire = HttpClient(0.4)
        assert isinstance(await wire.post("https://fcm.example/send", {}, b"{}"), NotSent)
        await proxy.ended.wait()
        await wire.close()


async def test_http_is_asked_of_the_proxy_by_its_whole_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(answering(OK)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://us%20er:p%40ss@127.0.0.1:{proxy.port}")
        wire = HttpClient(30)
        assert isinstance(await wire.post("http://sms.example:8080/send?a=b", {}, b"{}"), Answer)
        assert isinstance(await wire.post("http://other.example", {}, b"{}"), Answer)
        await wire.close()
        assert proxy.connections == 1
        first, second = proxy.requests
        assert first.startswith(b"POST http://sms.example:8080/send?a=b HTTP/1.1\r\nHost: sms.example:8080\r\n")
        assert second.startswith(b"POST http://other.example/ HTTP/1.1\r\nHost: other.example\r\n")
        assert LOGIN.encode() in first


async def test_without_proxy_means_without(monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed_port}")
    async with serving(answering(OK)) as server:
        wire = HttpClient(30, uses_proxy=False)
        assert isinstance(await wire.post(server.url, {}, b"{}"), Answer)
        await wire.close()


async def test_a_proxy_of_another_kind_is_not_gone_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    async with serving(answering(OK)) as server:
        wire = HttpClient(30)
        outcome = await wire.post(server.url, {}, b"{}")
        await wire.close()
        assert isinstance(outcome, NotSent)
        assert "proxy" in outcome.detail
        assert server.connections == 0


@pytest.mark.parametrize(
    ("names", "host", "is_proxied"),
    [
        ("", "fcm.example", True),
        ("fcm.example", "fcm.example", False),
        (".example", "fcm.example", False),
        ("example", "fcm.example", False),
        ("m.example", "fcm.example", True),
        ("other, FCM.example", "fcm.example", False),
        ("fcm.example:443", "fcm.example", False),
        ("fcm.example:80", "fcm.example", True),
        ("*", "fcm.example", False),
    ],
)
def test_no_proxy_names_hosts_and_all_below_them(
    monkeypatch: pytest.MonkeyPatch, names: str, host: str, is_proxied: bool
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", names)
    assert Proxies().find("https", host, 443) == (Proxy("proxy.example", 3128) if is_proxied else None)
