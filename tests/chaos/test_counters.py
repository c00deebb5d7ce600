"""Counters under faults: processes killed, Redis restarted and emptied; and a hundred users on the same posts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import pytest
import redis

from bongsu.counters.flush import Flusher
from bongsu.decide.step import Decider
from bongsu.decide.worker import EventWorker
from bongsu.ingress.intake import Intake
from bongsu.model import Event
from bongsu.render.templates import Templates
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store
from tests.chaos.shop import until
from tests.support.counters import Counting, comment_created, comment_deleted, counting
from tests.support.decisions import rows
from tests.support.long_runs import TIMES, seeds
from tests.support.processes import KEY, Served, serving
from tests.support.servers import RedisServer, start_redis

pytestmark = pytest.mark.timeout(300)

POSTS = ("post-1", "post-2", "post-3")
USERS = 100
# What each user does, one after the other, without a pause.
COMMENTS_EACH = 3


# --- the experiment of a hundred users --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def working(counts: Counting) -> Any:
    """Two workers and two flushers, as fast as they can. Whatever deadlocks is found in the server's log at the end."""
    often = counts.settings.model_copy(update={"counter_flush_seconds": 0.01})

    def worker() -> EventWorker:
        return EventWorker(counts.store, counts.rules, often, Decider(counts.store, Templates.load(), often))

    flushers = running(Flusher(counts.store, often)), running(Flusher(counts.store, often))
    async with running(worker()), running(worker()), flushers[0], flushers[1]:
        yield


async def test_a_hundred_users_comment_on_the_same_posts_without_a_deadlock(store: Store, settings: Settings) -> None:
    chance = random.Random(38)
    kept: Counter[str] = Counter()
    signals = LocalSignals()

    async def comment(intake: Intake, user: int) -> None:
        for number in range(COMMENTS_EACH):
            post, comment_id = chance.choice(POSTS), f"{user}-{number}"
            created = comment_created(post, comment_id=comment_id, actor_id=f"u{user}", target_id="author")
            await intake.accept([created])
            if chance.random() < 0.6:
                by_event = chance.random() < 0.5
                deleted = (
                    comment_deleted(post, created=created) if by_event else comment_deleted(post, comment_id=comment_id)
                )
                await intake.accept([deleted])
            else:
                kept[post] += 1

    async with counting(store, settings) as counts, running(Intake(store, signals, "test")) as intake:
        async with working(counts), asyncio.timeout(120):
            await asyncio.gather(*(comment(intake, user) for user in range(USERS)))
            while await rows(store, "SELECT 1 FROM bongsu_events WHERE status = 'PENDING' LIMIT 1"):
                await asyncio.sleep(0)
            while await counts.count_logged():
                await asyncio.sleep(0)
        assert {post: await counts.value(post) for post in POSTS} == dict(kept)
        assert {key: value for (_, key), value in (await counts.stored()).items()} == dict(kept)
        failed = "SELECT error FROM bongsu_events WHERE status <> 'DONE' OR attempts > 0"
        assert [row["error"] for row in await rows(store, failed)] == []


# --- processes that are killed ----------------------------------------------------------------------------------------

CALLS = 60 if TIMES == 1 else 150


class Callers:
    """They create and delete comments and change a counter by calls, at whichever process lives. What was not answered is
    sent again, as it was: the model has everything once."""

    def __init__(self, processes: list[Served], chance: random.Random) -> None:
        self.processes = processes
        self.expected: Counter[str] = Counter()
        self.sent = 0
        self._chance = chance
        self._created: list[tuple[str, Event]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while self.sent < CALLS:
            self._one()
            self.sent += 1

    def _one(self) -> None:
        post = self._chance.choice(POSTS)
        kind = self._chance.randrange(4)
        if kind == 0:
            delta, event_id = self._chance.randint(-5, 5), uuid4()
            self._send(f"/api/counters/comments/{post}", {"delta": delta, "eventId": str(event_id)})
            self.expected[post] += delta
        elif kind == 1 and self._created:
            post, created = self._created.pop(self._chance.randrange(len(self._created)))
            # Twice, by both names.
            for deleted in (
                comment_deleted(post, created=created),
                comment_deleted(post, comment_id=created.payload["commentId"]),
            ):
                self._publish(deleted)
            self.expected[post] -= 1
        else:
            created = comment_created(post, comment_id=str(uuid4()))
            self._publish(created)
            self._created.append((post, created))
            self.expected[post] += 1

    def _publish(self, event: Event) -> None:
        body = {"eventId": str(event.event_id), "eventType": event.event_type, "refId": event.ref_id,
                "payload": dict(event.payload)}  # fmt: skip
        self._send("/api/events", body)
        if self._chance.random() < 0.2:
            self._send("/api/events", body)

    def _send(self, path: str, body: dict[str, Any]) -> None:
        until(partial(self._is_accepted, path, body), f"accepted: {path}")

    def _is_accepted(self, path: str, body: dict[str, Any]) -> bool:
        process = self._chance.choice(self.processes)
        try:
            answer = httpx.post(f"{process.address}{path}", json=body, headers=KEY, timeout=10)
        except httpx.HTTPError:
            return False
        assert answer.status_code in (200, 202, 503), answer.text
        return answer.status_code != 503


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    server = start_redis()
    yield server
    server.stop()


@pytest.mark.parametrize("seed", seeds(1))
def test_counts_are_exact_whatever_is_killed_or_emptied(
    migrated: dict[str, str], settings: Settings, own_redis: RedisServer, seed: int
) -> None:
    chance = random.Random(seed)
    environment = {
        **migrated, "BONGSU_REDIS_URL": own_redis.url, "BONGSU_COUNTER_FLUSH_SECONDS": "0.05",
        "BONGSU_SEND_TIMEOUT_SECONDS": "0.5", "BONGSU_LEASE_SECONDS": "2",
    }  # fmt: skip
    with ExitStack() as stack:
        processes = [stack.enter_context(serving(environment)) for _ in range(2)]
        callers = Callers(processes, random.Random(seed))

        def kill() -> None:
            """The ingester, worker and flusher that it is, whatever it does at this moment."""
            index = chance.randrange(2)
            processes[index].process.kill()
            processes[index].process.wait(30)
            processes[index] = stack.enter_context(serving(environment))

        def flush_all() -> None:
            with redis.Redis.from_url(own_redis.url) as client:
                client.flushall()

        def has_sent(calls: int) -> bool:
            return callers.sent >= calls

        faults: list[Callable[[], None]] = [kill, flush_all, own_redis.restart, *[kill] * (TIMES > 1)]
        for number, fault in enumerate(faults):
            until(partial(has_sent, (number + 1) * CALLS // (len(faults) + 1)), f"calls before fault {number}")
            fault()
        callers.join()
        until(lambda: read_all(processes[0]) == dict(callers.expected), f"exact: {dict(callers.expected)}")
        asyncio.run(assert_flushed(settings, callers.expected))
        with redis.Redis.from_url(own_redis.url, decode_responses=True) as client:
            assert client.exists("bongsu:count:complete")
        for process in processes:
            assert process.terminate() == 0


def read_all(process: Served) -> dict[str, int]:
    with process.client(**KEY) as client:
        values = {post: client.get(f"/api/counters/comments/{post}").json().get("value") for post in POSTS}
    return {post: value for post, value in values.items() if value is not None}


async def assert_flushed(settings: Settings, expected: Counter[str]) -> None:
    """Everything is applied soon, and the sums of the batches add up to the values."""
    store = Store.open(settings)
    counts = Counting(store, settings, None, None, None)  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        while await counts.count_logged():
            await asyncio.sleep(0.05)
    stored = {key: value for (_, key), value in (await counts.stored()).items()}
    assert stored == {post: expected[post] for post in stored}
    assert sum(batch["sum"] for batch in await counts.batches()) == sum(stored.values())
    await store.close()
