"""The pending sums in Redis: `count:comment:delta:{postId}` and its like, for programs that read them there.

They are a copy for fast reads, and nothing depends on them: the store's log is what counts, and what GET answers from. They
are changed after the commit, without making it wait. A key that was not changed for a while expires, so that what a process
that was killed has not written does not stay. If Redis has lost its data, or changes could not be written, the marker is
missing, and the next flush counts them again from the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from bongsu.decide.effects import CountDeltas
from bongsu.decide.progress import Decision
from bongsu.model.counter import COMMENTS
from bongsu.runtime.loop import Loop
from bongsu.runtime.redis import AWAY, redis_client
from bongsu.store.counters import KeySum

# There while the sums are complete.
MARKER = "bongsu:count:complete"
# A delta is applied within a few flushes. Later it is only seen if no process flushes.
KEPT_FLUSHES = 20
LEAST_KEPT_SECONDS = 60.0
# Keys sent to Redis in one round trip.
BATCH = 1_000
# Counters with changes that Redis has not been sent. Beyond these they are dropped and counted again.
WAITING_LIMIT = 100_000

# Adds to a sum and lets it expire; a sum of 0 is no key. KEYS: the sum. ARGV: by how much, milliseconds.
_ADD = """
if redis.call('INCRBY', KEYS[1], ARGV[1]) == 0 then redis.call('DEL', KEYS[1])
else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
"""


def redis_key(counter: str, key: str) -> str:
    """The key's braces are the hash tag of a Redis cluster."""
    name = "comment" if counter == COMMENTS else counter
    return f"count:{name}:delta:{{{key}}}"


class PendingSums(Loop):
    """Sends changes to Redis, in their order. `add` never waits and never fails."""

    def __init__(self, url: str, flush_seconds: float) -> None:
        super().__init__("counter-pending", poll_seconds=1.0)
        self._redis = redis_client(url, retries=0)
        self._kept_millis = int(1000 * max(LEAST_KEPT_SECONDS, KEPT_FLUSHES * flush_seconds))
        self._waiting: Counter[tuple[str, str]] = Counter()
        # Some changes were dropped: the sums are not complete.
        self._has_dropped = False
        self._is_away = False

    def add(self, sums: Iterable[KeySum]) -> None:
        """Counted and committed."""
        self._enqueue(sums, 1)

    def decided(self, decision: Decision) -> None:
        """For the event worker, after each commit: what the step has counted."""
        for effect in decision.effects:
            if isinstance(effect, CountDeltas):
                self.add(effect.sums)

    def take(self, sums: Iterable[KeySum]) -> None:
        """Applied by a flush and committed."""
        self._enqueue(sums, -1)

    def _enqueue(self, sums: Iterable[KeySum], sign: int) -> None:
        for counter, key, delta in sums:
            self._waiting[counter, key] += sign * delta
        if len(self._waiting) > WAITING_LIMIT:
            self._drop()
        self.wake()

    async def tick(self) -> int:
        if not self._waiting and not self._has_dropped:
            return 0
        try:
            if self._has_dropped:
                await self._redis.delete(MARKER)
                self._has_dropped = False
            batch = [(key, self._waiting.pop(key)) for key in list(self._waiting)[:BATCH]]
            try:
                await self._send([KeySum(*key, delta) for key, delta in batch if delta])
            except AWAY:
                self._drop()
                raise
        except AWAY as error:
            if not self._is_away:
                self._log.warning("pending sums not written to Redis, counting them again later", error=str(error))
            self._is_away = True
            return 0
        self._is_away = False
        return len(batch)

    async def stop(self) -> None:
        await super().stop()
        while self._waiting and not self._has_dropped:
            await self.tick()
        await self._redis.aclose()

    def _drop(self) -> None:
        self._waiting.clear()
        self._has_dropped = True

    async def _send(self, sums: Sequence[KeySum]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for counter, key, delta in sums:
            pipeline.eval(_ADD, 1, redis_key(counter, key), delta, self._kept_millis)
        # A key that holds something else, or cannot hold more, fails alone.
        await pipeline.execute(raise_on_error=False)

    # --- for the flush ------------------------------------------------------------------------------------------------

    async def are_complete(self) -> bool:
        """Whether nothing has been lost since the last recount. Raises what `AWAY` lists."""
        return not self._has_dropped and bool(await self._redis.pexpire(MARKER, self._kept_millis))

    async def write(self, sums: Sequence[KeySum]) -> None:
        """Set the sums of these counters: a part of a recount."""
        pipeline = self._redis.pipeline(transaction=False)
        for counter, key, delta in sums:
            pipeline.set(redis_key(counter, key), delta, px=self._kept_millis)
        if sums:
            await pipeline.execute(raise_on_error=False)

    async def mark_complete(self) -> None:
        await self._redis.set(MARKER, 1, px=self._kept_millis)
