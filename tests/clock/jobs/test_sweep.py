"""The sweep job: claims of dead dispatchers, rows of dead processes, unused quotas."""

from __future__ import annotations

from datetime import timedelta

from bongsu.clock.jobs.recover import Recovery
from bongsu.clock.jobs.sweep import sweep_job
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import DELIVERIES_TOPIC
from bongsu.store import Store
from bongsu.store.deliveries import quotas
from bongsu.store.desk import processes
from tests.support.decisions import rows
from tests.support.deliveries import LONG_AGO, add_one_delivery, delivery_columns
from tests.support.rows import set_columns
from tests.support.runs import run_by_hand

TWO_DAYS = timedelta(days=-2)


async def test_what_the_dead_left_behind_is_swept_and_the_living_keep_theirs(store: Store) -> None:
    held = await add_one_delivery(store, "SENDING", guarantee="at_most_once", due=LONG_AGO)
    again = await add_one_delivery(store, "SENDING", guarantee="at_least_once", due=LONG_AGO)
    alive = await add_one_delivery(store, "SENDING", due=timedelta(minutes=1))
    failed = await add_one_delivery(store, "FAIL", is_retryable=True)
    async with store.transaction() as tx:
        for name in ("dead:1", "alive:1"):
            await processes.put_process(tx, name, ["api"], 0.0)
            await quotas.draw(tx, name, 1, 0, 10, 1)
    await set_columns(store, "processes", {"name": "dead:1"}, seen_at=TWO_DAYS)
    await set_columns(store, "quotas", {"name": "dead:1"}, drawn_at=TWO_DAYS)
    signals, woken = LocalSignals(), list[bytes | None]()
    with signals.listen(DELIVERIES_TOPIC, woken.append):
        run = await run_by_hand(store, sweep_job(Recovery(store, signals)))
    assert run.result == "1 unknown, 1 sent again after a crash, 1 processes removed, 1 quotas removed"
    assert len(woken) == 1
    assert await delivery_columns(store, held, "status", "code") == ("UNKNOWN", "ABANDONED")
    assert await delivery_columns(store, again, "status") == "READY"
    assert await delivery_columns(store, alive, "status") == "SENDING"
    # Another round is for the recovery job, which has hours.
    assert await delivery_columns(store, failed, "status") == "FAIL"
    for table in ("processes", "quotas"):
        assert [row["name"] for row in await rows(store, f"SELECT name FROM bongsu_{table}")] == ["alive:1"]
    run = await run_by_hand(store, sweep_job(Recovery(store, signals)))
    assert run.result == "nothing to do"
