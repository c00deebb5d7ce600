"""Deliveries against a model: claimed, renewed, recorded, abandoned, recorded too late, recovered, replayed, at will."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule, run_state_machine_as_test
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.clock.recover import Recovery
from bongsu.dead import DeadFilter, Replay
from bongsu.model import Channel, Device, Platform
from bongsu.settings import Settings
from bongsu.signals import LocalSignals
from bongsu.store import Store, migrate, people, recovery
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import MOST_CLAIMS, Claimed, DeliveryStatus, Success, Verdict
from bongsu.store.recovery import MOST_ROUNDS
from tests.dying import delivery, message

_T = TypeVar("_T")
READY, SENDING, SUCCESS = DeliveryStatus.READY, DeliveryStatus.SENDING, DeliveryStatus.SUCCESS
FAIL, UNKNOWN = DeliveryStatus.FAIL, DeliveryStatus.UNKNOWN


@dataclass
class Expected:
    """What the model knows of one delivery."""

    is_once: bool
    has_device: bool = True
    status: DeliveryStatus = READY
    epoch: int = 0
    attempts: int = 0
    claims: int = 0
    rounds: int = 0
    series: int = 0
    is_retryable: bool = False
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
            self.code,
        )  # fmt: skip


class DeliveryMachine(RuleBasedStateMachine):
    """Runs against one store, emptied for each example."""

    store: Store
    loop: asyncio.AbstractEventLoop

    deliveries = Bundle("deliveries")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[int, Expected] = {}
        self.attempts: set[tuple[int, int]] = set()
        self.highest: dict[int, int] = {}
        self.members = 0

        async def empty(tx: AsyncConnection) -> dict[bool, int]:
            for table in ("deliveries", "notifications", "attempts", "messages", "devices"):
                await tx.execute(text(f"DELETE FROM bongsu_{table}"))
            return {True: await message(tx, "at_most_once"), False: await message(tx, "at_least_once")}

        self.messages = self.write(empty)

    def write(self, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        async def run() -> _T:
            async with self.store.write() as tx:
                return await work(tx)

        return self.loop.run_until_complete(run())

    @rule(target=deliveries, is_once=st.booleans(), has_device=st.sampled_from([True, True, False]), count=st.integers(1, 3))
    def add(self, is_once: bool, has_device: bool, count: int) -> Any:
        async def work(tx: AsyncConnection) -> list[int]:
            for number in range(count) if has_device else ():
                device = Device(token=f"t-{self.members + number}", platform=Platform.IOS, push_consent=True)
                await people.put_device(tx, f"m-{self.members + number}", "d-0", device)
            return [
                await delivery(
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

    def take(self, limit: int) -> list[Claimed]:
        free = {key for key, one in self.model.items() if one.is_open and not one.is_leased}
        claimed = self.write(lambda tx: statements.claim(tx, Channel.PUSH, (0, 1, 2), limit, 3600, "w"))
        assert len(claimed) == min(limit, len(free))
        for one in claimed:
            assert one.delivery_id in free
            expected = self.model[one.delivery_id]
            assert one.status == expected.status
            expected.epoch += 1
            expected.claims += 1
            expected.is_leased = True
            assert (one.epoch, one.claims, one.series) == (expected.epoch, expected.claims, expected.series)
            assert bool(one.can_go) == expected.can_go
            assert (one.address is not None) == expected.has_device
            if expected.can_go:
                expected.status = SENDING
        return claimed

    @rule(target=claims, is_recovered=st.booleans())
    def a_dispatcher_dies_while_it_sends(self, is_recovered: bool) -> Any:
        """What it had in hand may yet be recorded, after another or the job has judged it: it was only thought dead."""
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

    def is_ours(self, claim: Claimed) -> bool:
        expected = self.model[claim.delivery_id]
        return expected.is_open and expected.epoch == claim.epoch

    @rule(claim=claims)
    def renew(self, claim: Claimed) -> None:
        """By the holder, or by a zombie, who lengthens nothing."""
        self.write(lambda tx: statements.renew(tx, [(claim.delivery_id, claim.epoch)], 3600))
        if self.is_ours(claim):
            self.model[claim.delivery_id].is_leased = True

    @rule(
        claim=consumes(claims),
        status=st.sampled_from([READY, SUCCESS, FAIL, UNKNOWN]),
        is_retryable=st.booleans(),
        is_try=st.booleans(),
    )
    def record(self, claim: Claimed, status: DeliveryStatus, is_retryable: bool, is_try: bool) -> None:
        """By the holder, or by a zombie: only the newest epoch may; but that something was sent is always written down."""
        is_retryable = is_retryable and status in (FAIL, UNKNOWN)
        ours = {claim.delivery_id} if self.is_ours(claim) else set()
        code = None if status is SUCCESS else "C"
        at = time.time() if is_try else None
        verdict: Verdict | Success = Verdict(
            claim.delivery_id, claim.epoch, status, code, None, -1.0, is_try, is_retryable, at=at
        )
        if status is SUCCESS and at is not None:
            verdict = Success(claim.delivery_id, claim.epoch, at, 40)
        assert self.write(lambda tx: statements.record(tx, [verdict])) == ours
        if is_try:
            self.attempts.add((claim.delivery_id, claim.epoch))
        if ours:
            expected = self.model[claim.delivery_id]
            expected.status, expected.is_leased, expected.claims, expected.code = status, False, 0, code
            expected.attempts += is_try
            expected.is_retryable = is_retryable

    @rule(one=deliveries)
    def the_lease_ends(self, one: int) -> None:
        past = text(f"""
            UPDATE bongsu_deliveries SET due = {self.store.dialect.after("-1")}
            WHERE delivery_id = :id AND status IN ('READY', 'SENDING')""")
        self.write(lambda tx: tx.execute(past, {"id": one}))
        self.model[one].is_leased = False

    @rule(batch=st.integers(1, 3))
    def recover(self, batch: int) -> None:
        self.loop.run_until_complete(Recovery(self.store, LocalSignals(), batch).run())
        for one in self.model.values():
            if one.status is SENDING and not one.is_leased:
                one.epoch += 1
                one.status = UNKNOWN if one.is_once else READY
                if one.is_once:
                    one.claims, one.code = 0, "ABANDONED"
            elif one.status in (FAIL, UNKNOWN) and one.is_retryable and one.rounds < MOST_ROUNDS:
                one.is_retryable = False
                if not (one.is_once and one.status is UNKNOWN):
                    one.status, one.attempts, one.rounds, one.is_leased = READY, 0, one.rounds + 1, False

    @rule(state=st.sampled_from([FAIL, UNKNOWN]), new_series=st.booleans(), batch=st.integers(1, 3))
    def replay(self, state: DeliveryStatus, new_series: bool, batch: int) -> None:
        asked = DeadFilter.model_validate({"state": state.value})
        run = Replay(self.store, LocalSignals(), "w", asked, new_series=new_series, batch=batch).run()
        dead = [one for one in self.model.values() if one.status is state]
        assert self.loop.run_until_complete(run) == (len(dead), len(dead))
        for one in dead:
            one.status, one.attempts, one.rounds, one.claims, one.is_leased = READY, 0, 0, 0, False
            one.series += new_series
            one.code, one.is_retryable = None, False

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        query = """
            SELECT delivery_id, status, epoch, attempts, claims, rounds, series, is_retryable, code,
                   finished_at IS NOT NULL FROM bongsu_deliveries"""

        async def look(tx: AsyncConnection) -> tuple[Any, Any]:
            tries = await tx.execute(
                text(
                    "SELECT delivery_id, epoch FROM bongsu_attempts UNION ALL "
                    "SELECT delivery_id, epoch FROM bongsu_deliveries WHERE sent_at IS NOT NULL"
                )
            )
            return (await tx.execute(text(query))).all(), tries.all()

        rows, tries = self.write(look)
        found = {row[0]: (*row[1:7], bool(row[7]), row[8]) for row in rows}
        assert found == {key: one.row for key, one in self.model.items()}
        assert all(bool(row[9]) != self.model[row[0]].is_open for row in rows)
        assert sorted(tuple(row) for row in tries) == sorted(self.attempts)
        for row in rows:
            assert row[2] >= self.highest.get(row[0], 0), "an epoch was lowered"
            self.highest[row[0]] = row[2]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_deliveries_behave_like_their_model(
    database: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue("postgres_url") if database == "postgresql" else ""
    # All of the model's deliveries are of one channel and lane: there is nothing to look for in the others.
    monkeypatch.setattr(recovery, "CHANNELS", (Channel.PUSH,))
    monkeypatch.setattr(recovery, "LANES", (1,))
    loop = asyncio.new_event_loop()
    store = Store.open(Settings(data_dir=Path(mkdtemp()), database_url=url))
    loop.run_until_complete(migrate(store))
    DeliveryMachine.store, DeliveryMachine.loop = store, loop
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    try:
        run_state_machine_as_test(
            DeliveryMachine,
            settings=settings(max_examples=8, stateful_step_count=25, deadline=None, suppress_health_check=checks),
        )
    finally:
        loop.run_until_complete(store.close())
        loop.close()
