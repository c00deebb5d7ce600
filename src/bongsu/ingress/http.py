"""POST /api/events in its three shapes, and GET /api/events/{eventId} to see what became of one."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from bongsu.http.auth import Gate
from bongsu.http.body import read_body, stream_body
from bongsu.http.problems import Problem, ProblemError
from bongsu.ingress import ndjson
from bongsu.ingress.intake import Intake
from bongsu.model import Event
from bongsu.store import Store
from bongsu.store import events as statements

ARRAY_LIMIT = 1_000

NDJSON = {"application/x-ndjson", "application/ndjson", "application/jsonl"}
JSON = {"application/json", ""}

_array = TypeAdapter(Annotated[list[Event], Field(max_length=ARRAY_LIMIT)])


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
    """An event and what became of it."""

    status: str
    attempts: int
    error: str | None
    created_at: Any
    finished_at: Any


_SCHEMA = {"$ref": "#/components/schemas/Event"}
_REQUEST = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"oneOf": [_SCHEMA, {"type": "array", "items": _SCHEMA, "maxItems": ARRAY_LIMIT}]},
                "example": {
                    "eventType": "product.price_changed",
                    "refId": "sku-1",
                    "payload": {"previousPrice": 10000, "currentPrice": 8000},
                },
            },
            "application/x-ndjson": {"schema": {"type": "string", "description": "one event a line, any number"}},
        },
    }
}


def router(gate: Gate, intake: Intake, store: Store) -> APIRouter:
    routes = APIRouter(
        prefix="/api/events",
        tags=["events"],
        dependencies=[Depends(gate.server)],
        responses={status: {"model": Problem} for status in (400, 401, 403, 413, 415, 422, 503)},
    )

    @routes.post("", status_code=202, response_model=Answer, openapi_extra=_REQUEST, summary="Put events in")
    async def accept_events(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in NDJSON:
            return await _accept_lines(request, intake)
        if kind in JSON:
            return await _accept_json(await read_body(request), intake)
        raise ProblemError(415, f"Send application/json or application/x-ndjson, not {kind}")

    @routes.get("/{event_id}", response_model=StoredEvent, summary="What became of an event")
    async def find_event(event_id: UUID) -> JSONResponse:
        async with store.read() as connection:
            row = await statements.find(connection, event_id)
        if row is None:
            raise ProblemError(404, f"There is no event {event_id}")
        fate = {
            "status": row.status.value,
            "attempts": row.attempts,
            "error": row.error,
            "createdAt": row.created_at.isoformat(),
            "finishedAt": row.finished_at and row.finished_at.isoformat(),
        }
        return JSONResponse(row.event.model_dump(mode="json", by_alias=True) | fate)

    return routes


async def _accept_json(body: bytes, intake: Intake) -> Response:
    events = _parse(body)
    answers = await intake.accept(events)
    new = sum(answers)
    # Put together by hand: nothing in it needs escaping, and a thousand of them are most of what the answer costs.
    each = ",".join(
        f'{{"eventId":"{event.event_id}","status":"{"ACCEPTED" if is_new else "DUPLICATE"}"}}'
        for event, is_new in zip(events, answers, strict=True)
    )
    answer = f'{{"accepted":{new},"duplicates":{len(events) - new},"events":[{each}]}}'
    return Response(answer, status_code=202, media_type="application/json")


async def _accept_lines(request: Request, intake: Intake) -> JSONResponse:
    tally = await ndjson.pour(stream_body(request), intake.accept)
    if tally.rejected and not tally.accepted + tally.duplicates:
        raise ProblemError(
            422,
            f"None of the {tally.rejected} lines is an event; `errors` names the first by line. Nothing was stored.",
            [{"loc": [one["line"], *one["loc"]], "msg": one["msg"]} for one in tally.errors],
        )
    answer: dict[str, Any] = {"accepted": tally.accepted, "duplicates": tally.duplicates}
    if tally.rejected:
        answer |= {"rejected": tally.rejected, "errors": tally.errors}
    return JSONResponse(answer, status_code=202)


def _parse(body: bytes) -> list[Event]:
    """One event is an array of one. Raises the problem that names every mistake and where it stands."""
    is_array = body.lstrip()[:1] == b"["
    try:
        events = _array.validate_json(body) if is_array else [Event.model_validate_json(body)]
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False, include_context=False)
        if mistakes[0]["type"] == "json_invalid":
            raise ProblemError(400, f"The body is not JSON: {mistakes[0]['msg']}. Nothing was stored.") from None
        raise ProblemError(
            422,
            f"{error.error_count()} mistakes: correct what `errors` names. Nothing was stored.",
            [{"loc": one["loc"], "msg": one["msg"]} for one in mistakes],
        ) from None
    _refuse_repeats(events)
    return events


def _refuse_repeats(events: list[Event]) -> None:
    first: dict[UUID, int] = {}
    repeats = []
    for place, event in enumerate(events):
        if (earlier := first.setdefault(event.event_id, place)) != place:
            repeats.append({"loc": [place, "eventId"], "msg": f"is the eventId of number {earlier} too"})
    if repeats:
        raise ProblemError(422, "One request names the same eventId more than once. Nothing was stored.", repeats)
