"""Runs against a model: begun, abandoned, taken over, saved, released and finished, by owners of now and of before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, multiple, rule

from bongsu.store import Transaction
from bongsu.store import runs as statements
from bongsu.store.core.query import same
from bongsu.store.runs import NewRun, Progress
from tests.conftest import SettingsMaker
from tests.support.machines import StoreMachine, opened, run_machine
from tests.support.rows import set_columns

NINE = datetime(2026, 3, 1, tzinfo=UTC)

FIND = same("SELECT run_id, epoch, claim_count, cursor, finished_at IS NOT NULL AS is_finished, result FROM bongsu_runs")


class Claim(NamedTuple):
    """What an owner knows: its run, and the epoch of its claim."""

    run_id: int
    epoch: int


@dataclass
class Expected:
    """The model of one run."""

    job: str
    subject: str
    slot: datetime | None
    epoch: int = 1
    claims: int = 1
    cursor: int | None = None
    is_leased: bool = True
    result: str | None = None

    @property
    def row(self) -> tuple[Any, ...]:
        # The cursor of a finished run is dropped.
        cursor = None if self.cursor is None or self.result is not None else str(self.cursor)
        return self.epoch, self.claims, cursor, self.result is not None, self.result


class RunMachine(StoreMachine):
    tables = ("runs",)

    # Every claim that was ever made: the owners of abandoned runs come back and try to write.
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[int, Expected] = {}

    def holds(self, claim: Claim) -> bool:
        run = self.model[claim.run_id]
        return run.epoch == claim.epoch and run.is_leased and run.result is None

    @rule(
        target=claims,
        job=st.sampled_from("ab"),
        subject=st.sampled_from(["", "s"]),
        slot=st.sampled_from([None, NINE, NINE + timedelta(hours=1)]),
    )
    def begin(self, job: str, subject: str, slot: datetime | None) -> Any:
        row = self.write(lambda tx: statements.begin(tx, NewRun(job, "w", subject, slot), "w", 3600))
        is_open = any(one.job == job and one.subject == subject and one.result is None for one in self.model.values())
        is_run = slot is not None and any(one.job == job and one.slot == slot for one in self.model.values())
        assert (row is None) == (is_open or is_run)
        if row is None:
            return multiple()
        self.model[row.run_id] = Expected(job, subject, slot)
        return Claim(row.run_id, row.epoch)

    @rule(claim=claims)
    def end_lease(self, claim: Claim) -> None:
        """Its process was killed, or stopped for too long."""
        self.write(lambda tx: set_columns(tx, "runs", {"run_id": claim.run_id}, due=timedelta(seconds=-1)))
        self.model[claim.run_id].is_leased = False

    @rule(target=claims, claim=claims)
    def take_over(self, claim: Claim) -> Any:
        """By whoever found it with the epoch of this claim."""

        async def work(tx: Transaction) -> statements.RunRow | None:
            found = await statements.find(tx, claim.run_id)
            assert found is not None
            seen = statements.RunRow(**{**vars(found), "epoch": claim.epoch})
            return await statements.take_over(tx, seen, "w", 3600)

        row, run = self.write(work), self.model[claim.run_id]
        is_abandoned = run.result is None and not run.is_leased and run.epoch == claim.epoch
        assert (row is not None) == is_abandoned
        if row is None:
            return multiple()
        run.epoch, run.claims, run.is_leased = run.epoch + 1, run.claims + 1, True
        assert (row.epoch, row.cursor, row.claim_count) == (run.epoch, run.cursor, run.claims)
        return Claim(row.run_id, row.epoch)

    @rule()
    def find_abandoned(self) -> None:
        found = self.write(statements.find_abandoned)
        expected = [key for key, one in self.model.items() if one.result is None and not one.is_leased]
        assert [row.run_id for row in found] == sorted(expected)

    @rule(claim=claims, cursor=st.integers(0, 9))
    def step(self, claim: Claim, cursor: int) -> None:
        async def work(tx: Transaction) -> bool:
            row = await statements.hold(tx, *claim)
            assert row is None or row.cursor == self.model[claim.run_id].cursor
            return row is not None and await statements.save(tx, *claim, Progress(cursor), 3600)

        is_saved = self.write(work)
        assert is_saved == self.holds(claim)
        if is_saved:
            run = self.model[claim.run_id]
            run.cursor, run.claims = cursor, 0

    @rule(claim=claims)
    def renew(self, claim: Claim) -> None:
        assert (self.write(lambda tx: statements.renew(tx, *claim, 3600)) is not None) == self.holds(claim)

    @rule(claim=claims)
    def release(self, claim: Claim) -> None:
        is_released = self.write(lambda tx: statements.release(tx, *claim))
        assert is_released == self.holds(claim)
        if is_released:
            run = self.model[claim.run_id]
            run.is_leased, run.claims = False, run.claims - 1

    @rule(claim=claims)
    def finish(self, claim: Claim) -> None:
        result = f"by {claim.epoch}"
        row, run = self.write(lambda tx: statements.finish(tx, *claim, result, None)), self.model[claim.run_id]
        # Also past its lease, if nobody has taken the run over.
        assert (row is not None) == (run.epoch == claim.epoch and run.result is None)
        if row is not None:
            run.result = result

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        rows = self.write(lambda tx: tx.fetch(FIND()))
        # SQLite's booleans are numbers, which are equal to them.
        assert {row["run_id"]: tuple(row)[1:] for row in rows} == {key: one.row for key, one in self.model.items()}


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_runs_behave_like_their_model(database: str, migrated_settings: SettingsMaker) -> None:
    with opened(RunMachine, migrated_settings(database)):
        run_machine(RunMachine, few=20, steps=30)
