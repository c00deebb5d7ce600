"""What an orchestrator and an operator ask of a process: whether it lives, whether it is ready, its metrics and counts."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Depends, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from bongsu.api.auth import Gate
from bongsu.api.problems import PROBLEMS, ProblemError
from bongsu.errors import BongsuError
from bongsu.runtime import telemetry
from bongsu.store import Store, check, outbox
from bongsu.store.desk.stats import count_deliveries

_log = telemetry.log("bongsu.http")
# For the document: no key is needed.
_OPEN: dict[str, list[str]] = {"security": []}


def router(gate: Gate, store: Store, desk_store: Store, is_stopping: Callable[[], bool]) -> APIRouter:
    routes = APIRouter(tags=["operations"])

    @routes.get("/healthz", summary="Liveness", openapi_extra=_OPEN)
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @routes.get("/readyz", summary="Readiness", responses={503: PROBLEMS[503]}, openapi_extra=_OPEN)
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

    @routes.get("/api/admin/stats", dependencies=[Depends(gate.server)], summary="Count pending and failed work")
    async def stats() -> dict[str, dict[str, int]]:
        async with desk_store.read() as tx:
            counts = await outbox.count_unfinished(tx)
            deliveries = await count_deliveries(tx)
        return {
            "events": {status.value.lower(): count for status, count in counts.items()},
            "deliveries": {status.lower(): count for status, count in deliveries.items()},
        }

    @routes.get(
        "/metrics", dependencies=[Depends(gate.server)], summary="Prometheus metrics", response_class=PlainTextResponse
    )
    async def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return routes
