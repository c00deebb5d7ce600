"""The composition root: which role has which components, started from the bottom up and stopped from the top down."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from bongsu import demo
from bongsu.api.app import build_api
from bongsu.api.http_protocol import HttpLimits
from bongsu.api.server import bind, serving
from bongsu.chat.fanout import Fanout
from bongsu.chat.order import ChatOrder
from bongsu.clock.scheduler import build_clock
from bongsu.clock.skew import SkewMonitor
from bongsu.decide.step import Decider
from bongsu.decide.worker import EventWorker
from bongsu.deliver.channels.refresh import ChannelRefresh
from bongsu.deliver.dispatchers import dispatchers
from bongsu.deliver.waking import DispatcherWaker
from bongsu.desk.cancel import CancelWorker
from bongsu.desk.jobs import build_jobs
from bongsu.ingress.consumer import Consumer
from bongsu.ingress.decode import decode_event
from bongsu.ingress.intake import Intake
from bongsu.ingress.relay import open_relay
from bongsu.live.announce import Announcer, announce_read
from bongsu.live.gateway import Gateway
from bongsu.live.presence import presence
from bongsu.model import Event
from bongsu.model.job import Job
from bongsu.render.templates import Templates
from bongsu.rules import Rules, catalogue
from bongsu.runtime import telemetry
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.runtime.process import raise_file_limit, stop_on_signals, tune_gc
from bongsu.runtime.redis_signals import RedisSignals
from bongsu.runtime.roles import ALL_ROLES, LISTENING, Role
from bongsu.runtime.signals import LocalSignals, Signals
from bongsu.runtime.topics import CANCELLATIONS_TOPIC, EVENTS_TOPIC
from bongsu.settings import Settings
from bongsu.store import Share, Store, check, migrate
from bongsu.store.core.availability import Check, abort_unresponsive_store, wait_for_store
from bongsu.store.core.dead_claims import release_dead_claims
from bongsu.store.core.private_files import exposed_files
from bongsu.store.members.channels import declare_channels, load_channels
from bongsu.store.messages.content import MessageCache
from bongsu.store.outbox import NewEvent

_log = telemetry.log("bongsu")


@dataclass(frozen=True)
class Runtime:
    """What every command needs."""

    settings: Settings
    store: Store
    signals: Signals


@contextlib.asynccontextmanager
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    """The store, opened and at the right revision, and the signals, running. Raises if the store cannot be reached."""
    store = Store.open(settings)
    try:
        await _schema_check(settings)(store)
        await load_channels(store)
        async with running(_signals(settings)) as signals:
            yield Runtime(settings, store, signals)
    finally:
        await store.close()


async def load_known_channels(settings: Settings) -> None:
    """Know the channels that apps have declared in the store, for a command that is given a channel's name."""
    async with runtime(settings):
        pass


def _schema_check(settings: Settings) -> Check:
    # The embedded store belongs to this installation alone and is migrated on the way; a shared one is not.
    return migrate if settings.is_embedded else check


def _signals(settings: Settings) -> Signals:
    return RedisSignals(settings.redis_url) if settings.redis_url else LocalSignals()


# --- components -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process(Runtime):
    """What the components of one process share."""

    roles: frozenset[Role]
    rules: Rules
    keys: Keys
    jobs: Sequence[Job]
    stopping: asyncio.Event
    is_demo: bool
    # Dispatchers send from it and gateways stream from it; the decider fills it.
    message_cache: MessageCache = field(default_factory=MessageCache)


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


@contextlib.asynccontextmanager
async def _event_worker(process: Process) -> AsyncIterator[None]:
    """With the two that follow each of its steps: open pages are sent what is new, and dispatchers are woken."""
    store, settings, signals = process.store, process.settings, process.signals
    waker, announcer = DispatcherWaker(signals), Announcer(store, signals, process.message_cache)
    decider = Decider(store, Templates.load(), settings, message_cache=process.message_cache)
    worker = EventWorker(store, process.rules, settings, decider, waker.decided, announcer.decided)
    async with running(announcer):
        with signals.listen(EVENTS_TOPIC, worker.on_signal):
            async with running(worker):
                yield


@contextlib.asynccontextmanager
async def _relays(process: Process) -> AsyncIterator[None]:
    """One Consumer for each outbox, so that one that is away keeps no other waiting. They share an intake."""
    outboxes = process.settings.outboxes
    if not outboxes:
        yield
        return
    async with AsyncExitStack() as stack:
        intake = Intake(process.store.share(Share.INGEST), process.signals, "outbox")
        await stack.enter_async_context(running(intake))
        for name, url in outboxes:
            consumer = Consumer[Event | NewEvent](open_relay(name, url), decode_event, intake.accept_in_turn)
            await stack.enter_async_context(running(consumer))
        yield


def _clock(process: Process) -> AbstractAsyncContextManager[object]:
    return running(build_clock(process.settings, process.store, process.jobs))


# In the order in which they start; they stop in the reverse.
COMPONENTS_OF_ALL: Sequence[Component] = (_skew_monitor, _channel_refresh)
COMPONENTS: Mapping[Role, Sequence[Component]] = {
    Role.WORKER: (_dispatchers, _cancel_worker, _event_worker, _relays),
    Role.CLOCK: (_clock,),
    # These two share one HTTP server, which starts after everything else: see _http.
    Role.API: (),
    Role.GATEWAY: (),
}


@contextlib.asynccontextmanager
async def _http(process: Process, listener: socket.socket) -> AsyncIterator[str]:
    """What this process answers: the API, streams, or no more than how it is."""
    store, signals, settings, roles = process.store, process.signals, process.settings, process.roles
    intake = Intake(store.share(Share.INGEST), signals, "http") if Role.API in roles else None
    chat_order = ChatOrder(store, Fanout(signals), settings) if roles & LISTENING else None
    gateway = Gateway(store, signals, settings, process.message_cache) if Role.GATEWAY in roles else None
    online = presence(settings, gateway.open_streams if gateway else None)
    app = build_api(
        store,
        intake,
        process.keys,
        settings,
        process.stopping.is_set,
        signals,
        gateway=gateway,
        on_change=partial(announce_read, signals),
        chat_order=chat_order,
        presence=online,
        types=process.rules.types,
        all_jobs=process.jobs,
        is_demo=process.is_demo,
    )
    async with AsyncExitStack() as stack:
        for part in (process.keys.sign_in, intake, chat_order, gateway, online):
            if part is not None:
                await stack.enter_async_context(running(part))
        drain = gateway.drain if gateway else None
        yield await stack.enter_async_context(serving(app, listener, drain, HttpLimits.of(settings)))


@contextlib.asynccontextmanager
async def _demo(process: Process) -> AsyncIterator[None]:
    await demo.fill(process.store)
    intake = Intake(process.store, process.signals, "demo")
    async with running(intake), running(demo.Traffic(process.store, intake)):
        yield


# --- the process ------------------------------------------------------------------------------------------------------


class Service:
    """One process of Bongsu: some roles, or all."""

    def __init__(
        self,
        settings: Settings,
        roles: frozenset[Role] = ALL_ROLES,
        app: Rules | None = None,
        *,
        listens: bool = False,
        is_demo: bool = False,
    ) -> None:
        """With `listens`, roles that answer no requests still answer how they are."""
        self._is_demo = is_demo
        self._settings = settings = demo.with_daily_limit(settings) if is_demo else settings
        self._roles = roles
        self._listens = listens or bool(roles & LISTENING)
        self._rules = catalogue(settings, demo.with_buttons(settings, app) if is_demo else app)
        self._stopping = asyncio.Event()

    async def run(self, on_ready: Callable[[str], None] = lambda _address: None) -> None:
        """Serve until a signal to stop, then finish what is under way."""
        keys = Keys.load(self._settings)
        if self._is_demo:
            keys = keys.with_guests(demo.NAMES)
        if keys.weakness:
            _log.warning("weak keys", reason=keys.weakness)
        for path, mode in exposed_files(self._settings):
            _log.warning("readable by other users", path=str(path), cure=f"chmod {mode:o} {shlex.quote(str(path))}")
        if names := self._settings.without_effect:
            _log.warning("settings without effect", names=names)
        listener = bind(self._settings.host, self._settings.port) if self._listens else None
        async with AsyncExitStack() as stack:
            # First in, last out: a second SIGTERM during the drain changes nothing.
            stack.enter_context(stop_on_signals(self._stopping))
            if listener is not None:
                stack.callback(listener.close)
            raise_file_limit()
            store = Store.open(self._settings)
            stack.push_async_callback(store.close)
            if not await wait_for_store(store, _schema_check(self._settings), self._stopping):
                return
            await declare_channels(store, self._rules.declared_channels)
            if released := await stack.enter_async_context(release_dead_claims(store)):
                _log.info("released dead claims", claims=released)
            await self._run_components(self._process(store, keys), listener, on_ready)
        _log.info("stopped")

    def _process(self, store: Store, keys: Keys) -> Process:
        settings, signals = self._settings, _signals(self._settings)
        jobs = build_jobs(settings, store, signals, self._rules.jobs)
        return Process(settings, store, signals, self._roles, self._rules, keys, jobs, self._stopping, self._is_demo)

    async def _run_components(
        self, process: Process, listener: socket.socket | None, on_ready: Callable[[str], None]
    ) -> None:
        async with AsyncExitStack() as stack:
            address = await self._start(stack, process, listener)
            tune_gc()
            _log.info("ready", address=address, roles=sorted(self._roles))
            on_ready(address or "")
            if self._is_demo and Role.API in self._roles:
                await stack.enter_async_context(_demo(process))
            await self._stopping.wait()
            _log.info("stopping")
            async with abort_unresponsive_store(process.store):
                await stack.aclose()

    async def _start(self, stack: AsyncExitStack, process: Process, listener: socket.socket | None) -> str | None:
        """Start the components, each to be stopped by the stack; return the address that is served, if any."""
        await stack.enter_async_context(running(process.signals))
        if self._is_demo:
            await demo.refuse_other_members(process.store, self._settings)
        of_roles = [component for role in COMPONENTS if role in self._roles for component in COMPONENTS[role]]
        for component in (*COMPONENTS_OF_ALL, *of_roles):
            await stack.enter_async_context(component(process))
        return None if listener is None else await stack.enter_async_context(_http(process, listener))
