"""GET and POST /api/counters/{name}/{key}."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Request
from pydantic import Field, TypeAdapter

from bongsu.api.auth import Authenticator
from bongsu.api.bodies import described, read_as
from bongsu.api.models import ApiModel, Timestamp
from bongsu.api.path_ids import PathId
from bongsu.api.problems import problems
from bongsu.counters.calls import Counters
from bongsu.model import Wire
from bongsu.model.counter import LARGEST, SMALLEST


class Change(Wire):
    """By how much a counter changes."""

    delta: Annotated[int, Field(ge=SMALLEST, le=LARGEST, description="A 64-bit integer")]
    event_id: Annotated[UUID | None, Field(strict=False, description="Counts once. Without it, a new one is made")] = None


class CounterItem(ApiModel):
    value: int = Field(description="Everything that was counted, whether or not a flush has applied it")
    as_of: Timestamp = Field(description="When that was so, by the store's clock")


class CountedItem(CounterItem):
    event_id: str
    duplicate: bool = Field(description="Whether this eventId was stored before: nothing was changed")


_change = TypeAdapter(Change)
_EXAMPLE = {"delta": 1, "eventId": "0198a6f0-4d5a-7c3e-9d2b-0a5f6c1e8b7d"}


def router(auth: Authenticator, counters: Counters) -> APIRouter:
    routes = APIRouter(
        prefix="/api/counters",
        tags=["counters"],
        dependencies=[Depends(auth.server)],
        responses=problems(401, 403, 404, 422, 503),
    )

    @routes.get("/{name}/{key}", summary="Find the value of a counter")
    async def find_counter(name: str, key: PathId) -> CounterItem:
        """Exact at that moment. A key that was never counted is 0; a counter of that name that is not known is 404."""
        value, as_of = await counters.find(name, key)
        return CounterItem(value=value, as_of=as_of)

    @routes.post(
        "/{name}/{key}",
        openapi_extra=described(Change, example=_EXAMPLE),
        responses=problems(400, 413, 415),
        summary="Change a counter",
    )
    async def change_counter(name: str, key: PathId, request: Request) -> CountedItem:
        """Stored when it answers, and seen by the next GET. The same eventId counts once, also if an event with this id came
        another way. A delta that would lead beyond 64 bits is refused, and nothing is changed."""
        change = await read_as(request, _change)
        answer = await counters.count(name, key, change.delta, change.event_id)
        return CountedItem(
            value=answer.value, as_of=answer.as_of, event_id=str(answer.event_id), duplicate=answer.is_duplicate
        )

    return routes
