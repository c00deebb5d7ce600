"""POST /api/events (one event, an array or NDJSON), and GET /api/events/{eventId} to look one up."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from bongsu.api.auth import Gate
from bongsu.api.ingest import RequestBodies
from bongsu.api.problems import PROBLEMS, ProblemError
from bongsu.ingress.decode import decode_event
from bongsu.ingress.intake import Intake
from bongsu.model import Event, EventStatus
from bongsu.store import Store, outbox


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class AcceptedEvent(_Wire):
    event_id: UUID
    status: str = Field(description="ACCEPTED, or DUPLICATE when the id was stored before")


class Answer(_Wire):
    accepted: int
    duplicates: int
    events: list[AcceptedEvent] | None = Field(None, description="not for NDJSON")
    rejected: int | None = Field(None, description="NDJSON only: lines that were not stored")
    errors: list[dict[str, Any]] | None = Field(None, description="NDJSON only: the first bad lines, by number")


class StoredEvent(Event):
    """An event and its status."""

    status: EventStatus
    attempts: int = Field(description="How many attempts have failed")
    error: str | None
    created_at: datetime
    finished_at: datetime | None


_EXAMPLE = {
    "eventType": "product.price_changed",
    "refId": "sku-1",
    "payload": {"previousPrice": 10000, "currentPrice": 8000},
}
events_in = RequestBodies(Event)


def router(gate: Gate, intake: Intake, store: Store) -> APIRouter:
    routes = APIRouter(prefix="/api/events", tags=["events"], responses=PROBLEMS)
    described = events_in.described(_EXAMPLE)

    @routes.post("", status_code=202, response_model=Answer, openapi_extra=described, summary="Accept events")
    async def accept_events(request: Request) -> Response:
        # Called here and not as a dependency: FastAPI takes 20 µs to resolve one, a third of its share of a request.
        await gate.server(request)
        if events_in.is_lines(request):
            return await events_in.ingest_lines(request, intake.accept_in_turn, decode_event)
        return await _accept(await events_in.read(request), intake)

    @routes.get("/{event_id}", dependencies=[Depends(gate.server)], response_model=StoredEvent, summary="Look up an event")
    async def find_event(event_id: UUID) -> JSONResponse:
        async with store.read() as tx:
            row = await outbox.find(tx, event_id)
        if row is None:
            raise ProblemError(404, f"There is no event {event_id}")
        stored = StoredEvent.model_construct(
            **row.event.__dict__,
            status=row.status,
            attempts=row.attempts,
            error=row.error,
            created_at=row.created_at,
            finished_at=row.finished_at,
        )
        return JSONResponse(stored.model_dump(mode="json", by_alias=True))

    return routes


async def _accept(events: list[Event], intake: Intake) -> Response:
    _refuse_repeats(events)
    answers = await intake.accept(events)
    new = sum(answers)
    # Written by hand: nothing in it needs escaping, and for an array of a thousand a JSON encoder would take longer.
    each = ",".join(
        f'{{"eventId":"{event.event_id}","status":"{"ACCEPTED" if is_new else "DUPLICATE"}"}}'
        for event, is_new in zip(events, answers, strict=True)
    )
    answer = f'{{"accepted":{new},"duplicates":{len(events) - new},"events":[{each}]}}'
    return Response(answer, status_code=202, media_type="application/json")


def _refuse_repeats(events: list[Event]) -> None:
    first: dict[UUID, int] = {}
    repeats = []
    for place, event in enumerate(events):
        if (earlier := first.setdefault(event.event_id, place)) != place:
            repeats.append({"loc": [place, "eventId"], "msg": f"is the eventId of number {earlier} too"})
    if repeats:
        raise ProblemError(422, "One request names the same eventId more than once. Nothing was stored.", repeats)
