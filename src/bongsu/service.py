"""The composition root: builds what the roles need, starts it from the bottom up and stops it from the top down."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import uvicorn
from starlette.types import ASGIApp

from bongsu import demo, telemetry
from bongsu.api import build_api
from bongsu.channels.registry import senders
from bongsu.clock import clock
from bongsu.dispatch import DELIVERIES_TOPIC, Dispatcher
from bongsu.errors import AddressTaken
from bongsu.fanout import Decision, FanOut
from bongsu.ingress.intake import EVENTS_TOPIC, Intake
from bongsu.keys import Keys
from bongsu.live.announce import Announcer, announce_read
from bongsu.live.gateway import Gateway
from bongsu.live.stream import StreamingProtocol
from bongsu.loop import Loop
from bongsu.model import Channel
from bongsu.process import address_of, settle_memory, told_by_signals
from bongsu.rules import Rules, catalogue
from bongsu.settings import Settings
from bongsu.signals import LocalSignals, RedisSignals, Signals
from bongsu.store import Store, check, migrate
from bongsu.templates import Templates
from bongsu.worker import EventWorker

_log = telemetry.log("bongsu")
_Runs = TypeVar("_Runs", bound="Loop | Signals")

# Requests under way get this long to finish after SIGTERM; orchestrators kill at 30 s.
DRAIN_SECONDS = 20


class Role(StrEnum):
    API = "api"
    GATEWAY = "gateway"
    WORKER = "worker"
    CLOCK = "clock"


ALL_ROLES = frozenset(Role)
# Roles that answer HTTP. The others have no port to clash over, so any number of them fits on a machine.
LISTENING = frozenset({Role.API, Role.GATEWAY})


@dataclass(frozen=True)
class Ground:
    """What every role stands on."""

    settings: Settings
    store: Store
    signals: Signals


@contextlib.asynccontextmanager
async def ground(settings: Settings) -> AsyncIterator[Ground]:
    """The store, opened and at the right revision, and the signals, running."""
    store = Store.open(settings)
    signals: Signals = RedisSignals(settings.redis_url) if settings.redis_url else LocalSignals()
    try:
        # The embedded store belongs to this installation alone and is migrated on the way; a shared one is not.
        await (migrate(store) if settings.is_embedded else check(store))
        async with running(signals):
            yield Ground(settings, store, signals)
    finally:
        await store.close()


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
        self._settings = settings = demo.with_room(settings) if is_demo else settings
        self._roles = roles
        self._listens = listens or bool(roles & LISTENING)
        self._rules = catalogue(settings, demo.with_buttons(settings, app) if is_demo else app)
        self._stopping = asyncio.Event()

    async def run(self, on_ready: Callable[[str], None] = lambda _address: None) -> None:
        """Serve until told to stop, then finish what is under way."""
        keys = Keys.load(self._settings)
        if keys.weakness:
            _log.warning("the keys are weak", why=keys.weakness)
        listener = self._listen() if self._listens else None
        async with contextlib.AsyncExitStack() as stack:
            # First in, last out: a second SIGTERM during the drain is no reason to hurry.
            stack.enter_context(told_by_signals(self._stopping))
            _make_room_for_connections()
            base = await stack.enter_async_context(ground(self._settings))
            if self._is_demo:
                await demo.refuse_strangers(base.store, self._settings)
            if Role.WORKER in self._roles:
                await stack.enter_async_context(_worker(base, self._rules))
            if Role.CLOCK in self._roles:
                await stack.enter_async_context(running(clock(base.settings, base.store, base.signals)))
            address = None
            if listener is not None:
                intake = None
                if Role.API in self._roles:
                    intake = await stack.enter_async_context(running(Intake(base.store, base.signals, "http")))
                gateway = None
                if Role.GATEWAY in self._roles:
                    gateway = await stack.enter_async_context(_gateway(base, keys))
                app = build_api(
                    base.store,
                    intake,
                    keys,
                    self._settings,
                    self._stopping.is_set,
                    base.signals,
                    gateway=gateway,
                    on_read=lambda member_id, _unread: announce_read(base.signals, member_id),
                    is_demo=self._is_demo,
                )
                address = await stack.enter_async_context(_serving(app, listener, gateway.drain if gateway else None))
            settle_memory()
            _log.info("ready", address=address, roles=sorted(self._roles))
            on_ready(address or "")
            if self._is_demo and Role.API in self._roles:
                await stack.enter_async_context(_demo(base))
            await self._stopping.wait()
            _log.info("stopping")
        _log.info("stopped")

    def _listen(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family, backlog=2048)
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
async def _worker(base: Ground, rules: Rules) -> AsyncIterator[None]:
    """From event to device: the event worker, and behind it a dispatcher for each way out of the house."""

    announcer = Announcer(base.store, base.signals)

    def decided(decision: Decision) -> None:
        if decision.deliveries:
            base.signals.send(DELIVERIES_TOPIC, _ways_out(decision))
        announcer.decided(decision)

    async with _dispatchers(base, rules), running(announcer):
        worker = EventWorker(base.store, rules, base.settings, FanOut(Templates.load(), base.settings), decided)
        with base.signals.listen(EVENTS_TOPIC, lambda _data: worker.wake()):
            async with running(worker):
                yield


@contextlib.asynccontextmanager
async def _dispatchers(base: Ground, rules: Rules) -> AsyncIterator[None]:
    """One for each channel, so that a slow provider costs its own channel only."""
    async with contextlib.AsyncExitStack() as stack:
        for channel, sender in senders(base.settings, rules.senders, base.store).items():
            stack.push_async_callback(sender.close)
            if channel is Channel.IN_APP:
                continue  # the inbox row is the delivery
            dispatcher = Dispatcher(base.store, sender, base.settings)
            await stack.enter_async_context(running(dispatcher))
            stack.enter_context(base.signals.listen(DELIVERIES_TOPIC, _waking(dispatcher, channel)))
        yield


def _ways_out(decision: Decision) -> bytes:
    """The channels that a step may have written deliveries for. Waking the others would cost each of them a look."""
    works = [*decision.finished, *(work for work, _ in decision.unfinished)]
    channels = {channel for work in works for notice in work.notices for channel in notice.type.channels}
    return ",".join(sorted(channels)).encode()


def _waking(dispatcher: Dispatcher, channel: Channel) -> Callable[[bytes | None], None]:
    def hear(data: bytes | None) -> None:
        # A signal that names no channel is for all of them.
        if not data or channel in data.decode().split(","):
            dispatcher.wake()

    return hear


@contextlib.asynccontextmanager
async def _gateway(base: Ground, keys: Keys) -> AsyncIterator[Gateway]:
    gateway = Gateway(base.store, base.signals, keys, base.settings)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


@contextlib.asynccontextmanager
async def _demo(base: Ground) -> AsyncIterator[None]:
    await demo.fill(base.store)
    async with running(Intake(base.store, base.signals, "demo")) as intake, running(demo.Trickle(base.store, intake)):
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
