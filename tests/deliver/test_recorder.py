"""Recording outcomes: those that senders call back with, many together, and one that cannot be stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bongsu.deliver import recorder
from bongsu.deliver.channels.callback import OnOutcome
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.model.outcome import Accepted, Outcome, Outgoing, Refused, Retry, Unknown
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import DeliveryResult, Success
from tests.support.dispatching import MOST_ONCE, dispatch_all, dispatching, one_delivery, states
from tests.support.senders import ACCEPTED, AnsweringSender, CallingBackSender
from tests.support.waiting import until


@pytest.fixture
def quick(settings: Settings) -> Settings:
    return settings.model_copy(update={"retry_base_seconds": 0.01})


async def test_an_outcome_that_is_called_back_is_recorded(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick, MOST_ONCE, "a", "b", "c")
    sender = CallingBackSender()
    dispatcher = dispatching(store, sender, quick)
    await dispatcher.tick()
    outcomes: list[Outcome] = [ACCEPTED, Refused("NO"), Unknown("LOST")]
    for on_outcome, outcome in zip(sender.under_way, outcomes, strict=True):
        on_outcome(outcome)
    await dispatcher.stop()
    assert sorted(await states(store)) == [("FAIL", "NO"), ("SUCCESS", None), ("UNKNOWN", "LOST")]
    assert [one[0] for one in await states(store, "attempts")] == [1, 1, 1]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many results each call has recorded, from now on."""
    recorded: list[int] = []
    record = statements.record

    async def count(store: Store, channel: str, results: Sequence[DeliveryResult | Success]) -> set[int]:
        recorded.append(len(results))
        return await record(store, channel, results)

    monkeypatch.setattr(statements, "record", count)
    return recorded


async def test_outcomes_that_come_one_by_one_are_recorded_together(
    store: Store, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "LINGER_SECONDS", 3600)
    await one_delivery(store, quick, MOST_ONCE, *(f"m{number:02}" for number in range(40)))
    recorded = counted(monkeypatch)
    sender = CallingBackSender()
    dispatcher = dispatching(store, sender, quick, concurrency=256)
    await dispatcher.tick()
    *first, last = sender.under_way
    for on_outcome in first:
        on_outcome(ACCEPTED)
        await dispatcher.tick()
    assert recorded == []
    # None is being sent any more: there is nothing to wait for.
    last(ACCEPTED)
    await dispatcher.stop()
    assert recorded == [40]


async def test_an_outcome_is_recorded_soon_while_others_are_being_sent(
    store: Store, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_delivery(store, quick, MOST_ONCE, "a", "b", "c")
    recorded = counted(monkeypatch)
    sender = CallingBackSender()
    dispatcher = dispatching(store, sender, quick, concurrency=256)
    await dispatcher.start()
    await until(lambda: len(sender.under_way) >= 3)
    sender.under_way[0](ACCEPTED)
    await until(lambda: recorded)
    assert recorded == [1]
    for on_outcome in sender.under_way[1:]:
        on_outcome(ACCEPTED)
    await dispatcher.stop()
    assert await states(store, "status") == [("SUCCESS",)] * 3


async def test_a_sender_that_raises_at_once_is_not_trusted_either(store: Store, quick: Settings) -> None:
    class Raising(CallingBackSender):
        def start(self, outgoing: Outgoing, on_outcome: OnOutcome) -> asyncio.Task[None] | None:
            raise RuntimeError("a bug")

    await one_delivery(store, quick, MOST_ONCE, "a", "b")
    dispatcher = dispatching(store, Raising(), quick)
    await dispatcher.tick()
    await dispatcher.stop()
    assert await states(store) == [("UNKNOWN", "CRASHED")] * 2


async def test_what_is_not_called_back_is_given_up_and_a_later_outcome_ignored(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick)
    soon = quick.model_copy(update={"send_timeout_seconds": 0.01})
    sender = CallingBackSender()
    dispatcher = dispatching(store, sender, soon)
    await dispatcher.tick()
    async with asyncio.timeout(10):
        while (await states(store)) == [("SENDING", None)]:
            await dispatcher.tick()
    sender.under_way[0](ACCEPTED)
    await dispatcher.stop()
    assert await states(store) == [("UNKNOWN", "TIMEOUT")]


async def test_an_outcome_that_makes_no_sense_is_a_crash(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick)
    await dispatch_all(store, AnsweringSender(Accepted(12345)), quick)  # type: ignore[arg-type]
    assert await states(store) == [("UNKNOWN", "CRASHED")]


async def test_a_stop_waits_for_what_is_being_sent(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick)
    sender = CallingBackSender()
    dispatcher = dispatching(store, sender, quick)
    await dispatcher.start()
    await until(lambda: sender.under_way)
    stopping = asyncio.create_task(dispatcher.stop())
    await until(lambda: dispatcher.is_stopping)
    assert not stopping.done()
    sender.under_way[0](ACCEPTED)
    await stopping
    assert await states(store) == [("SUCCESS", None)]


async def test_told_to_stop_it_waits_for_no_more_results_than_those_under_way(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "LINGER_SECONDS", 3600)
    await one_delivery(store, settings, MOST_ONCE, "a", "b")
    sender = CallingBackSender()
    dispatcher = Dispatcher(store, sender, settings)
    await dispatcher.tick()
    dispatcher._stopping.set()
    sender.under_way[0](Accepted())
    assert not dispatcher._recorder._is_due
    sender.under_way[1](Accepted())
    assert dispatcher._recorder._is_due
    await dispatcher.stop()
    assert await states(store, "status") == [("SUCCESS",)] * 2


async def test_one_outcome_that_cannot_be_stored_keeps_no_other_from_it(
    store: Store, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_delivery(store, quick, MOST_ONCE, "a", "b", "c")
    record = statements.record
    bad = (await states(store, "delivery_id"))[1][0]

    async def picky(store: Store, channel: str, results: Sequence[DeliveryResult | Success]) -> set[int]:
        if any(one.delivery_id == bad for one in results):
            raise ValueError("cannot be stored")
        return await record(store, channel, results)

    monkeypatch.setattr(statements, "record", picky)
    dispatcher = dispatching(store, AnsweringSender(), quick)
    async with asyncio.timeout(30):
        with pytest.raises(ValueError, match="cannot be stored"):
            while True:
                await dispatcher.tick()
    assert [row[0] for row in await states(store)] == ["SUCCESS", "SENDING", "SUCCESS"]
    monkeypatch.undo()
    await dispatcher.stop()
    assert [row[0] for row in await states(store)] == ["SUCCESS"] * 3


@pytest.mark.parametrize("odd", [Refused("ODD", "a\x00b\ud800"), Retry("LONG", 1e300), Retry("NAN", float("nan"))])
async def test_an_odd_answer_does_not_keep_others_from_being_stored(store: Store, quick: Settings, odd: Outcome) -> None:
    await one_delivery(store, quick, MOST_ONCE, "a", "b")
    dispatcher = dispatching(
        store, AnsweringSender(lambda outgoing: odd if outgoing.member_id == "a" else Accepted()), quick
    )
    for _ in range(4):
        await dispatcher.tick()
    await dispatcher.stop()
    assert (await states(store))[1] == ("SUCCESS", None)
    assert (await states(store))[0][1] in ("ODD", "LONG", "NAN")
