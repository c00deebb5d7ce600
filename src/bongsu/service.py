"""A process of Bongsu: its components are started from the bottom up and stopped from the top down."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

from bongsu import demo
from bongsu.api.server import bind
from bongsu.components import COMPONENTS, COMPONENTS_OF_ALL, Process, Runtime, demo_traffic, http
from bongsu.counters.pending import PendingSums
from bongsu.desk.jobs import build_jobs
from bongsu.live.member_state import OpenStreams
from bongsu.live.presence import presence
from bongsu.rules import Rules, catalogue
from bongsu.runtime import telemetry
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.runtime.process import raise_file_limit, stop_on_signals, tune_gc
from bongsu.runtime.redis_signals import RedisSignals
from bongsu.runtime.roles import ALL_ROLES, LISTENING, Role
from bongsu.runtime.signals import LocalSignals, Signals
from bongsu.settings import Settings
from bongsu.store import Store, check, migrate
from bongsu.store.core.availability import Check, abort_unresponsive_store, wait_for_store
from bongsu.store.core.dead_claims import release_dead_claims
from bongsu.store.core.private_files import exposed_files
from bongsu.store.members.channels import declare_channels, load_channels

_log = telemetry.log("bongsu")


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
        """With `listens`, roles without an API still answer health checks and metrics."""
        self._is_demo = is_demo
        self._settings = settings = demo.with_demo_limits(settings) if is_demo else settings
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
        streams = OpenStreams()
        return Process(
            settings,
            store,
            signals,
            self._roles,
            self._rules,
            keys,
            jobs,
            self._stopping,
            self._is_demo,
            presence(settings, streams if Role.GATEWAY in self._roles else None),
            streams,
            pending_sums=PendingSums(settings.redis_url, settings.counter_flush_seconds) if settings.redis_url else None,
        )

    async def _run_components(
        self, process: Process, listener: socket.socket | None, on_ready: Callable[[str], None]
    ) -> None:
        async with AsyncExitStack() as stack:
            address = await self._start(stack, process, listener)
            tune_gc()
            _log.info("ready", address=address, roles=sorted(self._roles))
            on_ready(address or "")
            if self._is_demo and Role.API in self._roles:
                await stack.enter_async_context(demo_traffic(process))
            await self._stopping.wait()
            _log.info("stopping")
            async with abort_unresponsive_store(process.store):
                await stack.aclose()

    async def _start(self, stack: AsyncExitStack, process: Process, listener: socket.socket | None) -> str | None:
        """Start the components, each to be stopped by the stack; return the address that is served, if any."""
        await stack.enter_async_context(running(process.signals))
        if process.pending_sums is not None:
            await stack.enter_async_context(running(process.pending_sums))
        if self._is_demo:
            await demo.refuse_other_members(process.store, self._settings)
        of_roles = [component for role in COMPONENTS if role in self._roles for component in COMPONENTS[role]]
        for component in (*COMPONENTS_OF_ALL, *of_roles):
            await stack.enter_async_context(component(process))
        return None if listener is None else await stack.enter_async_context(http(process, listener))
