"""The kept counts of large audiences equal the rows themselves, whatever happens to these; small ones have none."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from bongsu.decide.worker import EventWorker
from bongsu.deliver.channels.callback import OnOutcome
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.model import Channel, Event, Everyone, Listed
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Outgoing, Refused, Retry, Unknown
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from bongsu.store import deliveries as statements
from bongsu.store.ranks import RANKS
from tests.support import runs
from tests.support.decisions import Clock, ClockedDecider, add_members, decide, rows, rules_notifying, trigger_event
from tests.support.long_runs import seeds
from tests.support.random_events import PUSHED, add_crowd, random_event, rules
from tests.support.replays import replay
from tests.support.rows import NOW, Sql, set_columns

CHUNK = 7
Counts = Counter[tuple[int, str, str]]


async def kept(store: Store) -> Counts:
    found = await rows(store, "SELECT message_id, channel, category, count FROM bongsu_message_counts")
    return Counter({(row[0], row[1], row[2]): row[3] for row in found if row[3]})


async def real(store: Store) -> Counts:
    """Counted row by row, of messages that are bulk."""
    found = await rows(
        store,
        """SELECT m.message_id, f.channel, f.what, count(*) FROM (
               SELECT message_id, channel, 'MADE' AS what FROM bongsu_deliveries
               UNION ALL SELECT message_id, channel, status FROM bongsu_deliveries
               WHERE status IN ('SUCCESS', 'FAIL', 'UNKNOWN', 'CANCELLED')
               UNION ALL SELECT message_id, '', 'NOTIFIED' FROM bongsu_notifications
               UNION ALL SELECT message_id, '', 'IN_INBOX' FROM bongsu_notifications WHERE channels & 8 <> 0
               UNION ALL SELECT message_id, '', reason FROM bongsu_suppressions) AS f
           JOIN bongsu_messages m ON m.message_id = f.message_id
           WHERE m.is_bulk GROUP BY m.message_id, f.channel, f.what""",
    )
    return Counter({(row[0], row[1], row[2]): row[3] for row in found})


async def check(store: Store, after: str) -> Counter[str]:
    """How many there are of each."""
    exact = await real(store)
    assert await kept(store) == exact, f"after {after}"
    totals: Counter[str] = Counter()
    for (_, _, what), count in exact.items():
        totals[what] += count
    return totals


async def test_a_small_audience_has_no_counts_and_a_large_one_has(store: Store, settings: Settings) -> None:
    who = tuple(f"m-{number}" for number in range(CHUNK + 1))
    await add_members(store, *who, device=True)
    await decide(store, settings, rules_notifying(Listed(who[:CHUNK])), trigger_event("few"), chunk=CHUNK)
    assert await kept(store) == {}
    await decide(store, settings, rules_notifying(Listed(who)), trigger_event("many"), chunk=CHUNK)
    assert Counter(what for _, _, what in await kept(store)) == {"NOTIFIED": 1, "IN_INBOX": 1}
    assert set((await kept(store)).values()) == {CHUNK + 1}


# Answers of a provider, each about as often as the others.
ANSWERS: tuple[Outcome, ...] = (
    Accepted("r"), Accepted("r"), Refused("NO"), Retry("UNAVAILABLE"), Unknown("TIMEOUT"), Gone("UNREGISTERED"),
    Misconfigured("THIRD_PARTY"), Retry("CIRCUIT_OPEN", is_held=True),
)  # fmt: skip


class Moody:
    """A sender that answers at once."""

    channel = Channel.PUSH

    def __init__(self, answer: Callable[[], Outcome]) -> None:
        self._answer = answer

    def start(self, _outgoing: Outgoing, on_outcome: OnOutcome) -> None:
        on_outcome(self._answer())

    is_held = False

    def is_waiting(self, _task: object) -> bool:
        return False

    async def close(self) -> None: ...


async def decide_with_crashes(store: Store, settings: Settings, dice: random.Random, events: list[Event]) -> None:
    """Workers die between two steps, and others go on where they were."""
    while await rows(store, "SELECT 1 FROM bongsu_events WHERE status = 'PENDING' LIMIT 1") or events:
        async with store.transaction() as tx:
            await outbox.add(tx, [events.pop() for _ in range(min(len(events), dice.randint(0, 8)))])
        worker = EventWorker(store, rules, settings, ClockedDecider(store, settings, Clock(), CHUNK))
        for _ in range(dice.randint(1, 3)):
            await worker.tick()
        await set_columns(store, "events", {"status": "PENDING"}, due=NOW)
        await check(store, "a crash between two steps")


async def dispatch(store: Store, settings: Settings, answer: Callable[[], Outcome], ticks: int) -> None:
    dispatcher = Dispatcher(store, Moody(answer), settings, concurrency=16)
    for _ in range(ticks):
        await dispatcher.tick()
    await dispatcher.stop()


async def recover(store: Store) -> str:
    return await runs.recover(store, 10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2))
async def test_counts_equal_the_rows_whatever_happens(store: Store, settings: Settings, seed: int) -> None:
    dice = random.Random(seed)
    quick = settings.model_copy(update={"retry_base_seconds": 0.001, "poll_seconds": 0.001, "max_retries": 1})
    await add_crowd(store)
    await decide_with_crashes(store, quick, dice, [random_event(dice) for _ in range(30)])
    # Of both guarantees.
    await set_columns(store, "messages", "message_id % 2 = 0", guarantee="at_least_once")
    decided = await check(store, "deciding")
    assert decided["MADE"] > 50
    assert decided["USER_OPTED_OUT"] > 0

    await dispatch(store, quick, lambda: dice.choice(ANSWERS), ticks=25)
    await check(store, "sending")

    # A dispatcher dies with what it had claimed; some of it is claimed again, the job settles the rest.
    assert await statements.claim(store, Channel.PUSH, RANKS, 20, -1, "dead")
    await check(store, "an abandoned claim")
    await dispatch(store, quick, Accepted, ticks=1)
    await check(store, "an abandoned claim that was claimed again")
    assert await statements.claim(store, Channel.PUSH, RANKS, 20, -1, "dead")
    assert await recover(store) != "nothing to do"
    recovered = await check(store, "recovery")

    some = """message_id % 3 = 0 OR message_id = (
        SELECT max(message_id) FROM bongsu_deliveries JOIN bongsu_messages m USING (message_id)
        WHERE status = 'READY' AND m.is_bulk)"""
    await set_columns(store, "messages", some, expires_at=Sql("created_at"))
    await set_columns(store, "deliveries", {"status": "READY"}, due=timedelta(hours=-1))
    assert "expired" in await recover(store)
    expired = await check(store, "expiry")
    assert expired["FAIL"] > recovered["FAIL"]

    await dispatch(store, quick, lambda: dice.choice(ANSWERS), ticks=200)
    await check(store, "the next round")
    matched, replayed = await replay(store, {"channel": "PUSH"}, batch=9)
    assert matched == replayed > 0
    again = await check(store, "a replay")
    assert again["FAIL"] == again["UNKNOWN"] == 0

    # To devices that were gone nothing is sent any more; to the others all of it.
    await dispatch(store, quick, Accepted, ticks=200)
    done = await check(store, "the last of it")
    assert done["MADE"] == decided["MADE"] == done["SUCCESS"] + done["FAIL"] + done["UNKNOWN"]
    assert (done["NOTIFIED"], done["IN_INBOX"]) == (decided["NOTIFIED"], decided["IN_INBOX"])


async def test_a_result_that_comes_too_late_is_not_counted(store: Store, settings: Settings) -> None:
    who = [f"m-{number}" for number in range(CHUNK + 1)]
    await add_members(store, *who, device=True)
    await decide(store, settings, rules_notifying(Everyone(), PUSHED), trigger_event(), chunk=CHUNK)
    first, *_ = sorted(await statements.claim(store, Channel.PUSH, RANKS, 100, -1, "slow"))
    again, *_ = sorted(await statements.claim(store, Channel.PUSH, RANKS, 100, 60, "next"))
    assert (first.delivery_id, first.epoch + 1) == (again.delivery_id, again.epoch)
    for one, expected in ((first, 0), (again, 1), (again, 1)):
        success = statements.Success(one.delivery_id, one.epoch, 0.0, 1, bulk_message=one.message_id)
        await statements.record(store, "PUSH", [success])
        assert (await kept(store))[one.message_id, "PUSH", "SUCCESS"] == expected
    await check(store, "a late result")
