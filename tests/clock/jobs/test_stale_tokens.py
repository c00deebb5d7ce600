"""The stale-tokens job: which devices are stale, and that they are removed only if asked for."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bongsu.clock.jobs.stale_tokens import stale_tokens_job
from bongsu.model import Device, Platform
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.clock import find_now
from bongsu.store.members import devices
from bongsu.store.members.devices import put_device
from tests.support.decisions import rows
from tests.support.plans import generic_plan
from tests.support.rows import Sql, add_device, add_many, add_member
from tests.support.runs import run_by_hand


async def add_devices(store: Store) -> None:
    async with store.transaction() as tx:
        for number, age in enumerate((1, 59, 61, 90, 400)):
            await add_member(tx, f"m-{number}")
            await add_device(tx, f"m-{number}", updated_at=timedelta(days=-age))
        await add_device(tx, "m-0", device_id="tablet", token="t", status="INVALID", updated_at=timedelta(days=-61))


@pytest.mark.parametrize("batch", [1, 4, 1_000])
async def test_stale_devices_are_counted_and_removed_if_asked_for(store: Store, settings: Settings, batch: int) -> None:
    await add_devices(store)
    run = await run_by_hand(store, stale_tokens_job(settings, batch))
    assert run.result == "4 of 6 devices are stale"
    assert len(await rows(store, "SELECT 1 FROM bongsu_devices")) == 6
    dropping = settings.model_copy(update={"drop_stale_devices": True})
    run = await run_by_hand(store, stale_tokens_job(dropping, batch))
    assert run.result == "4 of 6 devices are stale, 4 removed"
    left = await rows(store, "SELECT member_id, device_id FROM bongsu_devices ORDER BY member_id")
    assert [tuple(row) for row in left] == [("m-0", "phone"), ("m-1", "phone")]


async def test_a_device_that_is_registered_again_meanwhile_stays(store: Store, settings: Settings) -> None:
    await add_devices(store)
    async with store.transaction() as tx:
        cutoff = await find_now(tx) - timedelta(days=60)
        page = await devices.find_stale(tx, ("", ""), cutoff, 100)
        assert len(page.stale) == 4
        await put_device(tx, "m-4", "phone", Device(token="new", platform=Platform.IOS, push_consent=True))
        assert await devices.remove_stale(tx, page.stale, cutoff) == 3
    assert len(await rows(store, "SELECT 1 FROM bongsu_devices WHERE token = 'new'")) == 1


async def test_devices_are_read_by_their_key(store: Store) -> None:
    async with store.transaction() as tx:
        name = Sql("'m-' || CAST(number AS text)")
        await add_many(tx, "members", 3_000, member_id=name)
        await add_many(tx, "devices", 3_000, member_id=name, token=name)
    for statement in (devices.FIND_STALE, devices.REMOVE_STALE):
        steps = await generic_plan(store, statement)
        assert "Seq Scan on bongsu" not in steps, steps
        assert "SCAN bongsu" not in steps, steps
