"""The outbox against a model: whatever is added, claimed, finished, abandoned or finished too late, in whatever order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, multiple, rule

from bongsu.model import Event, EventStatus
from bongsu.store import outbox
from bongsu.store.core.query import as_uuid, same
from bongsu.store.outbox import SUSPECT_AFTER, ClaimedEvent, EventResult
from tests.conftest import SettingsMaker
from tests.support.machines import StoreMachine, opened, run_machine
from tests.support.rows import NOW, set_columns

_ALL = same("SELECT event_id, status, epoch, attempts, claim_count, leased_by IS NOT NULL AS is_open FROM bongsu_events")


@dataclass
class Expected:
    """What the model knows of one event."""

    event: Event
    status: EventStatus = EventStatus.PENDING
    epoch: int = 0
    attempts: int = 0
    claims: int = 0
    # Its due time lies ahead.
    is_leased: bool = False
    # The newest claim has not ended, though its lease may have.
    is_open: bool = False


class OutboxMachine(StoreMachine):
    tables = ("events",)

    events = Bundle("events")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[UUID, Expected] = {}

    @rule(target=events, count=st.integers(1, 3))
    def add(self, count: int) -> Any:
        new = [Event(event_type="x") for _ in range(count)]
        assert self.write(lambda tx: outbox.add(tx, new)) == {event.event_id for event in new}
        self.model |= {event.event_id: Expected(event) for event in new}
        return multiple(*new)

    @rule(event=events)
    def add_again(self, event: Event) -> None:
        assert self.write(lambda tx: outbox.add(tx, [event])) == set()

    @rule(target=claims, limit=st.integers(1, 4))
    def claim(self, limit: int) -> Any:
        free = [one for one in self.free() if one.claims < SUSPECT_AFTER]
        claimed = self.write(lambda tx: outbox.claim(tx, limit, 3600, "w"))
        assert len(claimed) == min(limit, len(free))
        return self.took(claimed, free)

    @rule(target=claims)
    def claim_suspect(self) -> Any:
        free = [one for one in self.free() if one.claims >= SUSPECT_AFTER]
        claimed = self.write(lambda tx: outbox.claim_suspect(tx, 3600, "w"))
        assert len(claimed) == min(1, len(free))
        return self.took(claimed, free)

    def free(self) -> list[Expected]:
        return [one for one in self.model.values() if one.status is EventStatus.PENDING and not one.is_leased]

    def took(self, claimed: list[ClaimedEvent], free: list[Expected]) -> Any:
        for one in claimed:
            expected = self.model[one.event.event_id]
            assert expected in free
            expected.epoch += 1
            expected.claims += 1
            expected.is_leased = expected.is_open = True
            assert (one.epoch, one.attempts, one.claim_count) == (expected.epoch, expected.attempts, expected.claims)
        return multiple(*claimed)

    def holds(self, claim: ClaimedEvent) -> bool:
        """By its holder, also after the lease has ended: only the newest epoch, and only once."""
        expected = self.model[claim.event.event_id]
        return claim.epoch == expected.epoch and expected.is_open

    @rule(claim=claims, status=st.sampled_from(EventStatus), error=st.none() | st.just("error"))
    def record(self, claim: ClaimedEvent, status: EventStatus, error: str | None) -> None:
        expected = self.model[claim.event.event_id]
        is_ours = self.holds(claim)
        result = EventResult(claim.event.event_id, claim.epoch, status, error, after_seconds=-1)
        assert self.write(lambda tx: outbox.record(tx, [result])) == ({claim.event.event_id} if is_ours else set())
        if is_ours:
            expected.status, expected.is_leased, expected.is_open, expected.claims = status, False, False, 0
            expected.attempts += error is not None

    @rule(claim=claims)
    def give_back(self, claim: ClaimedEvent) -> None:
        expected = self.model[claim.event.event_id]
        is_ours = self.holds(claim)
        self.write(lambda tx: outbox.give_back(tx, [claim], -1))
        if is_ours:
            expected.is_leased, expected.is_open = False, False
            expected.claims -= 1

    @rule(claim=claims)
    def renew(self, claim: ClaimedEvent) -> None:
        is_ours = self.holds(claim)
        renewed = self.write(lambda tx: outbox.renew(tx, [(claim.event.event_id, claim.epoch)], 3600))
        assert renewed == ({claim.event.event_id} if is_ours else set())
        if is_ours:
            self.model[claim.event.event_id].is_leased = True

    @rule(claim=claims)
    def lock(self, claim: ClaimedEvent) -> None:
        key = (claim.event.event_id, claim.epoch)
        held = self.write(lambda tx: outbox.lock_claims(tx, [key]))
        assert held.claims == ({key} if self.holds(claim) else set())

    @rule(event=events)
    def the_lease_ends(self, event: Event) -> None:
        self.write(lambda tx: set_columns(tx, "events", {"status": "PENDING", "event_id": event.event_id}, due=NOW))
        self.model[event.event_id].is_leased = False

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        rows = self.write(lambda tx: tx.fetch(_ALL()))
        found = {
            as_uuid(row["event_id"]): (
                row["status"],
                row["epoch"],
                row["attempts"],
                row["claim_count"],
                bool(row["is_open"]),
            )
            for row in rows
        }
        expected = {
            key: (one.status.value, one.epoch, one.attempts, one.claims, one.is_open) for key, one in self.model.items()
        }
        assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_outbox_behaves_like_its_model(database: str, migrated_settings: SettingsMaker) -> None:
    with opened(OutboxMachine, migrated_settings(database)):
        run_machine(OutboxMachine, few=12, steps=25)
