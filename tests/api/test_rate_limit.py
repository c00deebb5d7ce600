"""A member's calls are limited: so many at once, so many a second; 429 says when to come back."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest

from bongsu.errors import RateLimited
from bongsu.runtime.keys import Keys
from bongsu.runtime.rate_limit import SWEEP, RateLimit
from bongsu.settings import Settings
from tests.support.clocks import ManualClock


def allowed(limit: RateLimit, member_id: str = "m") -> int:
    """How many calls the member can make now."""
    for number in range(1_000):
        try:
            limit.count(member_id)
        except RateLimited:
            return number
    return 1_000


def test_a_burst_is_allowed_and_then_the_rate() -> None:
    clock = ManualClock()
    limit = RateLimit(2, 10, clock)
    assert allowed(limit) == 10
    clock.now += 1.5
    assert allowed(limit) == 3
    assert allowed(limit, "another") == 10
    clock.now += 3_600
    assert allowed(limit) == 10


@pytest.mark.parametrize(("rate", "seconds"), [(0.1, 10), (2, 1), (1_000, 1)])
def test_a_call_after_the_time_that_is_named_is_allowed(rate: float, seconds: int) -> None:
    clock = ManualClock()
    limit = RateLimit(rate, 1, clock)
    assert allowed(limit) == 1
    with pytest.raises(RateLimited) as refused:
        limit.count("m")
    assert refused.value.retry_after == seconds
    clock.now += seconds
    limit.count("m")


def test_members_who_no_longer_call_are_forgotten() -> None:
    clock = ManualClock()
    limit = RateLimit(20, 100, clock)
    for number in range(3 * SWEEP):
        limit.count(f"m-{number}")
        clock.now += 1
    assert len(limit._full_at) <= SWEEP


@pytest.fixture
def settings(settings: Settings) -> Settings:
    # So slow that no call comes back into the limit while the test runs.
    return settings.model_copy(update={"member_rate": 0.001, "member_burst": 3})


CALLS = [
    ("GET", "/api/notifications"), ("GET", "/api/notifications/unread-count"), ("POST", "/api/notifications/1/read"),
    ("POST", "/api/notifications/1/unread"), ("POST", "/api/notifications/1/archive"),
    ("POST", "/api/notifications/1/unarchive"), ("DELETE", "/api/notifications/1"), ("POST", "/api/notifications/seen"),
    ("POST", "/api/notifications/read-all"), ("GET", "/api/preferences"), ("PUT", "/api/preferences"),
    ("PUT", "/api/devices/d"), ("DELETE", "/api/devices/d"), ("POST", "/api/session"),
]  # fmt: skip


async def test_every_call_of_a_member_counts_and_others_do_not_pay_for_it(
    api: httpx.AsyncClient, settings: Settings
) -> None:
    def headers(member_id: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {Keys.load(settings).member_token(member_id, timedelta(hours=1))}"}

    for number, (method, path) in enumerate(CALLS):
        own = headers(f"m-{number}")
        answers = [(await api.request(method, path, headers=own)) for _ in range(4)]
        assert 429 not in {answer.status_code for answer in answers[:3]}
        assert answers[3].status_code == 429, path
        assert int(answers[3].headers["Retry-After"]) > 0
        assert answers[3].json()["type"] == "urn:bongsu:rate-limited"
        assert "429" in (await api.get("/openapi.json")).json()["paths"][_template(path)][method.lower()]["responses"]
    cookie = {"Cookie": "bongsu_session=" + headers("m-0")["Authorization"].removeprefix("Bearer "), "Authorization": ""}
    assert (await api.get("/api/preferences", headers=cookie)).status_code == 429
    assert {(await api.get("/api/members/m-0/devices")).status_code for _ in range(5)} == {200}


def _template(path: str) -> str:
    return path.replace("notifications/1", "notifications/{notification_id}").replace("devices/d", "devices/{device_id}")
