"""Two sides taking turns: how the cost of ours compares with a baseline's, round by round.

A machine is never quiet. What disturbs one turn disturbs its neighbour as much, so sides alternate in short turns, ratios
are formed within a round, and the middle one of many rounds is what is reported. Still, a side of three processes loses
more to a stranger's work than a side of two, so a round waits a while for strangers to finish.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psutil
from rich.progress import Progress

# What is timed. One that has to set up or clear away for itself answers how many seconds of it count; else all do. Where
# memory is compared it answers how many bytes.
Action = Callable[[], Awaitable[float | None]]

ROUNDS = 15
QUICK_ROUNDS = 5
# After this no round is begun beyond the few that any result needs: more would tell nothing new.
SECONDS_A_CONTEST = 120.0
# Before a round, how busy others may keep the machine, how long that is looked at, and how long it is waited for.
CALM_PERCENT = 10.0
CALM_LOOK_SECONDS = 0.2
CALM_PATIENCE_SECONDS = 10.0


class Measure(StrEnum):
    """What a ratio compares: ours over the baseline's, in time or memory (lower is better) or in speed (higher is)."""

    TIME = "time"
    SPEED = "speed"
    MEMORY = "memory"

    @property
    def is_cost(self) -> bool:
        return self is not Measure.SPEED


async def nothing() -> None:
    """For contests that need no preparation between rounds."""


@dataclass(frozen=True)
class Contest:
    """Ours against a baseline. A round is `prepare`, which is not measured, then `turns` times baseline and ours."""

    name: str
    against: str
    unit: str
    measure: Measure
    baseline: Action
    ours: Action
    prepare: Callable[[], Awaitable[object]] = nothing
    turns: int = 1
    units_a_turn: int = 1
    # Of a baseline so slow that fewer have to do; None: as many as ours.
    baseline_units_a_turn: int | None = None
    # A ratio: at most that for time and memory, at least that for speed. None: the row informs, nothing is promised.
    budget: float | None = None

    async def hold(self, progress: Progress, rounds: int) -> Comparison:
        """A first round that warms both sides up, then the ones that count."""
        task = progress.add_task(self.name, total=rounds)
        deadline = time.monotonic() + SECONDS_A_CONTEST
        await self._round(0)
        seconds: list[tuple[float, float]] = []
        while len(seconds) < QUICK_ROUNDS or (len(seconds) < rounds and time.monotonic() < deadline):
            seconds.append(await self._round(len(seconds)))
            progress.advance(task)
        progress.update(task, total=len(seconds))
        return Comparison(self.name, self.against, self.unit, self.measure, self.budget, tuple(seconds))

    async def _round(self, number: int) -> tuple[float, float]:
        """Seconds a unit of the baseline and of ours, or bytes."""
        await self.prepare()
        gc.collect()  # nobody pays for another's garbage
        await _calm()
        theirs = ours = 0.0
        for turn in range(number, number + self.turns):
            # Who goes first changes, because the second finds what the first left: caches, half-filled pages.
            if turn % 2:
                ours += await _timed(self.ours)
                theirs += await _timed(self.baseline)
            else:
                theirs += await _timed(self.baseline)
                ours += await _timed(self.ours)
        return theirs / self.turns / (self.baseline_units_a_turn or self.units_a_turn), ours / self.turns / self.units_a_turn


async def _calm() -> None:
    """Wait until the machine has little else to do, or patience ends. We do nothing meanwhile: what is busy are others."""
    # What was written before is on the disk then: else who waits for the disk more often pays for all of it.
    await asyncio.to_thread(os.sync)
    deadline = time.monotonic() + CALM_PATIENCE_SECONDS
    psutil.cpu_percent()
    while time.monotonic() < deadline:
        await asyncio.sleep(CALM_LOOK_SECONDS)
        if psutil.cpu_percent() < CALM_PERCENT:
            return


async def _timed(action: Action) -> float:
    started = time.perf_counter()
    counted = await action()
    return time.perf_counter() - started if counted is None else counted


@dataclass(frozen=True)
class Comparison:
    """What a contest found: seconds a unit, or bytes of memory, (baseline, ours), for each round."""

    name: str
    against: str
    unit: str
    measure: Measure
    budget: float | None
    seconds: tuple[tuple[float, float], ...]

    @property
    def ratios(self) -> list[float]:
        if self.measure.is_cost:
            return [ours / baseline for baseline, ours in self.seconds]
        return [baseline / ours for baseline, ours in self.seconds]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.ratios), max(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.ratios) < 2:
            return self.spread
        first, _, third = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return first, third

    @property
    def is_met(self) -> bool | None:
        if self.budget is None:
            return None
        return self.ratio <= self.budget if self.measure.is_cost else self.ratio >= self.budget

    @property
    def baseline_seconds(self) -> float:
        return statistics.median(baseline for baseline, _ in self.seconds)

    @property
    def our_seconds(self) -> float:
        return statistics.median(ours for _, ours in self.seconds)

    def as_json(self) -> dict[str, Any]:
        """The rounds, and for readers without a calculator what follows from them."""
        return {
            "name": self.name,
            "against": self.against,
            "unit": self.unit,
            "measure": self.measure.value,
            "budget": self.budget,
            "ratio": round(self.ratio, 4),
            "spread": [round(one, 4) for one in self.spread],
            "quartiles": [round(one, 4) for one in self.quartiles],
            "seconds": [[float(f"{one:.4g}") for one in pair] for pair in self.seconds],
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Comparison:
        seconds = tuple((baseline, ours) for baseline, ours in found["seconds"])
        measure = Measure(found["measure"])
        return cls(found["name"], found["against"], found["unit"], measure, found["budget"], seconds)
