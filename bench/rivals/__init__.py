"""What else people send with, each set up as well as it can be on this machine."""

from __future__ import annotations

from typing import Protocol


class Rival(Protocol):
    """Sends the same pushes to the same simulator, its own way."""

    name: str
    # How many it sends in a turn: they are slow, and a few hundred tell enough.
    count: int

    async def fill(self) -> None:
        """Put the work where it takes it from. Not timed, as our own rows are not."""

    async def send(self) -> float:
        """Send it all; the seconds that took."""
