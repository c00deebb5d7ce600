"""Who used the processor: us, the database, the simulator. On two cores they share what a bare client has to itself."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Share:
    """Processor seconds of a piece of work, and how long it took by the clock."""

    ours: float
    postgres: float
    simulator: float
    elapsed: float

    def line(self, name: str, units: int) -> str:
        """As a row of a Markdown table, by the unit."""
        cells = (self.ours, self.postgres, self.simulator)
        each = " | ".join(f"{seconds / units * 1e6:,.0f} µs" for seconds in cells)
        return f"| {name} | {units / self.elapsed:,.0f}/s | {each} | {sum(cells) / self.elapsed:.2f} |"


HEAD = "| | sends/s | our process | PostgreSQL | simulator | cores busy |\n|---|--:|--:|--:|--:|--:|"


async def shared(work: Callable[[], Awaitable[object]], simulator_port: int) -> Share:
    """Do the work and see whose time it took."""
    family = psutil.Process().children(recursive=True)
    postgres = [one for one in family if one.name().startswith("postgres")]
    simulator = [one for one in family if one not in postgres and _listens(one, simulator_port)]
    assert simulator, "the simulator is none of our processes"
    groups = ([psutil.Process()], postgres, simulator)
    before = [_seconds(group) for group in groups]
    began = time.perf_counter()
    await work()
    elapsed = time.perf_counter() - began
    ours, database, provider = (_seconds(group) - was for group, was in zip(groups, before, strict=True))
    return Share(ours, database, provider, elapsed)


def _seconds(processes: list[psutil.Process]) -> float:
    return sum(float(times.user + times.system) for times in (one.cpu_times() for one in processes))


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        connections = process.net_connections(kind="tcp")
    except psutil.Error:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)
