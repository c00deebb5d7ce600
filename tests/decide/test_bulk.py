"""A notice is bulk if its audience does not fit into one step. Bulk ranks, and that small audiences do not wait."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import pytest

from bongsu.decide import worker as module
from bongsu.decide.progress import Decision
from bongsu.decide.worker import EventWorker
from bongsu.model import (
    Action,
    Audience,
    Channel,
    Event,
    Everyone,
    Interested,
    Listed,
    Notice,
    NoticeType,
    Priority,
    Selected,
)
from bongsu.rules import Rules
from bongsu.settings import Settings
from bongsu.store import Store
from tests.support.decisions import (
    Clock,
    ClockedDecider,
    add_behaviors,
    add_members,
    decide,
    notified_counts,
    rows,
    rules_notifying,
    run_worker,
    tick_until_work,
    trigger_event,
)
from tests.support.long_runs import seeds
from tests.support.outbox import add_events
from tests.support.rows import NOW, add_device_for_each, set_columns

BOTH = (Channel.PUSH, Channel.IN_APP)
CHUNK = 5
VIEW = frozenset({Action.VIEW})

AUDIENCES: dict[str, Callable[[Sequence[str]], Audience]] = {
    "listed": lambda who: Listed(tuple(who)),
    "everyone": lambda _who: Everyone(),
    "selected": lambda _who: Selected("SELECT member_id FROM bongsu_members"),
    "interested": lambda _who: Interested("p1", VIEW, 7),
}


async def ranks(store: Store) -> dict[str, Counter[tuple[int, bool]]]:
    """How many deliveries have which rank and are of a bulk message or not, by the ref_id of their events."""
    found = await rows(
        store,
        """SELECT m.ref_id, d.rank, m.is_bulk, count(*) FROM bongsu_deliveries d JOIN bongsu_messages m USING (message_id)
           GROUP BY m.ref_id, d.rank, m.is_bulk""",
    )
    by_ref: defaultdict[str, Counter[tuple[int, bool]]] = defaultdict(Counter)
    for ref_id, rank, is_bulk, count in found:
        by_ref[ref_id][rank, bool(is_bulk)] = count
    return dict(by_ref)


def rules_for(audience: Callable[[Event], Audience], kind: NoticeType | None = None) -> Rules:
    """Any event of type `said` becomes a notice to its audience, and its messages have the event's reference."""
    rules = Rules()

    @rules.rule("said")
    def notices(event: Event) -> Iterable[Notice]:
        yield Notice(kind or NoticeType("SAID", BOTH), audience(event), ref_id=event.ref_id, title="t", body="b")

    return rules


class RecordedWorker:
    """A worker that records each of its steps: how many recipients it decided, by the ref_id of their events."""

    def __init__(self, store: Store, settings: Settings, rules: Rules, chunk: int = CHUNK) -> None:
        self.steps: list[dict[str, int]] = []
        self.worker = EventWorker(store, rules, settings, ClockedDecider(store, settings, Clock(), chunk), self._decided)

    def _decided(self, decision: Decision) -> None:
        if decision.rows is None:
            return
        self.steps.append(dict(self._by_event(decision)))

    @staticmethod
    def _by_event(decision: Decision) -> Iterable[tuple[str, int]]:
        assert decision.rows is not None
        messages = {message.message_id: event for event, message in decision.new_messages}
        for event in decision.events:
            messages |= dict.fromkeys(event.messages.values(), event)
        counted: Counter[str] = Counter()
        for one in decision.rows.counts:
            assert one.message_id is not None
            counted[messages[one.message_id].claimed.event.ref_id or ""] += one.recipients
        return counted.items()


# --- what is bulk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", AUDIENCES)
@pytest.mark.parametrize(("count", "is_bulk"), [(CHUNK, False), (CHUNK + 1, True), (2 * CHUNK, True)])
async def test_an_audience_that_does_not_fit_into_one_step_is_bulk(
    store: Store, settings: Settings, kind: str, count: int, is_bulk: bool
) -> None:
    who = [f"m-{number:02}" for number in range(count)]
    await add_members(store, *who, device=True)
    await add_behaviors(store, "p1", *who)
    recorded = RecordedWorker(store, settings, rules_for(lambda _event: AUDIENCES[kind](who)))
    await add_events(store, trigger_event("it"))
    await run_worker(recorded.worker)
    assert await notified_counts(store) == dict.fromkeys(who, 1)
    # Also for those whom the last step has decided.
    assert await ranks(store) == {"it": Counter({(6 if is_bulk else 3, is_bulk): count})}
    full, rest = divmod(count, CHUNK)
    assert [step["it"] for step in recorded.steps] == [CHUNK] * full + [rest] * (rest > 0)


@pytest.mark.parametrize("is_bulk", [False, True])
async def test_each_delivery_stores_its_rank(store: Store, settings: Settings, is_bulk: bool) -> None:
    who = [f"m-{number}" for number in range(CHUNK)]
    await add_members(store, *who, device=True)
    await set_columns(store, "members", email="a@example.org")
    for priority, is_critical in itertools.product(Priority, [False, True]):
        name = f"{priority.name}_{'CRITICAL' if is_critical else 'ORDINARY'}"
        kind = NoticeType(name, (*BOTH, Channel.EMAIL), priority=priority, is_critical=is_critical)
        chunk = CHUNK - 1 if is_bulk else CHUNK
        await decide(store, settings, rules_notifying(Everyone(), kind), trigger_event(name), chunk=chunk)
        rank = {Priority.HIGH: 2, Priority.NORMAL: 3, Priority.LOW: 4}[priority] + 3 * is_bulk
        rank = int(is_bulk) if is_critical else rank
        found = await rows(
            store,
            """SELECT d.rank, d.channel, m.is_bulk, count(*)
               FROM bongsu_deliveries d JOIN bongsu_messages m USING (message_id)
               WHERE m.type = $1 GROUP BY d.rank, d.channel, m.is_bulk""",
            name,
        )
        assert {tuple(row) for row in found} == {(rank, "PUSH", is_bulk, CHUNK), (rank, "EMAIL", is_bulk, CHUNK)}


async def test_every_message_of_a_bulk_notice_is_bulk_also_one_that_a_later_step_is_the_first_to_need(
    store: Store, settings: Settings
) -> None:
    who = [f"m-{number:02}" for number in range(CHUNK + 1)]
    await add_members(store, *who, device=True)
    await set_columns(store, "members", locale="en")
    await set_columns(store, "members", {"member_id": who[-1]}, locale="ko")
    rules = Rules()

    @rules.rule("said")
    def notices(event: Event) -> Iterable[Notice]:
        yield Notice(NoticeType("FOLLOW", BOTH), Everyone(), data={"actorName": "Kim"})

    await decide(store, settings, rules, trigger_event(), chunk=CHUNK)
    found = await rows(store, "SELECT locale, is_bulk FROM bongsu_messages ORDER BY locale")
    assert [(row[0], bool(row[1])) for row in found] == [("en", True), ("ko", True)]


async def test_of_several_notices_of_an_event_each_is_bulk_by_its_own_audience(store: Store, settings: Settings) -> None:
    who = [f"m-{number:02}" for number in range(CHUNK + 1)]
    await add_members(store, *who, device=True)
    rules = Rules()

    @rules.rule("said")
    def notices(event: Event) -> Iterable[Notice]:
        for name, audience in (("FEW", Listed((who[0],))), ("ALL", Everyone()), ("TWO", Listed(tuple(who[:2])))):
            yield Notice(NoticeType(name, BOTH), audience, ref_id=name, title="t", body="b")

    await decide(store, settings, rules, trigger_event(), chunk=CHUNK)
    assert await ranks(store) == {
        "FEW": Counter({(3, False): 1}),
        "ALL": Counter({(6, True): CHUNK + 1}),
        "TWO": Counter({(3, False): 2}),
    }


# --- how steps are filled -----------------------------------------------------------------------------------------------


def listed(*sizes: int) -> tuple[list[Event], Rules]:
    """Events that are for so many members each, none of them for the same ones."""
    names = [f"e{number}" for number in range(len(sizes))]
    who = {name: [f"{name}-m{number:02}" for number in range(size)] for name, size in zip(names, sizes, strict=True)}
    return [trigger_event(name) for name in names], rules_for(lambda event: Listed(tuple(who[event.ref_id or ""])))


@pytest.mark.parametrize(
    ("sizes", "steps"),
    [
        # Those that fit go together; one that does not fit any more waits, and is not cut.
        ((2, 2, 1), [{"e0": 2, "e1": 2, "e2": 1}]),
        ((3, 3, 3), [{"e0": 3}, {"e1": 3}, {"e2": 3}]),
        ((3, 4, 2), [{"e0": 3, "e2": 2}, {"e1": 4}]),
        ((4, 5, 1), [{"e0": 4, "e2": 1}, {"e1": 5}]),
        # A large one begins when it is the first; others do not share its steps.
        ((1, 6, 2), [{"e0": 1, "e2": 2}, {"e1": 5}, {"e1": 1}]),
        ((6, 1), [{"e0": 5}, {"e1": 1}, {"e0": 1}]),
    ],
)
async def test_a_small_audience_is_never_cut(
    store: Store, settings: Settings, sizes: tuple[int, ...], steps: list[dict[str, int]]
) -> None:
    events, rules = listed(*sizes)
    recorded = RecordedWorker(store, settings, rules)
    await add_events(store, *events)
    await run_worker(recorded.worker)
    assert recorded.steps == steps
    assert sum((await notified_counts(store)).values()) == sum(sizes)


async def test_lists_go_before_an_audience_whose_size_is_not_known(store: Store, settings: Settings) -> None:
    await add_members(store, *(f"all-{number}" for number in range(7)))
    audiences: dict[str, Audience] = {"few": Listed(("x", "y")), "all": Everyone(), "others": Listed(("z",))}
    recorded = RecordedWorker(store, settings, rules_for(lambda event: audiences[event.ref_id or ""]))
    await add_events(store, trigger_event("all"), trigger_event("few"), trigger_event("others"))
    await run_worker(recorded.worker)
    first, *rest = recorded.steps
    assert first == {"few": 2, "others": 1}
    # The lists' members are everybody's too by then.
    assert rest == [{"all": CHUNK}, {"all": CHUNK}]


async def test_small_audiences_of_interested_members_share_a_step_and_a_large_one_goes_alone(
    store: Store, settings: Settings
) -> None:
    for product, count in (("p0", 2), ("p1", 7), ("p2", 3), ("p3", 5)):
        await add_behaviors(store, product, *(f"{product}-{number}" for number in range(count)))
    async with store.transaction() as tx:
        await add_device_for_each(tx, "members")
    recorded = RecordedWorker(store, settings, rules_for(lambda event: Interested(event.ref_id or "", VIEW, 7)))
    await add_events(store, *(trigger_event(f"p{number}") for number in range(4)))
    await run_worker(recorded.worker)
    assert Counter(await ranks(store)) == {
        "p0": Counter({(3, False): 2}),
        "p1": Counter({(6, True): 7}),
        "p2": Counter({(3, False): 3}),
        "p3": Counter({(3, False): 5}),
    }
    assert recorded.steps[0] == {"p0": 2, "p2": 3}
    assert sorted(step["p1"] for step in recorded.steps if "p1" in step) == [2, 5]
    assert all(len(step) == 1 for step in recorded.steps if "p1" in step or "p3" in step)


@pytest.mark.parametrize("seed", seeds(4))
async def test_only_what_is_larger_than_a_step_is_cut_however_events_are_mixed(
    store: Store, settings: Settings, seed: int
) -> None:
    dice = random.Random(seed)
    crowd = [f"m{number:02}" for number in range(12)]
    await add_members(store, *crowd, device=True)
    audiences: dict[str, tuple[Audience, int]] = {}
    for number in range(15):
        size = dice.randint(1, 12)
        who = dice.sample(crowd, size)
        name = f"e{number:02}"
        await add_behaviors(store, name, *who)
        listed, interested = Listed(tuple(who)), Interested(name, VIEW, 7)
        some: list[Audience] = [listed, listed, listed, interested, interested, Everyone(), Selected(_first(size))]
        audience = dice.choice(some)
        audiences[name] = (audience, 12 if isinstance(audience, Everyone) else size)
    events = [trigger_event(name) for name in audiences]
    steps: list[dict[str, int]] = []
    await add_events(store, *events[:10])
    rules = rules_for(
        lambda event: audiences[event.ref_id or ""][0], NoticeType("SAID", BOTH, duplicate_hours=0, is_critical=True)
    )
    # Now and then a worker dies, and another goes on where it was; five events come later.
    for alive in [*(dice.randint(1, 4) for _ in range(5)), 1_000]:
        recorded = RecordedWorker(store, settings, rules)
        for _ in range(alive):
            if not await tick_until_work(recorded.worker):
                break
        await recorded.worker.selects.stop()
        steps += recorded.steps
        await set_columns(store, "events", {"status": "PENDING"}, due=NOW)
        await add_events(store, *events[10:])
    assert all(sum(step.values()) <= CHUNK for step in steps)
    for name, (_, size) in audiences.items():
        parts = [step[name] for step in steps if name in step]
        assert sum(parts) == size
        assert len(parts) == -(-size // CHUNK), "as few steps as it takes"
        assert set((await ranks(store))[name]) == {(1, True) if size > CHUNK else (0, False)}


def _first(size: int) -> str:
    return f"SELECT member_id FROM bongsu_members ORDER BY member_id LIMIT {size}"


# --- small events do not wait for large ones ----------------------------------------------------------------------------


async def test_a_small_event_is_decided_between_two_steps_of_a_large_one(store: Store, settings: Settings) -> None:
    await add_members(store, *(f"m-{number:02}" for number in range(10 * CHUNK)))
    recorded = RecordedWorker(
        store, settings, rules_for(lambda event: Everyone() if event.ref_id == "all" else Listed(("few",)))
    )
    await add_events(store, trigger_event("all"))
    await recorded.worker.tick()
    for _ in range(3):
        await add_events(store, trigger_event("few"))
        before = len(recorded.steps)
        await recorded.worker.tick()
        assert recorded.steps[before:][0] == {"few": 1}
        assert recorded.steps[before:][1] == {"all": CHUNK}
    await run_worker(recorded.worker)


@pytest.mark.parametrize("kind", ["everyone", "selected", "interested"])
async def test_lists_that_keep_coming_do_not_keep_a_large_event_from_its_turn(
    store: Store, settings: Settings, kind: str
) -> None:
    who = [f"m-{number:02}" for number in range(3 * CHUNK)]
    await add_members(store, *who)
    await add_behaviors(store, "p1", *who)
    audience = AUDIENCES[kind](who)

    def lists(event: Event) -> Audience:
        return audience if event.ref_id == "all" else Listed(tuple(f"{event.ref_id}-{one}" for one in range(CHUNK - 1)))

    recorded = RecordedWorker(store, settings, rules_for(lists))
    await add_events(store, trigger_event("first"), trigger_event("all"))
    # More in each tick than its steps can take.
    for _ in range(20):
        await add_events(store, *(trigger_event(f"list-{len(recorded.steps)}-{number}") for number in range(5)))
        await recorded.worker.tick()
    assert sum(step.get("all", 0) for step in recorded.steps) >= 3 * CHUNK
    assert any("all" not in step for step in recorded.steps[-3:]), "lists are still being decided"
    await recorded.worker.stop()


async def test_a_large_event_and_those_that_lists_leave_no_room_for_take_turns(store: Store, settings: Settings) -> None:
    await add_members(store, *(f"m-{number:03}" for number in range(40 * CHUNK)))
    one = Selected("SELECT member_id FROM bongsu_members ORDER BY member_id LIMIT 1")

    def audience(event: Event) -> Audience:
        if event.ref_id == "all":
            return Everyone()
        name = str(event.ref_id)
        return one if name.startswith("select") else Listed(tuple(f"{name}-{number}" for number in range(CHUNK - 1)))

    recorded = RecordedWorker(store, settings, rules_for(audience))
    await add_events(store, trigger_event("all"))
    await recorded.worker.tick()
    for turn in range(12):
        # More lists in each tick than its steps can take, and more of the others than have a turn.
        await add_events(
            store,
            *(trigger_event(f"list-{turn}-{number}") for number in range(5)),
            *(trigger_event(f"select-{turn}") for _ in "ab"),
        )
        await recorded.worker.tick()
    later = recorded.steps[2:]
    assert sum("all" in step for step in later) >= 4
    assert sum(any(name.startswith("select") for name in step) for step in later) >= 4
    await recorded.worker.stop()


async def test_small_events_without_lists_do_not_take_the_turns_of_a_large_one(store: Store, settings: Settings) -> None:
    await add_members(store, *(f"m-{number:03}" for number in range(40 * CHUNK)))
    one = Selected("SELECT member_id FROM bongsu_members ORDER BY member_id LIMIT 1")
    recorded = RecordedWorker(store, settings, rules_for(lambda event: Everyone() if event.ref_id == "all" else one))
    await add_events(store, trigger_event("all"))
    await recorded.worker.tick()
    await add_events(store, *(trigger_event(f"small-{number}") for number in range(30)))
    for _ in range(8):
        await recorded.worker.tick()
    assert sum("all" in step for step in recorded.steps) >= 8
    await recorded.worker.stop()


@pytest.mark.parametrize("large", [3, 4, 9])
async def test_many_large_events_do_not_keep_small_ones_from_being_claimed(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(module, "BATCH", 4)
    await add_members(store, *(f"m-{number:02}" for number in range(20 * CHUNK)))
    names = [f"all-{number}" for number in range(large)]
    recorded = RecordedWorker(
        store, settings, rules_for(lambda event: Everyone() if event.ref_id in names else Listed(("few",)))
    )
    await add_events(store, *(trigger_event(name) for name in names))
    while len({name for step in recorded.steps for name in step}) < large:
        await recorded.worker.tick()
    before = len(recorded.steps)
    await add_events(store, *(trigger_event(f"few-{number}") for number in range(4)))
    await recorded.worker.tick()
    assert recorded.steps[before] == dict.fromkeys([f"few-{number}" for number in range(4)], 1)
    assert len(recorded.worker._in_progress) <= 4 + 1
    # Those that there was no room for were given back, and come again.
    while await rows(store, "SELECT 1 FROM bongsu_events WHERE status = 'PENDING' LIMIT 1"):
        await set_columns(store, "events", {"leased_by": None}, due=NOW)
        await recorded.worker.tick()
    decided = Counter(name for step in recorded.steps for name, count in step.items() for _ in range(count))
    assert {decided[name] for name in names} == {20 * CHUNK}
    await recorded.worker.stop()


@pytest.mark.parametrize("priority", list(Priority))
async def test_a_notice_declared_bulk_ranks_as_bulk_however_few_it_is_for(
    store: Store, settings: Settings, priority: Priority
) -> None:
    await add_members(store, "a", device=True)
    kind = NoticeType("SAID", BOTH, priority)
    for bulk in (False, True):
        rules = rules_notifying(Listed(("a",)), kind, ref_id=str(bulk), bulk=bulk)
        await decide(store, settings, rules, trigger_event(str(bulk)))
    number = list(Priority).index(priority)
    # Its message is not: one delivery is counted as fast as a count is read.
    assert await ranks(store) == {"False": {(2 + number, False): 1}, "True": {(5 + number, False): 1}}
