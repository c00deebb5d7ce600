"""procrastinate on PostgreSQL: one job for each send, posted over the same wire as ours, by its async worker."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from procrastinate import App, PsycopgConnector

from bench.bare_http import HEADERS
from bongsu.deliver.channels.http.client import Answer, HttpClient

COUNT = 500
# The fastest of 1, 8, 32 and 128 on two cores: its worker takes jobs one by one, so more only wait.
CONCURRENCY = 32
POOL = 16


class Procrastinate:
    name = "procrastinate, one job a send"
    count = COUNT

    def __init__(self, app: App, wire: HttpClient, url: str, bodies: Sequence[bytes]) -> None:
        self._app = app
        self._wire = wire
        self._url = url
        self._bodies = bodies
        self._sent = 0
        self._job: Any = app.task(name="send")(self._post)

    async def fill(self) -> None:
        await self._job.batch_defer_async(*({"number": number} for number in range(COUNT)))

    async def send(self) -> float:
        self._sent = 0
        began = time.perf_counter()
        await self._app.run_worker_async(
            concurrency=CONCURRENCY, wait=False, listen_notify=False, install_signal_handlers=False, delete_jobs="always"
        )
        seconds = time.perf_counter() - began
        assert self._sent == COUNT, f"{self._sent} of {COUNT} were sent"
        return seconds

    async def _post(self, number: int) -> None:
        """The job carries a number alone and the body is there already, which spares it a look into the database."""
        answer = await self._wire.post(self._url, HEADERS, self._bodies[number])
        assert isinstance(answer, Answer)
        assert answer.status == 200
        self._sent += 1


@contextlib.asynccontextmanager
async def procrastinate(database_url: str, url: str, bodies: Sequence[bytes]) -> AsyncIterator[Procrastinate]:
    app = App(connector=PsycopgConnector(conninfo=database_url, min_size=POOL, max_size=POOL))
    wire = HttpClient(15.0, uses_proxy=False)
    try:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            yield Procrastinate(app, wire, url, bodies)
    finally:
        await wire.close()
