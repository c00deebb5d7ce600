"""Signals between processes, over Redis pub/sub."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import redis.asyncio
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from bongsu.errors import BadSettings
from bongsu.runtime import telemetry
from bongsu.runtime.loop import Loop
from bongsu.runtime.signals import Listener, LocalSignals, Watcher

# One channel for all topics would wake everyone for everything; one per topic lets Redis do the sorting.
CHANNEL = "bongsu:signal:"
# Signals waiting for Redis. When it is full the oldest is dropped: it is the likeliest to be answered by polling already.
WAITING_LIMIT = 10_000
# Signals within this time are sent together: an event sends three, and each way to Redis costs more than what it carries.
# Longer → other processes hear of news later.
GATHER_SECONDS = 0.005
# How long a connection may be silent before it is asked whether it lives; as long again without an answer, and it is dead.
LIVENESS_SECONDS = 5.0
RECONNECT_SECONDS = 1.0
# Redis answers a subscription within a round trip. Who has waited this long is better told that it is away.
HEARD_SECONDS = 5.0

# What redis-py raises when Redis is away. RuntimeError is its word for a connection closed under a reader.
AWAY = (RedisError, OSError, TimeoutError, RuntimeError)


class RedisSignals(LocalSignals):
    """Signals between processes over Redis pub/sub. Within this process they do not need Redis, and do not wait for it."""

    def __init__(self, url: str) -> None:
        super().__init__()
        # One retry for sending: the first signal after a restart of Redis finds a connection that is dead already.
        self._sender = _Sender(redis_client(url, retries=1))
        # None for listening: a silent reconnect would hide that signals were missed.
        self._receiver = _Receiver(redis_client(url, retries=0), self._hear, self._tell_watchers)
        # What Redis brings back to the process that sent it is known by this mark, and passed over.
        self._mark = os.urandom(8)

    async def start(self) -> None:
        await self._sender.start()
        await self._receiver.start()

    async def stop(self) -> None:
        await self._receiver.stop()
        await self._sender.stop()

    def send(self, topic: str, data: bytes = b"") -> None:
        self._deliver(topic, data)
        self._sender.put(topic, self._mark + data)

    @contextlib.contextmanager
    def listen(self, topic: str, listener: Listener) -> Iterator[None]:
        with super().listen(topic, listener):
            self._receiver.want(topic)
            try:
                yield
            finally:
                if len(self._listeners[topic]) == 1:
                    self._receiver.leave(topic)

    async def heard(self, topic: str) -> bool:
        return await self._receiver.heard(topic)

    @property
    def is_together(self) -> bool:
        return not self._receiver.is_away

    async def heard_by_redis(self) -> None:
        """Wait until Redis knows of every listener here: from then on nothing is missed while Redis stays."""
        await self._receiver.subscribed.wait()

    def _hear(self, topic: str, data: bytes | None) -> None:
        if data is None:
            self._deliver(topic, None)
        elif not data.startswith(self._mark):
            self._deliver(topic, data[len(self._mark) :])


def redis_client(url: str, retries: int) -> redis.asyncio.Redis:
    retry = Retry(NoBackoff(), retries)
    try:
        client = redis.asyncio.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=5, retry=retry)
        # Where an option that there is not would show.
        client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    except (ValueError, TypeError) as error:
        raise BadSettings(f"BONGSU_REDIS_URL cannot be used: {error}") from None
    return client


class _Sender(Loop):
    """Carries signals to Redis in the order they were sent. The same signal waiting twice is sent once."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        super().__init__("signal-sender", poll_seconds=60)
        self._redis = client
        self._waiting: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        self._away = False
        self._send_at = 0.0

    def put(self, topic: str, data: bytes) -> None:
        self._waiting[topic, data] = None
        if len(self._waiting) > WAITING_LIMIT:
            self._waiting.popitem(last=False)
            telemetry.SIGNALS_DROPPED.inc()
        self.wake()

    async def stop(self) -> None:
        await super().stop()
        # A command that ends with a signal may be stopped before the signal is on its way.
        await self.tick()
        await self._redis.aclose()

    async def tick(self) -> int:
        if not self._waiting:
            return 0
        # The first goes at once; those that come soon after it go together.
        if (wait := self._send_at - time.monotonic()) > 0 and not self.is_stopping:
            await asyncio.sleep(wait)
        self._send_at = time.monotonic() + GATHER_SECONDS
        batch, self._waiting = self._waiting, OrderedDict()
        pipeline = self._redis.pipeline(transaction=False)
        for topic, data in batch:
            pipeline.publish(CHANNEL + topic, data)
        try:
            await pipeline.execute()
        except AWAY as error:
            # Polling finds the work; keeping old hints would only delay the new ones.
            telemetry.SIGNALS_DROPPED.inc(len(batch))
            if not self._away:
                self._log.warning("Redis is away: signals are dropped, polling goes on", error=str(error))
            self._away = True
        else:
            self._away = False
        return len(batch)


class _Receiver(Loop):
    """Holds the one subscribed connection, replaces it when it breaks, and then tells every listener it may have missed.

    Topics come and go one at a time and by the thousand, so each costs the same however many there are, and those that
    change while Redis is being told of others go to it together.
    """

    def __init__(self, client: redis.asyncio.Redis, hear: Callable[[str, bytes | None], None], tell: Watcher) -> None:
        super().__init__("signal-receiver", poll_seconds=RECONNECT_SECONDS)
        self._redis = client
        self._hear = hear
        self._tell = tell
        self._wanted: set[str] = set()
        # Wanted, and not confirmed on the connection there is; and of those, the ones that may have missed something.
        self._unconfirmed: set[str] = set()
        self._owed: set[str] = set()
        # Subscriptions asked for and not yet confirmed: only the last answer about a topic says how it is now.
        self._asked: Counter[str] = Counter()
        # To be told to Redis.
        self._fresh: set[str] = set()
        self._stale: set[str] = set()
        self._waiting: defaultdict[str, list[asyncio.Future[bool]]] = defaultdict(list)
        self._pubsub: PubSub | None = None
        self._is_pinged = False
        self._is_broken = False
        self._is_replaced = False
        self._applying: asyncio.Task[None] | None = None
        self.is_away = False
        self.subscribed = asyncio.Event()

    def want(self, topic: str) -> None:
        if topic in self._wanted:
            return
        self._wanted.add(topic)
        if topic in self._stale:
            self._stale.remove(topic)  # Redis has not been told yet that it was left
            if self._asked[topic] > 0:
                self._unconfirmed.add(topic)  # nor has it answered yet that it was wanted
        else:
            self._fresh.add(topic)
            self._unconfirmed.add(topic)
        self._change()

    def leave(self, topic: str) -> None:
        self._wanted.discard(topic)
        if topic in self._fresh:
            self._fresh.remove(topic)
        else:
            self._stale.add(topic)
        self._unconfirmed.discard(topic)
        self._owed.discard(topic)
        self._change()

    async def heard(self, topic: str) -> bool:
        if self._pubsub is not None and topic not in self._unconfirmed:
            return True
        if self.is_away:
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[topic].append(answer)
        try:
            async with asyncio.timeout(HEARD_SECONDS):
                return await answer
        except TimeoutError:
            return False
        finally:
            self._waiting[topic].remove(answer)
            if not self._waiting[topic]:
                del self._waiting[topic]

    async def stop(self) -> None:
        self._stopping.set()
        await self._hang_up()  # ends the read the tick is waiting in
        await super().stop()
        await self._redis.aclose()

    async def tick(self) -> int:
        try:
            pubsub = self._pubsub or await self._connect()
            message = await pubsub.get_message(timeout=LIVENESS_SECONDS)
            await self._take(message)
        except AWAY as error:
            await self._hang_up()
            if self.is_stopping:
                return 0
            if not self._is_broken:
                self._is_broken = True
                return 1  # only the connection may be gone, and Redis there: one more try says which
            if not self.is_away:
                self._log.warning("Redis is away: listening again when it is back", error=str(error))
                self._turn(is_away=True)
            return 0
        self._is_broken = False
        return 1

    async def _connect(self) -> PubSub:
        pubsub = self._redis.pubsub()
        # A topic nobody sends on keeps the connection in the subscribed state while no listener is there.
        await pubsub.subscribe(CHANNEL)
        assert pubsub.connection is not None
        pubsub.connection.register_connect_callback(self._reconnected)
        self._begin()
        # What an earlier connection was still being told is of no use to this one.
        self._fresh, self._is_replaced, self._applying = set(self._wanted), False, None
        self._pubsub = pubsub
        self._change()
        return pubsub

    async def _reconnected(self, _connection: object) -> None:
        """The client has replaced the connection by itself, between two reads. What it asked there we cannot know."""
        self._is_replaced = True

    def _begin(self) -> None:
        """A connection on which nothing is confirmed, after one on which something may have been missed."""
        self._unconfirmed, self._owed = set(self._wanted), set(self._wanted)
        self._stale = set()
        self._asked.clear()
        self.subscribed.clear()

    def _change(self) -> None:
        self._settle()
        if self._pubsub is not None and (self._applying is None or self._applying.done()):
            self._applying = asyncio.create_task(self._apply())

    async def _apply(self) -> None:
        """Bring what Redis sends us in line with what is listened to. On failure the next connection does it."""
        pubsub = self._pubsub
        with contextlib.suppress(*AWAY):
            while pubsub is not None and pubsub is self._pubsub and (self._fresh or self._stale):
                fresh, self._fresh = self._fresh, set()
                stale, self._stale = self._stale, set()
                if stale:
                    await pubsub.unsubscribe(*(CHANNEL + topic for topic in stale))
                if fresh:
                    self._asked.update(fresh)
                    await pubsub.subscribe(*(CHANNEL + topic for topic in fresh))

    async def _take(self, message: dict[str, Any] | None) -> None:
        if self._is_replaced:
            raise ConnectionError("the connection was replaced")
        if message is None:
            if self._is_pinged:
                raise TimeoutError("no answer to a ping")
            if self._pubsub is not None:  # else we are being stopped, at the very moment
                self._is_pinged = True
                await self._pubsub.ping()
            return
        self._is_pinged = False
        if self.is_away:
            self._turn(is_away=False)
        if message["type"] == "message":
            self._hear(message["channel"].decode().removeprefix(CHANNEL), message["data"])
        elif message["type"] == "subscribe":
            self._confirm(message["channel"].decode().removeprefix(CHANNEL))

    def _confirm(self, topic: str) -> None:
        """From now on the topic misses nothing, and who listens can look for what it missed before."""
        self._asked[topic] -= 1
        if self._asked[topic] > 0:
            return
        del self._asked[topic]
        if topic not in self._unconfirmed:
            return
        self._unconfirmed.discard(topic)
        for answer in self._waiting.get(topic, ()):
            if not answer.done():
                answer.set_result(True)
        if topic in self._owed:
            self._owed.discard(topic)
            self._hear(topic, None)
        self._settle()

    def _settle(self) -> None:
        if self._pubsub is None or self._unconfirmed:
            self.subscribed.clear()
        else:
            self.subscribed.set()

    def _turn(self, *, is_away: bool) -> None:
        self.is_away = is_away
        if is_away:
            for answer in [one for waiting in self._waiting.values() for one in waiting]:
                if not answer.done():
                    answer.set_result(False)
        self._tell(not is_away)

    async def _hang_up(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        self._begin()
        self._is_pinged = False
        if pubsub is not None:
            with contextlib.suppress(*AWAY):
                await pubsub.aclose()  # type: ignore[no-untyped-call]
