"""The HTTP application: the endpoints of every module, put together, and the few that belong to none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version

from fastapi import Depends, FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic.json_schema import models_json_schema
from starlette.types import ASGIApp

from bongsu import clock
from bongsu.api import admin_events as events
from bongsu.api import dead, history, inbox, members, problems, session
from bongsu.api import events as ingress
from bongsu.api import notifications as direct
from bongsu.api import products as catalog
from bongsu.api.auth import Gate
from bongsu.api.cors import Cors
from bongsu.api.keys import Keys
from bongsu.api.problems import PROBLEMS, Problem, ProblemError
from bongsu.api.request_log import RequestLog
from bongsu.desk.cancel import Cancellations
from bongsu.errors import BongsuError
from bongsu.ingress.intake import Intake
from bongsu.live.gateway import Gateway, WithStreams
from bongsu.live.sse import PATH as STREAM_PATH
from bongsu.model import Behavior, Device, Event, Member, NoticeType, Preferences, Product
from bongsu.runtime import telemetry
from bongsu.runtime.signals import LocalSignals, Signals
from bongsu.settings import Settings
from bongsu.store import Share, Store, check, outbox
from bongsu.store.desk.stats import count_deliveries
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
    on_read: inbox.OnRead | None = None,
    types: Mapping[str, NoticeType] | None = None,
    is_demo: bool = False,
) -> ASGIApp:
    """Without an intake and a gateway, only what every process answers: how it is."""
    app = FastAPI(
        title="Bongsu",
        version=version("bongsu"),
        description="An event goes in, the right people hear of it.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    gate = Gate(keys, settings.origins)
    problems.install(app)
    ingest, operators, store = store.share(Share.INGEST), store.share(Share.OPERATORS), store.share(Share.MEMBERS)
    if intake is not None:
        app.include_router(ingress.router(gate, intake, ingest))
        app.include_router(catalog.router(gate, ingest))
        app.include_router(members.router(gate, store))
        app.include_router(inbox.router(gate, store, on_read))
        # Cancelling waits for a step that is being decided at this moment, as workers wait for each other.
        cancellations = Cancellations(store.share(Share.WORK), signals or LocalSignals())
        app.include_router(direct.router(gate, intake, ingest, cancellations.cancel, types or {}))
        app.include_router(history.router(gate, operators))
        app.include_router(events.router(gate, operators, cancellations))
        app.include_router(dead.router(gate, operators, signals or LocalSignals()))
        app.include_router(clock.router(gate, settings, operators, signals or LocalSignals()))
    if intake is not None or gateway is not None:
        # A proxy may send nothing but the stream itself to the gateways.
        app.include_router(session.router(gate, settings))
    if gateway is not None:
        _describe_stream(app, gate)
    _add_health(app, ingest, is_stopping)
    _add_desk(app, operators, gate)
    if intake is not None or gateway is not None:
        app.include_router(bell.router())
    if is_demo and intake is not None:
        app.include_router(shop.router(keys, store, intake))
    _complete_document(app)
    _add_docs(app)
    # Around everything, so that the answer to a crash can be read by the page it goes to, and carries its id too.
    logged = RequestLog(Cors(app, settings.origins) if settings.origins else app)
    return logged if gateway is None else WithStreams(logged, gateway)


_log = telemetry.log("bongsu.http")
# For the document: no key is needed.
_OPEN: dict[str, list[str]] = {"security": []}


def _describe_stream(app: FastAPI, gate: Gate) -> None:
    """For the document, and for whoever asks otherwise than by GET: streams themselves never come this far."""

    @app.get(
        STREAM_PATH,
        tags=["inbox"],
        dependencies=[Depends(gate.member)],
        summary="Your notifications as they come (server-sent events)",
        responses={200: {"content": {"text/event-stream": {}}}, 401: PROBLEMS[401], 403: PROBLEMS[403]},
        response_class=Response,
    )
    async def stream() -> Response:
        raise ProblemError(503, "This server cannot stream: run it with `bongsu serve`")


def _add_health(app: FastAPI, store: Store, is_stopping: Callable[[], bool]) -> None:
    @app.get("/healthz", tags=["operations"], summary="Whether the process lives", openapi_extra=_OPEN)
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get(
        "/readyz",
        tags=["operations"],
        summary="Whether it can serve now",
        responses={503: PROBLEMS[503]},
        openapi_extra=_OPEN,
    )
    async def readyz() -> dict[str, str]:
        if is_stopping():
            raise ProblemError(503, "The process is stopping")
        try:
            await check(store)
        except BongsuError as error:
            # Anyone may ask; where the store is, is for those who can read the log.
            _log.warning("not ready", error=str(error))
            raise ProblemError(503, str(type(error)())) from error
        return {"status": "ready"}


def _add_desk(app: FastAPI, store: Store, gate: Gate) -> None:
    @app.get("/api/admin/stats", tags=["operations"], dependencies=[Depends(gate.server)], summary="What waits, what failed")
    async def stats() -> dict[str, dict[str, int]]:
        async with store.read() as tx:
            counts = await outbox.count_unfinished(tx)
            deliveries = await count_deliveries(tx)
        return {
            "events": {status.value.lower(): count for status, count in counts.items()},
            "deliveries": {status.lower(): count for status, count in deliveries.items()},
        }

    @app.get(
        "/metrics",
        tags=["operations"],
        dependencies=[Depends(gate.server)],
        summary="Prometheus metrics",
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


def _complete_document(app: FastAPI) -> None:
    """What FastAPI does not learn by looking: the bodies, because endpoints read them themselves, and how to call."""
    describe = app.openapi

    def openapi() -> dict[str, object]:
        document = describe()
        components = document.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        models = (
            Behavior,
            Device,
            Event,
            Member,
            direct.NotificationRequest,
            Preferences,
            Problem,
            Product,
            dead.ReplayRequest,
            events.CancelRequest,
        )
        bodies = [(model, "validation") for model in models]
        _, described = models_json_schema(bodies, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
        schemas.update(described["$defs"])
        components["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "An API key, or a member token for member calls."}
        }
        document["security"] = [{"key": []}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _add_docs(app: FastAPI) -> None:
    """The page that shows the document, with its scripts from here: FastAPI's own would fetch them from elsewhere."""
    app.mount("/docs/assets", StaticFiles(packages=[("fastapi_swagger", "resources")]))

    @app.get("/", include_in_schema=False)
    async def front_door() -> RedirectResponse:
        return RedirectResponse("/docs")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Bongsu",
            swagger_js_url="/docs/assets/swagger-ui-bundle.js",
            swagger_css_url="/docs/assets/swagger-ui.css",
            swagger_favicon_url="/docs/assets/favicon-32x32.png",
        )
