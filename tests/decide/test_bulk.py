"""Which notices are bulk, the rank of their deliveries, and the counts that are kept of them."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random

import pytest

from bongsu.dead import DeadFilter, Replay
from bongsu.decide.worker import EventWorker
from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.dispatcher import Dispatcher
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
from bongsu.outcome import Accepted, Outcome, Outgoing, Refused, Retry
from bongsu.rules import Rules
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from bongsu.store.message_counts import IN_INBOX, MADE, NOTIFIED
from bongsu.store.ranks import rank_of
from tests.deciding import Clock, ClockedDecider, decide, did, members, prefers, rows, said, says, work

BOTH = (Channel.PUSH, Channel.IN_APP)
CHUNK = 5


def names(count: int, name: str = "m") -> tuple[str, ...]:
    return tuple(f"{name}-{number:03}" for number in range(count))


async def ranks(store: Store) -> set[int]:
    return {row["rank"] for row in await rows(store, "SELECT DISTINCT rank FROM bongsu_deliveries")}


async def bulk_messages(store: Store) -> list[bool]:
    return [bool(row["is_bulk"]) for row in await rows(store, "SELECT is_bulk FROM bongsu_messages ORDER BY message_id")]


@pytest.mark.parametrize(("priority", "is_critical", "count"), list(product(Priority, (False, True), (CHUNK, CHUNK + 1))))
async def test_an_audience_that_does_not_fit_into_a_step_is_bulk(
    store: Store, settings: Settings, priority: Priority, is_critical: bool, count: int
) -> None:
    who = names(count)
    await members(store, *who, device=True)
    kind = NoticeType("SAID", BOTH, priority=priority, is_critical=is_critical)
    await decide(store, settings, says(Listed(who), kind), said(), chunk=CHUNK)
    is_bulk = count > CHUNK
    assert await ranks(store) == {rank_of(priority, is_critical=is_critical, is_bulk=is_bulk)}
    assert await bulk_messages(store) == [is_bulk]


AUDIENCES: dict[str, Audience] = {
    "everyone": Everyone(),
    "selected": Selected("SELECT member_id FROM bongsu_members"),
    "interested": Interested("sku", frozenset({Action.VIEW}), 7),
}


@pytest.mark.parametrize("name", AUDIENCES)
@pytest.mark.parametrize("count", [CHUNK - 1, CHUNK + 1, 3 * CHUNK])
async def test_an_audience_that_is_looked_up_is_bulk_by_its_size(
    store: Store, settings: Settings, name: str, count: int
) -> None:
    who = names(count)
    await members(store, *who, device=True)
    await did(store, "sku", *who)
    few = names(2)
    # Beside events with small audiences, which are never cut.
    rules = says(lambda event: AUDIENCES[name] if event.ref_id == "large" else Listed(few), NoticeType("SAID", BOTH))
    events = [said("1"), said("2"), said("large"), said("3"), said("4")]
    await decide(store, settings, rules, *events, chunk=CHUNK)
    found = await rows(store, "SELECT subject, is_bulk FROM bongsu_messages")
    assert {row["subject"]: bool(row["is_bulk"]) for row in found} == {
        **dict.fromkeys(("1", "2", "3", "4"), False),
        "large": count > CHUNK,
    }
    notified = await rows(
        store,
        """SELECT m.subject, count(*) AS count FROM bongsu_notifications AS n
           JOIN bongsu_messages AS m ON m.message_id = n.message_id GROUP BY m.subject""",
    )
    assert {row["subject"]: row["count"] for row in notified} == {**dict.fromkeys(("1", "2", "3", "4"), 2), "large": count}


async def test_lists_that_do_not_fit_together_wait_for_the_next_step(store: Store, settings: Settings) -> None:
    sizes = [3, 3, 1, 4, 5, 2, 3]
    rules = says(lambda event: Listed(names(sizes[int(event.ref_id or 0)], f"of-{event.ref_id}")), NoticeType("SAID", BOTH))
    await decide(store, settings, rules, *(said(str(place)) for place in range(len(sizes))), chunk=CHUNK)
    assert await bulk_messages(store) == [False] * len(sizes)
    (row,) = await rows(store, "SELECT count(*) AS count FROM bongsu_notifications")
    assert row["count"] == sum(sizes)


async def test_many_large_events_do_not_keep_small_ones_from_being_claimed(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bongsu.decide.worker.BATCH", 3)
    large, small = names(4 * CHUNK), names(1)
    await members(store, *large, *small)
    rules = says(lambda event: Listed(large if event.ref_id == "large" else small), NoticeType("SAID", (Channel.IN_APP,)))
    async with store.transaction() as tx:
        await outbox.add(tx, [said("large", payload={"number": number}) for number in range(7)])
    worker = EventWorker(store, rules, settings, ClockedDecider(store, settings, Clock(), CHUNK))
    for _ in range(3):
        await worker.tick()
    event = said("small")
    async with store.transaction() as tx:
        await outbox.add(tx, [event])
    await worker.tick()
    async with store.read() as tx:
        stored = await outbox.find(tx, event.event_id)
    assert stored is not None
    assert stored.status == "DONE"
    await worker.stop()


# --- counts -----------------------------------------------------------------------------------------------------------


class Moody:
    """Accepts, refuses, or asks for another attempt."""

    channel = Channel.PUSH

    def __init__(self, random: Random) -> None:
        self._random = random

    async def send(self, _outgoing: Outgoing) -> Outcome:
        outcomes: list[Outcome] = [Accepted("x"), Accepted("y"), Refused("NO"), Retry("LATER")]
        return self._random.choice(outcomes)

    async def close(self) -> None:
        pass


async def kept(store: Store) -> Counter[tuple[int, str, str]]:
    found = await rows(store, "SELECT message_id, channel, what, count FROM bongsu_message_counts WHERE count <> 0")
    return Counter({(row["message_id"], row["channel"], row["what"]): row["count"] for row in found})


async def counted(store: Store) -> Counter[tuple[int, str, str]]:
    """The same from the rows themselves, of messages that are bulk."""
    counts: Counter[tuple[int, str, str]] = Counter()
    bulk = {row[0] for row in await rows(store, "SELECT message_id FROM bongsu_messages WHERE is_bulk = true")}
    for row in await rows(store, "SELECT message_id, channels FROM bongsu_notifications"):
        counts[row["message_id"], "", NOTIFIED] += 1
        counts[row["message_id"], "", IN_INBOX] += row["channels"] & 8 != 0
    for row in await rows(store, "SELECT message_id, reason FROM bongsu_suppressions"):
        counts[row["message_id"], "", row["reason"]] += 1
    for row in await rows(store, "SELECT message_id, channel, status FROM bongsu_deliveries"):
        counts[row["message_id"], row["channel"], MADE] += 1
        if row["status"] not in ("READY", "SENDING"):
            counts[row["message_id"], row["channel"], row["status"]] += 1
    return Counter({key: count for key, count in counts.items() if key[0] in bulk and count})


@pytest.mark.parametrize("seed", range(4))
async def test_kept_counts_are_those_of_the_rows(store: Store, settings: Settings, seed: int) -> None:
    random = Random(seed)
    who = names(23)
    await members(store, *who, device=True)
    for one in random.sample(who, 6):
        await prefers(store, one, types={"SAID": {"enabled": random.random() < 0.5, "channels": ["PUSH"]}})
    rules = Rules()

    @rules.rule("said")
    def both(event: Event) -> list[Notice]:
        kind = NoticeType("SAID", BOTH)
        return [
            Notice(kind, Listed(who), subject=f"{event.ref_id}", title="t", body="b"),
            Notice(kind, Listed(who[:3]), subject=f"{event.ref_id} few", title="t", body="b"),
        ]

    await decide(store, settings, rules, said("1"), said("2"), said("1"), chunk=random.choice([4, 7, 22]))
    assert await kept(store) == await counted(store)
    assert any(what == "DUPLICATE" for _, _, what in await kept(store))
    hurried = settings.model_copy(update={"max_retries": 1, "retry_base_seconds": 0.001, "poll_seconds": 0.01})
    dispatcher = Dispatcher(store, GuardedSender(Moody(random)), hurried, 8)
    for _ in range(20):
        await dispatcher.tick()
    await dispatcher.stop()
    assert await kept(store) == await counted(store)
    replay = Replay(store, LocalSignals(), "test", DeadFilter.model_validate({"code": "NO"}))
    assert (await replay.run())[1] > 0
    assert await kept(store) == await counted(store)


async def test_small_events_are_not_counted(store: Store, settings: Settings) -> None:
    who = names(CHUNK)
    await members(store, *who, device=True)
    await decide(store, settings, says(Listed(who), NoticeType("SAID", BOTH)), said(), chunk=CHUNK)
    assert await kept(store) == Counter()


async def test_one_that_was_interrupted_is_counted_once(store: Store, settings: Settings) -> None:
    who = names(3 * CHUNK)
    await members(store, *who, device=True)
    rules = says(Listed(who), NoticeType("SAID", BOTH))
    async with store.transaction() as tx:
        await outbox.add(tx, [said()])
    first = EventWorker(store, rules, settings, ClockedDecider(store, settings, Clock(), CHUNK))
    await first.tick()
    async with store.transaction() as tx:
        await outbox.give_back(tx, [one.claimed for one in first._in_progress], 0.0)
    await work(EventWorker(store, rules, settings, ClockedDecider(store, settings, Clock(), CHUNK)))
    assert await kept(store) == await counted(store)
    assert sum((await kept(store)).values()) == 3 * len(who)
