"""Deliveries against a model: claimed, renewed, recorded, abandoned, recorded too late, recovered, replayed, at will."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, invariant, multiple, rule

from bongsu.clock.jobs import recover
from bongsu.model import Channel, Device, Platform
from bongsu.store import Row, Transaction
from bongsu.store import deliveries as statements
from bongsu.store.core.query import same
from bongsu.store.deliveries import MOST_CLAIMS, ClaimedDelivery, DeliveryResult, DeliveryStatus, Success, recovery
from bongsu.store.deliveries.recovery import MOST_ROUNDS
from bongsu.store.members.devices import put_device
from bongsu.store.ranks import RANKS
from tests.conftest import SettingsMaker
from tests.support import replays, runs
from tests.support.deliveries import add_delivery_in_state, add_guaranteed_message
from tests.support.machines import StoreMachine, opened, run_machine
from tests.support.rows import set_columns

READY, SENDING, SUCCESS = DeliveryStatus.READY, DeliveryStatus.SENDING, DeliveryStatus.SUCCESS
FAIL, UNKNOWN = DeliveryStatus.FAIL, DeliveryStatus.UNKNOWN

FIND_DELIVERIES = same("""
    SELECT delivery_id, status, epoch, attempts, claim_count, recovery_rounds, collapse_series, is_retryable, code,
           finished_at IS NOT NULL AS is_finished, leased_by IS NOT NULL AS is_claimed
    FROM bongsu_deliveries""")
FIND_ATTEMPTS = same("""
    SELECT delivery_id, epoch FROM bongsu_attempts
    UNION ALL
    SELECT delivery_id, epoch FROM bongsu_deliveries WHERE sent_at IS NOT NULL""")


@dataclass
class Expected:
    """The model of one delivery."""

    is_once: bool
    has_device: bool = True
    status: DeliveryStatus = READY
    epoch: int = 0
    attempts: int = 0
    claims: int = 0
    rounds: int = 0
    series: int = 0
    is_retryable: bool = False
    # From the claim until it is recorded or settled, and from the claim until the lease ends.
    is_claimed: bool = False
    is_leased: bool = False
    code: str | None = None

    @property
    def is_open(self) -> bool:
        return self.status in (READY, SENDING)

    @property
    def can_go(self) -> bool:
        """Once it is claimed."""
        return self.has_device and self.claims <= MOST_CLAIMS and not (self.is_once and self.status is SENDING)

    @property
    def row(self) -> tuple[Any, ...]:
        return (
            self.status.value, self.epoch, self.attempts, self.claims, self.rounds, self.series, self.is_retryable,
            self.code, not self.is_open, self.is_claimed,
        )  # fmt: skip


class DeliveryMachine(StoreMachine):
    tables = ("deliveries", "notifications", "attempts", "messages", "devices")

    deliveries = Bundle("deliveries")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[int, Expected] = {}
        self.attempts: set[tuple[int, int]] = set()
        self.highest: dict[int, int] = {}
        self.members = 0

        async def add_messages(tx: Transaction) -> dict[bool, int]:
            return {
                True: await add_guaranteed_message(tx, "at_most_once"),
                False: await add_guaranteed_message(tx, "at_least_once"),
            }

        self.messages = self.write(add_messages)

    @rule(target=deliveries, is_once=st.booleans(), has_device=st.sampled_from([True, True, False]), count=st.integers(1, 3))
    def add(self, is_once: bool, has_device: bool, count: int) -> Any:
        async def work(tx: Transaction) -> list[int]:
            for number in range(count) if has_device else ():
                device = Device(token=f"t-{self.members + number}", platform=Platform.IOS, push_consent=True)
                await put_device(tx, f"m-{self.members + number}", "d-0", device)
            return [
                await add_delivery_in_state(
                    tx, self.messages[is_once], "READY", f"m-{self.members + number}", epoch=0, attempts=0,
                    due=timedelta(seconds=-1),
                )
                for number in range(count)
            ]  # fmt: skip

        ids = self.write(work)
        self.members += count
        self.model |= {one: Expected(is_once, has_device) for one in ids}
        return multiple(*ids)

    @rule(target=claims, limit=st.integers(1, 4))
    def claim(self, limit: int) -> Any:
        return multiple(*self.take(limit))

    def take(self, limit: int) -> list[ClaimedDelivery]:
        free = {key for key, one in self.model.items() if one.is_open and not one.is_leased}
        claim = statements.claim(self.store, Channel.PUSH, RANKS, limit, 3600, "w")
        claimed = self.run(claim)
        assert len(claimed) == min(limit, len(free))
        for one in claimed:
            assert one.delivery_id in free
            expected = self.model[one.delivery_id]
            assert one.status == expected.status
            expected.epoch += 1
            expected.claims += 1
            expected.is_claimed = expected.is_leased = True
            assert (one.epoch, one.claim_count, one.collapse_series) == (expected.epoch, expected.claims, expected.series)
            assert one.can_go is expected.can_go
            assert (one.address is not None) == expected.has_device
            if expected.can_go:
                expected.status = SENDING
        return claimed

    @rule(target=claims, is_recovered=st.booleans())
    def a_dispatcher_dies_while_it_sends(self, is_recovered: bool) -> Any:
        """What it had claimed may yet be recorded, after another claim or the job's: it only seemed to be dead."""
        claimed = self.take(4)
        for one in claimed:
            self.the_lease_ends(one.delivery_id)
        if is_recovered:
            self.recover(3)
        return multiple(*claimed)

    @rule(status=st.sampled_from([FAIL, UNKNOWN]), is_retryable=st.booleans(), is_recovered=st.booleans())
    def a_batch_ends(self, status: DeliveryStatus, is_retryable: bool, is_recovered: bool) -> None:
        for one in self.take(4):
            self.record(one, status, is_retryable, True)
        if is_recovered:
            self.recover(3)

    def is_ours(self, claim: ClaimedDelivery) -> bool:
        expected = self.model[claim.delivery_id]
        return expected.is_claimed and expected.epoch == claim.epoch

    @rule(claim=claims)
    def renew(self, claim: ClaimedDelivery) -> None:
        """By the owner of the claim; a stale one extends nothing."""
        self.write(lambda tx: statements.renew(tx, [(claim.delivery_id, claim.epoch)], 3600))
        if self.is_ours(claim):
            self.model[claim.delivery_id].is_leased = True

    @rule(
        claim=consumes(claims),
        status=st.sampled_from([READY, SUCCESS, FAIL, UNKNOWN]),
        is_retryable=st.booleans(),
        is_attempt=st.booleans(),
    )
    def record(self, claim: ClaimedDelivery, status: DeliveryStatus, is_retryable: bool, is_attempt: bool) -> None:
        """By the owner of the claim; a stale one changes nothing, but its attempt is stored: something was sent."""
        is_retryable = is_retryable and status in (FAIL, UNKNOWN)
        ours = {claim.delivery_id} if self.is_ours(claim) else set()
        code = None if status is SUCCESS else "C"
        began = time.monotonic() if is_attempt else None
        result: DeliveryResult | Success = DeliveryResult(
            claim.delivery_id, claim.epoch, status, code, None, -1.0, is_attempt, is_retryable, began=began
        )
        if status is SUCCESS and began is not None:
            result = Success(claim.delivery_id, claim.epoch, began, 40)
        assert self.run(statements.record(self.store, "PUSH", [result])) == ours
        # Recorded again, as after a lost connection, it changes nothing.
        assert self.run(statements.record(self.store, "PUSH", [result])) == set()
        if is_attempt:
            self.attempts.add((claim.delivery_id, claim.epoch))
        if ours:
            expected = self.model[claim.delivery_id]
            expected.status, expected.claims, expected.code = status, 0, code
            expected.is_claimed = expected.is_leased = False
            expected.attempts += is_attempt
            expected.is_retryable = is_retryable

    @rule(one=deliveries)
    def the_lease_ends(self, one: int) -> None:
        leased = {"delivery_id": one, "status": ["READY", "SENDING"]}
        self.write(lambda tx: set_columns(tx, "deliveries", leased, due=timedelta(seconds=-1)))
        self.model[one].is_leased = False

    @rule(batch=st.integers(1, 3))
    def recover(self, batch: int) -> None:
        self.run(runs.recover(self.store, batch))
        for one in self.model.values():
            if one.status is SENDING and not one.is_leased:
                one.epoch += 1
                one.status, one.is_claimed = UNKNOWN if one.is_once else READY, False
                if one.is_once:
                    one.claims, one.code = 0, "ABANDONED"
            elif one.status in (FAIL, UNKNOWN) and one.is_retryable and one.rounds < MOST_ROUNDS:
                one.is_retryable = False
                if not (one.is_once and one.status is UNKNOWN):
                    one.status, one.attempts, one.rounds, one.is_leased = READY, 0, one.rounds + 1, False

    @rule(state=st.sampled_from([FAIL, UNKNOWN]), new_series=st.booleans(), batch=st.integers(1, 3))
    def replay(self, state: DeliveryStatus, new_series: bool, batch: int) -> None:
        run = replays.replay(self.store, {"state": state.value}, new_collapse_id=new_series, batch=batch)
        dead = [one for one in self.model.values() if one.status is state]
        assert self.run(run) == (len(dead), len(dead))
        for one in dead:
            one.status, one.attempts, one.rounds, one.claims, one.is_leased = READY, 0, 0, 0, False
            one.series += new_series
            one.code, one.is_retryable = None, False

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        async def look(tx: Transaction) -> tuple[Sequence[Row], Sequence[Row]]:
            return await tx.fetch(FIND_DELIVERIES()), await tx.fetch(FIND_ATTEMPTS())

        rows, attempts = self.write(look)
        # SQLite's booleans are numbers, which are equal to them.
        assert {row["delivery_id"]: tuple(row)[1:] for row in rows} == {key: one.row for key, one in self.model.items()}
        assert sorted(tuple(row) for row in attempts) == sorted(self.attempts)
        for row in rows:
            assert row["epoch"] >= self.highest.get(row["delivery_id"], 0), "an epoch was lowered"
            self.highest[row["delivery_id"]] = row["epoch"]


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_deliveries_behave_like_their_model(
    database: str, migrated_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All deliveries of the model are of one channel and of these ranks: the job need not look at the others.
    monkeypatch.setattr(recover, "names_with_deliveries", lambda: (Channel.PUSH,))
    monkeypatch.setattr(recovery, "RANKS", (1, 6))
    with opened(DeliveryMachine, migrated_settings(database)):
        run_machine(DeliveryMachine, few=8, steps=25)
