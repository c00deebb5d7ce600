"""Likes by actors, resends, own likes, reads, windows that pass, cancellations, and steps of several workers that may fail:
every digest has what a model of it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, rule

from bongsu.decide.progress import EventInProgress
from bongsu.decide.step import NotPrepared
from bongsu.decide.worker import EventWorker
from bongsu.desk.digest_texts import rewrite_with
from bongsu.errors import StoreUnreachable
from bongsu.model import Event
from bongsu.render.templates import Templates
from bongsu.rules import catalogue
from bongsu.store import Store, inbox, outbox
from bongsu.store.core.query import Transaction
from bongsu.store.desk import cancel_steps, cancellations
from bongsu.store.desk.cancellations import Cancellation
from bongsu.store.desk.digest_remainders import Rewrite
from bongsu.store.outbox import LockedClaims
from tests.conftest import SettingsMaker
from tests.decide.test_digest import LAST, like
from tests.support.decisions import NOON, Clock, ClockedDecider, rows, run_worker, unread_is_exact
from tests.support.machines import StoreMachine, opened, run_machine
from tests.support.rows import Sql, add_device, add_member, set_columns

OWNERS = ("o1", "o2")
POSTS = ("p1", "p2")
ACTORS = ("ann", "bob", "cho", "o1")
WINDOW = 300
DEDUP_SECONDS = 3600
LIMIT = 6
DIGESTS = """
    SELECT g.notification_id, g.member_id, g.key, g.size, g.body, n.read_at, n.channels FROM bongsu_digests g
    JOIN bongsu_notifications n ON n.notification_id = g.notification_id ORDER BY g.member_id, g.notification_id"""
ENTRIES = """
    SELECT notification_id, actor_id FROM bongsu_digest_entries WHERE left_at IS NULL ORDER BY notification_id, message_id"""


@dataclass
class Modelled:
    """A digest as it should be."""

    owner: str
    post: str
    ends: float
    # The event ids and actors that count, oldest first.
    likes: list[tuple[Any, str]] = field(default_factory=list)
    # The event ids that have left it.
    gone: list[Any] = field(default_factory=list)
    is_read: bool = False
    is_withdrawn: bool = False


class Faulty(ClockedDecider):
    """Its next step fails after it has decided, or before, as it is told."""

    is_failing = False

    async def lock_claims(self, tx: Transaction, events: Sequence[EventInProgress]) -> LockedClaims:
        held = await super().lock_claims(tx, events)
        if self.is_failing:
            self.is_failing = False
            raise StoreUnreachable("the connection was lost")
        return held


class DigestMachine(StoreMachine):
    tables = (
        "events", "messages", "message_counts", "notifications", "suppressions", "deliveries", "digests", "digest_entries",
        "cancellations",
    )  # fmt: skip

    # Made once: each reads all templates.
    clock: Clock
    deciders: Sequence[Faulty]
    rewrite: ClassVar[Rewrite]

    events = Bundle("events")

    def __init__(self) -> None:
        super().__init__()
        self.clock.now = NOON
        self.digests: list[Modelled] = []
        # When an actor's like of a post was last told or merged; how many were opened for an owner today.
        self.told: dict[tuple[str, str, str], float] = {}
        self.opened: dict[str, int] = {}
        self.known: dict[Any, Event] = {}
        self.cancelled: dict[Any, bool] = {}

    async def empty(self) -> None:
        await super().empty()
        await set_columns(self.store, "members", unread=0, capped_count=0, capped_day=0, changed_id=None, read_up_to=None)

    @property
    def now(self) -> float:
        return self.clock.now.timestamp()

    # --- likes --------------------------------------------------------------------------------------------------------

    @rule(
        target=events,
        likes=st.lists(
            st.tuples(st.sampled_from(ACTORS), st.sampled_from(OWNERS), st.sampled_from(POSTS)), min_size=1, max_size=5
        ),
        worker=st.sampled_from([0, 1]),
        fails=st.booleans(),
    )
    def members_like_posts(self, likes: list[tuple[str, str, str]], worker: int, fails: bool) -> Event:
        made = [like(actor, post, owner) for actor, owner, post in likes]
        self.run(self.decide(made, worker, fails))
        for event in made:
            self.known[event.event_id] = event
            self.model_like(event)
        return made[-1]

    @rule(event=events)
    def an_event_is_sent_again(self, event: Event) -> None:
        self.run(self.decide([event], 0, fails=False))

    async def decide(self, made: Sequence[Event], number: int, fails: bool) -> None:
        for event in made:  # each with a time of its own: they are decided in that order
            async with self.store.transaction() as tx:
                await outbox.add(tx, [event])
        decider = self.deciders[number]
        decider.is_failing = fails
        worker = EventWorker(self.store, catalogue(self.settings), self.settings, decider)
        try:
            await run_worker(worker)
        except (StoreUnreachable, NotPrepared):
            # What was claimed is given back; another worker takes it.
            await worker.stop()
            await set_columns(self.store, "events", {"status": "PENDING"}, due=Sql("created_at"))
            await run_worker(EventWorker(self.store, catalogue(self.settings), self.settings, self.deciders[1 - number]))
        decider.is_failing = False

    def model_like(self, event: Event) -> None:
        actor, owner, post = event.actor_id or "", event.target_id or "", event.ref_id or ""
        told = self.told.get((actor, owner, post))
        if actor == owner or (told is not None and self.now - told < DEDUP_SECONDS):
            return
        is_open = [one for one in self.digests if self.is_open(one, owner, post)]
        if is_open:
            if any(known == actor for _, known in is_open[-1].likes):
                return
            is_open[-1].likes.append((event.event_id, actor))
        elif self.opened.get(owner, 0) < LIMIT:
            self.opened[owner] = self.opened.get(owner, 0) + 1
            self.digests.append(Modelled(owner, post, self.now + WINDOW, [(event.event_id, actor)]))
        else:
            return
        self.told[actor, owner, post] = self.now

    def is_open(self, one: Modelled, owner: str, post: str) -> bool:
        return (one.owner, one.post) == (owner, post) and one.ends > self.now and not one.is_read and bool(one.likes)

    # --- what happens meanwhile ---------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, WINDOW - 1, WINDOW, DEDUP_SECONDS]))
    def time_passes(self, seconds: int) -> None:
        # All on one day: the cap of the next one is another.
        if self.clock.now.timestamp() + seconds < NOON.timestamp() + 11 * 3600:
            self.clock.forward(seconds=seconds)

    @rule(owner=st.sampled_from(OWNERS))
    def an_owner_reads_all(self, owner: str) -> None:
        async def read() -> None:
            async with self.store.transaction() as tx:
                await inbox.mark_read(tx, owner, LAST, 1_000)

        self.run(read())
        for one in self.digests:
            one.is_read |= one.owner == owner and not one.is_withdrawn

    @rule(event=events, withdraw=st.booleans(), limit=st.sampled_from([1, 100]))
    def an_event_is_cancelled(self, event: Event, withdraw: bool, limit: int) -> None:
        done = self.run(self.cancel(event, withdraw, limit))
        if not done:
            return
        withdraw = self.cancelled[event.event_id] = self.cancelled.get(event.event_id, False) or withdraw
        for one in self.digests:
            if any(known == event.event_id for known, _ in one.likes):
                one.likes = [(known, actor) for known, actor in one.likes if known != event.event_id]
                one.gone.append(event.event_id)
            if event.event_id in one.gone and not one.likes and withdraw:
                one.is_withdrawn = True

    async def cancel(self, event: Event, withdraw: bool, limit: int) -> bool:
        async with self.store.transaction() as tx:
            begun = await cancellations.begin(tx, event.event_id, "cli:mina", withdraw=withdraw)
        while await cancel_steps.step(self.store, limit, event.event_id, (), type(self).rewrite) is not None:
            pass
        return isinstance(begun, Cancellation)

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def every_digest_has_what_its_model_has(self) -> None:
        found = self.run(rows(self.store, DIGESTS))
        entries: dict[int, list[str]] = {}
        for notification_id, actor in self.run(rows(self.store, ENTRIES)):
            entries.setdefault(notification_id, []).append(actor)
        modelled = sorted(self.digests, key=lambda one: one.owner)
        assert [(row["member_id"], row["key"]) for row in found] == [(one.owner, one.post) for one in modelled]
        for row, one in zip(found, modelled, strict=True):
            actors = [actor for _, actor in one.likes]
            assert entries.get(row["notification_id"], []) == actors
            assert row["size"] == len(actors)
            if actors:
                assert row["body"] == text(actors)
            assert (row["read_at"] is not None) == one.is_read
            assert (row["channels"] & 8 == 0) == one.is_withdrawn

    @invariant()
    def counts_are_exact(self) -> None:
        assert self.run(unread_is_exact(self.store))
        found = self.run(rows(self.store, "SELECT member_id, capped_count FROM bongsu_members WHERE capped_count > 0"))
        assert {row["member_id"]: row["capped_count"] for row in found} == self.opened

    @invariant()
    def one_push_of_each_which_waits_while_something_is_in_it(self) -> None:
        found = self.run(rows(self.store, "SELECT status FROM bongsu_deliveries ORDER BY member_id, notification_id"))
        modelled = sorted(self.digests, key=lambda one: one.owner)
        assert [row["status"] for row in found] == ["READY" if one.likes else "CANCELLED" for one in modelled]


def text(actors: Sequence[str]) -> str:
    newest, *others = [actor.capitalize() for actor in reversed(actors)]
    if not others:
        return f"{newest} liked your post."
    return f"{newest} and {others[0] if len(others) == 1 else f'{len(others)} others'} liked your post."


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_digests_behave_like_their_model(database: str, migrated_settings: SettingsMaker) -> None:
    machine = DigestMachine
    with opened(machine, migrated_settings(database, daily_limit=LIMIT, retry_base_seconds=0.001)):
        machine.run(add_owners(machine.store))
        machine.clock, machine.rewrite = Clock(NOON), staticmethod(rewrite_with(Templates.load()))
        machine.deciders = [Faulty(machine.store, machine.settings, machine.clock, chunk) for chunk in (2, 5_000)]
        run_machine(machine, few=12, steps=20)


async def add_owners(store: Store) -> None:
    async with store.transaction() as tx:
        for owner in OWNERS:
            await add_member(tx, owner, locale="en")
            await add_device(tx, owner)
