"""A recommendation service: `GET {BONGSU_RECOMMENDATION_URL}/recommendations/{memberId}?limit=`, one call for each member.

A member whose call fails after all its tries is skipped. The circuit breaker counts members, not tries: one member that the
service cannot serve does not open it, a service that is away does. While it is open a try fails without a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import orjson

from bongsu.clock.recommenders import NAME_LIMIT, Recommendation, Recommendations, RecommendedProduct
from bongsu.deliver.channels.http.client import Answer, HttpClient, NotSent, ResponseLost
from bongsu.deliver.channels.http.credentials import split_credentials
from bongsu.deliver.channels.http.retry_after import retry_after
from bongsu.deliver.channels.limits.breaker import Breaker
from bongsu.deliver.channels.text import one_line
from bongsu.model import utc_now
from bongsu.model.base import ID_LIMIT, ID_PATTERN
from bongsu.runtime import telemetry
from bongsu.runtime.backoff import doubling
from bongsu.settings import Settings

# Calls under way at once: 100,000 members within the hour also if an answer takes a second.
CONCURRENCY = 32
# Items of an answer that are looked at: a service that ignores the limit and sends its catalogue for each member would stop
# the process for a fraction of a second each.
MOST_ITEMS = 1_000
# However long the service asks for, a member waits no longer for its next try.
LONGEST_WAIT = 30.0

SETTING = "BONGSU_RECOMMENDATION_URL"

_log = telemetry.log("bongsu.recommend")


@dataclass(frozen=True)
class Failed:
    """No recommendation could be had. `can_retry`: the service may be able to answer later."""

    reason: str
    can_retry: bool = False
    after_seconds: float = 0.0


@dataclass(frozen=True)
class NoProducts:
    """The service knows nothing to recommend to this member."""


class HttpRecommender:
    def __init__(self, client: HttpClient, url: str, query: str, headers: Mapping[str, str], settings: Settings) -> None:
        """The member's id goes between `url` and `query`."""
        self._client = client
        self._url = url
        self._query = query
        self._headers = headers
        self._limit = settings.recommendation_limit
        self._tries = 1 + settings.max_retries
        self._first_wait = settings.retry_base_seconds
        self._breaker = Breaker()
        self._calls = asyncio.Semaphore(CONCURRENCY)

    async def recommend(self, member_ids: Sequence[str]) -> Recommendations:
        async with asyncio.TaskGroup() as group:
            asked = {member_id: group.create_task(self._ask_in_turn(member_id)) for member_id in member_ids}
        answers = {member_id: task.result() for member_id, task in asked.items()}
        failed = {member_id: answer for member_id, answer in answers.items() if isinstance(answer, Failed)}
        if failed:
            member_id, first = next(iter(failed.items()))
            _log.warning("recommender failed", members=len(failed), first_member=member_id, reason=first.reason)
        return Recommendations(
            {member_id: answer for member_id, answer in answers.items() if isinstance(answer, Recommendation)}, set(failed)
        )

    async def _ask_in_turn(self, member_id: str) -> Recommendation | NoProducts | Failed:
        async with self._calls:
            answer: Recommendation | NoProducts | Failed = await self._try(member_id, 1)
            for tries in range(1, self._tries):
                if not isinstance(answer, Failed) or not answer.can_retry:
                    break
                await asyncio.sleep(max(doubling(self._first_wait, tries), min(answer.after_seconds, LONGEST_WAIT)))
                answer = await self._try(member_id, tries + 1)
            return answer

    async def _try(self, member_id: str, number: int) -> Recommendation | NoProducts | Failed:
        is_probe = not self._breaker.is_closed
        if self._breaker.ask(time.monotonic(), member_id):
            return Failed("the recommender kept failing: its circuit breaker is open", can_retry=True)
        url = f"{self._url}{quote(member_id, safe='')}?{self._query}"
        response = await self._client.get(url, self._headers)
        answer = read_response(response, self._limit)
        if not isinstance(answer, Failed) or not answer.can_retry:
            self._breaker.succeeded()
        elif (is_probe or number == 1) and self._breaker.failed(time.monotonic(), member_id):
            _log.warning("recommender circuit open", reason=answer.reason)
        return answer


# --- what it answers --------------------------------------------------------------------------------------------------


def read_response(response: Answer | NotSent | ResponseLost, limit: int) -> Recommendation | NoProducts | Failed:
    match response:
        case NotSent(detail) | ResponseLost(_, detail):
            return Failed(detail, can_retry=True)
        case Answer(200, _, body):
            return read_body(body, limit)
        case Answer(204 | 404):
            return NoProducts()
        case Answer(status, headers, _) if status in (408, 429) or status >= 500:
            return Failed(f"HTTP {status}", can_retry=True, after_seconds=retry_after(headers, utc_now()) or 0.0)
        case Answer(status):
            return Failed(f"HTTP {status}")


def read_body(body: bytes, limit: int) -> Recommendation | NoProducts | Failed:
    """Up to the limit, each product once. An item that is not a product is left out."""
    try:
        answer: Any = orjson.loads(body)
    except ValueError:
        return Failed("the answer is not JSON")
    given = answer.get("recommendations") if isinstance(answer, dict) else None
    if not isinstance(given, list):
        return Failed("the answer has no list of recommendations")
    products: dict[str, RecommendedProduct] = {}
    for item in given[: max(MOST_ITEMS, limit)]:
        if (product := _read_product(item)) is not None:
            products.setdefault(product.product_id, product)
        if len(products) == limit:
            break
    if not products:
        return Failed("no recommendation of the answer has a productId") if given else NoProducts()
    strategy = answer.get("strategy")
    kept = one_line(strategy)[:NAME_LIMIT] if isinstance(strategy, str) else None
    return Recommendation(list(products.values()), kept or None)


def _read_product(item: Any) -> RecommendedProduct | None:
    if not isinstance(item, dict):
        return None
    product_id, name = item.get("productId"), item.get("productName")
    if isinstance(product_id, int) and not isinstance(product_id, bool):
        product_id = str(product_id)
    if not isinstance(product_id, str) or len(product_id) > ID_LIMIT or not re.fullmatch(ID_PATTERN, product_id):
        return None
    return RecommendedProduct(product_id, one_line(name)[:NAME_LIMIT] or None if isinstance(name, str) else None)


class OpenHttp:
    """Opens one for each run. Made at the start, so that a URL that cannot be used is reported then."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        target, authorization = split_credentials(settings.recommendation_url, SETTING)
        self._headers = {"Accept": "application/json", **authorization}
        self._before = target._replace(path=target.path.rstrip("/") + "/recommendations/", query="").geturl()
        self._query = "&".join(part for part in (target.query, f"limit={settings.recommendation_limit}") if part)

    @contextlib.asynccontextmanager
    async def __call__(self, since: datetime) -> AsyncIterator[HttpRecommender]:
        client = HttpClient(self._settings.send_timeout_seconds, CONCURRENCY)
        try:
            yield HttpRecommender(client, self._before, self._query, self._headers, self._settings)
        finally:
            await client.close()
