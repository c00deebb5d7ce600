"""The lane of a priority: the number that messages and deliveries store. Deliveries of the lowest lane go first."""

from __future__ import annotations

from bongsu.model import Priority

LANE_OF = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
PRIORITY_OF = {lane: priority for priority, lane in LANE_OF.items()}
LANES = tuple(PRIORITY_OF)
