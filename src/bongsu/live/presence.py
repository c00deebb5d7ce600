"""Presence: which members have a connection open, on any instance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bongsu.live.member_state import OpenStreams
from bongsu.live.registry import INSTANCES, key_of
from bongsu.runtime.redis import AWAY, redis_client
from bongsu.settings import Settings


class Presence(Protocol):
    """The interface of LocalPresence and RedisPresence."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def online(self, member_ids: Sequence[str]) -> set[str] | None:
        """Those of the members who are connected. None: it is not known now."""


class LocalPresence:
    """For one process, which is all there is without Redis."""

    def __init__(self, open_streams: OpenStreams | None) -> None:
        """Without streams, in a process that has none: it is never known."""
        self._open_streams = open_streams

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def online(self, member_ids: Sequence[str]) -> set[str] | None:
        if self._open_streams is None:
            return None
        return {member_id for member_id in member_ids if self._open_streams.of(member_id)}


class RedisPresence:
    """Reads the registry of connections, in one round trip. Those of instances whose lease has expired do not count."""

    def __init__(self, url: str) -> None:
        self._redis = redis_client(url, retries=1)

    async def start(self) -> None: ...

    async def stop(self) -> None:
        await self._redis.aclose()

    async def online(self, member_ids: Sequence[str]) -> set[str] | None:
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.time()
        pipeline.zrange(INSTANCES, 0, -1, withscores=True)
        for member_id in member_ids:
            pipeline.zrange(key_of(member_id), 0, -1)
        try:
            answers: list[Any] = await pipeline.execute()
        except AWAY:
            return None
        (seconds, micros), leases, *held = answers
        now = seconds * 1000 + micros // 1000
        alive = {instance for instance, valid_until in leases if valid_until >= now}
        return {
            member_id
            for member_id, connections in zip(member_ids, held, strict=True)
            if any(connection.partition(b":")[0] in alive for connection in connections)
        }


def presence(settings: Settings, open_streams: OpenStreams | None) -> Presence:
    return RedisPresence(settings.redis_url) if settings.redis_url else LocalPresence(open_streams)
