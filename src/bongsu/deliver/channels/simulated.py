"""A channel nobody has configured: what would have gone out is told to the log, and marked as simulated in history."""

from __future__ import annotations

from bongsu import telemetry
from bongsu.model import Channel
from bongsu.outcome import Accepted, Outcome, Outgoing


class Simulated:
    """Takes everything on and sends nothing."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._log = telemetry.log("bongsu.deliver")

    async def send(self, outgoing: Outgoing) -> Outcome:
        # Who and what kind, but neither address nor text: a log is read by more people than a message.
        self._log.info(
            "simulated",
            channel=self.channel.value,
            member=outgoing.member_id,
            type=outgoing.type,
            delivery=outgoing.delivery_id,
            characters=len(outgoing.title) + len(outgoing.body),
        )
        return Accepted(reference=f"simulated-{outgoing.delivery_id}", is_simulated=True)

    async def close(self) -> None: ...
