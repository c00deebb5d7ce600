"""Critical and ordinary events by turns, at a steady rate, each for another member; and how long each took to be sent."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import uuid4

import orjson

from bench.client import Client, encode
from bench.ground import KEYS
from bench.tally import Tally

# Of both kinds together: five critical and five ordinary ones.
EVENTS_A_SECOND = 10
# More than can be waiting for an answer at once, unless something is wrong.
CONNECTIONS = 32
# From one member to the next that gets an event: all over the ids, and prime, so that it takes long until one gets a second.
STRIDE = 7_919
LOOK_SECONDS = 0.1
PATIENCE_SECONDS = 120.0


class Kind(StrEnum):
    CRITICAL = "reservation.confirmed"
    ORDINARY = "follow.created"


@dataclass(frozen=True)
class Latencies:
    """Seconds from the first byte of the request until it was answered, until FCM had the push, until FCM accepted it."""

    answered: Sequence[float]
    sent: Sequence[float]
    accepted: Sequence[float]

    def __add__(self, other: Latencies) -> Latencies:
        return Latencies((*self.answered, *other.answered), (*self.sent, *other.sent), (*self.accepted, *other.accepted))


def p99(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[98]


@dataclass
class _Sent:
    kind: Kind
    token: str
    began: float
    answered: float = 0.0


class Sends:
    """Sends by the clock, whether or not the last event was answered."""

    def __init__(self, port: int, tally: Tally, members: int) -> None:
        self._port = port
        self._tally = tally
        self._members = members
        self._number = 0

    async def run(self, seconds: float) -> dict[Kind, Latencies]:
        async with self.running() as found:
            await asyncio.sleep(seconds)
        return found

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[dict[Kind, Latencies]]:
        """Until the block ends; what was found is there once the last of them was sent."""
        found: dict[Kind, Latencies] = {}
        sent: list[_Sent] = []
        free: asyncio.Queue[Client] = asyncio.Queue()
        for _ in range(CONNECTIONS):
            free.put_nowait(await Client.connect(self._port))
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._send_all(group, free, sent))
            yield found
            sending.cancel()
        while not free.empty():
            free.get_nowait().close()
        found |= await self._latencies(sent)

    async def _send_all(self, group: asyncio.TaskGroup, free: asyncio.Queue[Client], sent: list[_Sent]) -> None:
        first = time.monotonic()
        while True:
            await asyncio.sleep(max(0.0, first + len(sent) / EVENTS_A_SECOND - time.monotonic()))
            one, request = self._next()
            sent.append(one)
            group.create_task(_send(free, one, request))

    def _next(self) -> tuple[_Sent, bytes]:
        self._number += 1
        member = 1 + self._number * STRIDE % self._members
        kind = Kind.CRITICAL if self._number % 2 else Kind.ORDINARY
        return _Sent(kind, f"token-{member}", 0.0), post_event(kind, targetId=f"member-{member:08}", actorId=str(uuid4()))

    async def _latencies(self, sent: Sequence[_Sent]) -> dict[Kind, Latencies]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                pushes = await self._tally.others()
                if all(one.token in pushes and pushes[one.token].sent >= one.began for one in sent):
                    break
                await asyncio.sleep(LOOK_SECONDS)
        return {
            kind: Latencies(
                [one.answered - one.began for one in sent if one.kind is kind],
                [pushes[one.token].sent - one.began for one in sent if one.kind is kind],
                [pushes[one.token].accepted - one.began for one in sent if one.kind is kind],
            )
            for kind in Kind
        }


async def _send(free: asyncio.Queue[Client], one: _Sent, request: bytes) -> None:
    client = await free.get()
    one.began = time.monotonic()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await client.send(request)
    one.answered = time.monotonic()
    free.put_nowait(client)


def post_event(event_type: str, **fields: Any) -> bytes:
    """The request. What it is about is always something else, so that none is a duplicate."""
    event = {"eventType": event_type, "refId": str(uuid4()), "payload": {"actorName": "민수"}} | fields
    return encode("/api/events", orjson.dumps(event), "application/json", KEYS["api_keys"])
