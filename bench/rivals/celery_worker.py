"""Celery with Redis: a real worker, whose queue is filled first and let go of then."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from celery import Celery as Application
from tests.support.servers import start_redis

from bench.rivals import celery_tasks as tasks
from bench.serving import ROOT

COUNT = 1_000
# Its best on two cores, by another HTTP client than today's: 510 to 610 sends a second with threads, 310 to 420 with two
# or four processes.
POOL = "threads"
CONCURRENCY = 16
START_SECONDS = 60.0
STOP_SECONDS = 20.0
# How soon we see that all were sent, against about a second that they take.
POLL_SECONDS = 0.002


class Celery:
    name = f"Celery with Redis, one task a send, {CONCURRENCY} {POOL}"
    count = COUNT

    def __init__(self, client: Any, bodies: Sequence[bytes], tally: Path) -> None:
        self._client = client
        self._tally = tally
        self._bodies = [body.decode() for body in bodies[:COUNT]]

    async def fill(self) -> None:
        with self._client.producer_or_acquire() as producer:
            for body in self._bodies:
                self._client.send_task(tasks.TASK, (body,), queue=tasks.QUEUE, ignore_result=True, producer=producer)

    async def send(self) -> float:
        """From the first send on: a worker that waits for its broker sees a new queue up to a second late."""
        before = self._sent()
        self._client.control.add_consumer(tasks.QUEUE)
        first = await self._until(before + 1) - before
        began = time.perf_counter()
        await self._until(before + COUNT)
        seconds = time.perf_counter() - began
        self._client.control.cancel_consumer(tasks.QUEUE, reply=True, limit=1, timeout=5)
        return seconds * COUNT / (COUNT - first)

    async def _until(self, count: int) -> int:
        async with asyncio.timeout(60):
            while (sent := self._sent()) < count:
                await asyncio.sleep(POLL_SECONDS)
        return sent

    def _sent(self) -> int:
        """Not asked of the simulator, which would go through its whole ledger while it is to answer Celery."""
        return self._tally.stat().st_size


@contextlib.asynccontextmanager
async def celery(home: Path, url: str, bodies: Sequence[bytes]) -> AsyncIterator[Celery]:
    redis = start_redis()
    tally = home / "celery.tally"
    tally.touch()
    environment = {tasks.BROKER: redis.url, tasks.URL: url, tasks.TALLY: str(tally), "PYTHONPATH": str(ROOT)}
    try:
        with mock.patch.dict(os.environ, environment), (home / "celery.log").open("wb") as log:
            # One of our own: the module's belongs to the worker, and keeps the first broker it has met.
            client = Application("bench", broker=redis.url)
            worker = subprocess.Popen(_command(), cwd=home, stdout=log, stderr=log)
            try:
                await _until_ready(client, worker, home / "celery.log")
                yield Celery(client, bodies, tally)
            finally:
                await _end(worker)
                client.close()
    finally:
        redis.stop()


def _command() -> list[str]:
    """It begins with a queue that stays empty, so that the real one can be filled beforehand."""
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING", "-Q", "none"]
    worker = [sys.executable, "-m", "celery", "-A", "bench.rivals.celery_tasks", "worker"]
    return [*worker, "--pool", POOL, "--concurrency", str(CONCURRENCY), *quiet]


async def _until_ready(client: Any, worker: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while worker.poll() is None and time.monotonic() < deadline:
        if await asyncio.to_thread(client.control.ping, timeout=0.5):
            return
    raise RuntimeError(f"the Celery worker did not start: {log.read_text(errors='replace')[-2000:]}")


async def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.send_signal(signal.SIGTERM)
    try:
        await asyncio.to_thread(worker.wait, STOP_SECONDS)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
