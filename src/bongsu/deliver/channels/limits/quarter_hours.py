"""The quarter hours, at which most scheduled jobs run and FCM is busiest. Pure."""

from __future__ import annotations

from datetime import datetime

QUARTER = 15 * 60
# FCM asks to stay away from the two minutes around each.
AROUND = 60


def seconds_until_calm(now: datetime) -> float:
    """How long it is until the quarter hour is over; nothing when none is near. The same in every time zone there is."""
    since = now.timestamp() % QUARTER
    if since < AROUND:
        return AROUND - since
    return QUARTER + AROUND - since if since >= QUARTER - AROUND else 0.0
