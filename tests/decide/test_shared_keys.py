"""Events that are decided in one step lead to what they would lead to one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

import hypothesis
import pytest
from hypothesis import strategies as st

from bongsu.decide.progress import Decision, EventInProgress
from bongsu.decide.step import Decider
from bongsu.decide.worker import EventWorker
from bongsu.model import Channel, Event, Listed, Notice, NoticeType
from bongsu.render.templates import Templates
from bongsu.rules import Rules, catalogue
from bongsu.settings import Settings
from bongsu.store import Store, migrate, outbox
from tests.conftest import SettingsMaker
from tests.support.decisions import (
    Clock,
    ClockedDecider,
    add_members,
    decide,
    results_by_member,
    rows,
    rules_notifying,
    run_worker,
    set_preferences,
    trigger_event,
)
from tests.support.long_runs import examples

LIMIT = 3
KINDS = {
    one.name: one
    for one in (
        NoticeType("PLAIN", (Channel.IN_APP,)),
        NoticeType("ALARM", (Channel.IN_APP,), is_critical=True),
        NoticeType("PUSHED", (Channel.PUSH,)),
        NoticeType("REPEATED", (Channel.IN_APP,), duplicate_hours=0),
    )
}


class Said(NamedTuple):
    """An event: which kind of notice, about what, to whom."""

    kind: str
    subject: str
    to: frozenset[str]


# "device" has one, "off" wants critical ones only, "picky" none that are PLAIN.
NAMES = ("device", "off", "picky", "plain")
SAID = st.builds(
    Said, st.sampled_from(sorted(KINDS)), st.sampled_from(["x", "y"]), st.frozensets(st.sampled_from(NAMES), min_size=1)
)


def expected(batches: Iterable[Iterable[Said]]) -> Counter[tuple[str, str, str, str]]:
    """One after the other: for each member the first reason against it."""
    used: Counter[str] = Counter()
    sent: set[tuple[str, str, str]] = set()
    found: Counter[tuple[str, str, str, str]] = Counter()
    for one in (one for batch in batches for one in batch):
        kind = KINDS[one.kind]
        for name in one.to:
            if (name == "off" and not kind.is_critical) or (name == "picky" and one.kind == "PLAIN"):
                fate = "USER_OPTED_OUT"
            elif one.kind == "PUSHED" and name != "device":
                fate = "NO_ADDRESS"
            elif (name, one.kind, one.subject) in sent and kind.duplicate_hours is None:
                fate = "DUPLICATE"
            elif not kind.is_critical and used[name] >= LIMIT:
                fate = "RATE_LIMITED"
            else:
                fate = "NOTIFIED"
                used[name] += not kind.is_critical
                sent.add((name, one.kind, one.subject))
            found[name, one.kind, one.subject, fate] += 1
    return found


@pytest.fixture(params=["sqlite", "postgresql few", "postgresql many"])
def settings(request: pytest.FixtureRequest, migrated_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """On PostgreSQL few members take another path than many."""
    if "many" in request.param:
        monkeypatch.setattr("bongsu.store.decisions.decide.FEW_RECIPIENTS", 0)
    return migrated_settings(request.param.split()[0], daily_limit=LIMIT)


def rules_for(example: int) -> Rules:
    rules = Rules()

    @rules.rule("said")
    def noticed(event: Event) -> Notice:
        payload = event.payload
        to = Listed(tuple(f"{name}-{example}" for name in payload["to"]))
        return Notice(KINDS[payload["kind"]], to, f"{payload['subject']}-{example}", title="t", body="b")

    return rules


async def decided(store: Store, settings: Settings, example: int, batches: Sequence[Sequence[Said]]) -> Counter[object]:
    """Each example has members and subjects of its own."""
    await add_members(store, f"device-{example}", device=True)
    await set_preferences(store, f"off-{example}", enabled=False)
    await set_preferences(store, f"picky-{example}", types={"PLAIN": {"enabled": False}})
    clock = Clock()
    for batch in batches:
        async with store.transaction() as tx:
            payloads = [{**one._asdict(), "to": sorted(one.to)} for one in batch]
            await outbox.add(tx, [Event(event_type="said", payload=payload) for payload in payloads])
        await run_worker(EventWorker(store, rules_for(example), settings, ClockedDecider(store, settings, clock)))
        clock.forward(seconds=1)
    found = await rows(
        store,
        """SELECT f.member_id, m.type, m.subject, f.fate FROM (
               SELECT message_id, member_id, 'NOTIFIED' AS fate FROM bongsu_notifications
               UNION ALL SELECT message_id, member_id, reason AS fate FROM bongsu_suppressions) AS f
           JOIN bongsu_messages m USING (message_id) WHERE m.subject LIKE $1""",
        f"%-{example}",
    )
    own = f"-{example}"
    return Counter((row[0].removesuffix(own), row[1], row[2].removesuffix(own), row[3]) for row in found)


@pytest.mark.slow
def test_events_decided_together_end_as_if_decided_one_by_one(settings: Settings) -> None:
    numbers = count(1)
    with asyncio.Runner() as runner:
        store = Store.open(settings)
        runner.run(migrate(store))

        @hypothesis.settings(max_examples=examples(25), deadline=None)
        @hypothesis.given(st.lists(st.lists(SAID, min_size=1, max_size=8), min_size=1, max_size=2))
        def check(batches: list[list[Said]]) -> None:
            assert runner.run(decided(store, settings, next(numbers), batches)) == expected(batches)

        try:
            check()
        finally:
            runner.run(store.close())


async def test_events_of_one_actor_share_steps(store: Store, settings: Settings) -> None:
    """Also those whose earlier messages are many."""
    followers = [f"m-{number:03}" for number in range(250)]
    steps = 0

    class Counted(Decider):
        async def decide_step(self, events: Sequence[EventInProgress]) -> Decision:
            nonlocal steps
            steps += 1
            return await super().decide_step(events)

    await add_members(store, *followers)
    for seen in (followers, followers[:20]):
        follows = [Event(event_type="follow.created", actor_id="actor", target_id=one) for one in seen]
        async with store.transaction() as tx:
            await outbox.add(tx, follows)
        await run_worker(EventWorker(store, catalogue(settings), settings, Counted(store, Templates.load(), settings)))
    assert steps == 2
    twice = {one: {"NOTIFIED": 1, "DUPLICATE": 1} for one in followers[:20]}
    assert await results_by_member(store) == {**{one: {"NOTIFIED": 1} for one in followers}, **twice}


async def test_of_the_same_key_another_type_waits_for_its_turn(store: Store, settings: Settings) -> None:
    """A direct send may make a declared type critical: one beyond the cap is no reason to withhold the critical one."""
    rules = Rules()

    @rules.rule("said")
    def noticed(event: Event) -> Notice:
        kind = NoticeType("SAID", (Channel.IN_APP,), is_critical=event.ref_id == "critical")
        return Notice(kind, Listed(("a",)), "p1", title="t", body="b")

    full = settings.model_copy(update={"daily_limit": 0})
    await decide(store, full, rules, trigger_event("1"), trigger_event("critical"), trigger_event("2"))
    assert await results_by_member(store) == {"a": {"RATE_LIMITED": 1, "NOTIFIED": 1, "DUPLICATE": 1}}


async def test_an_event_that_continues_makes_others_duplicates_and_not_itself(store: Store, settings: Settings) -> None:
    everyone = tuple(f"m{number}" for number in range(5))
    await decide(
        store, settings, rules_notifying(Listed(everyone), subject="p1"), trigger_event("1"), trigger_event("2"), chunk=2
    )
    assert await results_by_member(store) == {one: {"NOTIFIED": 1, "DUPLICATE": 1} for one in everyone}
