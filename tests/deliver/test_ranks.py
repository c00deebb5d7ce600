"""The order of sending by rank: critical sends go first and have slots of their own, and no rank waits for ever."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bongsu.decide.step import CHUNK
from bongsu.deliver import dispatcher as dispatcher_module
from bongsu.deliver import recorder
from bongsu.deliver.channels.callback import GuardedSender, OnOutcome
from bongsu.deliver.channels.limits.priority_semaphore import PrioritySemaphore
from bongsu.deliver.claimer import SHARE
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.model import Channel, Guarantee, Listed, NoticeType, Priority
from bongsu.model.outcome import Accepted, Outcome, Outgoing
from bongsu.settings import Settings
from bongsu.store import Store, ranks
from bongsu.store.ranks import BULK, CRITICAL, CRITICAL_BULK, ORDINARY, RANKS, SHARED_TURNS, rank_of, slots_for
from tests.support.decisions import add_members, decide, rows, rules_notifying, trigger_event

BOTH = (Channel.PUSH, Channel.IN_APP)
# A provider sees the type of a delivery and not its rank, so each rank has a type of its own here.
TYPE_NAMES = {rank: f"RANK{rank}" for rank in RANKS}
RANK_OF_TYPE = {name: rank for rank, name in TYPE_NAMES.items()}


def kind_of(rank: int, guarantee: Guarantee = Guarantee.AT_MOST_ONCE) -> NoticeType:
    """A type whose deliveries have this rank, if its audience is as large as that takes."""
    priority = Priority.NORMAL if rank < ORDINARY else list(Priority)[(rank - ORDINARY) % 3]
    return NoticeType(TYPE_NAMES[rank], BOTH, priority=priority, guarantee=guarantee, is_critical=rank < ORDINARY)


async def add_due(store: Store, settings: Settings, counts: Mapping[int, int], name: str = "first", **kind: Any) -> None:
    """Decide that many deliveries of each rank, all of them due."""
    for rank, count in counts.items():
        who = tuple(f"{name}-{rank}-{number:04}" for number in range(count))
        await add_members(store, *who, device=True)
        chunk = count - 1 if rank == CRITICAL_BULK or rank >= BULK else CHUNK
        await decide(store, settings, rules_notifying(Listed(who), kind_of(rank, **kind)), trigger_event(), chunk=chunk)
    found = await rows(store, f"SELECT rank, count(*) FROM bongsu_deliveries WHERE member_id LIKE '{name}-%' GROUP BY rank")
    assert {row[0]: row[1] for row in found} == dict(counts)


class Provider:
    """Records the rank of each send, and answers when the test calls `answer`."""

    channel = Channel.PUSH

    def __init__(self) -> None:
        # The ranks of all sends, in their order.
        self.sent: list[int] = []
        self.under_way: list[tuple[int, OnOutcome]] = []

    def start(self, outgoing: Outgoing, on_outcome: OnOutcome) -> asyncio.Task[None] | None:
        rank = RANK_OF_TYPE[outgoing.type]
        self.sent.append(rank)
        self.under_way.append((rank, on_outcome))
        return None

    is_held = False

    def is_waiting(self, task: asyncio.Task[None]) -> bool:
        return False

    async def close(self) -> None: ...

    def answer(self, count: int = 1_000, ranks: Iterable[int] = RANKS) -> None:
        """The oldest of these ranks that are under way."""
        answered = [one for one in self.under_way if one[0] in ranks][:count]
        self.under_way = [one for one in self.under_way if one not in answered]
        for _, on_outcome in answered:
            on_outcome(Accepted())


class SteppedDispatcher:
    """A dispatcher that claims and records only while the test calls `settle` or `finish`."""

    def __init__(self, store: Store, settings: Settings, slots: int, provider: Provider | None = None) -> None:
        self.provider = provider or Provider()
        self.dispatcher = Dispatcher(store, self.provider, settings, slots)

    async def settle(self) -> None:
        """Until it has recorded what was answered and claims nothing more."""
        is_settled = False
        async with asyncio.timeout(30):
            while not is_settled:
                was_idle, sent = not self._has_results(), len(self.provider.sent)
                self.dispatcher.wake()
                await self.dispatcher.tick()
                is_settled = was_idle and len(self.provider.sent) == sent

    def _has_results(self) -> bool:
        recording = self.dispatcher._recorder
        return bool(recording.slots or recording.unfinished)

    async def finish(self) -> None:
        while self.provider.under_way:
            self.provider.answer()
            await self.settle()
        await self.dispatcher.stop()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """With nothing to do, the dispatcher looks again at once."""
    return settings.model_copy(update={"poll_seconds": 0.001, "retry_base_seconds": 0.01})


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes are recorded as they come."""
    monkeypatch.setattr(recorder, "LINGER_SECONDS", 0)


# --- the table ----------------------------------------------------------------------------------------------------------


def test_the_table_of_ranks() -> None:
    for priority in Priority:
        assert rank_of(priority, is_critical=True, is_bulk=False) == 0
        assert rank_of(priority, is_critical=True, is_bulk=True) == 1
    in_order = (Priority.HIGH, Priority.NORMAL, Priority.LOW)
    assert [rank_of(priority, is_critical=False, is_bulk=False) for priority in in_order] == [2, 3, 4]
    assert [rank_of(priority, is_critical=False, is_bulk=True) for priority in in_order] == [5, 6, 7]
    assert set(SHARED_TURNS) == {None, *RANKS} - {CRITICAL}, "every rank but the first has a turn of its own"


def test_the_docs_have_the_same_table() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "howto", "campaigns.md").read_text()
    lines = [re.findall(r"^\| ([0-7, ]+) \| (.*?)[,:|]", text, re.MULTILINE) for text in (page, ranks.__doc__ or "")]
    assert lines[0] == [("0", "critical"), ("1", "critical"), ("2, 3, 4", "ordinary"), ("5, 6, 7", "bulk")]
    assert [rank for rank, _ in lines[1]] == [rank for rank, _ in lines[0]]


def test_slots_are_left_to_critical_sends_wherever_there_are_two() -> None:
    for slots in range(1, 200):
        shared, for_bulk, for_few = (slots_for(rank, slots) for rank in (RANKS[-1], CRITICAL_BULK, CRITICAL))
        assert {slots_for(rank, slots) for rank in RANKS[ORDINARY:]} == {shared}, slots
        assert 1 <= shared <= for_bulk <= for_few == slots
        # A claim of any rank has room.
        assert shared >= max(1, slots // SHARE), slots
        if slots >= 2:
            assert for_bulk < for_few, slots
        if slots >= 8:
            assert shared < for_bulk, slots
            assert shared >= 0.75 * slots


# --- the order ----------------------------------------------------------------------------------------------------------


async def test_ranks_go_out_in_their_order(store: Store, settings: Settings) -> None:
    await add_due(store, settings, dict.fromkeys(reversed(RANKS), 2))
    # One claim is as large as all of them.
    driven = SteppedDispatcher(store, settings, slots=SHARE * 2 * len(RANKS))
    await driven.dispatcher.tick()
    assert driven.provider.sent == sorted([*RANKS, *RANKS])
    await driven.finish()


@pytest.mark.parametrize("slots", [1, 4, 64])
async def test_an_earlier_rank_overtakes_all_that_wait(store: Store, settings: Settings, at_once: None, slots: int) -> None:
    await add_due(store, settings, {6: 100})
    driven = SteppedDispatcher(store, settings, slots)
    await driven.settle()
    await add_due(store, settings, {0: 1, 3: 1}, "later")
    campaign = len(driven.provider.sent)
    while len(driven.provider.sent) < 102:
        driven.provider.answer(1)
        await driven.settle()
    after = driven.provider.sent[campaign:]
    # One claim may be the turn of bulk.
    assert after.index(0) <= max(1, slots // SHARE)
    assert after.index(3) <= 2 * max(1, slots // SHARE) + 1
    await driven.finish()


# --- nothing starves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "answers"), [(1, 1), (4, 1_000), (64, 1)])
async def test_every_rank_keeps_a_share_however_much_of_the_first_is_due(
    store: Store, settings: Settings, at_once: None, slots: int, answers: int
) -> None:
    plenty = 20 * slots + 40
    await add_due(store, settings, {CRITICAL: plenty} | dict.fromkeys(RANKS[1:], 3))
    driven = SteppedDispatcher(store, settings, slots)
    await driven.settle()
    while len(set(driven.provider.sent)) < len(RANKS) and driven.provider.under_way:
        driven.provider.answer(answers)
        await driven.settle()
    # All turns have come once, and beside them critical sends went out by the slots of their own.
    portion, own = max(1, slots // SHARE), slots - slots_for(RANKS[-1], slots)
    claims = len(SHARED_TURNS) * portion
    assert len(driven.provider.sent) <= claims + slots + own * claims
    assert Counter(driven.provider.sent)[CRITICAL] < plenty, "the others did not wait for the last of them"
    await driven.finish()
    assert Counter(driven.provider.sent) == {CRITICAL: plenty} | dict.fromkeys(RANKS[1:], 3)


@pytest.mark.parametrize("slots", [1, 2, 16])
async def test_all_is_sent_in_the_end(store: Store, settings: Settings, at_once: None, slots: int) -> None:
    await add_due(store, settings, dict.fromkeys(RANKS, 5))
    driven = SteppedDispatcher(store, settings, slots)
    await driven.settle()
    await driven.finish()
    assert Counter(driven.provider.sent) == dict.fromkeys(RANKS, 5)
    assert {tuple(row) for row in await rows(store, "SELECT status, attempts FROM bongsu_deliveries")} == {("SUCCESS", 1)}


# --- slots of their own -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "holder"), [(2, 3), (2, 6), (16, 6), (64, 3)])
async def test_critical_goes_out_while_a_provider_that_does_not_answer_holds_every_other_slot(
    store: Store, settings: Settings, at_once: None, slots: int, holder: int
) -> None:
    await add_due(store, settings, {holder: 2 * slots})
    driven = SteppedDispatcher(store, settings, slots)
    await driven.settle()
    shared = slots_for(holder, slots)
    assert len(driven.provider.sent) <= shared
    assert shared - len(driven.provider.sent) < max(1, slots // SHARE), "as many as whole claims fill"
    await add_due(store, settings, {CRITICAL: 3 * slots}, "later")
    await driven.settle()
    # One after the other, by the few slots that are left; the others stay with their holder.
    while (count := driven.provider.sent.count(CRITICAL)) < 3 * slots:
        driven.provider.answer(1, ranks=[CRITICAL])
        await driven.settle()
        assert driven.provider.sent.count(CRITICAL) == count + 1 or count + 1 > 3 * slots
        assert len(driven.provider.under_way) <= slots
    driven.provider.answer(ranks=[CRITICAL])
    await driven.settle()
    assert driven.provider.sent.count(holder) <= shared
    await driven.finish()


@pytest.mark.parametrize("slots", [2, 16, 64])
async def test_critical_to_few_goes_out_while_a_critical_notice_to_everybody_holds_its_slots(
    store: Store, settings: Settings, at_once: None, slots: int
) -> None:
    await add_due(store, settings, {CRITICAL_BULK: 2 * slots + 2, 3: 4})
    driven = SteppedDispatcher(store, settings, slots)
    await driven.settle()
    held = len(driven.provider.under_way)
    assert held <= slots_for(CRITICAL_BULK, slots)
    assert 3 not in driven.provider.sent or slots == 64, "of a large claim, a part is for the others"
    await add_due(store, settings, {CRITICAL: 2}, "later")
    await driven.settle()
    driven.provider.answer(1, ranks=[CRITICAL])
    await driven.settle()
    assert driven.provider.sent.count(CRITICAL) == 2
    assert len(driven.provider.sent) == held + 2, "nothing else went out meanwhile"
    await driven.finish()


async def test_critical_bulk_has_slots_of_its_own_too(store: Store, settings: Settings, at_once: None) -> None:
    await add_due(store, settings, {6: 64})
    driven = SteppedDispatcher(store, settings, slots=32)
    await driven.settle()
    await add_due(store, settings, {CRITICAL_BULK: 64}, "later")
    await driven.settle()
    assert driven.provider.sent.count(CRITICAL_BULK) == slots_for(CRITICAL_BULK, 32) - slots_for(6, 32) == 1
    await driven.finish()


# --- waiting for a turn -------------------------------------------------------------------------------------------------


class Hanging:
    """A sender that answers when the test says so."""

    channel = Channel.PUSH

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.answers: dict[str, asyncio.Future[Outcome]] = {}

    async def send(self, outgoing: Outgoing) -> Outcome:
        self.sent.append(outgoing.member_id)
        self.answers[outgoing.member_id] = asyncio.get_running_loop().create_future()
        return await self.answers[outgoing.member_id]

    async def close(self) -> None: ...


class Clock:
    """The dispatcher's, which the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


async def test_what_waits_too_long_for_its_turn_was_not_sent_and_waits_in_the_store_again(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As mails do while the server is slow and all connections are in use."""
    await add_due(store, settings, {3: 3})
    clock, sender = Clock(), Hanging()
    monkeypatch.setattr(dispatcher_module, "time", clock)
    # One permit for what is not critical.
    dispatcher = Dispatcher(store, GuardedSender(sender, semaphore=PrioritySemaphore(2)), settings, 16)

    async def go_on(seconds: float = 0.01) -> None:
        clock.now += seconds
        dispatcher.wake()
        await dispatcher.tick()
        await asyncio.sleep(0)

    async with asyncio.timeout(30):
        for number in range(3):
            while len(sender.sent) <= number:
                await go_on()
            await go_on(settings.send_timeout_seconds)
            # Its own timeout counts from when its turn came.
            await go_on(settings.send_timeout_seconds - 1)
            sender.answers[sender.sent[number]].set_result(Accepted())
        while {row[0] for row in await rows(store, "SELECT status FROM bongsu_deliveries")} != {"SUCCESS"}:
            await go_on()
    assert len(set(sender.sent)) == len(sender.sent) == 3
    assert [row[0] for row in await rows(store, "SELECT attempts FROM bongsu_deliveries")] == [1, 1, 1]
    await dispatcher.stop()
