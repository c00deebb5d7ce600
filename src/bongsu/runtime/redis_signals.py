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

from bongsu.runtime import telemetry
from bongsu.runtime.loop import Loop
from bongsu.runtime.redis import AWAY, redis_client
from bongsu.runtime.signals import Listener, LocalSignals, Watcher

# One Redis channel per topic, so that a process is sent only what it listens to.
CHANNEL = "bongsu:signal:"
# Signals waiting to be sent to Redis. Beyond these the oldest is dropped: polling has most likely found its work already.
WAITING_LIMIT = 10_000
# Signals within this time are sent together: an event sends three, and a round trip costs more than what it carries.
# Longer → other processes receive signals later.
GATHER_SECONDS = 0.005
# After this long without a message the connection is pinged; after as long again without an answer it is dead.
LIVENESS_SECONDS = 5.0
RECONNECT_SECONDS = 1.0
# Redis confirms a subscription within a round trip. After this long it counts as unreachable.
SUBSCRIBE_SECONDS = 5.0


class RedisSignals(LocalSignals):
    """Signals between processes over Redis pub/sub. Listeners in this process are called directly, with or without Redis."""

    def __init__(self, url: str) -> None:
        super().__init__()
        # One retry for sending: after a restart of Redis the first signal meets a dead connection.
        self._sender = _Sender(redis_client(url, retries=1))
        # No retry for listening: a silent reconnect would hide that signals were missed.
        self._receiver = _Receiver(redis_client(url, retries=0), self._on_message, self._notify_watchers)
        # Precedes the data of every signal: Redis also sends a process its own signals, which it ignores.
        self._process_id = os.urandom(8)

    async def start(self) -> None:
        await self._sender.start()
        await self._receiver.start()

    async def stop(self) -> None:
        await self._receiver.stop()
        await self._sender.stop()

    def send(self, topic: str, data: bytes = b"") -> None:
        self._deliver(topic, data)
        self._sender.put(topic, self._process_id + data)

    @contextlib.contextmanager
    def listen(self, topic: str, listener: Listener) -> Iterator[None]:
        with super().listen(topic, listener):
            self._receiver.subscribe(topic)
            try:
                yield
            finally:
                if len(self._listeners[topic]) == 1:
                    self._receiver.unsubscribe(topic)

    async def wait_subscribed(self, topic: str) -> bool:
        return await self._receiver.wait_subscribed(topic)

    @property
    def is_connected(self) -> bool:
        return not self._receiver.is_away

    async def wait_all_subscribed(self) -> None:
        """Wait until Redis has confirmed the topics of all listeners: none misses a signal while Redis stays reachable."""
        await self._receiver.subscribed.wait()

    def _on_message(self, topic: str, data: bytes | None) -> None:
        if data is None:
            self._deliver(topic, None)
        elif not data.startswith(self._process_id):
            self._deliver(topic, data[len(self._process_id) :])


class _Sender(Loop):
    """Publishes signals in the order they were sent. Equal signals that wait at the same time are sent once."""

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
        # A command line program stops right after its last signal, which may still be waiting.
        await self.tick()
        await self._redis.aclose()

    async def tick(self) -> int:
        if not self._waiting:
            return 0
        # The first is sent at once; those within the next GATHER_SECONDS are sent together.
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
            # Polling finds the work; keeping old signals would only delay new ones.
            telemetry.SIGNALS_DROPPED.inc(len(batch))
            if not self._away:
                self._log.warning("Redis unreachable, dropping signals", error=str(error))
            self._away = True
        else:
            self._away = False
        return len(batch)


class _Receiver(Loop):
    """Owns the one subscribed connection. When it breaks, connects again and then calls every listener with None.

    Thousands of topics come and go, one at a time: the cost of each does not depend on how many there are, and those that
    change while a command is under way are sent in the next command together.
    """

    def __init__(
        self, client: redis.asyncio.Redis, on_message: Callable[[str, bytes | None], None], on_connection: Watcher
    ) -> None:
        super().__init__("signal-receiver", poll_seconds=RECONNECT_SECONDS)
        self._redis = client
        self._on_message = on_message
        self._on_connection = on_connection
        self._wanted: set[str] = set()
        # Wanted topics that are not confirmed on this connection, and those whose listeners may have missed signals.
        self._unconfirmed: set[str] = set()
        self._to_notify: set[str] = set()
        # Subscriptions requested and not yet confirmed, by topic: only the last confirmation counts.
        self._requested: Counter[str] = Counter()
        # Changes still to be sent to Redis.
        self._to_subscribe: set[str] = set()
        self._to_unsubscribe: set[str] = set()
        self._waiting: defaultdict[str, list[asyncio.Future[bool]]] = defaultdict(list)
        self._pubsub: PubSub | None = None
        self._is_pinged = False
        self._is_broken = False
        self._is_replaced = False
        self._applying: asyncio.Task[None] | None = None
        self.is_away = False
        self.subscribed = asyncio.Event()

    def subscribe(self, topic: str) -> None:
        if topic in self._wanted:
            return
        self._wanted.add(topic)
        if topic in self._to_unsubscribe:
            self._to_unsubscribe.remove(topic)  # the unsubscribe was not sent yet
            if self._requested[topic] > 0:
                self._unconfirmed.add(topic)  # and the subscribe not confirmed yet
        else:
            self._to_subscribe.add(topic)
            self._unconfirmed.add(topic)
        self._send_changes()

    def unsubscribe(self, topic: str) -> None:
        self._wanted.discard(topic)
        if topic in self._to_subscribe:
            self._to_subscribe.remove(topic)
        else:
            self._to_unsubscribe.add(topic)
        self._unconfirmed.discard(topic)
        self._to_notify.discard(topic)
        self._send_changes()

    async def wait_subscribed(self, topic: str) -> bool:
        if self._pubsub is not None and topic not in self._unconfirmed:
            return True
        if self.is_away:
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[topic].append(answer)
        try:
            async with asyncio.timeout(SUBSCRIBE_SECONDS):
                return await answer
        except TimeoutError:
            return False
        finally:
            self._waiting[topic].remove(answer)
            if not self._waiting[topic]:
                del self._waiting[topic]

    async def stop(self) -> None:
        self._stopping.set()
        await self._disconnect()  # ends the read the tick is waiting in
        await super().stop()
        await self._redis.aclose()

    async def tick(self) -> int:
        try:
            pubsub = self._pubsub or await self._connect()
            message = await pubsub.get_message(timeout=LIVENESS_SECONDS)
            await self._handle(message)
        except AWAY as error:
            await self._disconnect()
            if self.is_stopping:
                return 0
            if not self._is_broken:
                self._is_broken = True
                return 1  # perhaps only this connection broke: try once more before calling Redis unreachable
            if not self.is_away:
                self._log.warning("Redis unreachable, not listening", error=str(error))
                self._set_away(is_away=True)
            return 0
        except AttributeError:
            # redis-py was about to write when `stop` closed the connection: it has no writer any more.
            if not self.is_stopping:
                raise
            return 0
        self._is_broken = False
        return 1

    async def _connect(self) -> PubSub:
        pubsub = self._redis.pubsub()
        # An unused channel keeps the connection in the subscribed state while there are no listeners.
        await pubsub.subscribe(CHANNEL)
        assert pubsub.connection is not None
        pubsub.connection.register_connect_callback(self._reconnected)
        self._forget_confirmations()
        # Commands under way on an earlier connection do not count on this one.
        self._to_subscribe, self._is_replaced, self._applying = set(self._wanted), False, None
        self._pubsub = pubsub
        self._send_changes()
        return pubsub

    async def _reconnected(self, _connection: object) -> None:
        """redis-py has replaced the connection by itself between two reads, so it is not known what is subscribed there."""
        self._is_replaced = True

    def _forget_confirmations(self) -> None:
        """Nothing is confirmed on the next connection, and signals may have been missed since the last one."""
        self._unconfirmed, self._to_notify = set(self._wanted), set(self._wanted)
        self._to_unsubscribe = set()
        self._requested.clear()
        self.subscribed.clear()

    def _send_changes(self) -> None:
        self._update_subscribed()
        if self._pubsub is not None and (self._applying is None or self._applying.done()):
            self._applying = asyncio.create_task(self._apply())

    async def _apply(self) -> None:
        """Subscribe and unsubscribe until Redis has every change. On failure the next connection does it."""
        pubsub = self._pubsub
        with contextlib.suppress(*AWAY):
            while pubsub is not None and pubsub is self._pubsub and (self._to_subscribe or self._to_unsubscribe):
                new, self._to_subscribe = self._to_subscribe, set()
                old, self._to_unsubscribe = self._to_unsubscribe, set()
                if old:
                    await pubsub.unsubscribe(*(CHANNEL + topic for topic in old))
                if new:
                    self._requested.update(new)
                    await pubsub.subscribe(*(CHANNEL + topic for topic in new))

    async def _handle(self, message: dict[str, Any] | None) -> None:
        if self._is_replaced:
            raise ConnectionError("the connection was replaced")
        if message is None:
            if self._is_pinged:
                raise TimeoutError("no answer to a ping")
            if self._pubsub is not None:  # None while stopping
                self._is_pinged = True
                await self._pubsub.ping()
            return
        self._is_pinged = False
        if self.is_away:
            self._set_away(is_away=False)
        if message["type"] == "message":
            self._on_message(message["channel"].decode().removeprefix(CHANNEL), message["data"])
        elif message["type"] == "subscribe":
            self._confirm(message["channel"].decode().removeprefix(CHANNEL))

    def _confirm(self, topic: str) -> None:
        """From now on the topic's listeners miss nothing; call them with None if they may have missed something before."""
        self._requested[topic] -= 1
        if self._requested[topic] > 0:
            return
        del self._requested[topic]
        if topic not in self._unconfirmed:
            return
        self._unconfirmed.discard(topic)
        for answer in self._waiting.get(topic, ()):
            if not answer.done():
                answer.set_result(True)
        if topic in self._to_notify:
            self._to_notify.discard(topic)
            self._on_message(topic, None)
        self._update_subscribed()

    def _update_subscribed(self) -> None:
        if self._pubsub is None or self._unconfirmed:
            self.subscribed.clear()
        else:
            self.subscribed.set()

    def _set_away(self, *, is_away: bool) -> None:
        self.is_away = is_away
        if is_away:
            for answer in [answer for answers in self._waiting.values() for answer in answers]:
                if not answer.done():
                    answer.set_result(False)
        self._on_connection(not is_away)

    async def _disconnect(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        self._forget_confirmations()
        self._is_pinged = False
        if pubsub is not None:
            with contextlib.suppress(*AWAY):
                await pubsub.aclose()  # type: ignore[no-untyped-call]
