"""Counters against a model: events in any order, sent again, calls, deletions by either name, flushes that die, two
flushers, and a Redis that loses everything."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from bongsu.counters.flush import Flusher
from bongsu.counters.pending import redis_key
from bongsu.model import Event
from bongsu.store.counters.deltas import find_pending
from bongsu.store.counters.flush import Scope, flush
from tests.conftest import SettingsMaker
from tests.support.counters import Counting, comment_created, comment_deleted, counting
from tests.support.machines import StoreMachine, opened, run_machine
from tests.support.servers import RedisServer

POSTS = ("p-1", "p-2")
posts = st.sampled_from(POSTS)
# Few, so that a creation and deletions of one comment meet.
comments = st.integers(0, 4)
calls = st.integers(0, 5)


class Crash(Exception):
    pass


class Model:
    """What must be counted, from all facts at once and not step by step."""

    def __init__(self) -> None:
        self.calls: dict[UUID, tuple[str, int]] = {}
        # The names of each creation and deletion that was decided, by event.
        self.facts: dict[UUID, tuple[str, bool, frozenset[str]]] = {}

    def value(self, post: str) -> int:
        called = sum(delta for key, delta in self.calls.values() if key == post)
        return called + sum(self._is_counted(group) for group in self._comments(post))

    @staticmethod
    def _is_counted(group: Iterable[tuple[bool, frozenset[str]]]) -> bool:
        kinds = {is_creation for is_creation, _ in group}
        return kinds == {True}

    def _comments(self, post: str) -> list[list[tuple[bool, frozenset[str]]]]:
        """Facts that share a name, directly or through others, are about one comment."""
        groups: list[list[tuple[bool, frozenset[str]]]] = []
        for key, is_creation, names in self.facts.values():
            if key != post:
                continue
            near = [group for group in groups if any(names & other for _, other in group)]
            groups = [group for group in groups if group not in near]
            groups.append([(is_creation, names), *(fact for group in near for fact in group)])
        return groups


class CounterMachine(StoreMachine):
    tables = (
        "events", "counters", "count_deltas", "count_batches", "counted_items", "messages", "notifications", "deliveries",
    )  # fmt: skip
    counts: Counting
    redis: redis.Redis | None

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.events: dict[UUID, Event] = {}
        self.created = {(post, number): uuid4() for post in POSTS for number in range(5)}
        self.call_ids = [uuid4() for _ in range(6)]

    async def empty(self) -> None:
        if self.redis is not None:
            self.redis.flushall()
        await super().empty()
        await self.counts.flush()

    def learn(self, event: Event) -> None:
        self.events[event.event_id] = event
        if event.event_id in self.model.calls or event.event_id in self.model.facts:
            return
        names = {f"c{event.payload['commentId']}"} if "commentId" in event.payload else set()
        is_creation = event.event_type == "comment.created"
        if is_creation:
            names.add(f"e{event.event_id}")
        elif "createdEventId" in event.payload:
            names.add(f"e{event.payload['createdEventId']}")
        self.model.facts[event.event_id] = (str(event.ref_id), is_creation, frozenset(names))

    def comment(self, post: str, number: int, kind: int) -> Event:
        event_id = self.created[post, number]
        match kind:
            case 0:
                return comment_created(post, event_id=event_id, comment_id=f"id-{number}")
            case 1:
                return comment_deleted(post, created=event_id)
            case 2:
                return comment_deleted(post, comment_id=f"id-{number}")
        return comment_deleted(post, created=event_id, comment_id=f"id-{number}")

    @rule(given=st.lists(st.tuples(posts, comments, st.integers(0, 3)), min_size=1, max_size=8))
    def comments_are_created_and_deleted(self, given: list[tuple[str, int, int]]) -> None:
        """In one step, or several."""
        events = [self.comment(*one) for one in given]
        self.run(self.counts.publish(*events))
        # One step decides its events in the order of their ids, and which order that is must not matter.
        for event in events:
            self.learn(event)

    @rule(post=posts)
    def a_comment_without_an_id_is_created(self, post: str) -> None:
        event = comment_created(post)
        self.run(self.counts.publish(event))
        self.learn(event)

    @rule(data=st.data())
    def an_event_comes_again(self, data: st.DataObject) -> None:
        if self.events:
            event = self.events[data.draw(st.sampled_from(sorted(self.events)))]
            self.run(self.counts.publish(event))

    @rule(given=st.lists(st.tuples(posts, calls, st.integers(-5, 5)), min_size=1, max_size=6))
    def calls_come_at_once(self, given: list[tuple[str, int, int]]) -> None:
        """Some with an id that was sent before; of several with one id at once, one counts."""

        async def call() -> list[Any]:
            return await asyncio.gather(
                *(self.counts.call(post, delta, self.call_ids[number]) for post, number, delta in given)
            )

        for (post, number, delta), answer in zip(given, self.run(call()), strict=True):
            assert answer.is_duplicate == (self.call_ids[number] in self.model.calls)
            self.model.calls.setdefault(self.call_ids[number], (post, delta))

    @rule(number=calls, post=posts)
    def a_call_comes_again_as_an_event(self, number: int, post: str) -> None:
        event_id = self.call_ids[number]
        event = Event(
            event_id=event_id, event_type="counter.changed", ref_id=post, payload={"counter": "comments", "delta": 7}
        )
        self.run(self.counts.publish(event))
        self.model.calls.setdefault(event_id, (post, 7))

    @rule()
    def a_flush_works(self) -> None:
        self.run(self.counts.flush())
        assert self.run(self.counts.count_logged()) == 0

    @rule()
    def two_flushes_work_at_once(self) -> None:
        async def both() -> None:
            other = Flusher(self.store, self.counts.settings, self.counts.pending)
            await asyncio.gather(self.counts.flusher.tick(), other.tick())
            await self.counts.send_pending()

        self.run(both())

    @rule()
    def a_flush_dies_before_its_commit(self) -> None:
        async def die() -> None:
            async with self.store.transaction() as tx:
                await flush(tx, Scope(), 1_000, with_applied=True)
                raise Crash

        with pytest.raises(Crash):
            self.run(die())

    @rule()
    def redis_loses_everything(self) -> None:
        if self.redis is not None:
            self.redis.flushall()
            # The next flush finds that out.
            self.run(self.counts.flusher.tick())
            self.run(self.counts.send_pending())

    @invariant()
    def every_count_is_that_of_the_model(self) -> None:
        assert {post: self.run(self.counts.value(post)) for post in POSTS} == {
            post: self.model.value(post) for post in POSTS
        }

    @invariant()
    def the_sums_of_the_batches_add_up_to_the_values(self) -> None:
        batches = self.run(self.counts.batches())
        assert sum(batch["sum"] for batch in batches) == sum(self.run(self.counts.stored()).values())

    @invariant()
    def redis_has_what_is_pending(self) -> None:
        if self.redis is None:
            return

        async def pending() -> Counter[str]:
            async with self.store.read() as tx:
                return Counter({key: delta for _, key, delta in await find_pending(tx, ("", ""), 100) if delta})

        expected = self.run(pending())
        found = {post: self.redis.get(redis_key("comments", post)) for post in POSTS}
        assert {post: int(value) for post, value in found.items() if value} == expected


@pytest.mark.parametrize("kind", ["sqlite", "postgresql and redis"])
def test_counters_behave_like_their_model(
    kind: str, request: pytest.FixtureRequest, migrated_settings: SettingsMaker
) -> None:
    redis_url = ""
    if kind != "sqlite":
        server: RedisServer = request.getfixturevalue("redis_server")
        redis_url = server.url
    with opened(CounterMachine, migrated_settings(kind.partition(" ")[0], redis_url=redis_url)):
        CounterMachine.counts = CounterMachine.enter(counting(CounterMachine.store, CounterMachine.settings))
        with contextlib.closing(redis.Redis.from_url(redis_url)) if redis_url else contextlib.nullcontext() as client:
            CounterMachine.redis = client
            run_machine(CounterMachine, few=8, steps=20)
