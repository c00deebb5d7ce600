"""What the Celery worker runs: one task, which posts one body by the blocking kind of the client that we use."""

from __future__ import annotations

import os
from functools import cache

from celery import Celery
from pyreqwest.client import SyncClient, SyncClientBuilder

from bench.bare_wire import HEADERS

BROKER = "BENCH_CELERY_BROKER"
URL = "BENCH_CELERY_URL"
TALLY = "BENCH_CELERY_TALLY"
QUEUE = "sends"
TASK = "post"

app = Celery("bench", broker=os.environ.get(BROKER, ""))
app.conf.update(
    task_ignore_result=True,
    task_default_queue=QUEUE,
    # As many as it likes at hand: tasks are short, and the default of four lets processes wait for the broker.
    worker_prefetch_multiplier=64,
    worker_disable_rate_limits=True,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


@cache
def _client() -> SyncClient:
    """One for each process, shared by its threads."""
    return SyncClientBuilder().no_proxy().http1_only().build()


@cache
def _tally() -> int:
    """A file that grows by a byte with each send: the cheapest way to tell another process how many there were."""
    return os.open(os.environ[TALLY], os.O_WRONLY | os.O_APPEND)


def _post(body: str) -> None:
    response = _client().post(os.environ[URL]).headers(HEADERS).body_bytes(body.encode()).build().send()
    assert response.status == 200
    response.bytes()
    os.write(_tally(), b".")


post = app.task(name=TASK)(_post)
