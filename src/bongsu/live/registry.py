"""Who is connected: a member may have so many streams, over all instances. One more closes the oldest, wherever it is."""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from bongsu.errors import RedisUnreachable
from bongsu.runtime.loop import Loop
from bongsu.runtime.redis import AWAY, redis_client
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import DISCONNECT_TOPIC
from bongsu.settings import Settings

# An instance that says nothing for this long is taken for dead; three chances to speak, and ghosts are gone within 20 s.
LEASE_SECONDS = 15.0
# Connections and disconnections told to Redis at once.
BATCH = 500
# Departures that Redis has not been told of. Beyond these they are forgotten: the lifetime of an entry is a second net.
DEPARTED_LIMIT = 100_000


class Registry(Protocol):
    """What both kinds promise."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def new_id(self) -> str:
        """A connection id no other connection has, on any instance."""

    async def enter(self, member_id: str, connection_id: str) -> list[str]:
        """The connection is there; those that have to go for it were announced. Raises RedisUnreachable."""

    def leave(self, member_id: str, connection_id: str) -> None:
        """The connection is gone. Told soon, and never fails."""

    def enter_again(self) -> None:
        """Announcements may have been missed: make sure of every connection of this instance."""

    async def connections(self, member_id: str) -> list[str]:
        """Those of a member that are there, oldest first."""


def announce_disconnect(signals: Signals, member_id: str, connection_ids: Iterable[str]) -> None:
    for one in connection_ids:
        signals.send(DISCONNECT_TOPIC, json.dumps({"memberId": member_id, "connectionId": one}).encode())


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
        for one in evicted:
            del held[one]
        announce_disconnect(self._signals, member_id, evicted)
        return evicted

    def leave(self, member_id: str, connection_id: str) -> None:
        held = self._members.get(member_id, {})
        held.pop(connection_id, None)
        if not held:
            self._members.pop(member_id, None)

    def enter_again(self) -> None: ...

    async def connections(self, member_id: str) -> list[str]:
        return list(self._members.get(member_id, ()))


# A member's connections in the order they came, "instance:number" by its time in microseconds. In one step: forget those
# of dead instances and those too old to be true, add the new one, take out the oldest beyond the limit.
# Every key a script touches has the member in braces, so that a Redis cluster keeps them together.
_ENTER = """
local now = redis.call('TIME')
local micros = now[1] * 1000000 + now[2]
local score = tonumber(ARGV[2])
if score == 0 then score = micros end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', micros - tonumber(ARGV[4]) * 1000000)
if #ARGV > 4 then
  for _, one in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    for dead = 5, #ARGV do
      if string.sub(one, 1, #ARGV[dead] + 1) == ARGV[dead] .. ':' then redis.call('ZREM', KEYS[1], one) end
    end
  end
end
redis.call('ZADD', KEYS[1], 'NX', score, ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[4])
local evicted = {}
local surplus = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[3])
if surplus > 0 then
  evicted = redis.call('ZRANGE', KEYS[1], 0, surplus - 1)
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, surplus - 1)
end
return {string.format('%.0f', score), evicted}
"""

# This instance lives for another lease. Answers whether it was known to live until now, and which ones have died. The dead
# are remembered as long as an entry of theirs may be there.
_RENEW = """
local now = redis.call('TIME')
local millis = now[1] * 1000 + math.floor(now[2] / 1000)
local until_now = redis.call('ZSCORE', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], millis + tonumber(ARGV[2]), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', millis - tonumber(ARGV[3]))
local lived = until_now and tonumber(until_now) >= millis
return {lived and 1 or 0, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', millis)}
"""

_INSTANCES = "bongsu:sse:instances"


def key_of(member_id: str) -> str:
    return f"bongsu:sse:{{{member_id}}}"


@dataclass
class _Entry:
    member_id: str
    connection_id: str
    # When it came, by Redis's clock: it keeps its age if it has to be entered again.
    score: int = 0
    entered: asyncio.Future[list[str]] | None = None


class RedisRegistry(Loop):
    """For any number of instances. Each renews one lease, and who finds a lease ended forgets that instance's connections.

    Arrivals and departures of the same moment travel together. After Redis was emptied, or after this instance was taken
    for dead, its connections are entered again with the age they have.
    """

    def __init__(self, url: str, signals: Signals, settings: Settings, lease_seconds: float | None = None) -> None:
        self._lease = LEASE_SECONDS if lease_seconds is None else lease_seconds
        super().__init__("connection-registry", poll_seconds=self._lease / 3)
        self._redis = redis_client(url, retries=1)
        self._signals = signals
        self._limit = settings.sse_max_connections
        # The second net: nothing lives this long, so what is older is a ghost whatever else is believed of it.
        self._lifetime = max(1, round(2 * settings.sse_timeout_seconds))
        self._instance = os.urandom(6).hex()
        self._count = 0
        self._here: dict[str, _Entry] = {}
        self._arriving: list[_Entry] = []
        self._departed: list[_Entry] = []
        self._dead: list[str] = []
        self._renew_at = 0.0

    def new_id(self) -> str:
        self._count += 1
        return f"{self._instance}:{self._count}"

    async def enter(self, member_id: str, connection_id: str) -> list[str]:
        entered: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._arriving.append(_Entry(member_id, connection_id, entered=entered))
        self.wake()
        return await entered

    def leave(self, member_id: str, connection_id: str) -> None:
        entry = self._here.pop(connection_id, None)
        if entry is not None and len(self._departed) < DEPARTED_LIMIT:
            self._departed.append(entry)
            self.wake()

    async def connections(self, member_id: str) -> list[str]:
        try:
            await self._renew()
            held: Any = await self._redis.zrange(key_of(member_id), 0, -1)
        except AWAY as error:
            raise RedisUnreachable(str(error)) from error
        return [one for one in (each.decode() for each in held) if one.partition(":")[0] not in self._dead]

    def enter_again(self) -> None:
        """Each with the age it has: one that had to go, and did not hear of it, is the oldest still and is told again."""
        # Redis may have been restarted: whoever it knows from now on has to have a lease, or could not be found dead.
        self._renew_at = 0.0
        self._arrive_again()

    def _arrive_again(self) -> None:
        waiting = {entry.connection_id for entry in self._arriving}
        self._arriving += [entry for entry in self._here.values() if entry.connection_id not in waiting]
        self.wake()

    async def stop(self) -> None:
        await super().stop()
        self._refuse(self._arriving, "this instance is stopping")
        self._arriving = []
        try:
            await self._tell_departures(self._departed)
            await self._redis.zrem(_INSTANCES, self._instance)
        except AWAY:
            self._log.info("Redis is away: it will find out by itself that this instance has gone")
        await self._redis.aclose()

    async def tick(self) -> int:
        arriving, self._arriving = self._arriving[:BATCH], self._arriving[BATCH:]
        departed, self._departed = self._departed[:BATCH], self._departed[BATCH:]
        try:
            if asyncio.get_running_loop().time() >= self._renew_at:
                await self._renew()
            await self._tell_departures(departed)
            await self._tell_arrivals(arriving)
        except AWAY as error:
            # Who arrives is sent away for a moment. Who has gone is told of when Redis is back.
            self._refuse(arriving, str(error))
            self._arriving = [entry for entry in arriving if entry.entered is None] + self._arriving
            self._departed = departed + self._departed
            self._renew_at = 0.0
            return 0
        return len(arriving) + len(departed)

    async def _renew(self) -> None:
        keep = self._lifetime * 1000
        lease = round(self._lease * 1000)
        answer: Any = await self._redis.eval(_RENEW, 1, _INSTANCES, self._instance, lease, keep)
        lived, dead = answer
        self._dead = [one.decode() for one in dead]
        self._renew_at = asyncio.get_running_loop().time() + self._lease / 3
        if not lived and self._here:
            self._log.info("Redis did not know this instance any more: its connections are entered again")
            self._arrive_again()

    async def _tell_departures(self, departed: list[_Entry]) -> None:
        if not departed:
            return
        pipeline = self._redis.pipeline(transaction=False)
        for entry in departed:
            pipeline.zrem(key_of(entry.member_id), entry.connection_id)
        await pipeline.execute()

    async def _tell_arrivals(self, arriving: list[_Entry]) -> None:
        # Those who gave up waiting never came, and those entered again may have gone meanwhile.
        arriving = [
            one
            for one in arriving
            if (one.connection_id in self._here if one.entered is None else not one.entered.cancelled())
        ]
        if not arriving:
            return
        pipeline = self._redis.pipeline(transaction=False)
        for entry in arriving:
            own: tuple[str | int, ...] = (entry.connection_id, entry.score, self._limit, self._lifetime, *self._dead)
            pipeline.eval(_ENTER, 1, key_of(entry.member_id), *own)
        for entry, (score, evicted) in zip(arriving, await pipeline.execute(), strict=True):
            self._entered(entry, int(score), [one.decode() for one in evicted])

    def _entered(self, entry: _Entry, score: int, evicted: list[str]) -> None:
        entry.score = score
        entered, entry.entered = entry.entered, None
        announce_disconnect(self._signals, entry.member_id, evicted)
        if entered is None:
            return
        self._here[entry.connection_id] = entry
        if entered.cancelled():
            self.leave(entry.member_id, entry.connection_id)
        else:
            entered.set_result(evicted)

    def _refuse(self, arriving: list[_Entry], why: str) -> None:
        for entry in arriving:
            if entry.entered is not None and not entry.entered.done():
                entry.entered.set_exception(RedisUnreachable(why))
