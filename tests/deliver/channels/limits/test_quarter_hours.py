"""What is LOW stays away from the quarter hours; nothing else waits for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bongsu.deliver.channels.limits.quarter_hours import seconds_until_calm
from bongsu.deliver.channels.push.sender import Push
from bongsu.model import Priority
from bongsu.model.outcome import Retry
from bongsu.settings import Settings
from tests.simulator.account import write_account
from tests.support.push import outgoing


@pytest.mark.parametrize(
    ("clock", "wait"),
    [
        ("08:59:00", 120), ("08:59:59", 61), ("09:00:00", 60), ("09:00:59", 1), ("09:01:00", 0), ("09:13:59", 0),
        ("09:14:00", 120), ("09:15:30", 30), ("09:30:00", 60), ("09:45:30", 30), ("09:46:00", 0), ("23:59:30", 90),
    ],
)  # fmt: skip
def test_the_two_minutes_around_each_are_waited_for(clock: str, wait: float) -> None:
    assert seconds_until_calm(datetime.fromisoformat(f"2026-03-01T{clock}+09:00")) == wait


@pytest.mark.parametrize("priority", Priority)
async def test_only_what_is_low_waits(tmp_path: Path, priority: Priority) -> None:
    now = datetime(2026, 3, 1, 9, 0, 30, tzinfo=UTC)
    push = Push(Settings(fcm_credentials=write_account(tmp_path, "http://localhost:1/token")), today=lambda: now)
    held = push._hold(outgoing(priority=priority))
    if priority is Priority.LOW:
        assert isinstance(held, Retry)
        assert (held.code, held.after_seconds, held.is_held) == ("QUARTER_HOUR", 30, True)
        # What would be worth nothing by then goes now.
        assert push._hold(outgoing(priority=priority, expires_at=now + timedelta(seconds=29))) is None
        now += timedelta(seconds=30)
        assert push._hold(outgoing(priority=priority)) is None
    else:
        assert held is None
    await push.close()
