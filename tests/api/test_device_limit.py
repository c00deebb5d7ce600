"""A member has at most BONGSU_MAX_DEVICES devices: one more replaces the one that was registered longest ago."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx
import pytest

from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.clock import find_now
from tests.support.rows import set_columns


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"max_devices": 3})


async def register(api: httpx.AsyncClient, device_id: str, token: str | None = None, member_id: str = "m-1") -> None:
    device = {"token": token or f"token-{device_id}", "platform": "IOS", "pushConsent": True}
    answer = await api.put(f"/api/members/{member_id}/devices/{device_id}", json=device)
    assert answer.status_code == 200, answer.text
    assert answer.json()["deviceId"] == device_id


async def registered(api: httpx.AsyncClient, member_id: str = "m-1") -> list[str]:
    devices = (await api.get(f"/api/members/{member_id}/devices")).json()["devices"]
    return [device["deviceId"] for device in devices]


async def set_hours_ago(store: Store, device_id: str, hours: int, status: str = "ACTIVE") -> None:
    async with store.transaction() as tx:
        moment = await find_now(tx) - timedelta(hours=hours)
        await set_columns(tx, "devices", {"device_id": device_id}, updated_at=moment, status=status)


async def test_one_device_too_many_replaces_the_one_registered_longest_ago(api: httpx.AsyncClient, store: Store) -> None:
    for device_id, hours in (("a", 2), ("b", 3), ("c", 1)):
        await register(api, device_id)
        await set_hours_ago(store, device_id, hours)
    await register(api, "d", member_id="m-2")
    await register(api, "e")
    assert await registered(api) == ["a", "c", "e"]
    assert await registered(api, "m-2") == ["d"]


async def test_a_device_with_an_invalid_token_is_replaced_before_one_that_works(
    api: httpx.AsyncClient, store: Store
) -> None:
    for device_id, hours, status in (("a", 9, "ACTIVE"), ("b", 1, "INVALID"), ("c", 2, "ACTIVE")):
        await register(api, device_id)
        await set_hours_ago(store, device_id, hours, status)
    await register(api, "d")
    assert await registered(api) == ["a", "c", "d"]


async def test_registering_a_known_device_again_replaces_none(api: httpx.AsyncClient, store: Store) -> None:
    for device_id in ("a", "b", "c"):
        await register(api, device_id)
        await set_hours_ago(store, device_id, 1)
    await register(api, "a", "another-token")
    assert await registered(api) == ["a", "b", "c"]


async def test_many_registrations_at_once_leave_no_more_than_the_limit(api: httpx.AsyncClient) -> None:
    await asyncio.gather(*(register(api, f"d-{number:02}") for number in range(12)))
    assert len(await registered(api)) == 3


async def test_members_who_take_over_each_others_tokens_at_their_limit_do_not_wait_for_each_other_forever(
    api: httpx.AsyncClient,
) -> None:
    """The deadlocks that PostgreSQL finds fail the run of the tests."""
    for number in range(4):
        members = ("m-1", "m-2") if number % 2 else ("m-2", "m-1")
        await asyncio.gather(
            *(
                register(api, f"{member}-{device}-{number}", f"token-{(device + shift) % 4}", member)
                for shift, member in enumerate(members)
                for device in range(4)
            )
        )
    for member in ("m-1", "m-2"):
        assert len(await registered(api, member)) <= 3
