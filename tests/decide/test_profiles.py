"""Many different profiles: a step is given those of its own members."""

from __future__ import annotations

from typing import Any

import pytest

from bongsu.decide.step import FEW_PROFILES, Decider
from bongsu.decide.worker import EventWorker
from bongsu.model import Listed, NoticeType
from bongsu.render.templates import Templates
from bongsu.settings import Settings
from bongsu.store import Store, decisions, outbox
from tests.support.decisions import IN_APP, add_members, notified_counts, rules_notifying, run_worker, trigger_event
from tests.support.rows import Sql, set_columns

COUNT = 4 * FEW_PROFILES


@pytest.fixture
async def crowd(store: Store) -> list[str]:
    """Each with quiet hours of their own."""
    everyone = [f"m-{number:03}" for number in range(COUNT)]
    await add_members(store, *everyone)
    # Over within a minute, at different times of the night.
    numbers = "CAST(substr(member_id, 3) AS integer)"
    await set_columns(store, "members", quiet_start=Sql(numbers), quiet_end=Sql(f"{numbers} + 1"))
    return everyone


async def test_a_step_is_given_the_profiles_of_its_own_members(
    store: Store, settings: Settings, crowd: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = rules_notifying(lambda event: Listed((event.ref_id or "",)), NoticeType("SAID", IN_APP, duplicate_hours=0))
    worker = EventWorker(store, rules, settings, _decider(store, settings))

    async def decide(*who: str) -> None:
        async with store.transaction() as tx:
            await outbox.add(tx, [trigger_event(one) for one in who])
        while await worker.tick():
            pass

    await decide(*crowd)
    given: list[int] = []
    decide_members = decisions.decide_members

    async def counted(tx: Any, recipients: Any, inputs: Any) -> Any:
        given.append(len(inputs.profiles))
        return await decide_members(tx, recipients, inputs)

    monkeypatch.setattr(decisions, "decide_members", counted)
    await decide(*crowd[:5])
    await decide(crowd[-1])
    # Each in one attempt.
    assert given == [5, 1]
    await worker.stop()
    assert await notified_counts(store) == {one: 2 if one in {*crowd[:5], crowd[-1]} else 1 for one in crowd}


async def test_a_profile_that_changes_in_between_costs_a_second_attempt_and_no_error(
    store: Store, settings: Settings, crowd: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = EventWorker(store, rules_notifying(Listed((crowd[0],))), settings, _decider(store, settings))
    async with store.transaction() as tx:
        await outbox.add(tx, [trigger_event()])
    stale = [decisions.Profile("xx"), *(decisions.Profile(quiet_start=one, quiet_end=one + 1) for one in range(900, 1000))]
    worker._decider._profiles.remember(stale)

    async def outdated(_tx: Any, _recipients: Any) -> list[decisions.Profile]:
        return stale[:1]

    find_profiles, calls = decisions.find_profiles, [outdated]

    async def first_outdated(tx: Any, recipients: Any) -> list[decisions.Profile]:
        return await (calls.pop() if calls else find_profiles)(tx, recipients)

    monkeypatch.setattr(decisions, "find_profiles", first_outdated)
    await run_worker(worker)
    assert await notified_counts(store) == {crowd[0]: 1}


def _decider(store: Store, settings: Settings) -> Decider:
    return Decider(store, Templates.load(), settings)
