"""A recommendation service that answers, has nothing, fails, is slow, or answers what is no recommendation."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from bongsu.clock.recommenders import Recommendations
from bongsu.clock.recommenders import http as module
from bongsu.clock.recommenders.http import CONCURRENCY, Failed, NoProducts, OpenHttp, read_body
from bongsu.errors import BadSettings
from bongsu.settings import Settings

NOW = datetime.now(UTC)
PRODUCTS = [{"productId": f"p-{number}", "productName": f"상품 {number}", "score": 0.5} for number in range(5)]

Reply = tuple[int, Any] | None


def good(_member_id: str) -> Reply:
    return 200, {"recommendations": PRODUCTS, "strategy": "ctr"}


class Service:
    """Answers as `reply` says: a status and a body; None is no answer at all."""

    def __init__(self) -> None:
        self.reply: Callable[[str], Reply] = good
        self.calls: Counter[str] = Counter()
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.most_at_once = 0
        self.port = 0
        self._under_way = 0
        # Answers wait for it.
        self.gate = asyncio.Event()
        self.gate.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
                self.requests.append((head[0], headers))
                member_id = unquote(urlsplit(head[0].split()[1]).path.rpartition("/")[2])
                self.calls[member_id] += 1
                self._under_way += 1
                self.most_at_once = max(self.most_at_once, self._under_way)
                await self.gate.wait()
                reply = self.reply(member_id)
                self._under_way -= 1
                if reply is not None:
                    body = reply[1] if isinstance(reply[1], bytes) else json.dumps(reply[1]).encode()
                    writer.write(b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n%b" % (reply[0], len(body), body))
                    await writer.drain()
        writer.close()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    async with await asyncio.start_server(service.serve, "127.0.0.1", 0) as server:
        service.port = server.sockets[0].getsockname()[1]
        yield service


async def ask(service: Service, *member_ids: str, url: str = "http://127.0.0.1:{}/v1/", **settings: Any) -> Recommendations:
    given = {"retry_base_seconds": 0.001, "recommendation_limit": 3, **settings}
    async with OpenHttp(Settings(recommendation_url=url.format(service.port), **given))(NOW) as recommender:
        return await recommender.recommend(member_ids)


async def test_a_member_gets_what_the_service_answers_up_to_the_limit(service: Service) -> None:
    answer = await ask(service, "a/b?c 가", url="http://:secret@127.0.0.1:{}/v1?tenant=7")
    (found,) = answer.found.values()
    assert list(answer.found) == ["a/b?c 가"]
    assert list(found.products) == [("p-0", "상품 0"), ("p-1", "상품 1"), ("p-2", "상품 2")]
    assert found.strategy == "ctr"
    ((line, headers),) = service.requests
    assert line == "GET /v1/recommendations/a%2Fb%3Fc%20%EA%B0%80?tenant=7&limit=3 HTTP/1.1"
    assert headers["authorization"] == "Bearer secret"


async def test_members_without_recommendations_are_skipped_and_not_failed(service: Service) -> None:
    replies: dict[str, Reply] = {"empty": (200, {"recommendations": []}), "unknown": (404, {}), "none": (204, b"")}
    service.reply = lambda member_id: replies.get(member_id) or good(member_id)
    answer = await ask(service, "a", *replies)
    assert (list(answer.found), answer.failed) == (["a"], set())
    assert service.calls == dict.fromkeys(["a", *replies], 1)


GARBAGE: list[Any] = [
    b"", b"<html>", b"\xff\xfe", [], "p-1", None, {}, {"recommendations": {}}, {"recommendations": [1, None, "p"]},
    {"recommendations": [{"productName": "연필"}]}, {"recommendations": [{"productId": ""}, {"productId": "a\0b"}]},
    {"recommendations": [{"productId": "x" * 300}, {"productId": True}]}, b"[" * 100_000,
    b'{"recommendations": [{"productId": "\\ud800"}]}',
]  # fmt: skip


async def test_an_answer_that_is_no_recommendation_fails_its_member_alone(service: Service) -> None:
    names = [f"m-{number}" for number in range(len(GARBAGE))]
    service.reply = lambda member_id: good(member_id) if member_id == "a" else (200, GARBAGE[names.index(member_id)])
    answer = await ask(service, *names, "a")
    assert (list(answer.found), answer.failed) == (["a"], set(names))
    # The same question has the same answer.
    assert set(service.calls.values()) == {1}


def test_what_can_be_used_of_an_answer_is_used() -> None:
    items = [
        {"productId": 7, "productName": "  a\nb\u0007  "}, {"productId": "p", "productName": None}, {"productName": "x"},
        {"productId": 7, "productName": "again"}, {"productId": "q", "productName": "n" * 500},
    ]  # fmt: skip
    found = read_body(json.dumps({"recommendations": items, "strategy": 5}).encode(), 10)
    assert not isinstance(found, Failed | NoProducts)
    assert list(found.products) == [("7", "a b"), ("p", None), ("q", "n" * 100)]
    assert found.strategy is None


def test_of_a_long_answer_no_more_is_read_than_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    original = module._read_product

    def count(item: Any) -> Any:
        read.append(item)
        return original(item)

    monkeypatch.setattr(module, "_read_product", count)
    items: list[Any] = [{"productId": f"p-{number}"} for number in range(20_000)]
    found = read_body(json.dumps({"recommendations": [None, *items]}).encode(), 3)
    assert not isinstance(found, Failed | NoProducts)
    assert [product.product_id for product in found.products] == ["p-0", "p-1", "p-2"]
    assert len(read) == 4
    read.clear()
    assert isinstance(read_body(json.dumps({"recommendations": [None] * 20_000}).encode(), 3), Failed)
    assert len(read) == module.MOST_ITEMS


@pytest.mark.parametrize(("status", "calls"), [(500, 4), (503, 4), (429, 4), (408, 4), (400, 1), (401, 1), (302, 1)])
async def test_a_failing_member_is_tried_as_often_as_it_may_help(service: Service, status: int, calls: int) -> None:
    service.reply = lambda member_id: (status, {}) if member_id == "bad" else good(member_id)
    answer = await ask(service, "a", "bad", "b", max_retries=3)
    assert (list(answer.found), answer.failed) == (["a", "b"], {"bad"})
    assert service.calls == {"a": 1, "bad": calls, "b": 1}


async def test_a_member_that_fails_once_gets_theirs(service: Service) -> None:
    service.reply = lambda member_id: good(member_id) if service.calls[member_id] > 1 else (503, {})
    assert (await ask(service, "a")).failed == set()


async def test_a_slow_answer_is_not_waited_for(service: Service) -> None:
    service.reply = lambda member_id: None if member_id == "slow" else good(member_id)
    answer = await ask(service, "slow", "a", send_timeout_seconds=0.2, max_retries=1)
    assert (list(answer.found), answer.failed) == (["a"], {"slow"})
    assert service.calls["slow"] == 2


async def test_one_failing_member_does_not_open_the_breaker(service: Service) -> None:
    """However often it is tried."""
    service.reply = lambda member_id: (500, {}) if member_id == "bad" else good(member_id)
    async with OpenHttp(
        Settings(recommendation_url=f"http://127.0.0.1:{service.port}", retry_base_seconds=0.001, max_retries=9)
    )(NOW) as recommender:
        for number in range(3):
            assert (await recommender.recommend(["bad"])).failed == {"bad"}
            assert list((await recommender.recommend([f"m-{number}"])).found) == [f"m-{number}"]
    assert service.calls == {"bad": 30, "m-0": 1, "m-1": 1, "m-2": 1}


async def test_a_service_that_is_away_is_left_alone_and_asked_again_later(service: Service) -> None:
    service.reply = lambda _member_id: (503, {})
    members = [f"m-{number}" for number in range(200)]
    # The breaker opens for a second after ten members, and these tries take a millisecond each.
    async with OpenHttp(
        Settings(recommendation_url=f"http://127.0.0.1:{service.port}", retry_base_seconds=1e-6, max_retries=1)
    )(NOW) as recommender:
        assert (await recommender.recommend(members)).failed == set(members)
        assert service.calls.total() < len(members)
        service.reply = good
        # Another page: until its probe passes nobody is served, then everybody.
        while (await recommender.recommend(["a"])).failed:
            await asyncio.sleep(0.05)
        assert (await recommender.recommend(members)).failed == set()


async def test_no_more_calls_are_under_way_than_agreed(service: Service) -> None:
    service.gate.clear()
    asking = asyncio.create_task(ask(service, *[f"m-{number}" for number in range(3 * CONCURRENCY)]))
    while service.calls.total() < CONCURRENCY:
        await asyncio.sleep(0.001)
    service.gate.set()
    assert len((await asking).found) == 3 * CONCURRENCY
    assert service.most_at_once == CONCURRENCY


async def test_a_service_that_cannot_be_reached_fails_its_members(service: Service) -> None:
    answer = await ask(service, "a", url="http://127.0.0.1:1", max_retries=1)
    assert (answer.found, answer.failed) == ({}, {"a"})


@pytest.mark.parametrize(("url", "why"), [("http://", "names no host"), ("http://:a%00b@h", "a token that no header")])
def test_an_address_that_cannot_be_used_stops_the_start(url: str, why: str) -> None:
    with pytest.raises(BadSettings, match=f"BONGSU_RECOMMENDATION_URL .*{why}"):
        OpenHttp(Settings(recommendation_url=url))
