"""Signals: hints that there is work or news. Losing one costs time, never data, so sending never fails and never waits.

A listener is called with the signal's data, or with None for "some may have been missed": after Redis was away, say.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import redis.asyncio
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from bongsu import telemetry
from bongsu.errors import BadSettings
from bongsu.loop import Loop

Listener = Callable[[bytes | None], None]

# One channel for all topics would wake everyone for everything; one per topic lets Redis do the sorting.
CHANNEL = "bongsu:signal:"
# Signals waiting for Redis. When it is full the oldest is dropped: it is the likeliest to be answered by polling already.
WAITING_LIMIT = 10_000
# How long a connection may be silent before it is asked whether it lives; as long again without an answer, and it is dead.
LIVENESS_SECONDS = 5.0
RECONNECT_SECONDS = 1.0

# What redis-py raises when Redis is away. RuntimeError is its word for a connection closed under a reader.
AWAY = (RedisError, OSError, TimeoutError, RuntimeError)


class Signals(Protocol):
    """What both kinds promise. `start` and `stop` may be called twice, `stop` before `start`."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def send(self, topic: str, data: bytes = b"") -> None:
        """Tell every listener of the topic, in every process, soon. Never raises, never blocks."""

    def listen(self, topic: str, listener: Listener) -> contextlib.AbstractContextManager[None]:
        """Call the listener for each signal while the context is open. A listener must be quick."""


class LocalSignals:
    """Signals within one process: a listener is called in the sender's own step."""

    def __init__(self) -> None:
        self._listeners: defaultdict[str, list[Listener]] = defaultdict(list)
        self._log = telemetry.log("bongsu.signals")

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def send(self, topic: str, data: bytes = b"") -> None:
        self._deliver(topic, data)

    @contextlib.contextmanager
    def listen(self, topic: str, listener: Listener) -> Iterator[None]:
        self._listeners[topic].append(listener)
        try:
            yield
        finally:
            self._listeners[topic].remove(listener)
            if not self._listeners[topic]:
                del self._listeners[topic]

    def _deliver(self, topic: str, data: bytes | None) -> None:
        for listener in tuple(self._listeners.get(topic, ())):
            try:
                listener(data)
            except Exception:
                self._log.exception("listener crashed", topic=topic)

    def _deliver_missed(self) -> None:
        for topic in tuple(self._listeners):
            self._deliver(topic, None)


class RedisSignals(LocalSignals):
    """Signals between processes over Redis pub/sub. Within this process they do not need Redis, and do not wait for it."""

    def __init__(self, url: str) -> None:
        super().__init__()
        # One retry for sending: the first signal after a restart of Redis finds a connection that is dead already.
        self._sender = _Sender(_client(url, retries=1))
        # None for listening: a silent reconnect would hide that signals were missed.
        self._receiver = _Receiver(_client(url, retries=0), self._hear, self._deliver_missed)
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
            self._receiver.want(set(self._listeners))
            yield
        self._receiver.want(set(self._listeners))

    async def heard_by_redis(self) -> None:
        """Wait until Redis knows of every listener here: from then on nothing is missed while Redis stays."""
        await self._receiver.subscribed.wait()

    def _hear(self, topic: str, data: bytes) -> None:
        if not data.startswith(self._mark):
            self._deliver(topic, data[len(self._mark) :])


def _client(url: str, retries: int) -> redis.asyncio.Redis:
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

    def put(self, topic: str, data: bytes) -> None:
        self._waiting[topic, data] = None
        if len(self._waiting) > WAITING_LIMIT:
            self._waiting.popitem(last=False)
            telemetry.SIGNALS_DROPPED.inc()
        self.wake()

    async def stop(self) -> None:
        await super().stop()
        await self._redis.aclose()

    async def tick(self) -> int:
        if not self._waiting:
            return 0
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
    """Holds the one subscribed connection, replaces it when it breaks, and then tells every listener it may have missed."""

    def __init__(self, client: redis.asyncio.Redis, hear: Callable[[str, bytes], None], missed: Callable[[], None]) -> None:
        super().__init__("signal-receiver", poll_seconds=RECONNECT_SECONDS)
        self._redis = client
        self._hear = hear
        self._missed = missed
        self._wanted: set[str] = set()
        self._held: set[str] = set()
        self._confirmed: set[str] = set()
        self._pubsub: PubSub | None = None
        self._asked = False
        self._away = False
        self._is_new = False
        self._applying: asyncio.Task[None] | None = None
        self.subscribed = asyncio.Event()

    def want(self, topics: set[str]) -> None:
        self._wanted = topics
        self._settle()
        if self._pubsub is not None and (self._applying is None or self._applying.done()):
            self._applying = asyncio.create_task(self._apply())

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
            if not (self.is_stopping or self._away):
                self._log.warning("Redis is away: listening again when it is back", error=str(error))
            self._away = True
            return 0
        self._away = False
        return 1

    async def _connect(self) -> PubSub:
        pubsub = self._redis.pubsub()
        # A topic nobody sends on keeps the connection in the subscribed state while no listener is there.
        await pubsub.subscribe(CHANNEL)
        assert pubsub.connection is not None
        pubsub.connection.register_connect_callback(self._reconnected)
        self._pubsub = pubsub
        self._is_new = True
        await self._apply()
        self._settle()
        return pubsub

    async def _reconnected(self, _connection: object) -> None:
        """The client has replaced the connection by itself, between two reads, and subscribes anew."""
        self._confirmed, self._is_new = set(), True
        self.subscribed.clear()

    async def _apply(self) -> None:
        """Bring what Redis sends us in line with what is listened to. On failure the next connection does it."""
        pubsub = self._pubsub
        with contextlib.suppress(*AWAY):
            while pubsub is not None and pubsub is self._pubsub and self._wanted != self._held:
                wanted = set(self._wanted)
                if fresh := wanted - self._held:
                    await pubsub.subscribe(*(CHANNEL + topic for topic in fresh))
                if stale := self._held - wanted:
                    await pubsub.unsubscribe(*(CHANNEL + topic for topic in stale))
                    self._confirmed -= stale
                self._held = wanted
                self._settle()

    async def _take(self, message: dict[str, Any] | None) -> None:
        if message is None:
            if self._asked:
                raise TimeoutError("no answer to a ping")
            assert self._pubsub is not None
            self._asked = True
            await self._pubsub.ping()
            return
        self._asked = False
        if message["type"] == "message":
            self._hear(message["channel"].decode().removeprefix(CHANNEL), message["data"])
        elif message["type"] == "subscribe":
            self._confirmed.add(message["channel"].decode().removeprefix(CHANNEL))
            self._settle()

    def _settle(self) -> None:
        """Only when Redis has confirmed everything on a new connection can a listener look for what it missed."""
        if self._pubsub is None or not self._wanted <= self._confirmed:
            self.subscribed.clear()
            return
        self.subscribed.set()
        if self._is_new:
            self._is_new = False
            self._missed()

    async def _hang_up(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        self._held, self._confirmed, self._asked = set(), set(), False
        self.subscribed.clear()
        if pubsub is not None:
            with contextlib.suppress(*AWAY):
                await pubsub.aclose()  # type: ignore[no-untyped-call]
