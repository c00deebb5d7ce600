"""The recovery job: which deliveries get another round, which have expired, and what becomes of abandoned claims."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from bongsu.deliver.transitions import result_without_sending
from bongsu.errors import StoreTooSlow
from bongsu.model import Channel, Device, Platform
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import DELIVERIES_TOPIC
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.core.query import same
from bongsu.store.deliveries import recovery
from bongsu.store.members.devices import put_device
from bongsu.store.messages.content import find_content
from bongsu.store.ranks import BULK, RANKS
from tests.support import runs
from tests.support.deliveries import (
    LONG_AGO,
    RANK_AGAIN,
    SOON,
    add_delivery_in_state,
    add_guaranteed_message,
    add_one_delivery,
    dead_of_every_rank,
    delivery_columns,
)
from tests.support.rows import add_row

KEPT = ("status", "attempts", "recovery_rounds", "epoch", "collapse_series", "code", "due", "finished_at")
FATE = ("status", "attempts", "recovery_rounds", "epoch", "collapse_series", "is_retryable")


@pytest.fixture
def woken() -> list[bytes | None]:
    return []


async def recover(store: Store, woken: list[bytes | None] | None = None, batch: int = 1_000) -> str:
    signals = LocalSignals()
    with signals.listen(DELIVERIES_TOPIC, ([] if woken is None else woken).append):
        return await runs.recover(store, batch, signals)


async def test_what_may_yet_go_gets_another_round(store: Store, woken: list[bytes | None]) -> None:
    one = await add_one_delivery(store, "FAIL", expires=SOON, is_retryable=True, recovery_rounds=2, collapse_series=5)
    assert await recover(store, woken) == "1 given another round"
    assert await delivery_columns(store, one, *FATE) == ("READY", 0, 3, 3, 5, False)
    assert await delivery_columns(store, one, "finished_at") is None
    assert len(woken) == 1
    (claimed,) = await statements.claim(store, Channel.PUSH, (BULK + 1,), 10, 60, "w")
    assert (claimed.delivery_id, claimed.epoch, claimed.attempts) == (one, 4, 0)


async def test_another_round_goes_behind_all_that_is_not_critical(store: Store) -> None:
    before = await dead_of_every_rank(store, 16, is_retryable=True)
    assert await recover(store, batch=5) == "16 given another round"
    for delivery_id, rank in before.items():
        assert await delivery_columns(store, delivery_id, "status", "rank") == ("READY", RANK_AGAIN[rank])


STAYING: tuple[dict[str, Any], ...] = (
    {"status": "FAIL"},
    {"status": "FAIL", "is_retryable": True, "recovery_rounds": 3},
    {"status": "FAIL", "is_retryable": True, "expires": LONG_AGO},
    {"status": "UNKNOWN"},
    {"status": "UNKNOWN", "guarantee": "at_most_once", "is_retryable": True},
    {"status": "SUCCESS", "is_retryable": True},
    {"status": "READY"},
    {"status": "READY", "due": timedelta(minutes=-5)},
    {"status": "SENDING", "due": SOON},
)


async def test_all_others_stay_as_they_are(store: Store, woken: list[bytes | None]) -> None:
    ids = [await add_one_delivery(store, **dead) for dead in STAYING]
    before = [await delivery_columns(store, one, *KEPT) for one in ids]
    assert await recover(store, woken) == "2 too late for another round"
    assert [await delivery_columns(store, one, *KEPT) for one in ids] == before
    assert woken == []


async def test_an_unknown_one_is_sent_again_if_its_type_is_at_least_once(store: Store) -> None:
    one = await add_one_delivery(store, "UNKNOWN", is_retryable=True)
    assert await recover(store) == "1 given another round"
    assert await delivery_columns(store, one, "status") == "READY"


async def test_one_that_is_too_late_is_not_looked_at_twice(store: Store) -> None:
    await add_one_delivery(store, "FAIL", expires=LONG_AGO, is_retryable=True)
    assert await recover(store) == "1 too late for another round"
    assert await recover(store) == "nothing to do"


async def test_what_expired_while_it_waited_ends_and_the_rest_wakes_dispatchers(
    store: Store, woken: list[bytes | None]
) -> None:
    stale = timedelta(minutes=-11)
    late = await add_one_delivery(store, "READY", expires=LONG_AGO, due=stale)
    waits = await add_one_delivery(store, "READY", expires=SOON, due=stale)
    due = await delivery_columns(store, waits, "due")
    assert await recover(store, woken) == "1 expired, some wait for a dispatcher"
    assert await delivery_columns(store, late, "status", "code", "epoch", "attempts") == ("FAIL", "EXPIRED", 3, 4)
    assert await delivery_columns(store, late, "finished_at") is not None
    # It is due as it was, and so before those that came after it.
    assert await delivery_columns(store, waits, "status", "due") == ("READY", due)
    assert len(woken) == 1


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
async def test_an_abandoned_claim_is_settled_as_a_dispatcher_would(
    store: Store, woken: list[bytes | None], guarantee: str
) -> None:
    one = await add_one_delivery(store, "SENDING", guarantee, due=timedelta(seconds=-1), claim_count=2, leased_by="w")
    async with store.transaction() as tx:
        await put_device(tx, "m-1", "d-0", Device(token="t", platform=Platform.IOS, push_consent=True))
    (claimed,) = await statements.claim(store, Channel.PUSH, (1,), 10, -1, "other")
    async with store.read() as tx:
        content = (await find_content(tx, [claimed.message_id]))[claimed.message_id]
    said = await recover(store, woken)
    status, code, detail, epoch, attempts = await delivery_columns(
        store, one, "status", "code", "detail", "epoch", "attempts"
    )
    assert (epoch, attempts) == (5, 4)
    if guarantee == "at_least_once":
        assert claimed.can_go
        assert (status, code, said, len(woken)) == ("READY", None, "1 sent again after a crash", 1)
    else:
        assert not claimed.can_go
        result = result_without_sending(claimed, content)
        assert (status, code, detail) == (result.status, result.code, result.detail)
        assert (said, woken) == ("1 unknown", [])
    # The old claim can no longer be recorded.
    late = statements.DeliveryResult(one, claimed.epoch, statements.DeliveryStatus.SUCCESS)
    assert await statements.record(store, "PUSH", [late]) == set()


async def test_many_go_in_batches_of_every_channel_and_lane(store: Store) -> None:
    old = timedelta(hours=-2)
    async with store.transaction() as tx:
        often, once = await add_guaranteed_message(tx), await add_guaranteed_message(tx, "at_most_once")
        gone = await add_guaranteed_message(tx, expires=LONG_AGO)
        for number in range(7):
            where = {"channel": ("PUSH", "SMS", "EMAIL")[number % 3], "rank": number % 2 * 2}
            await add_delivery_in_state(tx, often, "FAIL", f"m-{number}", is_retryable=True, **where)
            await add_delivery_in_state(tx, once, "SENDING", f"m-{number}", due=old, **where)
            await add_delivery_in_state(tx, gone, "READY", f"m-{number}", due=old, **where)
    assert await recover(store, batch=2) == "7 given another round, 7 expired, 7 unknown"
    assert await recover(store, batch=2) == "nothing to do"


async def test_taken_over_it_goes_on_behind_the_last_round_it_gave(store: Store) -> None:
    ids = [await add_one_delivery(store, "FAIL", is_retryable=True) for _ in range(3)]
    async with store.transaction() as tx:
        await add_row(tx, "runs", job="recover", cursor=str(ids[1]), counts='{"given": 2}', due=timedelta(seconds=-1))
    # The first two have failed again since they were given a round.
    assert await recover(store) == "3 given another round"
    assert [await delivery_columns(store, one, "status") for one in ids] == ["FAIL", "FAIL", "READY"]


async def test_what_a_dispatcher_has_locked_is_skipped(store: Store) -> None:
    if store.dialect.name == "sqlite":
        return  # has one writer: no other is ever in the middle of a transaction
    one = await add_one_delivery(store, "FAIL", is_retryable=True)
    lock = same("SELECT 1 FROM bongsu_deliveries WHERE delivery_id = $1 FOR UPDATE")
    async with store.transaction() as tx:
        await tx.fetch(lock(one))
        assert await recover(store) == "nothing to do"
    assert await recover(store) == "1 given another round"


async def test_a_part_that_fails_keeps_no_other_from_its_work(
    store: Store, woken: list[bytes | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = timedelta(hours=-2)
    async with store.transaction() as tx:
        often, gone = await add_guaranteed_message(tx), await add_guaranteed_message(tx, expires=LONG_AGO)
        lost = await add_delivery_in_state(tx, often, "SENDING", "lost", due=old)
        failed = await add_delivery_in_state(tx, often, "FAIL", "failed", is_retryable=True)
        late = [await add_delivery_in_state(tx, gone, "READY", f"late-{rank}", due=old, rank=rank) for rank in RANKS]
    expire = recovery.expire_stale

    async def slow(tx: Any, channel: str, rank: int, *rest: Any) -> Any:
        if rank == RANKS[1]:
            raise StoreTooSlow("canceling statement due to statement timeout")
        return await expire(tx, channel, rank, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "expire_stale", slow)
        # The run has failed, and the log of runs says so.
        with pytest.raises(StoreTooSlow):
            await recover(store, woken)
    assert [await delivery_columns(store, one, "status") for one in (lost, failed)] == ["READY", "READY"]
    ends = ["READY" if rank == RANKS[1] else "FAIL" for rank in RANKS]
    assert [await delivery_columns(store, one, "status") for one in late] == ends
    assert len(woken) == 1
    assert await recover(store) == "1 expired, some wait for a dispatcher"
