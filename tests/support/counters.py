"""Helpers for tests of counters: events that count, calls, flushes, and what a counter is."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bongsu.counters.calls import Answer, Counters
from bongsu.counters.flush import Flusher
from bongsu.counters.pending import PendingSums
from bongsu.decide.progress import Decision
from bongsu.decide.step import Decider
from bongsu.decide.worker import EventWorker
from bongsu.model import Event
from bongsu.render.templates import Templates
from bongsu.rules import Rules, catalogue
from bongsu.runtime.loop import running
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from tests.support.decisions import rows, run_worker


@dataclass
class Counting:
    """Everything that counts, on one store. Nothing runs by itself but the group commit of calls."""

    store: Store
    settings: Settings
    rules: Rules
    calls: Counters
    flusher: Flusher
    pending: PendingSums | None = None

    async def publish(self, *events: Event) -> None:
        """Events go in, and are decided to the end."""
        await outbox.add_many(self.store, events)
        await self.decide()

    async def decide(self) -> None:
        decider = Decider(self.store, Templates.load(), self.settings)
        await run_worker(EventWorker(self.store, self.rules, self.settings, decider, self._after_step))
        await self.send_pending()

    async def call(self, key: str, delta: int, event_id: UUID | None = None, counter: str = "comments") -> Answer:
        answer = await self.calls.count(counter, key, delta, event_id)
        await self.send_pending()
        return answer

    async def value(self, key: str, counter: str = "comments") -> int:
        value, _ = await self.calls.find(counter, key)
        return value

    async def flush(self) -> None:
        """Until nothing is left to be flushed now."""
        while await self.flusher.tick():
            pass
        await self.send_pending()

    async def stored(self) -> dict[tuple[str, str], int]:
        """What flushes have applied."""
        found = await rows(self.store, "SELECT counter, key, value FROM bongsu_counters")
        return {(row["counter"], row["key"]): row["value"] for row in found}

    async def count_logged(self) -> int:
        (row,) = await rows(self.store, "SELECT count(*) AS count FROM bongsu_count_deltas")
        return int(row["count"])

    async def batches(self) -> list[Any]:
        query = "SELECT batch_id, processed_from, processed_to, keys, sum FROM bongsu_count_batches ORDER BY batch_id"
        return list(await rows(self.store, query))

    async def send_pending(self) -> None:
        if self.pending is not None:
            while await self.pending.tick():
                pass

    def _after_step(self, decision: Decision) -> None:
        if self.pending is not None:
            self.pending.decided(decision)


@contextlib.asynccontextmanager
async def counting(store: Store, settings: Settings, app: Rules | None = None, **flusher: Any) -> AsyncIterator[Counting]:
    rules = catalogue(settings, app)
    pending = PendingSums(settings.redis_url, settings.counter_flush_seconds) if settings.redis_url else None
    declared = rules.counters | set(settings.targets)
    async with running(Counters(store, declared, pending.add if pending is not None else None)) as calls:
        yield Counting(store, settings, rules, calls, Flusher(store, settings, pending, **flusher), pending)
    if pending is not None:
        await pending.stop()


def comment_created(post: str = "p-1", **fields: Any) -> Event:
    payload = {"commentId": fields.pop("comment_id")} if "comment_id" in fields else {}
    return Event(event_type="comment.created", ref_id=post, payload=payload, **fields)


def comment_deleted(post: str = "p-1", *, created: Event | UUID | None = None, comment_id: Any = None) -> Event:
    payload: dict[str, Any] = {}
    if created is not None:
        payload["createdEventId"] = str(created.event_id if isinstance(created, Event) else created)
    if comment_id is not None:
        payload["commentId"] = comment_id
    return Event(event_type="comment.deleted", ref_id=post, payload=payload)
