"""The outbox against a model: whatever is added, claimed, finished, abandoned or finished too late, in whatever order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule, run_state_machine_as_test
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Event, EventStatus
from bongsu.settings import Settings
from bongsu.store import Store, migrate
from bongsu.store import events as statements
from bongsu.store.events import SUSPECT_AFTER, Claimed, Verdict

_T = TypeVar("_T")


@dataclass
class Expected:
    """What the model knows of one event."""

    event: Event
    status: EventStatus = EventStatus.PENDING
    epoch: int = 0
    attempts: int = 0
    claims: int = 0
    is_leased: bool = False


class OutboxMachine(RuleBasedStateMachine):
    """Runs against one store, emptied for each example."""

    store: Store
    loop: asyncio.AbstractEventLoop

    events = Bundle("events")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[UUID, Expected] = {}
        self.write(lambda tx: tx.execute(text("DELETE FROM bongsu_events")))

    def write(self, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        async def run() -> _T:
            async with self.store.write() as tx:
                return await work(tx)

        return self.loop.run_until_complete(run())

    @rule(target=events, count=st.integers(1, 3))
    def add(self, count: int) -> Any:
        new = [Event(event_type="x") for _ in range(count)]
        assert self.write(lambda tx: statements.add(tx, new)) == {event.event_id for event in new}
        self.model |= {event.event_id: Expected(event) for event in new}
        return multiple(*new)

    @rule(event=events)
    def add_again(self, event: Event) -> None:
        assert self.write(lambda tx: statements.add(tx, [event])) == set()

    @rule(target=claims, limit=st.integers(1, 4))
    def claim(self, limit: int) -> Any:
        free = [one for one in self.free() if one.claims < SUSPECT_AFTER]
        claimed = self.write(lambda tx: statements.claim(tx, limit, 3600, "w"))
        assert len(claimed) == min(limit, len(free))
        return self.took(claimed, free)

    @rule(target=claims)
    def claim_suspect(self) -> Any:
        free = [one for one in self.free() if one.claims >= SUSPECT_AFTER]
        claimed = self.write(lambda tx: statements.claim_suspect(tx, 3600, "w"))
        assert len(claimed) == min(1, len(free))
        return self.took(claimed, free)

    def free(self) -> list[Expected]:
        return [one for one in self.model.values() if one.status is EventStatus.PENDING and not one.is_leased]

    def took(self, claimed: list[Claimed], free: list[Expected]) -> Any:
        for one in claimed:
            expected = self.model[one.event.event_id]
            assert expected in free
            expected.epoch += 1
            expected.claims += 1
            expected.is_leased = True
            assert (one.epoch, one.attempts, one.claims) == (expected.epoch, expected.attempts, expected.claims)
        return multiple(*claimed)

    @rule(claim=consumes(claims), status=st.sampled_from(EventStatus), error=st.none() | st.just("error"))
    def record(self, claim: Claimed, status: EventStatus, error: str | None) -> None:
        """By the holder, by one whose lease has lapsed, or by a zombie: only the newest epoch may."""
        expected = self.model[claim.event.event_id]
        is_ours = claim.epoch == expected.epoch and expected.status is EventStatus.PENDING
        verdict = Verdict(claim.event.event_id, claim.epoch, status, error, after_seconds=-1)
        assert self.write(lambda tx: statements.record(tx, [verdict])) == ({claim.event.event_id} if is_ours else set())
        if is_ours:
            expected.status, expected.is_leased, expected.claims = status, False, 0
            expected.attempts += error is not None

    @rule(event=events)
    def the_lease_ends(self, event: Event) -> None:
        expected = self.model[event.event_id]
        past = f"UPDATE bongsu_events SET due = {self.store.dialect.now} WHERE status = 'PENDING' AND event_id = :id"
        parameter = event.event_id if self.store.dialect.name == "postgresql" else str(event.event_id)
        self.write(lambda tx: tx.execute(text(past), {"id": parameter}))
        expected.is_leased = False

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        query = text("SELECT event_id, status, epoch, attempts, claims FROM bongsu_events")
        rows = self.write(lambda tx: tx.execute(query)).all()
        found = {statements.as_uuid(row[0]): tuple(row[1:]) for row in rows}
        expected = {key: (one.status.value, one.epoch, one.attempts, one.claims) for key, one in self.model.items()}
        assert found == expected


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_outbox_behaves_like_its_model(database: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres_url") if database == "postgresql" else ""
    loop = asyncio.new_event_loop()
    store = Store.open(Settings(data_dir=Path(mkdtemp()), database_url=url))
    loop.run_until_complete(migrate(store))
    OutboxMachine.store, OutboxMachine.loop = store, loop
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    try:
        run_state_machine_as_test(
            OutboxMachine,
            settings=settings(max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=checks),
        )
    finally:
        loop.run_until_complete(store.close())
        loop.close()
