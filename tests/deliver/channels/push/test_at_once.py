"""What goes at once takes its place in pace and quota like everything else, and what cannot takes none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from bongsu.deliver.channels.limits.pace import Pace
from bongsu.model.outcome import Accepted, Misconfigured, Outcome, Retry
from tests.simulator.account import write_account
from tests.simulator.running import Simulator
from tests.support.clocks import ManualClock
from tests.support.push import outgoing, pushing


class Portion:
    """So many sends of the quota are at hand."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, *, is_first: bool = False) -> bool:
        is_there = self.left > 0
        self.left -= is_there
        return is_there

    def give_back(self) -> None:
        self.left += 1

    async def wait(self, *, is_first: bool = False) -> bool:
        return self.take()


class Endless(Portion):
    """None is at hand, and none ever comes."""

    def __init__(self) -> None:
        super().__init__(0)

    async def wait(self, *, is_first: bool = False) -> bool:
        await asyncio.Event().wait()
        raise AssertionError


def places(pace: Pace, now: float) -> int:
    """How many may go now."""
    return sum(pace.take(now) for _ in range(100))


async def test_a_send_that_cannot_be_posted_uses_up_nothing(simulator: Simulator, tmp_path: Path) -> None:
    simulator.configure(oauth={"required": True, "fault": "refused"})
    clock, pace, portion = ManualClock(), Pace(500, ramp_seconds=0.0), Portion(3)
    account = write_account(tmp_path, f"{simulator.address}/token")
    async with pushing(simulator.address, clock=clock, pace=pace, credentials=account) as push:
        push._quota = cast(Any, portion)
        assert isinstance(await push.send(outgoing()), Misconfigured)
    assert (portion.left, places(pace, clock())) == (3, 5)


@pytest.mark.parametrize(("quota", "per_minute"), [(2, 50_000), (100, 300)])
async def test_no_more_goes_at_once_than_quota_and_pace_allow(simulator: Simulator, quota: int, per_minute: int) -> None:
    clock, portion = ManualClock(), Portion(quota)
    pace = Pace(per_minute, ramp_seconds=0.0)
    async with pushing(simulator.address, clock=clock, pace=pace) as push:
        push._quota = cast(Any, portion)
        pace.reserve(clock())
        outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        for _ in range(2):
            assert push.start(outgoing(), outcomes.put_nowait) is None
            assert isinstance(await outcomes.get(), Accepted)
        waits = push.start(outgoing(), outcomes.put_nowait)
        assert waits is not None
        waits.cancel()
        assert portion.left == quota - 2


@pytest.mark.parametrize("is_critical", [False, True])
async def test_a_wait_that_is_given_up_uses_up_nothing(simulator: Simulator, is_critical: bool) -> None:
    clock, pace = ManualClock(), Pace(300, ramp_seconds=0.0)
    async with pushing(simulator.address, clock=clock, pace=pace) as push:
        push._quota = cast(Any, Endless())
        for _ in range(3):
            pace.reserve(clock())
        waits = [push.start(outgoing(is_critical=is_critical), lambda _outcome: None) for _ in range(4)]
        await asyncio.sleep(0)
        assert pace.waiting == 4
        for one in waits:
            assert one is not None
            assert push.is_waiting(one)
            one.cancel()
        await asyncio.wait([one for one in waits if one is not None])
        assert pace.waiting == 0


async def test_a_send_that_the_quota_holds_back_uses_up_no_place(simulator: Simulator) -> None:
    clock, pace = ManualClock(), Pace(300, ramp_seconds=0.0)
    async with pushing(simulator.address, clock=clock, pace=pace) as push:
        push._quota = cast(Any, Portion(0))
        assert isinstance(await push.send(outgoing()), Retry)
        assert places(pace, clock()) == 3
