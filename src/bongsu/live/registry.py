"""The connection registry: a member may have so many streams over all instances. One more closes the oldest of them."""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bongsu.errors import RedisUnreachable
from bongsu.runtime.group_commit import GroupCommit
from bongsu.runtime.loop import Loop
from bongsu.runtime.redis import AWAY, redis_client
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import DISCONNECT_TOPIC
from bongsu.settings import Settings

# An instance that has not renewed its lease for this long counts as dead. It renews three times as often, and its entries
# are gone within 20 s.
LEASE_SECONDS = 15.0
# Arrivals, departures or re-entries sent to Redis in one round trip.
BATCH = 500
# Arrivals waiting for Redis, more than one process serves. Beyond these a stream is refused, and the page comes back later.
ARRIVING_LIMIT = 20_000
# Departures not sent to Redis yet. Beyond these they are dropped: their entries expire (see `_lifetime`).
DEPARTED_LIMIT = 100_000


class Registry(Protocol):
    """The interface of LocalRegistry and RedisRegistry."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def new_id(self) -> str:
        """A connection id no other connection has, on any instance."""

    async def enter(self, member_id: str, connection_id: str) -> list[str]:
        """Add a connection; announce and return those that have to be closed for it. Raises RedisUnreachable, TooBusy."""

    def leave(self, member_id: str, connection_id: str) -> None:
        """Remove a connection, soon. Never fails."""

    def enter_again(self) -> None:
        """Announcements may have been missed: enter every connection of this instance again."""


def announce_disconnect(signals: Signals, member_id: str, connection_ids: Iterable[str]) -> None:
    for connection_id in connection_ids:
        signals.send(DISCONNECT_TOPIC, json.dumps({"memberId": member_id, "connectionId": connection_id}).encode())


class LocalRegistry:
    """For one process, which is all there is without Redis."""

    def __init__(self, signals: Signals, limit: int) -> None:
        self._signals = signals
        self._limit = limit
        # Dictionaries keep the order of arrival.
        self._members: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._count = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def new_id(self) -> str:
        self._count += 1
        return str(self._count)

    async def enter(self, member_id: str, connection_id: str) -> list[str]:
        held = self._members[member_id]
        held[connection_id] = None
        evicted = list(held)[: -self._limit]
        for evicted_id in evicted:
            del held[evicted_id]
        announce_disconnect(self._signals, member_id, evicted)
        return evicted

    def leave(self, member_id: str, connection_id: str) -> None:
        held = self._members.get(member_id, {})
        held.pop(connection_id, None)
        if not held:
            self._members.pop(member_id, None)

    def enter_again(self) -> None: ...


# A member's connections are a sorted set of "instance:number" by arrival time in microseconds. In one atomic step: remove
# those of dead instances and those older than a stream can be, add the new one, return the oldest beyond the limit. These
# stay until their own instances remove them: repeated because an answer or a signal was lost, it returns them again.
# The key has the member in braces, which is the hash tag of a Redis cluster.
# ARGV: connection id, score (0 for now), limit, lifetime in seconds, dead instances.
_ENTER = """
local now = redis.call('TIME')
local micros = now[1] * 1000000 + now[2]
local score = tonumber(ARGV[2])
if score == 0 then score = micros end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', micros - tonumber(ARGV[4]) * 1000000)
if #ARGV > 4 then
  for _, entry in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    for dead = 5, #ARGV do
      if string.sub(entry, 1, #ARGV[dead] + 1) == ARGV[dead] .. ':' then redis.call('ZREM', KEYS[1], entry) end
    end
  end
end
redis.call('ZADD', KEYS[1], 'NX', score, ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[4])
local evicted = {}
local surplus = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[3])
if surplus > 0 then evicted = redis.call('ZRANGE', KEYS[1], 0, surplus - 1) end
return {string.format('%.0f', score), evicted}
"""

# Renew this instance's lease. Returns whether the lease was valid until now, and the instances whose leases have expired,
# which are kept as long as an entry of theirs may exist. ARGV: instance, lease and lifetime in milliseconds.
_RENEW = """
local now = redis.call('TIME')
local millis = now[1] * 1000 + math.floor(now[2] / 1000)
local valid_until = redis.call('ZSCORE', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], millis + tonumber(ARGV[2]), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', millis - tonumber(ARGV[3]))
local was_valid = valid_until and tonumber(valid_until) >= millis
return {was_valid and 1 or 0, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', millis)}
"""

INSTANCES = "bongsu:sse:instances"


def key_of(member_id: str) -> str:
    return f"bongsu:sse:{{{member_id}}}"


@dataclass(eq=False)
class _Entry:
    member_id: str
    connection_id: str
    # When it was entered, by Redis's clock: it keeps its age when it is entered again.
    score: int = 0
    # Its caller was cancelled while it was being entered.
    is_abandoned: bool = False


class RedisRegistry(Loop):
    """For any number of instances. Each renews one lease; entries of an instance whose lease has expired do not count.

    Arrivals are a group commit. Departures and renewals are sent by the loop, or by the next arrivals before themselves, so
    that a page that reloads is not counted twice. After Redis has lost its data, or after this instance was taken for dead,
    its connections are entered again with the age they have.
    """

    def __init__(self, url: str, signals: Signals, settings: Settings, lease_seconds: float | None = None) -> None:
        self._lease = LEASE_SECONDS if lease_seconds is None else lease_seconds
        super().__init__("connection-registry", poll_seconds=self._lease / 3)
        self._redis = redis_client(url, retries=1)
        self._signals = signals
        self._limit = settings.sse_max_connections
        # No stream stays open this long: an older entry is wrong, even if its instance has a lease.
        self._lifetime = max(1, round(2 * settings.sse_timeout_seconds))
        self._instance = os.urandom(6).hex()
        self._count = 0
        self._here: dict[str, _Entry] = {}
        self._arrivals: GroupCommit[_Entry, list[str]] = GroupCommit(
            "connection-arrivals",
            self._write_arrivals,
            batch_limit=BATCH,
            waiting_limit=ARRIVING_LIMIT,
            common_errors=(RedisUnreachable,),
        )
        self._entering_again: list[_Entry] = []
        self._departed: list[_Entry] = []
        self._dead: list[str] = []
        self._renew_at = 0.0
        # Held while Redis is written, so that departures sent by the loop are there before later arrivals.
        self._writing = asyncio.Lock()

    def new_id(self) -> str:
        self._count += 1
        return f"{self._instance}:{self._count}"

    async def enter(self, member_id: str, connection_id: str) -> list[str]:
        entry = _Entry(member_id, connection_id)
        try:
            (evicted,) = await self._arrivals.submit([entry])
        except asyncio.CancelledError:
            entry.is_abandoned = True
            self.leave(member_id, connection_id)
            raise
        return evicted

    def leave(self, member_id: str, connection_id: str) -> None:
        entry = self._here.pop(connection_id, None)
        if entry is not None and len(self._departed) < DEPARTED_LIMIT:
            self._departed.append(entry)
            self.wake()

    def enter_again(self) -> None:
        """A connection that missed its disconnect is still the oldest, and is announced again."""
        # Redis may have been restarted without data: renew the lease first, or other instances could not see it expire.
        self._renew_at = 0.0
        self._enter_all_again()

    def _enter_all_again(self) -> None:
        self._entering_again = list(self._here.values())
        self.wake()

    async def start(self) -> None:
        await super().start()
        await self._arrivals.start()

    async def stop(self) -> None:
        await self._arrivals.stop()
        await super().stop()
        try:
            await self._send_departures(self._departed)
            await self._redis.zrem(INSTANCES, self._instance)
        except AWAY:
            self._log.info("Redis unreachable, leaving the lease to expire")
        await self._redis.aclose()

    async def tick(self) -> int:
        async with self._writing:
            try:
                return await self._catch_up() + await self._write_again()
            except AWAY:
                self._renew_at = 0.0
                return 0

    async def _write_arrivals(self, arriving: Sequence[_Entry]) -> list[list[str]]:
        async with self._writing:
            try:
                await self._catch_up()
                evicted = await self._send_arrivals(arriving)
            except AWAY as error:
                self._renew_at = 0.0
                # They may have been entered all the same: left there, they would count for an hour.
                self._departed += arriving[: max(0, DEPARTED_LIMIT - len(self._departed))]
                raise RedisUnreachable(str(error)) from error
        for entry in arriving:
            self._here[entry.connection_id] = entry
            if entry.is_abandoned:
                self.leave(entry.member_id, entry.connection_id)
        return evicted

    async def _write_again(self) -> int:
        batch, self._entering_again = self._entering_again[:BATCH], self._entering_again[BATCH:]
        try:
            await self._send_arrivals([entry for entry in batch if entry.connection_id in self._here])
        except AWAY:
            self._entering_again = batch + self._entering_again
            raise
        return len(batch)

    async def _catch_up(self) -> int:
        """Renew the lease if it is time, and send departures. Returns how many departures."""
        if asyncio.get_running_loop().time() >= self._renew_at:
            await self._renew()
        batch, self._departed = self._departed[:BATCH], self._departed[BATCH:]
        try:
            await self._send_departures(batch)
        except AWAY:
            self._departed = batch + self._departed
            raise
        return len(batch)

    async def _renew(self) -> None:
        lease, lifetime = round(self._lease * 1000), self._lifetime * 1000
        answer: Any = await self._redis.eval(_RENEW, 1, INSTANCES, self._instance, lease, lifetime)
        was_valid, dead = answer
        self._dead = [instance.decode() for instance in dead]
        self._renew_at = asyncio.get_running_loop().time() + self._lease / 3
        if not was_valid and self._here:
            self._log.info("lease unknown to Redis, entering connections again", connections=len(self._here))
            self._enter_all_again()

    async def _send_departures(self, departed: Sequence[_Entry]) -> None:
        if not departed:
            return
        pipeline = self._redis.pipeline(transaction=False)
        for entry in departed:
            pipeline.zrem(key_of(entry.member_id), entry.connection_id)
        await pipeline.execute()

    async def _send_arrivals(self, arriving: Sequence[_Entry]) -> list[list[str]]:
        """Enter them, announce whom they evict, and return that for each."""
        if not arriving:
            return []
        pipeline = self._redis.pipeline(transaction=False)
        for entry in arriving:
            own: tuple[str | int, ...] = (entry.connection_id, entry.score, self._limit, self._lifetime, *self._dead)
            pipeline.eval(_ENTER, 1, key_of(entry.member_id), *own)
        evicted: list[list[str]] = []
        announced: set[str] = set()
        for entry, (score, gone) in zip(arriving, await pipeline.execute(), strict=True):
            entry.score = int(score)
            evicted.append([one for connection_id in gone if (one := connection_id.decode()) not in announced])
            announced.update(evicted[-1])
            announce_disconnect(self._signals, entry.member_id, evicted[-1])
        return evicted
