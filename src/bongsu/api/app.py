"""The HTTP application: one router per resource, put together, behind the request log and CORS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from bongsu.api import (
    admin_events,
    chat,
    dead,
    events,
    health,
    history,
    inbox,
    jobs,
    members,
    notifications,
    openapi,
    problems,
    products,
    session,
    stream,
)
from bongsu.api import counters as counters_api
from bongsu.api.auth import Authenticator
from bongsu.api.chat_ops import ChatOps
from bongsu.api.cors import Cors
from bongsu.api.path_ids import OpaqueIds
from bongsu.api.request_log import RequestLog
from bongsu.chat.fanout import Fanout
from bongsu.chat.history import History
from bongsu.chat.order import ChatOrder
from bongsu.chat.rooms import Rooms
from bongsu.counters.calls import Counters
from bongsu.desk.cancel import Cancellations
from bongsu.desk.dead_letters import DeadLetters
from bongsu.desk.dead_sources import dead_letter_sources
from bongsu.desk.erase import Erasures
from bongsu.desk.jobs import JobDesk
from bongsu.ingress.intake import Intake
from bongsu.live.announce import announce_logout
from bongsu.live.gateway import Gateway
from bongsu.live.presence import LocalPresence, Presence
from bongsu.model import NoticeType
from bongsu.model.job import Job
from bongsu.runtime.keys import Keys
from bongsu.runtime.rate_limit import RateLimit
from bongsu.runtime.signals import LocalSignals, Signals
from bongsu.settings import Settings
from bongsu.store import Share, Store
from bongsu.web.bell import routes as bell
from bongsu.web.shop import routes as shop


def build_api(
    store: Store,
    intake: Intake | None,
    keys: Keys,
    settings: Settings,
    is_stopping: Callable[[], bool],
    signals: Signals | None = None,
    *,
    gateway: Gateway | None = None,
    on_change: inbox.OnChange | None = None,
    chat_order: ChatOrder | None = None,
    counters: Counters | None = None,
    presence: Presence | None = None,
    types: Mapping[str, NoticeType] | None = None,
    all_jobs: Sequence[Job] = (),
    is_demo: bool = False,
) -> ASGIApp:
    """Without an intake and a gateway, only what every process answers: health checks and metrics."""
    limit = RateLimit(settings.member_rate, settings.member_burst) if settings.member_rate else None
    auth = Authenticator(keys, settings.origins, limit)
    sender = signals or LocalSignals()
    app = _empty_app()
    chat_ops = None
    fanout = Fanout(sender)
    rooms = Rooms(store.share(Share.MEMBERS), fanout)
    if intake is not None:
        # Cancelling waits for a step that is being decided at this moment, as workers wait for each other.
        cancellations = Cancellations(store.share(Share.WORK), sender)
        _include_ingest(app, auth, store, intake, cancellations, types or {})
        _include_members(app, auth, store, settings, sender, on_change)
        _include_operations(app, auth, store, settings, sender, cancellations, all_jobs)
        if chat_order is not None:
            history = History(store.share(Share.MEMBERS))
            _include(app, chat.router(auth, rooms, history, chat_order, presence or LocalPresence(None)))
    if counters is not None:
        _include(app, counters_api.router(auth, counters))
    if gateway is not None:
        _include(app, stream.router(auth))
        if chat_order is not None:
            chat_ops = ChatOps(chat_order, rooms, gateway.rooms, fanout)
    if intake is not None or gateway is not None:
        # A proxy may send nothing but the stream itself to the gateways.
        _include(app, session.router(auth, settings, partial(announce_logout, sender)))
        _include(app, bell.router())
    # Without Redis the inbox goes on working, and streams say that they are unavailable: only a process that has nothing but
    # streams is not ready.
    needs_signals = signals if intake is None and gateway is not None else None
    ingest, operators = store.share(Share.INGEST), store.share(Share.OPERATORS)
    _include(app, health.router(auth, ingest, operators, is_stopping, needs_signals))
    if is_demo and intake is not None:
        _include(app, shop.router(keys, store.share(Share.MEMBERS), intake))
    openapi.install(app)
    # Around everything, so that the answer to a crash can be read by the page it goes to, and has its id too.
    logged = RequestLog(Cors(app, settings.origins) if settings.origins else app)
    return OpaqueIds(logged if gateway is None else stream.StreamsFirst(logged, gateway, auth, settings.origins, chat_ops))


def _empty_app() -> FastAPI:
    app = FastAPI(
        title="Bongsu",
        version=version("bongsu"),
        description="A business event goes in; the right people are notified, once, on the right channel.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    problems.install(app)
    return app


def _include(app: FastAPI, router: APIRouter) -> None:
    """Not by FastAPI's own include_router: it prepares each route a second time, and asks router by router for each request.
    Without it the last routes are found 40 µs sooner."""
    app.router.routes.extend(router.routes)


def _include_ingest(
    app: FastAPI,
    auth: Authenticator,
    store: Store,
    intake: Intake,
    cancellations: Cancellations,
    types: Mapping[str, NoticeType],
) -> None:
    """What servers send: events, products and behaviors, direct notifications."""
    ingest = store.share(Share.INGEST)
    _include(app, events.router(auth, intake, ingest))
    _include(app, products.router(auth, ingest))
    _include(app, notifications.router(auth, intake, ingest, cancellations.cancel, types))


def _include_members(
    app: FastAPI,
    auth: Authenticator,
    store: Store,
    settings: Settings,
    signals: Signals,
    on_change: inbox.OnChange | None,
) -> None:
    """Members and their inboxes."""
    members_store = store.share(Share.MEMBERS)
    # An erasure waits for a step that is deciding about the member, as workers wait for each other.
    erasures = Erasures(store.share(Share.WORK), signals, settings.lease_seconds)
    _include(app, members.router(auth, members_store, settings.max_devices, erasures))
    _include(app, inbox.router(auth, members_store, on_change))


def _include_operations(
    app: FastAPI,
    auth: Authenticator,
    store: Store,
    settings: Settings,
    signals: Signals,
    cancellations: Cancellations,
    all_jobs: Sequence[Job],
) -> None:
    """What operators see and do."""
    operators = store.share(Share.OPERATORS)
    _include(app, history.router(auth, operators))
    _include(app, admin_events.router(auth, operators, cancellations))
    sources = dead_letter_sources(settings, operators, signals)
    _include(app, dead.router(auth, DeadLetters(operators, sources, settings.lease_seconds)))
    _include(app, jobs.router(auth, settings, JobDesk(settings, operators, all_jobs)))
