"""Deliveries that wait to be sent, the simulator that they are sent to, and the dispatcher that sends them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tests.simulator.running import Simulator, simulating

from bench.bare_http import post_all, send_url
from bench.crowd import Crowd
from bench.ground import Ground
from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.channels.http.client import HttpClient
from bongsu.deliver.channels.limits.pace import Pace
from bongsu.deliver.channels.push.message import request_body
from bongsu.deliver.channels.push.sender import CONNECTIONS, Push
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.model import Channel, utc_now
from bongsu.model.channels import find_channel
from bongsu.model.outcome import Accepted, Outcome, Outgoing
from bongsu.store.core.query import same

# A quota that is never reached. FCM's own is 10,000 a second, and would be all that is measured on a fast machine.
NO_QUOTA = 600_000_000

# A delivery on a channel ($1), to a device of that name ($2), for up to so many ($3) of the notifications.
FILL = same("""
    INSERT INTO bongsu_deliveries (notification_id, member_id, message_id, channel, device_id, rank, due, created_at)
    SELECT n.notification_id, n.member_id, n.message_id, $1, $2, m.priority + 2, now(), now()
    FROM bongsu_notifications n JOIN bongsu_messages m ON m.message_id = n.message_id LIMIT $3""")
COUNT_SENT = same("SELECT count(*) AS count FROM bongsu_deliveries WHERE channel = 'PUSH' AND status = 'SUCCESS'")


@dataclass
class Outbound:
    """Members with a device each, the notification that all of them are to get, and the ways to send it."""

    crowd: Crowd
    simulator: Simulator
    dispatcher: Dispatcher
    client: HttpClient
    bodies: list[bytes] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.crowd.count

    @property
    def url(self) -> str:
        return send_url(self.simulator.address)

    async def fill(self, emails: int = 0) -> None:
        """One READY push for each member, and so many e-mails; nothing else, in the tables or in the simulator."""
        self.simulator.reset()
        async with self.crowd.store.transaction() as tx:
            await tx.execute(same("TRUNCATE bongsu_deliveries, bongsu_attempts")())
            await tx.execute(FILL("PUSH", "phone", self.count), FILL("EMAIL", None, emails))
        async with self.crowd.store.single() as tx:
            await tx.execute(same("VACUUM ANALYZE bongsu_deliveries, bongsu_attempts")())
            await tx.execute(same("CHECKPOINT")())

    async def carry(self) -> float:
        """Ours: claim, send and record until nothing is left."""
        began = time.perf_counter()
        self.dispatcher.wake()
        while await self.dispatcher.tick():
            pass
        seconds = time.perf_counter() - began
        await self._check()
        return seconds

    async def post(self) -> None:
        """The HTTP client alone, as many at once as we have under way."""
        await post_all(self.client, self.url, self.bodies, find_channel(Channel.PUSH).concurrency)

    async def _check(self) -> None:
        async with self.crowd.store.read() as tx:
            (row,) = await tx.fetch(COUNT_SENT())
        done = row["count"]
        assert done == self.count, f"{done} of {self.count} deliveries are recorded as sent"


@contextlib.asynccontextmanager
async def outbound(ground: Ground, count: int) -> AsyncIterator[Outbound]:
    """That many members with a notification from a real event, and everything that is needed to push it to their devices."""
    with simulating() as simulator:
        settings = (await ground.postgres()).model_copy(update={"fcm_url": simulator.address})
        crowd = await Crowd.gathered(settings, count)
        await crowd.tell()
        await _give_addresses(crowd)
        push = Push(settings, pace=Pace(NO_QUOTA, ramp_seconds=0.0))
        client = HttpClient(settings.send_timeout_seconds, CONNECTIONS, uses_proxy=False)
        made = Outbound(crowd, simulator, Dispatcher(crowd.store, push, settings), client)
        try:
            await made.fill()
            made.bodies = await _overheard(crowd)
            yield made
        finally:
            await client.close()
            await push.close()
            await crowd.leave()


async def _give_addresses(crowd: Crowd) -> None:
    async with crowd.store.single() as tx:
        await tx.execute(same("UPDATE bongsu_members SET email = member_id || '@example.com'")())
        await tx.execute(same("VACUUM ANALYZE")())


class _Ear:
    """A channel that keeps what push would have sent, so that baselines send the very same bytes."""

    channel = Channel.PUSH

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def send(self, outgoing: Outgoing) -> Outcome:
        body = request_body(outgoing, utc_now())
        assert isinstance(body, bytes), body
        self.bodies.append(body)
        return Accepted()

    async def close(self) -> None:
        """Nothing is open."""


async def _overheard(crowd: Crowd) -> list[bytes]:
    ear = _Ear()
    dispatcher = Dispatcher(crowd.store, GuardedSender(ear), crowd.settings)
    while await dispatcher.tick():
        pass
    assert len(ear.bodies) == crowd.count, f"{len(ear.bodies)} of {crowd.count} pushes were recorded"
    return ear.bodies


class SlowMail:
    """An e-mail provider that takes its time. When the first ones come it has been asked for a while already."""

    channel = Channel.EMAIL

    def __init__(self, seconds: float, at_once: int) -> None:
        self._seconds = seconds
        self._at_once = at_once
        self._asked = 0
        self._hung_up = asyncio.Event()
        self.is_full = asyncio.Event()

    async def send(self, outgoing: Outgoing) -> Outcome:
        del outgoing
        self._asked += 1
        # Answers come evenly, as they would after a minute, not all together as they would at the start.
        share = min(1.0, self._asked / self._at_once)
        if self._asked == self._at_once:
            self.is_full.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds * share):
                await self._hung_up.wait()
        return Accepted()

    def hang_up(self) -> None:
        """Answer everything at once: the turn is over."""
        self._hung_up.set()

    async def close(self) -> None:
        """Nothing is open."""
