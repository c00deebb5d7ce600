"""POST /api/events (one event, an array or NDJSON), and GET /api/events/{eventId} to look one up."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from bongsu.api.auth import SERVER_CALL, Authenticator
from bongsu.api.ingest import Accepted, RequestBodies
from bongsu.api.models import ApiModel
from bongsu.api.problems import ProblemError, problems
from bongsu.ingress.decode import decode_event
from bongsu.ingress.intake import Intake
from bongsu.model import Event, EventStatus
from bongsu.store import Store, outbox


class AcceptedEvent(ApiModel):
    event_id: UUID
    status: str = Field(description="ACCEPTED, or DUPLICATE when the id was stored before")


class AcceptedEvents(Accepted):
    duplicates: int
    events: list[AcceptedEvent] | None = Field(None, description="not for NDJSON")


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


def router(auth: Authenticator, intake: Intake, store: Store) -> APIRouter:
    routes = APIRouter(prefix="/api/events", tags=["events"], responses=problems(401, 403, 422, 503))

    @routes.post(
        "",
        status_code=202,
        response_model=AcceptedEvents,
        response_model_exclude_none=True,
        openapi_extra=events_in.described(_EXAMPLE) | SERVER_CALL,
        responses=problems(400, 413, 415),
        summary="Record events",
    )
    async def accept_events(request: Request) -> AcceptedEvents | Response:
        """One event, an array of at most 1,000, or NDJSON of any length. The answer comes when they are stored. An event
        whose id is stored already is a duplicate and changes nothing. A JSON body is stored as a whole or not at all; of
        NDJSON, bad lines are rejected and the others are stored."""
        # Called here and not as a dependency: FastAPI takes 20 µs to resolve one, a third of its share of a request.
        await auth.server(request)
        if events_in.is_lines(request):
            return await events_in.ingest_lines(request, intake.accept_in_turn, decode_event, AcceptedEvents)
        return await _accept(await events_in.read(request), intake)

    @routes.get(
        "/{event_id}", dependencies=[Depends(auth.server)], responses=problems(404), summary="Find an event by its id"
    )
    async def find_event(event_id: UUID) -> StoredEvent:
        """The event as it was recorded, and its status."""
        async with store.read() as tx:
            row = await outbox.find(tx, event_id)
        if row is None:
            raise ProblemError(404, f"There is no event {event_id}")
        return StoredEvent.model_construct(
            **row.event.__dict__,
            status=row.status,
            attempts=row.attempts,
            error=row.error,
            created_at=row.created_at,
            finished_at=row.finished_at,
        )

    return routes


async def _accept(events: list[Event], intake: Intake) -> Response:
    _refuse_repeats(events)
    answers = await intake.accept(events)
    new = sum(answers)
    # AcceptedEvents, written by hand: nothing in it needs escaping, and for an array of a thousand the models took as long
    # as all the rest of the request's own work.
    each = ",".join(
        f'{{"eventId":"{event.event_id}","status":"{"ACCEPTED" if is_new else "DUPLICATE"}"}}'
        for event, is_new in zip(events, answers, strict=True)
    )
    answer = f'{{"accepted":{new},"duplicates":{len(events) - new},"events":[{each}]}}'
    return Response(answer, status_code=202, media_type="application/json")


def _refuse_repeats(events: list[Event]) -> None:
    first: dict[UUID, int] = {}
    repeats = []
    for number, event in enumerate(events):
        if (earlier := first.setdefault(event.event_id, number)) != number:
            repeats.append({"loc": [number, "eventId"], "msg": f"is the eventId of number {earlier} too"})
    if repeats:
        raise ProblemError(422, "One request names the same eventId more than once. Nothing was stored.", repeats)
