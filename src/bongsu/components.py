"""Which role has which components: each is started by a context manager, from the top of its row on, and stopped in reverse.

A component is built from the Process, what all components of one process share.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from bongsu import demo
from bongsu.api.app import build_api
from bongsu.api.http_limits import HttpLimits
from bongsu.api.server import serving
from bongsu.chat.fanout import Fanout
from bongsu.chat.intake import ChatAnnouncer, ChatIntake, decode_chat_message
from bongsu.chat.order import BATCH_LIMIT as CHAT_BATCH_LIMIT
from bongsu.chat.order import ChatOrder
from bongsu.chat.push import ChatPush
from bongsu.clock.scheduler import build_clock
from bongsu.clock.skew import SkewMonitor
from bongsu.counters.calls import Counters
from bongsu.counters.flush import Flusher
from bongsu.counters.pending import PendingSums
from bongsu.decide.step import Decider
from bongsu.decide.worker import EventWorker
from bongsu.deliver.channels.refresh import ChannelRefresh
from bongsu.deliver.dispatchers import dispatchers
from bongsu.deliver.waking import DispatcherWaker
from bongsu.desk.cancel import CancelWorker
from bongsu.ingress.consumer import Consumer
from bongsu.ingress.decode import decode_event
from bongsu.ingress.intake import Intake
from bongsu.ingress.rabbitmq import require_driver
from bongsu.ingress.relay import open_relay
from bongsu.live.announce import Announcer, announce_change
from bongsu.live.gateway import Gateway
from bongsu.live.member_state import OpenStreams
from bongsu.live.presence import Presence
from bongsu.model import Event
from bongsu.model.job import Job
from bongsu.render.templates import Templates
from bongsu.rules import Rules
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import Loop, running, running_together
from bongsu.runtime.roles import LISTENING, Role
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import CANCELLATIONS_TOPIC, EVENTS_TOPIC
from bongsu.settings import Settings
from bongsu.store import Share, Store
from bongsu.store.chat.messages import NewMessage
from bongsu.store.messages.content import MessageCache
from bongsu.store.outbox import NewEvent


@dataclass(frozen=True)
class Runtime:
    """What every command needs."""

    settings: Settings
    store: Store
    signals: Signals


@dataclass(frozen=True)
class Process(Runtime):
    """What the components of one process share."""

    roles: frozenset[Role]
    rules: Rules
    keys: Keys
    jobs: Sequence[Job]
    stopping: asyncio.Event
    is_demo: bool
    presence: Presence
    # The gateway's, if there is one in this process.
    open_streams: OpenStreams
    # Dispatchers send from it and gateways stream from it; the decider fills it.
    message_cache: MessageCache = field(default_factory=MessageCache)
    # The pending sums of counters in Redis, if there is one.
    pending_sums: PendingSums | None = None


Component = Callable[[Process], AbstractAsyncContextManager[object]]


def _skew_monitor(process: Process) -> AbstractAsyncContextManager[object]:
    return running(SkewMonitor(process.store, process.roles))


def _channel_refresh(process: Process) -> AbstractAsyncContextManager[object]:
    return running(ChannelRefresh(process.store))


def _dispatchers(process: Process) -> AbstractAsyncContextManager[object]:
    waker = DispatcherWaker(process.signals)
    return dispatchers(process.store, process.settings, process.rules, waker, process.message_cache)


@contextlib.asynccontextmanager
async def _cancel_worker(process: Process) -> AsyncIterator[None]:
    worker = CancelWorker(process.store, process.signals, process.settings)
    async with running(worker):
        with process.signals.listen(CANCELLATIONS_TOPIC, worker.on_signal):
            yield


def _flusher(process: Process) -> AbstractAsyncContextManager[object]:
    return running(Flusher(process.store, process.settings, process.pending_sums))


@contextlib.asynccontextmanager
async def _event_worker(process: Process) -> AsyncIterator[None]:
    """With what follows each of its steps: dispatchers are woken, open pages are sent what is new, and counted deltas are
    added to the pending sums."""
    store, settings, signals = process.store, process.settings, process.signals
    waker, announcer = DispatcherWaker(signals), Announcer(store, signals, process.message_cache)
    decider = Decider(store, Templates.load(), settings, message_cache=process.message_cache)
    on_decided = [waker.decided, announcer.decided]
    if process.pending_sums is not None:
        on_decided.append(process.pending_sums.decided)
    worker = EventWorker(store, process.rules, settings, decider, *on_decided)
    async with running(announcer):
        with signals.listen(EVENTS_TOPIC, worker.on_signal):
            async with running(worker):
                yield


@contextlib.asynccontextmanager
async def _rabbitmq(process: Process) -> AsyncIterator[None]:
    """One Consumer for each work queue, on one connection. Both that take events share an intake."""
    if not process.settings.rabbitmq_url:
        yield
        return
    require_driver()
    from bongsu.ingress.rabbitmq import topology  # noqa: PLC0415 (the driver is an extra)
    from bongsu.ingress.rabbitmq.connection import Broker  # noqa: PLC0415
    from bongsu.ingress.rabbitmq.envelope import decode_message  # noqa: PLC0415
    from bongsu.ingress.rabbitmq.queue import QueueSource  # noqa: PLC0415

    broker, store, fanout = Broker(process.settings.rabbitmq_url), process.store.share(Share.INGEST), Fanout(process.signals)
    intake = Intake(store, process.signals, "rabbitmq")
    chat, announcer = ChatIntake(store, fanout, process.settings.chat_max_bytes), ChatAnnouncer(fanout)

    def source(queue: topology.WorkQueue) -> QueueSource:
        return QueueSource(broker, queue)

    consumers: Sequence[Loop] = [
        Consumer[Event | NewEvent](source(topology.NOTIFICATIONS), decode_message, intake.accept_in_turn),
        Consumer[Event | NewEvent](source(topology.AGGREGATES), decode_message, intake.accept_in_turn),
        Consumer[NewMessage](source(topology.CHAT_PERSIST), decode_chat_message, chat.accept, limit=CHAT_BATCH_LIMIT),
        Consumer[NewMessage](source(topology.CHAT_FANOUT), decode_chat_message, announcer.accept, limit=CHAT_BATCH_LIMIT),
    ]
    try:
        async with running(intake), running_together(consumers):
            yield
    finally:
        await broker.close()


def _presence(process: Process) -> AbstractAsyncContextManager[object]:
    return running(process.presence)


def _chat_push(process: Process) -> AbstractAsyncContextManager[object]:
    if not process.settings.chat_push_seconds:
        return contextlib.nullcontext()
    return running(ChatPush(process.store, process.signals, process.presence, process.settings))


@contextlib.asynccontextmanager
async def _relays(process: Process) -> AsyncIterator[None]:
    """One Consumer for each outbox, so that one that is away keeps no other waiting. They share an intake."""
    outboxes = process.settings.outboxes
    if not outboxes:
        yield
        return
    intake = Intake(process.store.share(Share.INGEST), process.signals, "outbox")
    consumers = [
        Consumer[Event | NewEvent](open_relay(name, url), decode_event, intake.accept_in_turn) for name, url in outboxes
    ]
    async with running(intake), running_together(consumers):
        yield


def _clock(process: Process) -> AbstractAsyncContextManager[object]:
    return running(build_clock(process.settings, process.store, process.jobs))


# In the order in which they start; they stop in the reverse.
COMPONENTS_OF_ALL: Sequence[Component] = (_skew_monitor, _channel_refresh, _presence)
COMPONENTS: Mapping[Role, Sequence[Component]] = {
    Role.WORKER: (_dispatchers, _cancel_worker, _flusher, _event_worker, _chat_push, _relays, _rabbitmq),
    Role.CLOCK: (_clock,),
    # These two share one HTTP server, which starts after everything else: see http.
    Role.API: (),
    Role.GATEWAY: (),
}


@contextlib.asynccontextmanager
async def http(process: Process, listener: socket.socket) -> AsyncIterator[str]:
    """What this process answers: the API, streams, or only health checks and metrics."""
    store, signals, settings, roles = process.store, process.signals, process.settings, process.roles
    intake = Intake(store.share(Share.INGEST), signals, "http") if Role.API in roles else None
    declared = process.rules.counters | set(settings.targets)
    is_api = Role.API in roles
    on_counted = None if process.pending_sums is None else process.pending_sums.add
    counters = Counters(store.share(Share.INGEST), declared, on_counted) if is_api else None
    chat_order = ChatOrder(store, Fanout(signals), settings) if roles & LISTENING else None
    is_gateway = Role.GATEWAY in roles
    gateway = Gateway(store, signals, settings, process.message_cache, process.open_streams) if is_gateway else None
    app = build_api(
        store,
        intake,
        process.keys,
        settings,
        process.stopping.is_set,
        signals,
        gateway=gateway,
        on_change=partial(announce_change, signals),
        chat_order=chat_order,
        counters=counters,
        presence=process.presence,
        types=process.rules.types,
        all_jobs=process.jobs,
        is_demo=process.is_demo,
    )
    async with AsyncExitStack() as stack:
        for part in (process.keys.sign_in, intake, counters, chat_order, gateway):
            if part is not None:
                await stack.enter_async_context(running(part))
        drain = gateway.drain if gateway else None
        yield await stack.enter_async_context(serving(app, listener, drain, HttpLimits.of(settings)))


@contextlib.asynccontextmanager
async def demo_traffic(process: Process) -> AsyncIterator[None]:
    await demo.fill(process.store)
    intake = Intake(process.store, process.signals, "demo")
    async with running(intake), running(demo.Traffic(process.store, intake)):
        yield
