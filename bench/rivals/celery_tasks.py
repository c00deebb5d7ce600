"""What the Celery worker runs: one task, which posts one body by the standard library's client."""

from __future__ import annotations

import os
import threading
from functools import cache
from http.client import HTTPConnection
from urllib.parse import urlsplit

from celery import Celery

from bench.bare_http import HEADERS

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


class _Own(threading.local):
    """A connection of each thread's own, kept open."""

    def __init__(self) -> None:
        url = urlsplit(os.environ[URL])
        self.path = url.path
        self.connection = HTTPConnection(url.hostname or "", url.port)


@cache
def _own() -> _Own:
    return _Own()


@cache
def _tally() -> int:
    """A file that grows by a byte with each send: the cheapest way to tell another process how many there were."""
    return os.open(os.environ[TALLY], os.O_WRONLY | os.O_APPEND)


def _post(body: str) -> None:
    own = _own()
    own.connection.request("POST", own.path, body.encode(), HEADERS)
    response = own.connection.getresponse()
    response.read()
    assert response.status == 200
    os.write(_tally(), b".")


post = app.task(name=TASK)(_post)
