"""A channel that is not configured: what would have been sent is one log line, and marked as simulated in the history."""

from __future__ import annotations

from bongsu.model.outcome import Accepted, Outcome, Outgoing
from bongsu.runtime import telemetry


class Simulated:
    """Accepts everything and sends nothing."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self._log = telemetry.log("bongsu.deliver")

    async def send(self, outgoing: Outgoing) -> Outcome:
        # Member and type, but neither address nor text: more people read a log than a message.
        self._log.info(
            "simulated",
            channel=self.channel,
            member=outgoing.member_id,
            type=outgoing.type,
            delivery=outgoing.delivery_id,
            characters=len(outgoing.title) + len(outgoing.body),
        )
        return Accepted(reference=f"simulated-{outgoing.delivery_id}", is_simulated=True)

    async def close(self) -> None: ...
