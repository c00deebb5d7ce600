"""In-app: the inbox row is the delivery, and it was committed before anybody asked for it to be sent."""

from __future__ import annotations

from bongsu.model import Channel
from bongsu.outcome import Accepted, Outcome, Outgoing


class InApp:
    """Has nothing left to do. The live stream hears of the row by a signal, and is no delivery: it may be missed."""

    channel = Channel.IN_APP

    async def send(self, outgoing: Outgoing) -> Outcome:
        return Accepted(reference=str(outgoing.notification_id))

    async def close(self) -> None: ...
