"""What a killed instance leaves in Redis: it counts as long as the instance may live, and not longer."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from bongsu.live.registry import LEASE_SECONDS, key_of
from tests.live.cluster import cluster_on
from tests.support.servers import PostgresServer

# `make chaos` waits as long as it really takes.
LEASE = LEASE_SECONDS if "CHAOS_SEEDS" in os.environ else 1.5
# The lease, and the time until the others look at it again.
GONE_AFTER = LEASE * 4 / 3


async def test_ghosts_of_a_killed_instance_close_nobodys_page_once_its_lease_has_ended(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    # Started by another thread: it waits for processes, and runs a loop of its own.
    both = cluster_on(postgres, tmp_path, lease_seconds=LEASE)
    cluster = await asyncio.to_thread(both.__enter__)
    try:
        async with cluster.operator() as operator, cluster.open("m", 1, stays_away=True) as oldest:
            await oldest.until_live()
            [own] = await _entries(operator)
            async with cluster.open("m", 0) as one, cluster.open("m", 0) as two:
                for page in (one, two):
                    await page.until_live()
                cluster.kill(0)
                killed = time.monotonic()
            assert len(await _entries(operator)) == 3
            # By the clock, because the promise is one about time.
            await asyncio.sleep(killed + GONE_AFTER - time.monotonic())
            async with cluster.open("m", 1) as third, cluster.open("m", 1) as fourth:
                for page in (third, fourth):
                    await page.until_live()
                entries = await _entries(operator)
                assert len(entries) == 3
                assert {one.split(b":")[0] for one in entries} == {own.split(b":")[0]}
                assert oldest.seen("bye") == []
    finally:
        await asyncio.to_thread(both.__exit__, None, None, None)


async def _entries(operator: Any) -> list[bytes]:
    found: list[bytes] = await operator.zrange(key_of("m"), 0, -1)
    return found
