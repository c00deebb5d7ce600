"""The recovery job: who gets another round, who has come too late, and what the dead left on the wire."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from bongsu.clock.recover import Recovery
from bongsu.dispatch import DELIVERIES_TOPIC
from bongsu.model import Channel, Device, Platform
from bongsu.signals import LocalSignals
from bongsu.store import Store, people
from bongsu.store import deliveries as statements
from bongsu.verdicts import unsent
from tests.dying import LONG_AGO, SOON, column, delivery, message, one_delivery

KEPT = ("status", "attempts", "rounds", "epoch", "series", "code", "due", "finished_at")
FATE = ("status", "attempts", "rounds", "epoch", "series", "is_retryable")


@pytest.fixture
def woken() -> list[bytes | None]:
    return []


async def recover(store: Store, woken: list[bytes | None] | None = None, batch: int = 1_000) -> str:
    signals = LocalSignals()
    with signals.listen(DELIVERIES_TOPIC, ([] if woken is None else woken).append):
        return await Recovery(store, signals, batch).run()


async def test_what_may_yet_go_gets_another_round(store: Store, woken: list[bytes | None]) -> None:
    one = await one_delivery(store, "FAIL", expires=SOON, is_retryable=True, rounds=2, series=5)
    assert await recover(store, woken) == "1 given another round"
    assert await column(store, one, *FATE) == ("READY", 0, 3, 3, 5, False)
    assert await column(store, one, "finished_at") is None
    assert len(woken) == 1
    async with store.write() as tx:
        (claimed,) = await statements.claim(tx, Channel.PUSH, (1,), 10, 60, "w")
    assert (claimed.delivery_id, claimed.epoch, claimed.attempts) == (one, 4, 0)


STAYING: tuple[dict[str, Any], ...] = (
    {"status": "FAIL"},
    {"status": "FAIL", "is_retryable": True, "rounds": 3},
    {"status": "FAIL", "is_retryable": True, "expires": LONG_AGO},
    {"status": "UNKNOWN"},
    {"status": "UNKNOWN", "guarantee": "at_most_once", "is_retryable": True},
    {"status": "SUCCESS", "is_retryable": True},
    {"status": "READY"},
    {"status": "READY", "due": timedelta(minutes=-9)},
    {"status": "SENDING", "due": SOON},
)


async def test_all_others_stay_as_they_are(store: Store, woken: list[bytes | None]) -> None:
    ids = [await one_delivery(store, **dead) for dead in STAYING]
    before = [await column(store, one, *KEPT) for one in ids]
    assert await recover(store, woken) == "2 too late for another round"
    assert [await column(store, one, *KEPT) for one in ids] == before
    assert woken == []


async def test_an_unknown_one_goes_again_where_its_type_says_so(store: Store) -> None:
    one = await one_delivery(store, "UNKNOWN", is_retryable=True)
    assert await recover(store) == "1 given another round"
    assert await column(store, one, "status") == "READY"


async def test_one_that_is_too_late_is_not_looked_at_twice(store: Store) -> None:
    await one_delivery(store, "FAIL", expires=LONG_AGO, is_retryable=True)
    assert await recover(store) == "1 too late for another round"
    assert await recover(store) == "nothing to do"


async def test_what_waited_beyond_its_worth_ends_and_the_rest_is_told_of(store: Store, woken: list[bytes | None]) -> None:
    stale = timedelta(minutes=-11)
    late = await one_delivery(store, "READY", expires=LONG_AGO, due=stale)
    waits = await one_delivery(store, "READY", expires=SOON, due=stale)
    due = await column(store, waits, "due")
    assert await recover(store, woken) == "1 expired, some wait for a dispatcher"
    assert await column(store, late, "status", "code", "epoch", "attempts") == ("FAIL", "EXPIRED", 3, 4)
    assert await column(store, late, "finished_at") is not None
    # It is due as it was, and so before those that came after it.
    assert await column(store, waits, "status", "due") == ("READY", due)
    assert len(woken) == 1


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
async def test_what_the_dead_left_on_the_wire_is_judged_as_a_dispatcher_would(
    store: Store, woken: list[bytes | None], guarantee: str
) -> None:
    one = await one_delivery(store, "SENDING", guarantee, due=timedelta(seconds=-1), claims=2, leased_by="w")
    async with store.write() as tx:
        await people.put_device(tx, "m-1", "d-0", Device(token="t", platform=Platform.IOS, push_consent=True))
        (claimed,) = await statements.claim(tx, Channel.PUSH, (1,), 10, -1, "other")
        words = (await statements.find_words(tx, [claimed.message_id]))[claimed.message_id]
    said = await recover(store, woken)
    status, code, detail, epoch, attempts = await column(store, one, "status", "code", "detail", "epoch", "attempts")
    assert (epoch, attempts) == (5, 4)
    if guarantee == "at_least_once":
        assert claimed.can_go
        assert (status, code, said, len(woken)) == ("READY", None, "1 sent again after a crash", 1)
    else:
        assert not claimed.can_go
        verdict = unsent(claimed, words)
        assert (status, code, detail) == (verdict.status, verdict.code, verdict.detail)
        assert (said, woken) == ("1 unknown", [])
    # Who was thought dead can no longer say otherwise.
    late = statements.Verdict(one, claimed.epoch, statements.DeliveryStatus.SUCCESS)
    async with store.write() as tx:
        assert await statements.record(tx, [late]) == set()


async def test_many_go_in_batches_of_every_channel_and_lane(store: Store) -> None:
    old = timedelta(hours=-2)
    async with store.write() as tx:
        often, once = await message(tx), await message(tx, "at_most_once")
        gone = await message(tx, expires=LONG_AGO)
        for number in range(7):
            where = {"channel": ("PUSH", "SMS", "EMAIL")[number % 3], "lane": number % 2 * 2}
            await delivery(tx, often, "FAIL", f"m-{number}", is_retryable=True, **where)
            await delivery(tx, once, "SENDING", f"m-{number}", due=old, **where)
            await delivery(tx, gone, "READY", f"m-{number}", due=old, **where)
    assert await recover(store, batch=2) == "7 given another round, 7 expired, 7 unknown"
    assert await recover(store, batch=2) == "nothing to do"


async def test_what_a_dispatcher_holds_is_passed_over(store: Store) -> None:
    if store.dialect.name == "sqlite":
        return  # where there is one writer, nobody is ever in the middle of something
    one = await one_delivery(store, "FAIL", is_retryable=True)
    async with store.write() as tx:
        await tx.execute(text("SELECT 1 FROM bongsu_deliveries WHERE delivery_id = :id FOR UPDATE"), {"id": one})
        assert await recover(store) == "nothing to do"
    assert await recover(store) == "1 given another round"
