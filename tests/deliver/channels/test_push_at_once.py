"""What goes at once takes its place in pace and quota like everything else, and what cannot takes none."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bongsu.deliver.channels.limits.pace import Pace
from bongsu.outcome import Accepted
from tests.deliver.channels.test_push import WAYS, Clock, PromptPush, outgoing, pushing
from tests.simulator.running import Simulator


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WAYS, "now", PromptPush)


class Portion:
    """So many sends of the quota are at hand."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self) -> bool:
        is_there = self.left > 0
        self.left -= is_there
        return is_there

    def give_back(self) -> None:
        self.left += 1


def places(pace: Pace, now: float) -> int:
    """How many may go now."""
    return sum(pace.take(now) for _ in range(100))


async def test_what_cannot_go_at_once_uses_up_nothing(simulator: Simulator) -> None:
    clock, pace, portion = Clock(), Pace(500, ramp_seconds=0.0), Portion(3)
    async with pushing(simulator.address, clock=clock, pace=pace) as push:
        assert isinstance(push, PromptPush)
        push._quota = cast(Any, portion)
        push._wire._heads.clear()  # so that it finds no connection
        assert not push.send_at_once(outgoing(), lambda _: None)
        portion.left, left = 0, portion.left
        assert not push.send_at_once(outgoing(), lambda _: None)
    # Of five places one was taken when it opened.
    assert (left, places(pace, clock())) == (3, 4)


@pytest.mark.parametrize(("quota", "per_minute"), [(2, 50_000), (100, 300)])
async def test_no_more_goes_at_once_than_quota_and_pace_allow(simulator: Simulator, quota: int, per_minute: int) -> None:
    clock, portion = Clock(), Portion(quota)
    pace = Pace(per_minute, ramp_seconds=0.0)
    async with pushing(simulator.address, clock=clock, pace=pace) as push:
        assert isinstance(push, PromptPush)
        push._quota = cast(Any, portion)
        for _ in range(2):
            assert isinstance(await push.send(outgoing()), Accepted)
        assert not push.send_at_once(outgoing(), lambda _: None)
        assert (push.at_once, portion.left) == (2, quota - 2)
