"""ingest: events over HTTP into a real server, against the same rows put into an equal table by the driver alone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.bare import Bare, bare
from bench.client import encode, send_all
from bench.ground import KEYS, Ground
from bench.measure import Contest, Measure
from bench.sample import Sample
from bench.serving import busiest, serving
from bongsu.settings import Settings

TITLE = "ingest over HTTP"
BUDGET = 0.3

ARRAY = 1_000
ARRAYS = 20
LINES = 50_000
# Requests a round, by how many are under way at once: about half a second of work.
SINGLES = {1: 300, 32: 2_000}
PROFILED_REQUESTS = 5_000

Rows = Sequence[Sequence[Any]]


async def contests(ground: Ground) -> AsyncGenerator[Contest, None]:
    for make in (ground.postgres, ground.sqlite):
        theirs, ours = await make(), await make()
        async with bare(theirs) as baseline, _server(ours) as server:
            for connections in (1, 4):
                yield _arrays(baseline, server, connections)
            yield _lines(baseline, server)
            for connections in SINGLES:
                yield _singles(baseline, server, connections)


async def notes(ground: Ground) -> dict[str, str]:
    """Where a server spends its time on single events, 32 at once."""
    settings = await ground.postgres()
    profile = settings.data_dir / "serve.prof"
    requests = _as_singles(Sample.of(PROFILED_REQUESTS).documents)
    async with _server(settings, profile) as server:
        await send_all(server.port, 32, requests)
    return {f"Profile of {PROFILED_REQUESTS:,} single events, 32 at once, PostgreSQL": busiest(profile)}


@dataclass(frozen=True)
class _Server:
    """Ours: where it listens, and the way behind it to clear the table."""

    port: int
    behind: Bare


@contextlib.asynccontextmanager
async def _server(settings: Settings, profile: Path | None = None) -> AsyncIterator[_Server]:
    async with serving(settings, profile) as server, bare(settings) as behind:
        yield _Server(server.port, behind)


def _arrays(baseline: Bare, server: _Server, connections: int) -> Contest:
    async def load(rows: Rows) -> None:
        await baseline.load(rows, ARRAY)

    name = f"{baseline.name}, arrays of {ARRAY:,}, {_counted(connections)}"
    against = f"{baseline.bulk}, {ARRAY:,} a transaction"
    return _contest(name, against, baseline, server, load, _as_arrays, ARRAY * ARRAYS, connections, BUDGET)


def _lines(baseline: Bare, server: _Server) -> Contest:
    async def load(rows: Rows) -> None:
        await baseline.load(rows, baseline.bulk_limit)

    name = f"{baseline.name}, NDJSON of {LINES:,}"
    against = f"{baseline.bulk}, {min(LINES, baseline.bulk_limit):,} a transaction"
    return _contest(name, against, baseline, server, load, _as_lines, LINES, 1, BUDGET)


def _singles(baseline: Bare, server: _Server, connections: int) -> Contest:
    async def load(rows: Rows) -> None:
        await baseline.insert_each(rows, connections)

    name = f"{baseline.name}, single events, {_counted(connections)}"
    against = "an INSERT and a commit for each"
    return _contest(name, against, baseline, server, load, _as_singles, SINGLES[connections], connections, BUDGET)


def _contest(
    name: str,
    against: str,
    baseline: Bare,
    server: _Server,
    load: Callable[[Rows], Awaitable[None]],
    shape: Callable[[Sequence[bytes]], list[bytes]],
    events: int,
    connections: int,
    budget: float,
) -> Contest:
    """Both sides get the same new events each round, encoded beforehand, and an empty table to put them in."""
    rows: Rows = ()
    requests: list[bytes] = []

    async def prepare() -> None:
        nonlocal rows, requests
        sample = Sample.of(events)
        rows, requests = baseline.rows(sample), shape(sample.documents)
        await baseline.clear()
        await server.behind.clear()

    async def put_bare() -> None:
        await load(rows)

    async def put_over_http() -> None:
        await send_all(server.port, connections, requests)

    return Contest(
        name, against, "event", Measure.SPEED, put_bare, put_over_http, prepare, units_a_turn=events, budget=budget
    )


def _as_arrays(documents: Sequence[bytes]) -> list[bytes]:
    bodies = (b"[" + b",".join(documents[first : first + ARRAY]) + b"]" for first in range(0, len(documents), ARRAY))
    return [_request(body, "application/json") for body in bodies]


def _as_lines(documents: Sequence[bytes]) -> list[bytes]:
    return [_request(b"\n".join(documents), "application/x-ndjson")]


def _as_singles(documents: Sequence[bytes]) -> list[bytes]:
    return [_request(document, "application/json") for document in documents]


def _request(body: bytes, kind: str) -> bytes:
    return encode("/api/events", body, kind, KEYS["api_keys"])


def _counted(connections: int) -> str:
    return f"{connections} connection{'s' if connections > 1 else ''}"
