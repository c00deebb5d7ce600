"""A dispatcher that stops: what waits is given back, what is being sent is waited for, what is known is recorded."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.channels.limits.priority_semaphore import PrioritySemaphore
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.errors import StoreClosed, StoreRefused
from bongsu.model import utc_now
from bongsu.model.outcome import Accepted
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import DeliveryResult, Success
from bongsu.store.messages import content
from bongsu.store.messages.content import MessageCache
from tests.deliver.test_outage import GatedSender
from tests.store.messages.test_content import message
from tests.support.dispatching import LEAST_ONCE, MOST_ONCE, one_delivery, states
from tests.support.senders import CallingBackSender
from tests.support.waiting import until

MANY = [f"m{number:02}" for number in range(20)]


async def test_sends_that_wait_for_their_turn_go_back_before_the_others_end(store: Store, settings: Settings) -> None:
    for kind in (MOST_ONCE, LEAST_ONCE):
        await one_delivery(store, settings, kind, *MANY)
    sender = GatedSender()
    dispatcher = Dispatcher(store, GuardedSender(sender, semaphore=PrioritySemaphore(4)), settings)
    await dispatcher.start()
    # One of the four permits is kept for critical sends.
    await until(lambda: len(dispatcher._sending) >= 2 * len(MANY) and len(sender.sent) >= 3)
    stopping = asyncio.create_task(dispatcher.stop())

    async def are_given_back() -> bool:
        return Counter(await states(store, "status"))[("SENDING",)] <= 3

    await until(are_given_back)
    assert not stopping.done()
    sender.gate.set()
    await stopping
    given_back = "('READY', 0, 0, None)"
    found = Counter(map(str, await states(store, "status, attempts, claim_count, leased_by")))
    assert found == {given_back: 2 * len(MANY) - 3, "('SUCCESS', 1, 0, None)": 3}
    assert set(sender.sent.values()) == {1}
    assert len(sender.sent) == 3


class Refusing:
    """A store that refuses to record for a number of times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, error: Exception) -> None:
        self.left = times
        self._error = error
        self._record = statements.record
        monkeypatch.setattr(statements, "record", self.record)

    async def record(self, store: Store, channel: str, results: Sequence[DeliveryResult | Success]) -> set[int]:
        if self.left:
            self.left -= 1
            raise self._error
        return await self._record(store, channel, results)


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("is_recording", [True, False], ids=["while it records", "later"])
async def test_a_failed_record_during_the_stop_drops_no_result(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, times: int, is_recording: bool
) -> None:
    await one_delivery(store, settings, MOST_ONCE, "a", "b", "c")
    sender = CallingBackSender()
    dispatcher = Dispatcher(store, sender, settings)
    await dispatcher.tick()
    store_away = Refusing(monkeypatch, times, StoreRefused("read-only"))
    sender.under_way[0](Accepted("ref"))
    if is_recording:
        dispatcher._recorder._end_linger()
        # On a slow machine the tick claims too, and the record has failed by then.
        with contextlib.suppress(StoreRefused):
            await dispatcher.tick()
    sender.under_way[1](Accepted("ref"))
    sender.under_way[2](Accepted("ref"))
    await dispatcher.stop()
    assert store_away.left == 0
    assert await states(store, "status, reference") == [("SUCCESS", "ref")] * 3


@pytest.mark.parametrize("error", [StoreClosed("gone"), ValueError("cannot be stored")])
async def test_a_stop_does_not_wait_for_what_can_no_longer_be_recorded(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await one_delivery(store, settings, MOST_ONCE, "a")
    patient = settings.model_copy(update={"send_timeout_seconds": 3600})
    sender = CallingBackSender()
    dispatcher = Dispatcher(store, sender, patient)
    await dispatcher.tick()
    Refusing(monkeypatch, 10**6, error)
    sender.under_way[0](Accepted("ref"))
    await asyncio.wait_for(dispatcher.stop(), 60)
    assert await states(store, "status") == [("SENDING",)]


async def test_what_a_claim_needs_is_not_evicted_while_it_reads(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process decides other messages meanwhile, whose contents fill the cache."""
    monkeypatch.setattr(content, "CACHED_MESSAGES", 2)
    for kind in (MOST_ONCE, LEAST_ONCE):
        await one_delivery(store, settings, kind, "a")
    sender = CallingBackSender()
    message_cache = MessageCache()
    dispatcher = Dispatcher(store, sender, settings, message_cache=message_cache)
    ((first,), _) = await states(store, "message_id")
    async with store.read() as tx:
        await message_cache.load(tx, {first})
    find = content.find_content

    async def read_while_others_decide(*arguments: Any) -> Any:
        found = await find(*arguments)
        message_cache.add(message(-number, utc_now()) for number in range(1, 4))
        return found

    monkeypatch.setattr(content, "find_content", read_while_others_decide)
    await dispatcher.tick()
    for on_outcome in sender.under_way:
        on_outcome(Accepted())
    await dispatcher.stop()
    assert await states(store) == [("SUCCESS", None)] * 2


async def test_leases_of_what_is_being_recorded_are_not_renewed(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two transactions of one dispatcher would wait for each other's rows."""
    await one_delivery(store, settings, MOST_ONCE, "a", "b")
    sender = CallingBackSender()
    dispatcher = Dispatcher(store, sender, settings)
    await dispatcher.tick()
    renewed: list[int] = []
    recorded: list[int] = []
    renew, record = statements.renew, statements.record

    async def noted_renew(tx: Any, claims: Sequence[tuple[int, int]], lease_seconds: float) -> None:
        renewed.extend(delivery_id for delivery_id, _ in claims)
        await renew(tx, claims, lease_seconds)

    async def noted_record(store: Store, channel: str, results: Sequence[DeliveryResult | Success]) -> set[int]:
        recorded.extend(one.delivery_id for one in results)
        return await record(store, channel, results)

    monkeypatch.setattr(statements, "renew", noted_renew)
    monkeypatch.setattr(statements, "record", noted_record)
    sender.under_way[0](Accepted())
    dispatcher._recorder._end_linger()
    dispatcher._lease.renewed(time.monotonic() - dispatcher._lease.seconds)
    await dispatcher.tick()
    sender.under_way[1](Accepted())
    await dispatcher.stop()
    assert (len(renewed), len(recorded)) == (1, 2)
    assert recorded[0] not in renewed


async def test_a_second_stop_does_not_wait_again(store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service stops all channels together, and then each by its own context."""
    quick = settings.model_copy(update={"send_timeout_seconds": 0.1})
    await one_delivery(store, quick, MOST_ONCE, "a")
    sender = GatedSender()
    dispatcher = Dispatcher(store, GuardedSender(sender), quick)
    await dispatcher.start()
    await until(lambda: sender.sent)
    await dispatcher.stop()
    waits = 0

    async def wait(_dispatcher: Dispatcher) -> None:
        nonlocal waits
        waits += 1

    monkeypatch.setattr(Dispatcher, "_wait_for_outcome", wait)
    await dispatcher.stop()
    assert waits == 0
    sender.gate.set()
