"""The composition root: builds what the roles need, starts it from the bottom up and stops it from the top down."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import uvicorn
from starlette.types import ASGIApp

from bongsu import demo
from bongsu.api.app import build_api
from bongsu.clock import build_jobs, clock
from bongsu.clock.skew import SkewMonitor
from bongsu.decide.progress import Decision
from bongsu.decide.step import Decider
from bongsu.decide.worker import EventWorker
from bongsu.deliver.channels.registry import senders
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.desk.cancel import CancelWorker
from bongsu.errors import AddressTaken, StoreBusy, StoreUnreachable
from bongsu.ingress.intake import Intake
from bongsu.live.announce import Announcer, announce_read
from bongsu.live.gateway import Gateway
from bongsu.live.stream import StreamingProtocol
from bongsu.render.templates import Templates
from bongsu.rules import Rules, catalogue
from bongsu.runtime import telemetry
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import Loop
from bongsu.runtime.process import address_of, stop_on_signals, tune_gc
from bongsu.runtime.redis_signals import RedisSignals
from bongsu.runtime.roles import ALL_ROLES, LISTENING, Role
from bongsu.runtime.signals import LocalSignals, Signals
from bongsu.runtime.topics import CANCELLATIONS_TOPIC, DELIVERIES_TOPIC, EVENTS_TOPIC
from bongsu.settings import Settings
from bongsu.store import Share, Store, check, migrate
from bongsu.store.core.dead_claims import in_use
from bongsu.store.members.channels import ChannelRefresh, declare_channels, load_channels

_log = telemetry.log("bongsu")
_Runs = TypeVar("_Runs", bound="Loop | Signals")

# Requests under way get this long to finish after SIGTERM; orchestrators kill at 30 s.
DRAIN_SECONDS = 20
# Between two attempts to reach the store at the start.
START_RETRY_SECONDS = 2.0
# A store that has not answered twice for so long during the drain is given up: what waits for it would wait in vain.
ANSWER_SECONDS = 4.0


@dataclass(frozen=True)
class Runtime:
    """What every role needs."""

    settings: Settings
    store: Store
    signals: Signals


@contextlib.asynccontextmanager
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    """The store, opened and at the right revision, and the signals, running. Raises if the store cannot be reached."""
    async with _opened(settings) as base:
        await _check_schema(base)
        await load_channels(base.store)
        async with running(base.signals):
            yield base


@contextlib.asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Runtime]:
    store = Store.open(settings)
    try:
        yield Runtime(settings, store, RedisSignals(settings.redis_url) if settings.redis_url else LocalSignals())
    finally:
        await store.close()


async def load_known_channels(settings: Settings) -> None:
    """Know the channels that apps have declared in the store, for a command that is given a channel's name."""
    async with runtime(settings):
        pass


async def _check_schema(base: Runtime) -> None:
    # The embedded store belongs to this installation alone and is migrated on the way; a shared one is not.
    await (migrate(base.store) if base.settings.is_embedded else check(base.store))


async def _wait_for_store(base: Runtime, stopping: asyncio.Event) -> bool:
    """Until a server that is starting, full or away can be used; False if the process is told to stop before."""
    stopped = asyncio.create_task(stopping.wait())
    try:
        while not stopped.done():
            checking = asyncio.create_task(_check_schema(base))
            await asyncio.wait({checking, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not checking.done():
                checking.cancel()
                await asyncio.wait({checking})
                break
            try:
                checking.result()
                return True
            except (StoreUnreachable, StoreBusy) as error:
                if base.settings.is_embedded:
                    raise  # a file that cannot be opened does not come up by itself
                _log.warning("waiting for the store", error=str(error), retry_seconds=START_RETRY_SECONDS)
            await asyncio.wait({stopped}, timeout=START_RETRY_SECONDS)
        return False
    finally:
        stopped.cancel()


@contextlib.asynccontextmanager
async def _giving_up(store: Store) -> AsyncIterator[None]:
    """While the block drains: cut the connections of a store that does not answer, so that what waits for it ends."""

    async def watch() -> None:
        failures = 0
        while failures < 2:
            failures = 0 if await store.answers(ANSWER_SECONDS) else failures + 1
            await asyncio.sleep(1.0)
        _log.warning("the store does not answer, giving it up: what is unfinished is taken up after its lease")
        store.terminate()

    watching = asyncio.create_task(watch(), name="bongsu-give-up")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})


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
        """Serve until told to stop, then finish what is under way."""
        keys = Keys.load(self._settings)
        if keys.weakness:
            _log.warning("the keys are weak", why=keys.weakness)
        if names := self._settings.without_effect:
            _log.warning("these settings have no effect yet", names=names)
        listener = self._listen() if self._listens else None
        async with contextlib.AsyncExitStack() as stack:
            # First in, last out: a second SIGTERM during the drain changes nothing.
            stack.enter_context(stop_on_signals(self._stopping))
            if listener is not None:
                stack.callback(listener.close)
            _make_room_for_connections()
            base = await stack.enter_async_context(_opened(self._settings))
            if not await _wait_for_store(base, self._stopping):
                return
            await declare_channels(base.store, self._rules.declared_channels)
            if released := await stack.enter_async_context(in_use(base.store)):
                _log.info("released the claims of processes that died", claims=released)
            async with contextlib.AsyncExitStack() as roles:
                address = await self._start(roles, base, keys, listener)
                tune_gc()
                _log.info("ready", address=address, roles=sorted(self._roles))
                on_ready(address or "")
                if self._is_demo and Role.API in self._roles:
                    await roles.enter_async_context(_demo(base))
                await self._stopping.wait()
                _log.info("stopping")
                async with _giving_up(base.store):
                    await roles.aclose()
        _log.info("stopped")

    async def _start(
        self, roles: contextlib.AsyncExitStack, base: Runtime, keys: Keys, listener: socket.socket | None
    ) -> str | None:
        """Start the roles from the bottom up, each to be stopped by the stack; return the address that is served, if any."""
        await roles.enter_async_context(running(base.signals))
        await roles.enter_async_context(running(SkewMonitor(base.store, self._roles)))
        await roles.enter_async_context(running(ChannelRefresh(base.store)))
        if self._is_demo:
            await demo.refuse_other_members(base.store, self._settings)
        if Role.WORKER in self._roles:
            await roles.enter_async_context(_worker(base, self._rules))
        jobs = build_jobs(base.settings, base.store, base.signals)
        if Role.CLOCK in self._roles:
            await roles.enter_async_context(running(clock(base.settings, base.store, jobs)))
        if listener is None:
            return None
        intake = None
        if Role.API in self._roles:
            intake = Intake(base.store.share(Share.INGEST), base.signals, "http")
            await roles.enter_async_context(running(intake))
        gateway = None
        if Role.GATEWAY in self._roles:
            gateway = await roles.enter_async_context(_gateway(base, keys))
        app = build_api(
            base.store,
            intake,
            keys,
            self._settings,
            self._stopping.is_set,
            base.signals,
            gateway=gateway,
            on_read=lambda member_id, _unread: announce_read(base.signals, member_id),
            types=self._rules.types,
            scheduled_jobs=jobs,
            is_demo=self._is_demo,
        )
        return await roles.enter_async_context(_serving(app, listener, gateway.drain if gateway else None))

    def _listen(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            # Bound, but not yet listening: until there is something to answer with, callers are refused instead of hanging.
            listener = socket.socket(family, socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((host, port))
            except BaseException:
                listener.close()
                raise
            return listener
        except (OSError, UnicodeError) as error:
            raise AddressTaken(f"Cannot listen on {host}:{port}: {error}") from None


@contextlib.asynccontextmanager
async def running(loop: _Runs) -> AsyncIterator[_Runs]:
    await loop.start()
    try:
        yield loop
    finally:
        await loop.stop()


@contextlib.asynccontextmanager
async def _worker(base: Runtime, rules: Rules) -> AsyncIterator[None]:
    """From event to device: the event worker, and one dispatcher for each channel."""

    announcer = Announcer(base.store, base.signals)

    def decided(decision: Decision) -> None:
        if decision.deliveries:
            channels = _channels_of(decision)
            for dispatcher in dispatchers:
                if dispatcher.channel in channels:
                    dispatcher.remember(decision.contents)
            base.signals.send(DELIVERIES_TOPIC, ",".join(sorted(channels)).encode())
        announcer.decided(decision)

    async with _dispatchers(base, rules) as dispatchers, running(announcer), _cancelling(base):
        decider = Decider(base.store, Templates.load(), base.settings)
        worker = EventWorker(base.store, rules, base.settings, decider, decided)
        with base.signals.listen(EVENTS_TOPIC, lambda _data: worker.wake()):
            async with running(worker):
                yield


@contextlib.asynccontextmanager
async def _cancelling(base: Runtime) -> AsyncIterator[None]:
    async with running(CancelWorker(base.store, base.signals, base.settings)) as worker:
        with base.signals.listen(CANCELLATIONS_TOPIC, lambda _data: worker.wake()):
            yield


@contextlib.asynccontextmanager
async def _dispatchers(base: Runtime, rules: Rules) -> AsyncIterator[list[Dispatcher]]:
    """One for each channel, so that a slow provider costs its own channel only."""
    dispatchers = []
    async with contextlib.AsyncExitStack() as stack:
        for channel, sender in senders(base.settings, rules.senders, base.store).items():
            stack.push_async_callback(sender.close)
            dispatcher = Dispatcher(base.store, sender, base.settings, rules.concurrency.get(channel))
            dispatchers.append(await stack.enter_async_context(running(dispatcher)))
            stack.enter_context(base.signals.listen(DELIVERIES_TOPIC, _waking(dispatcher, channel)))
        yield dispatchers
        # Together: one after the other, slow channels would take longer than an orchestrator waits.
        await asyncio.gather(*(one.stop() for one in dispatchers))


def _channels_of(decision: Decision) -> set[str]:
    """The channels that a step may have written deliveries for. Waking the others would cost each of them a look."""
    return {channel for event in decision.events for notice in event.notices for channel in notice.type.channels}


def _waking(dispatcher: Dispatcher, channel: str) -> Callable[[bytes | None], None]:
    def hear(data: bytes | None) -> None:
        # A signal that names no channel is for all of them.
        if not data or channel in data.decode().split(","):
            dispatcher.wake()

    return hear


@contextlib.asynccontextmanager
async def _gateway(base: Runtime, keys: Keys) -> AsyncIterator[Gateway]:
    gateway = Gateway(base.store, base.signals, base.settings)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


@contextlib.asynccontextmanager
async def _demo(base: Runtime) -> AsyncIterator[None]:
    await demo.fill(base.store)
    async with running(Intake(base.store, base.signals, "demo")) as intake, running(demo.Traffic(base.store, intake)):
        yield


@contextlib.asynccontextmanager
async def _serving(
    app: ASGIApp, listener: socket.socket, drain: Callable[[], Awaitable[None]] | None = None
) -> AsyncIterator[str]:
    """Serve on an open socket; on the way out stop accepting, let requests finish and end what would not by itself."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        http=StreamingProtocol,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="bongsu-http")
    try:
        await server.accepting.wait()
        yield address_of(listener)
    finally:
        server.should_exit = True
        if drain is not None:
            await drain()
        await task


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would end it before we could drain, and with a word when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()


def _make_room_for_connections() -> None:
    """Every stream and every push under way is an open file. A process begins with 1,024 and may have many more."""
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
