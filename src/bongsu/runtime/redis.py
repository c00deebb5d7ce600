"""Redis clients: how one is made, and which exceptions mean that Redis is unreachable."""

from __future__ import annotations

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from bongsu.errors import BadSettings

# What redis-py raises while Redis is unreachable. It raises RuntimeError when a connection is closed while it is read.
AWAY = (RedisError, OSError, TimeoutError, RuntimeError)


def redis_client(url: str, retries: int) -> redis.asyncio.Redis:
    """A client that retries each command so many times, at once. Raises BadSettings for a URL it cannot use."""
    retry = Retry(NoBackoff(), retries)
    try:
        client = redis.asyncio.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=5, retry=retry)
        # Raises for unknown options in the URL, which from_url does not check.
        client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    except (ValueError, TypeError) as error:
        raise BadSettings(f"BONGSU_REDIS_URL cannot be used: {error}") from None
    return client
