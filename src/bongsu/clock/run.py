"""What a job is given: its run, which works in steps and saves its progress with each of them.

A step is a transaction. It locks the run's row first, so that it is not taken over meanwhile, and saves cursor and
counts last, so that they commit with what was done. A process that lost the run (it was stopped for longer than its lease,
or the store was away for as long) learns that at the beginning of its next step and writes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from bongsu.errors import RunLost
from bongsu.model.payload import storable_text
from bongsu.runtime.lease import Lease
from bongsu.runtime.loop import Loop
from bongsu.store import Query, Row, Store, Transaction
from bongsu.store import runs as statements
from bongsu.store.core.query import Dialect
from bongsu.store.runs import Progress, RunRow

# A result or an error is shown on one line of a list.
TEXT_LIMIT = 2_000

_KEPT: Any = object()


class Step:
    """A step's transaction: pass it wherever a Transaction is taken, or to `publish`."""

    def __init__(self, tx: Transaction, row: RunRow) -> None:
        self._tx = tx
        self._cursor = row.cursor
        self._counts = Counter(row.counts)
        self._done = row.done
        self._total = row.total

    @property
    def dialect(self) -> Dialect:
        return self._tx.dialect

    async def fetch(self, *queries: Query) -> Sequence[Row]:
        return await self._tx.fetch(*queries)

    async def execute(self, *queries: Query) -> list[int]:
        return await self._tx.execute(*queries)

    def save(
        self, *, cursor: Any = _KEPT, counts: Mapping[str, int] | None = None, done: int = 0, total: int | None = None
    ) -> None:
        """Commit this with the step. `cursor` is any JSON value, from which the next step, and another process, goes on;
        `counts` and `done` are added to those saved before; `total` is what `done` will reach."""
        if cursor is not _KEPT:
            self._cursor = cursor
        self._counts.update({name: count for name, count in (counts or {}).items() if count})
        self._done += done
        self._total = self._total if total is None else total

    @property
    def progress(self) -> Progress:
        """What will be saved."""
        return Progress(self._cursor, dict(self._counts), self._done, self._total)


class Run:
    """One run of a job, held by this process. `bongsu.clock.runs` begins it and takes it over."""

    def __init__(
        self, store: Store, row: RunRow, lease_seconds: float, on_step: Callable[[Run], None] | None = None
    ) -> None:
        self._store = store
        self._row = row
        self._progress = _progress_of(row)
        self._on_step = on_step
        self._lease = Lease(lease_seconds)
        # A step at a time; the heartbeat keeps out of its way, for the step has locked the row.
        self._turn = asyncio.Lock()
        self._stepping: asyncio.Task[Any] | None = None
        self._is_lost = False
        self._is_finished = False
        # How many steps this process has committed.
        self.steps = 0

    # --- what it is about ---------------------------------------------------------------------------------------------

    @property
    def job(self) -> str:
        return self._row.job

    @property
    def run_id(self) -> int:
        return self._row.run_id

    @property
    def slot(self) -> datetime | None:
        """The time it was scheduled for; None if it was requested by hand."""
        return self._row.slot

    @property
    def scheduled_for(self) -> datetime:
        """The slot, or when a run by hand was started. The same for every process that goes on with it."""
        return self._row.scheduled_for

    @property
    def subject(self) -> str:
        """What it is about, where runs with different subjects may be under way at once."""
        return self._row.subject

    @property
    def requested_by(self) -> str:
        return self._row.requested_by

    @property
    def input(self) -> Any:
        """What was requested, as JSON; None for a scheduled run."""
        return self._row.input

    # --- how far it is ------------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> Any:
        """What the last step saved, by this process or the one before; None at the beginning."""
        return self._progress.cursor

    @property
    def counts(self) -> Counter[str]:
        """The sum of what all steps have saved."""
        return Counter(self._progress.counts)

    @property
    def done(self) -> int:
        return self._progress.done

    @property
    def total(self) -> int | None:
        return self._progress.total

    # --- steps --------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def step(self) -> AsyncIterator[Step]:
        """A transaction that commits what is done in the block together with what `step.save` is given. If the block
        raises, neither is stored. Raises RunLost if this process no longer holds the run."""
        if self._turn.locked() and self._stepping is asyncio.current_task():
            # It would wait for itself, and keep its transaction open meanwhile.
            raise RuntimeError(
                "A step was begun within a step: save with `step.save`, and begin the next one after the block"
            )
        async with self._turn:
            self._stepping = asyncio.current_task()
            try:
                if self._is_lost:
                    raise self._lost()
                async with self._store.transaction() as tx:
                    row = await statements.hold(tx, self._row.run_id, self._row.epoch)
                    if row is None:
                        raise self._lost()
                    # If the answer to the last commit did not arrive, only the store knows whether it was one.
                    self._progress = _progress_of(row)
                    step = Step(tx, row)
                    yield step
                    await self._save(tx, step.progress)
            finally:
                # Else a step that begins while the heartbeat has its turn would be taken for one within a step.
                self._stepping = None
            self._progress = step.progress
            self.steps += 1
        if self._on_step is not None:
            self._on_step(self)

    async def _save(self, tx: Transaction, progress: Progress) -> None:
        """In the step's transaction. A step that has found nothing to do need not write."""
        began = time.monotonic()
        if progress == self._progress and not self._lease.is_renewal_due(began):
            return
        if not await statements.save(tx, self.run_id, self._row.epoch, progress, self._lease.seconds):
            raise self._lost()
        self._lease.renewed(began)

    async def save(
        self, *, cursor: Any = _KEPT, counts: Mapping[str, int] | None = None, done: int = 0, total: int | None = None
    ) -> None:
        """A step that only saves, for work that is not in Bongsu's store."""
        async with self.step() as step:
            step.save(cursor=cursor, counts=counts, done=done, total=total)

    # --- the lease ----------------------------------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """Whether this process no longer holds the run, as far as it knows."""
        return self._is_lost

    async def renew(self) -> None:
        """Renew its lease. During a step there is nothing to do: its lock keeps others away. Raises RunLost."""
        if self._turn.locked() or self._is_finished:
            return
        async with self._turn:
            began = time.monotonic()
            if self._lease.is_over(began):
                raise self._lost()
            async with self._store.single() as tx:
                row = await statements.renew(tx, self._row.run_id, self._row.epoch, self._lease.seconds)
            if row is None:
                raise self._lost()
            self._lease.renewed(began)
            self._progress = _progress_of(row)

    async def release(self) -> None:
        """Let another process go on at once: this one stops."""
        async with self._turn:
            self._is_lost = True
            async with self._store.single() as tx:
                await statements.release(tx, self._row.run_id, self._row.epoch)

    async def finish(self, result: str | None, error: str | None) -> RunRow:
        """Record how it ended. Raises RunLost."""
        async with self._turn:
            async with self._store.single() as tx:
                row = await statements.finish(tx, self.run_id, self._row.epoch, _as_stored(result), _as_stored(error))
            row = row or await self._find_finished()
            self._is_finished = True
            return row

    async def _find_finished(self) -> RunRow:
        """The run, if this process has finished it and the answer to that did not arrive."""
        async with self._store.single() as tx:
            row = await statements.find(tx, self.run_id)
        if row is None or row.finished_at is None or row.epoch != self._row.epoch:
            raise self._lost()
        return row

    def _lost(self) -> RunLost:
        self._is_lost = True
        return RunLost(f"This process no longer holds run {self.run_id} of {self.job}")


class Heartbeat(Loop):
    """Renews the lease of a run while its job works."""

    def __init__(self, run: Run, lease_seconds: float, on_lost: Callable[[], object]) -> None:
        super().__init__("run-heartbeat", Lease(lease_seconds).renewal_seconds)
        self._renew = run.renew
        self._on_lost: Callable[[], object] | None = on_lost

    async def tick(self) -> int:
        try:
            await self._renew()
        except RunLost:
            # Once: a job that is being cancelled must not be cancelled again.
            on_lost, self._on_lost = self._on_lost, None
            if on_lost is not None:
                on_lost()
        return 0


def _progress_of(row: RunRow) -> Progress:
    return Progress(row.cursor, row.counts, row.done, row.total)


def _as_stored(text: str | None) -> str | None:
    return None if text is None else storable_text(text, TEXT_LIMIT)
