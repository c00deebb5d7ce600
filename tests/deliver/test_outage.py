"""The store takes no writes for longer than a lease: what a live dispatcher knows is recorded, nothing is sent twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.claimer import SHARE
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.deliver.leases import GRACE_SECONDS
from bongsu.errors import StoreError, StoreRefused
from bongsu.model import Channel, NoticeType
from bongsu.model.outcome import Accepted, Outcome, Outgoing, Retry, Scope
from bongsu.settings import Settings
from bongsu.store import Store, migrate
from bongsu.store import deliveries as statements
from bongsu.store.core.dead_claims import release_dead_claims
from bongsu.store.deliveries import ClaimContinuity, ClaimedDelivery, DeliveryResult, Success
from bongsu.store.deliveries.recovery import settle_abandoned
from bongsu.store.ranks import ORDINARY, RANKS, SHARED_TURNS
from tests.support.decisions import rows
from tests.support.dispatching import LEAST_ONCE, MOST_ONCE, one_delivery, states
from tests.support.read_only_store import read_only
from tests.support.rows import Sql, set_columns
from tests.support.senders import CallingBackSender
from tests.support.waiting import until

EACH = 100


class GatedSender:
    """Accepts every send once the gate is open. Counts the sends of each delivery."""

    channel = Channel.PUSH

    def __init__(self) -> None:
        self.sent: Counter[int] = Counter()
        self.gate = asyncio.Event()

    async def send(self, outgoing: Outgoing) -> Outcome:
        self.sent[outgoing.delivery_id] += 1
        await self.gate.wait()
        return Accepted(f"ref-{outgoing.delivery_id}")

    async def close(self) -> None: ...


@pytest.fixture
def short(settings: Settings) -> Settings:
    """A lease of a second."""
    return settings.model_copy(update={"lease_seconds": 1.0, "send_timeout_seconds": 0.4, "retry_base_seconds": 0.01})


@contextlib.asynccontextmanager
async def running(*dispatchers: Dispatcher) -> AsyncIterator[None]:
    for one in dispatchers:
        await one.start()
    yield
    for one in dispatchers:
        await one.stop()


@contextlib.asynccontextmanager
async def outage(settings: Settings) -> AsyncIterator[None]:
    """In threads: the store of this process goes on meanwhile."""
    fault = read_only(settings)
    await asyncio.to_thread(fault.__enter__)
    yield
    await asyncio.to_thread(fault.__exit__, None, None, None)


async def until_no_rows(store: Store, query: str) -> None:
    """Connections may be terminated meanwhile."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(StoreError):
                if not await rows(store, query):
                    return
            await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another dispatcher"])
async def test_what_is_known_is_recorded_after_an_outage_longer_than_a_lease(
    store: Store, short: Settings, others: int
) -> None:
    for kind in (MOST_ONCE, LEAST_ONCE):
        await one_delivery(store, short, kind, *(f"m{number:03}" for number in range(EACH)))
    patient = short.model_copy(update={"send_timeout_seconds": 30})
    sender = GatedSender()
    ours = Dispatcher(store, GuardedSender(sender), patient, concurrency=2 * EACH * SHARE)
    ours._lease.seconds = 1.0  # shorter than the send timeout, which Dispatcher would otherwise make it cover
    rivals = [Dispatcher(store, GuardedSender(sender), short) for _ in range(others)]
    async with running(ours):
        await until(lambda: len(sender.sent) >= 2 * EACH)
        async with running(*rivals):
            for one in rivals:
                await asyncio.wait_for(one.idle.wait(), 10)
            async with outage(short):
                sender.gate.set()
                for one in (ours, *rivals):
                    one.crashed.clear()
                await until_no_rows(store, f"SELECT 1 FROM bongsu_deliveries WHERE due > {store.dialect.now}")
                # With a lease this short a single statement may wait for longer than it.
                for one in (ours, *rivals):
                    await asyncio.wait_for(one.crashed.wait(), 30)
            await until_no_rows(store, "SELECT 1 FROM bongsu_deliveries WHERE status IN ('READY', 'SENDING')")
    assert Counter(await states(store, "status, code")) == {("SUCCESS", None): 2 * EACH}
    assert set(sender.sent.values()) == {1}
    assert [row[0] for row in await states(store, "attempts")] == [1] * 2 * EACH


async def test_recording_goes_on_while_claiming_fails(
    store: Store, short: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_delivery(store, short, MOST_ONCE, "a", "b")
    sender = CallingBackSender()
    dispatcher = Dispatcher(store, sender, short)
    await dispatcher.tick()

    async def refuse(*_arguments: Any, **_options: Any) -> Any:
        raise StoreRefused("read-only")

    monkeypatch.setattr(statements, "claim", refuse)
    async with running(dispatcher):
        for recorded, on_outcome in enumerate(sender.under_way):
            on_outcome(Accepted())
            sending = "SELECT 1 FROM bongsu_deliveries WHERE status = 'SENDING'"
            await until_no_rows(store, f"{sending} LIMIT 1 OFFSET {1 - recorded}")
    assert [row[0] for row in await states(store, "status")] == ["SUCCESS"] * 2


async def test_nothing_is_claimed_while_known_outcomes_wait(
    store: Store, short: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_delivery(store, short, MOST_ONCE, "a")
    sender = CallingBackSender()
    dispatcher = Dispatcher(store, sender, short)
    await dispatcher.tick()
    await one_delivery(store, short, LEAST_ONCE, "b")
    record, refusals = statements.record, [StoreRefused("read-only")] * 3

    async def refuse(store: Store, channel: str, results: Sequence[DeliveryResult | Success]) -> set[int]:
        if refusals:
            raise refusals.pop()
        return await record(store, channel, results)

    monkeypatch.setattr(statements, "record", refuse)
    sender.under_way[0](Accepted())
    claimed_before = None
    while refusals:
        with contextlib.suppress(StoreRefused):
            await dispatcher.tick()
        if claimed_before is None and len(refusals) < 3:
            # The first refusal comes while the next are claimed; from then on nothing is.
            claimed_before = len(sender.under_way)
        assert claimed_before in (None, len(sender.under_way))
    await dispatcher.tick()
    assert (await states(store, "status"))[0] == ("SUCCESS",)
    for on_outcome in sender.under_way[1:]:
        on_outcome(Accepted())
    await dispatcher.stop()


@pytest.mark.parametrize("kind", [MOST_ONCE, LEAST_ONCE])
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_lease_that_ended_unnoticed_is_no_reason_to_forget(
    store: Store, short: Settings, monkeypatch: pytest.MonkeyPatch, kind: NoticeType, is_known: bool
) -> None:
    """As after a sleep of the machine, which its monotonic clock may not count."""
    await one_delivery(store, short, kind, "a")
    sender = CallingBackSender()
    dispatcher = Dispatcher(store, sender, short.model_copy(update={"send_timeout_seconds": 30}))
    monkeypatch.setattr("bongsu.deliver.recorder.LINGER_SECONDS", 3600)
    dispatcher._claimer._continuity = ClaimContinuity(gap_seconds=3600, grace_seconds=0)
    await dispatcher.tick()
    if is_known:
        sender.under_way[0](Accepted("ref"))
        dispatcher._recorder._is_due = False
    await set_columns(store, "deliveries", due=Sql("created_at"))
    dispatcher.wake()
    await dispatcher.tick()
    if not is_known:
        sender.under_way[0](Accepted("ref"))
    await dispatcher.stop()
    assert len(sender.under_way) == 1
    assert await states(store, "status, reference, attempts, epoch") == [("SUCCESS", "ref", 1, 2)]


@pytest.mark.slow
async def test_two_that_both_know_outcomes_forget_none_in_an_outage_longer_than_a_lease(
    store: Store, short: Settings
) -> None:
    """Whichever is first to find the store back must not take what the other is about to record."""
    patient = short.model_copy(update={"send_timeout_seconds": 30})
    sender = GatedSender()
    both = [Dispatcher(store, GuardedSender(sender), patient, concurrency=2 * EACH * SHARE) for _ in range(2)]
    for number, one in enumerate(both):
        one._lease.seconds = 1.0
        one._claimer._continuity = ClaimContinuity(0.5, GRACE_SECONDS)
        for kind in (MOST_ONCE, LEAST_ONCE):
            await one_delivery(store, short, kind, *(f"m{number}{index:03}" for index in range(EACH)))
        while len(sender.sent) < 2 * EACH * (number + 1):
            one.wake()
            await one.tick()
    async with running(*both):
        async with outage(short):
            sender.gate.set()
            for one in both:
                one.crashed.clear()
            await until_no_rows(store, f"SELECT 1 FROM bongsu_deliveries WHERE due > {store.dialect.now}")
            for one in both:
                await asyncio.wait_for(one.crashed.wait(), 30)
        await until_no_rows(store, "SELECT 1 FROM bongsu_deliveries WHERE status IN ('READY', 'SENDING')")
    assert Counter(await states(store, "status, code")) == {("SUCCESS", None): 4 * EACH}
    assert set(sender.sent.values()) == {1}


async def test_a_claim_that_the_store_begins_late_leases_nothing(store: Store, short: Settings) -> None:
    """As one that was on its way when the store stopped answering. Its sender may have given up since."""
    continuity = ClaimContinuity(gap_seconds=60, grace_seconds=0)
    assert await claim(store, continuity) == []
    await one_delivery(store, short, LEAST_ONCE, "a")
    await statements.claim(store, Channel.PUSH, RANKS, 1, -1, "dead")
    await one_delivery(store, short, LEAST_ONCE, "b")
    move_back(continuity, hours=1)
    assert await claim(store, continuity) == []
    assert await states(store, "status, epoch, leased_by") == [("SENDING", 1, "dead"), ("READY", 0, None)]
    # The next one comes in time.
    assert len(await claim(store, continuity)) == 2


async def test_after_a_gap_abandoned_deliveries_are_claimed_when_the_grace_is_over(store: Store, short: Settings) -> None:
    await one_delivery(store, short, LEAST_ONCE, "a")
    await statements.claim(store, Channel.PUSH, RANKS, 1, -1, "dead")
    await one_delivery(store, short, LEAST_ONCE, "b")
    continuity = ClaimContinuity(gap_seconds=7200, grace_seconds=3600)
    assert [one.member_id for one in await claim(store, continuity)] == ["b"]
    assert await claim(store, continuity) == []
    assert continuity._since is not None
    continuity._since -= timedelta(hours=1)
    assert [one.member_id for one in await claim(store, continuity)] == ["a"]


async def test_recovery_settles_nothing_after_a_gap(store: Store, short: Settings) -> None:
    await one_delivery(store, short, LEAST_ONCE, "a")
    await statements.claim(store, Channel.PUSH, RANKS, 1, -1, "dead")
    continuity = ClaimContinuity(gap_seconds=60, grace_seconds=0)
    for is_late in (True, False):
        async with store.transaction() as tx:
            await settle_abandoned(tx, 0, continuity)
        if is_late:
            move_back(continuity, hours=1)
        async with store.transaction() as tx:
            settled = await settle_abandoned(tx, 10, continuity)
        assert settled == ({} if is_late else {("PUSH", "READY"): 1})


async def claim(store: Store, continuity: ClaimContinuity) -> list[ClaimedDelivery]:
    return await statements.claim(store, Channel.PUSH, RANKS, 10, 60, "w", continuity)


def move_back(continuity: ClaimContinuity, hours: float) -> None:
    """The store answered last so long ago."""
    assert continuity._last is not None
    continuity._last -= timedelta(hours=hours)


async def test_a_dispatcher_that_starts_as_the_store_comes_back_claims_nothing_that_a_live_one_holds(
    store: Store, short: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_delivery(store, short, MOST_ONCE, "a")
    ours, theirs = CallingBackSender(), CallingBackSender()
    live = Dispatcher(store, ours, short.model_copy(update={"send_timeout_seconds": 30}))
    await live.tick()
    # Its lease has ended, unrenewed. Something new is due too.
    await set_columns(store, "deliveries", due=Sql("created_at"))
    await one_delivery(store, short, LEAST_ONCE, "b")
    monkeypatch.setattr("bongsu.deliver.leases.GRACE_SECONDS", 3600)
    started = Dispatcher(store, theirs, short.model_copy(update={"send_timeout_seconds": 30}))
    async with running(started):
        await until(lambda: theirs.under_way)
        ours.under_way[0](Accepted("ref"))
        await live.stop()
        theirs.under_way[0](Accepted())
    assert sorted(await states(store, "status, epoch, reference")) == [("SUCCESS", 1, ""), ("SUCCESS", 1, "ref")]
    assert (len(ours.under_way), len(theirs.under_way)) == (1, 1)


async def test_abandoned_deliveries_are_claimed_a_moment_after_the_start(
    store: Store, short: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_delivery(store, short, LEAST_ONCE, "a")
    await statements.claim(store, Channel.PUSH, RANKS, 1, -1, "dead")
    monkeypatch.setattr("bongsu.deliver.leases.GRACE_SECONDS", 0.3)
    sender = CallingBackSender()
    dispatcher = Dispatcher(store, sender, short)
    async with running(dispatcher):
        await until(lambda: sender.under_way)
        sender.under_way[0](Accepted())
    assert await states(store, "status, epoch") == [("SUCCESS", 2)]


async def test_one_that_started_before_the_store_came_back_claims_nothing_that_a_live_one_holds(
    store: Store, short: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wait begins with the first claim that the store takes, however long it asked in vain."""
    patient = short.model_copy(update={"send_timeout_seconds": 30})
    await one_delivery(store, short, MOST_ONCE, "a")
    ours = CallingBackSender()
    live = Dispatcher(store, ours, patient)
    await live.tick()
    await set_columns(store, "deliveries", due=Sql("created_at"))
    real_claim, refusals, claims = statements.claim, [StoreRefused("read-only")] * 2, asyncio.Semaphore(0)

    async def refuse(*arguments: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        claimed = await real_claim(*arguments, **options)
        claims.release()
        return claimed

    monkeypatch.setattr(statements, "claim", refuse)
    monkeypatch.setattr("bongsu.deliver.leases.GRACE_SECONDS", 3600)
    async with running(Dispatcher(store, CallingBackSender(), patient)):
        for _ in range(3):
            await asyncio.wait_for(claims.acquire(), 30)
        ours.under_way[0](Accepted("ref"))
        await live.stop()
    assert await states(store, "status, epoch, reference") == [("SUCCESS", 1, "ref")]


async def test_half_a_claim_is_sent_when_its_other_half_fails(
    store: Store, short: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some claims take two statements: a share for a later rank, and the rest."""
    await one_delivery(store, short, MOST_ONCE, "a", "b")
    sender = CallingBackSender()
    dispatcher = Dispatcher(store, sender, short)
    dispatcher._claimer._turn = SHARED_TURNS.index(ORDINARY + 1)
    claim, asked = statements.claim, 0

    async def fail_once(*arguments: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise StoreRefused("read-only")
        return await claim(*arguments, **options)

    monkeypatch.setattr(statements, "claim", fail_once)
    await dispatcher.tick()
    assert (asked, len(sender.under_way)) == (2, 2)
    for on_outcome in sender.under_way:
        on_outcome(Accepted())
    await dispatcher.stop()


async def test_alone_on_an_embedded_store_it_claims_what_the_dead_held_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    embedded = Settings(data_dir=tmp_path)
    store = Store.open(embedded)
    await migrate(store)
    await one_delivery(store, embedded, LEAST_ONCE, "a", "b")
    await statements.claim(store, Channel.PUSH, RANKS, 1, 60, "dead")
    await statements.claim(store, Channel.PUSH, RANKS, 1, -1, "dead")
    monkeypatch.setattr("bongsu.deliver.leases.GRACE_SECONDS", 3600)
    sender = CallingBackSender()
    async with release_dead_claims(store) as released, running(Dispatcher(store, sender, embedded)):
        assert released == 2
        await until(lambda: len(sender.under_way) >= 2)
        for on_outcome in sender.under_way:
            on_outcome(Accepted())
    await store.close()


async def test_while_the_store_takes_claims_but_no_results_their_leases_are_renewed(
    store: Store, short: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index being built on the table of attempts, say, keeps results waiting and nothing else."""
    for kind in (MOST_ONCE, LEAST_ONCE):
        await one_delivery(store, short, kind, "a", "b")
    record, is_refused, refusals = statements.record, True, 0

    async def refuse(*arguments: Any) -> set[int]:
        nonlocal refusals
        if not is_refused:
            return await record(*arguments)
        refusals += 1
        raise StoreRefused("no results now")

    monkeypatch.setattr(statements, "record", refuse)
    sender = GatedSender()
    sender.gate.set()
    dispatcher = Dispatcher(store, GuardedSender(sender), short)
    await dispatcher.tick()
    async with asyncio.timeout(60):
        while len(sender.sent) < 4 or refusals < 3:
            await asyncio.sleep(0.01)
            with contextlib.suppress(StoreRefused):
                await dispatcher.tick()
        continuity = ClaimContinuity(gap_seconds=3600, grace_seconds=0)
        assert await claim(store, continuity) == []
        # Every lease has ended, but for what the dispatcher does about it.
        await set_columns(store, "deliveries", due=Sql("created_at"))
        before = refusals
        while refusals == before:
            with contextlib.suppress(StoreRefused):
                await dispatcher.tick()
        assert continuity.with_abandoned
        assert await claim(store, continuity) == []
        is_refused = False
        while await rows(store, "SELECT 1 FROM bongsu_deliveries WHERE status = 'SENDING'"):
            await dispatcher.tick()
    await dispatcher.stop()
    assert await states(store) == [("SUCCESS", None)] * 4
    assert set(sender.sent.values()) == {1}


async def test_a_dispatcher_whose_slots_are_full_for_long_still_asks_the_store(store: Store, short: Settings) -> None:
    """Else it could not tell a store that was away from one that it did not ask."""
    await one_delivery(store, short, LEAST_ONCE, "a", "b")
    sender = GatedSender()
    dispatcher = Dispatcher(store, GuardedSender(sender), short, 2)
    async with asyncio.timeout(60):
        while len(sender.sent) < 2:
            await dispatcher.tick()
            await asyncio.sleep(0)
        continuity = dispatcher._claimer._continuity
        last = continuity._last
        while continuity._last == last:
            await dispatcher.tick()
    sender.gate.set()
    await dispatcher.stop()


class Failing:
    """A provider that is down."""

    channel = Channel.PUSH

    def __init__(self) -> None:
        self.outcome: Outcome = Retry("UNAVAILABLE", scope=Scope.CHANNEL)

    async def send(self, _outgoing: Outgoing) -> Outcome:
        return self.outcome

    async def close(self) -> None: ...


async def test_while_a_provider_is_down_its_backlog_is_left_alone(store: Store, settings: Settings) -> None:
    """One delivery at a time is claimed, as a probe. Claiming all and giving them back would keep the store busy."""
    await one_delivery(store, settings, LEAST_ONCE, *(f"m{number:03}" for number in range(60)))
    sender = Failing()
    guarded = GuardedSender(sender)
    dispatcher = Dispatcher(store, guarded, settings, 16)
    async with asyncio.timeout(60):
        while not guarded.is_held or dispatcher._sending:
            await dispatcher.tick()
            await asyncio.sleep(0)
        claimed = "SELECT sum(epoch) AS claims FROM bongsu_deliveries"
        before = (await rows(store, claimed))[0]["claims"]
        for _ in range(20):
            dispatcher._claimer._probe_at = 0.0
            await dispatcher.tick()
        assert (await rows(store, claimed))[0]["claims"] - before <= 20
        sender.outcome = Accepted("ref")
        while await rows(store, "SELECT 1 FROM bongsu_deliveries WHERE status <> 'SUCCESS' LIMIT 1"):
            await dispatcher.tick()
            await asyncio.sleep(0)
    await dispatcher.stop()
