"""Results of one dispatcher, from the outcome until they are recorded.

They hold slots meanwhile, so there are never more than slots. Results are gathered for a moment (debounce) and recorded in
one transaction, by a task beside the dispatcher's tick: the next deliveries are sent meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from bongsu.deliver.transitions import with_epoch
from bongsu.errors import StoreError
from bongsu.runtime import telemetry
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import DeliveryResult, DeliveryStatus, Success

# Debounce: results are recorded after this time at the latest, however few they are. Shorter → more CPU for each delivery at
# a hundred a second; longer → more of them are UNKNOWN or sent again after a crash.
LINGER_SECONDS = 0.03


class Recorder:
    """Records the results of one channel for one dispatcher."""

    def __init__(
        self,
        store: Store,
        channel: str,
        full_at: int,
        log: telemetry.Log,
        on_change: Callable[[], None],
        on_recorded: Callable[[Iterable[int]], None],
    ) -> None:
        """`full_at` results are recorded without waiting for more. `on_change` is called when results are to be recorded, or
        a recording has ended; `on_recorded` with the ids of deliveries whose slots are free."""
        self._store = store
        self._channel = channel
        self._full_at = full_at
        self._log = log
        self._on_change = on_change
        self._on_recorded = on_recorded
        # Results to be recorded, and those being recorded.
        self.results: list[DeliveryResult | Success] = []
        self._being_recorded: list[DeliveryResult | Success] = []
        # Epochs of newer claims of this process, by the deliveries whose results are known and not yet recorded.
        self._newer: dict[int, int] = {}
        # While it runs, results wait for more.
        self._linger: asyncio.TimerHandle | None = None
        self._is_due = False
        self._recording: asyncio.Task[int] | None = None
        # Whether the store did not take the last results.
        self.is_behind = False

    @property
    def slots(self) -> int:
        """How many slots results hold."""
        return len(self.results) + len(self._being_recorded)

    @property
    def unfinished(self) -> int:
        """How much there is to do: the results to be recorded, and the recording under way."""
        return len(self.results) + (self._recording is not None)

    def add(self, result: DeliveryResult | Success, *, is_last: bool) -> None:
        """The result of a send. Unless it is the last, it waits for others."""
        self.results.append(result)
        if is_last or len(self.results) >= self._full_at:
            self._end_linger()
        elif self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._end_linger)

    def add_unsent(self, results: Iterable[DeliveryResult | Success]) -> None:
        """Results of what is not sent: recorded with the next tick."""
        self.results += results
        self._is_due = True

    def _end_linger(self) -> None:
        self._is_due = True
        self._on_change()

    def claimed_again(self, epochs: Mapping[int, int]) -> set[int]:
        """Of these newer claims of this process, those of deliveries whose results are known, to be recorded under them."""
        known = {result.delivery_id for result in (*self.results, *self._being_recorded)} & epochs.keys()
        self._newer |= {delivery_id: epochs[delivery_id] for delivery_id in known}
        return known

    # --- record -------------------------------------------------------------------------------------------------------

    def begin_if_due(self, name: str) -> None:
        """Begin to record in a task, unless one is under way. The results are taken now, so that their leases are not
        renewed by another transaction meanwhile."""
        if self._is_due and self._recording is None:
            self._recording = asyncio.create_task(self._record(self._take()), name=name)
            self._recording.add_done_callback(lambda _task: self._on_change())

    async def finish(self) -> int:
        """How many results the task has recorded, if it is done. Raises what it raised."""
        if self._recording is None or not self._recording.done():
            return 0
        recording, self._recording = self._recording, None
        return await recording

    async def record_all(self) -> None:
        """Wait for what is being recorded, and record the others."""
        if self._recording is not None:
            await asyncio.wait({self._recording})
            await self.finish()
        await self.record()

    async def record(self) -> int:
        """Record the results so far; return how many."""
        return await self._record(self._take())

    def _take(self) -> list[DeliveryResult | Success]:
        """The results so far, to be recorded now."""
        if self._linger is not None:
            self._linger.cancel()
        self._linger, self._is_due = None, False
        results, self.results = self.results, []
        if self._newer:
            results = [with_epoch(result, self._newer.pop(result.delivery_id, result.epoch)) for result in results]
        self._being_recorded = results
        return results

    async def _record(self, results: list[DeliveryResult | Success]) -> int:
        """Store results that were taken; return how many."""
        try:
            if results:
                await self._store_results(results)
        finally:
            self._being_recorded = []
        return len(results)

    async def _store_results(self, results: list[DeliveryResult | Success]) -> None:
        """In one transaction. If one of them cannot be stored, one by one."""
        try:
            recorded = await statements.record(self._store, self._channel, results)
        except Exception as error:
            if isinstance(error, StoreError) or len(results) == 1:
                # Kept, and recorded when the store is back. If this process dies before, they stay SENDING.
                self.add_unsent(results)
                self.is_behind = isinstance(error, StoreError)
                raise
            # One of them cannot be stored; the others can.
            await self._store_one_by_one(results)
            return
        self.is_behind = False
        self._on_recorded(result.delivery_id for result in results)
        if overtaken := [result for result in results if result.delivery_id in self._newer]:
            # Claimed again by this process before they were recorded.
            self.add_unsent(overtaken)
        self._report([result for result in results if result.delivery_id in recorded])

    async def _store_one_by_one(self, results: list[DeliveryResult | Success]) -> None:
        failed: Exception | None = None
        for result in results:
            try:
                await self._store_results([result])
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed

    def _report(self, results: Sequence[DeliveryResult | Success]) -> None:
        others = [result for result in results if isinstance(result, DeliveryResult)]
        counts = Counter((result.status.value, result.code or "") for result in others)
        counts[DeliveryStatus.SUCCESS.value, ""] += len(results) - len(others)
        for (status, code), count in counts.items():
            telemetry.DELIVERIES.labels(self._channel, status, code).inc(count)
        for result in others:
            if result.status in (DeliveryStatus.FAIL, DeliveryStatus.UNKNOWN):
                self._log.error(
                    "delivery ended",
                    status=result.status.value,
                    delivery_id=result.delivery_id,
                    code=result.code,
                    detail=result.detail,
                )
