"""The FCM simulator with a ledger of times: how much of each campaign it has accepted, and when each of the other pushes.

Its usual ledger keeps every message, and its totals are a walk through all of them: with a million it would be the slow one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import httpx
import uvloop
from tests.simulator.running import Simulator
from tests.support.processes import WAIT_SECONDS, forks

from bongsu.simulator import serve, server
from bongsu.simulator.ledger import Entry, Ledger, Try
from bongsu.simulator.provider import Provider
from bongsu.simulator.replies import Reply

# What the titles of campaigns begin with. Pushes with any other title are known by their tokens.
CAMPAIGN_TITLE = "campaign"


@dataclass(frozen=True)
class Sent:
    """How many pushes of a campaign were accepted, and when the last of them."""

    count: int = 0
    last: float = 0.0


@dataclass(frozen=True)
class Push:
    """When a push came in, and when it was accepted: answered, that is. Both by time.monotonic(), which all processes of a
    machine share."""

    sent: float
    accepted: float


class _Times(Ledger):
    """Nothing is kept of the messages."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()
        self._lasts: dict[str, float] = {}
        self._others: dict[str, tuple[float, float]] = {}
        self._accepted: Entry | None = None

    def entry(self, key: str, token: str) -> Entry:
        return Entry(key, token)

    def arrived(self, entry: Entry, collapse_ids: list[str], expiry: float | None, epoch: float) -> None:
        """Of no interest here."""

    def answered(self, entry: Entry, one: Try) -> None:
        self._accepted = entry if one.is_accepted else None

    def answer_after(self, seconds: float) -> None:
        """The answer to the last one will be written then."""
        if self._accepted is None:
            return
        now = time.monotonic()
        title = self._accepted.text.get("title", "")
        if title.startswith(CAMPAIGN_TITLE):
            self._counts[title] += 1
            self._lasts[title] = max(self._lasts.get(title, 0.0), now + seconds)
        else:
            self._others[self._accepted.token] = now, now + seconds

    def totals(self) -> dict[str, Any]:
        return {"campaigns": {title: (count, self._lasts[title]) for title, count in self._counts.items()}}

    def to_json(self, message: str | None = None, token: str | None = None) -> dict[str, Any]:
        return self._others


class _TimedProvider(Provider):
    def reset(self) -> None:
        super().reset()
        self.ledger = self.times = _Times()

    def send(self, project: str, authorization: str, body: bytes) -> Reply:
        reply = super().send(project, authorization, body)
        self.times.answer_after(reply.delay)
        return reply


class Tally:
    """A running simulator that answers after about that many milliseconds."""

    def __init__(self, simulator: Simulator, pid: int, millis: float) -> None:
        self._simulator = simulator
        self.address = simulator.address
        self.pid = pid
        simulator.configure(latency={"medianMs": millis})

    async def campaign(self, title: str) -> Sent:
        stats = await asyncio.to_thread(self._simulator.stats)
        return Sent(*stats["campaigns"].get(title, ()))

    async def others(self) -> dict[str, Push]:
        """The last push to each token that belongs to no campaign."""
        ledger = await asyncio.to_thread(self._simulator.ledger)
        return {token: Push(*times) for token, times in ledger.items()}


@contextlib.contextmanager
def tallying(millis: float) -> Iterator[Tally]:
    """In a process of its own, until the block ends."""
    here, there = forks.Pipe()
    process = forks.Process(target=_simulate, args=(there,))
    process.start()
    there.close()
    try:
        assert here.poll(WAIT_SECONDS), "the simulator does not come up"
        with httpx.Client(base_url=here.recv(), timeout=WAIT_SECONDS, trust_env=False) as client:
            assert process.pid is not None
            yield Tally(Simulator(str(client.base_url), client), process.pid, millis)
    finally:
        process.terminate()
        process.join(WAIT_SECONDS)
        here.close()


def _simulate(there: Connection) -> None:
    with patch.object(server, "Provider", _TimedProvider), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve("127.0.0.1", 0, on_ready=there.send))
