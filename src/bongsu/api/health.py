"""Liveness, readiness, metrics, and counts of pending and failed work."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Depends, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field

from bongsu.api.auth import OPEN_CALL, Authenticator
from bongsu.api.models import ApiModel
from bongsu.api.problems import ProblemError, problems
from bongsu.desk.stats import find_stats
from bongsu.errors import BongsuError, RedisUnreachable
from bongsu.runtime import telemetry
from bongsu.runtime.signals import Signals
from bongsu.store import Store, check

_log = telemetry.log("bongsu.http")


class WorkCounts(ApiModel):
    events: dict[str, int] = Field(description="pending, failed, unhandled")
    deliveries: dict[str, int] = Field(description="ready, sending, fail, unknown")


def router(
    auth: Authenticator,
    store: Store,
    desk_store: Store,
    is_stopping: Callable[[], bool],
    needs_signals: Signals | None = None,
) -> APIRouter:
    """With `needs_signals`, the process is not ready while they do not arrive."""
    routes = APIRouter(tags=["operations"])
    _add_probes(routes, store, is_stopping, needs_signals)
    _add_numbers(routes, auth, desk_store)
    return routes


def _add_probes(routes: APIRouter, store: Store, is_stopping: Callable[[], bool], needs_signals: Signals | None) -> None:

    @routes.get("/healthz", summary="Liveness", openapi_extra=OPEN_CALL)
    async def healthz() -> dict[str, str]:
        """Answers as long as the process runs. It does not use the store."""
        return {"status": "ok"}

    @routes.get("/readyz", summary="Readiness", responses=problems(503), openapi_extra=OPEN_CALL)
    async def readyz() -> dict[str, str]:
        """503 while the process is stopping, if the store cannot be reached, is not migrated or is on a full disk, and for a
        process that only serves streams, if Redis cannot be reached."""
        if is_stopping():
            raise ProblemError(503, "The process is stopping")
        try:
            if needs_signals is not None and not needs_signals.is_connected:
                raise RedisUnreachable
            store.check_disk()
            await check(store)
        except BongsuError as error:
            # Needs no key, so the answer does not name the store's address: the log does.
            _log.warning("not ready", error=str(error))
            raise ProblemError(503, str(type(error)())) from error
        return {"status": "ready"}


def _add_numbers(routes: APIRouter, auth: Authenticator, desk_store: Store) -> None:
    @routes.get(
        "/api/admin/stats",
        dependencies=[Depends(auth.server)],
        responses=problems(401, 403, 503),
        summary="Count pending and failed work",
    )
    async def stats() -> WorkCounts:
        """Events and deliveries by status. Those that succeeded are not counted."""
        counts = await find_stats(desk_store)
        return WorkCounts(events=counts.events, deliveries=counts.deliveries)

    @routes.get(
        "/metrics",
        dependencies=[Depends(auth.server)],
        responses=problems(401, 403, 503),
        summary="Read the metrics of this process",
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        """In the text format of Prometheus."""
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
