"""While a campaign to 50,000 members goes out through a slow provider, what is about one member overtakes it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from bongsu.deliver.claimer import SHARE
from bongsu.model.channels import Channel, find_channel
from bongsu.settings import Settings
from bongsu.store import Statement, Store
from tests.simulator.running import Simulator
from tests.support.processes import KEY, serving
from tests.support.waiting import eventually

MEMBERS = 50_000
# What a dispatcher may have under way.
SLOTS = find_channel(Channel.PUSH).concurrency
# Longer than the way of one event takes on a busy machine: what is sent meanwhile is bounded by the slots.
ANSWER_MS = 3_000

PRICE_DROP = {
    "eventType": "product.price_changed",
    "refId": "sku-1",
    "payload": {"previousPrice": 10_000, "currentPrice": 7_000},
}
TITLE = "점검"
NOTICE = {"eventType": "notice.published", "payload": {"title": TITLE, "body": "오늘 밤 점검이 있습니다"}}
CONFIRMED = {"eventType": "reservation.confirmed", "targetId": "kim", "refId": "r-1"}
FOLLOWED = {"eventType": "follow.created", "targetId": "lee", "actorId": "park", "refId": "f-1"}


def _for_each_member(insert: str, columns: str) -> Statement:
    """INSERT … SELECT for the numbers from 1 to $1."""
    return Statement(
        postgres=f"INSERT INTO {insert} SELECT {columns} FROM generate_series(1, CAST($1 AS integer)) AS n",
        sqlite=f"""
            INSERT INTO {insert}
            WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < $1)
            SELECT {columns} FROM numbers""",
    )


CROWD = (
    _for_each_member("bongsu_members (member_id)", "'m-' || n"),
    _for_each_member(
        "bongsu_devices (member_id, device_id, token, platform, has_consent)",
        "'m-' || n, 'phone', 'token-' || n, 'ANDROID', true",
    ),
    _for_each_member("bongsu_behaviors (product_id, member_id, action)", "'sku-1', 'm-' || n, 'VIEW'"),
)


async def fill(settings: Settings) -> None:
    store = Store.open(settings)
    async with store.transaction() as tx:
        await tx.execute(*(one(MEMBERS) for one in CROWD))
    await store.close()


def post(client: httpx.Client, event: dict[str, Any]) -> None:
    assert client.post("/api/events", json=event).status_code == 202


def place_of(simulator: Simulator, token: str) -> int | None:
    """How many messages had come before that of this token. A notice to everybody has reached its member too."""
    found = [(one["token"], one["text"]["title"]) for one in simulator.ledger()["messages"]]
    places = (place for place, (sent_to, title) in enumerate(found) if sent_to == token and title != TITLE)
    return next(places, None)


def _wait_for(simulator: Simulator, token: str) -> int:
    eventually(lambda: place_of(simulator, token) is not None, True)
    place = place_of(simulator, token)
    assert place is not None
    return place


@pytest.mark.parametrize(
    ("campaign", "events"),
    [(PRICE_DROP, {"token-kim": CONFIRMED, "token-lee": FOLLOWED}), (NOTICE, {"token-kim": CONFIRMED})],
    ids=["marketing", "a critical notice to everybody"],
)
async def test_it_is_among_the_next_that_are_sent(
    migrated: dict[str, str],
    settings: Settings,
    simulator: Simulator,
    campaign: dict[str, Any],
    events: dict[str, dict[str, Any]],
) -> None:
    await fill(settings)
    simulator.configure(latency={"medianMs": ANSWER_MS})
    environment = {**migrated, "BONGSU_FCM_URL": simulator.address, "BONGSU_FCM_PROJECT": "demo"}
    with serving(environment) as served, served.client(**KEY) as client:
        for member in ("kim", "lee"):
            device = {"token": f"token-{member}", "platform": "ANDROID", "pushConsent": True}
            assert client.put(f"/api/members/{member}/devices/phone", json=device).status_code == 200
        post(client, campaign)
        # The first of it are under way, and all slots but those of critical sends are taken.
        eventually(lambda: len(simulator.ledger()["messages"]) > SLOTS // 2, True)
        for token, event in events.items():
            before = len(simulator.ledger()["messages"])
            post(client, event)
            # What is sent meanwhile: no more than the slots and one claim.
            assert 0 <= _wait_for(simulator, token) - before <= SLOTS + SLOTS // SHARE
        assert len(simulator.ledger()["messages"]) < MEMBERS / 2
