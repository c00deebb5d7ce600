"""POST /api/notifications: tell these members this, now or at a set time; and calling off what has not gone yet.

The request becomes an event of its own in the outbox, and goes the way of every other from there.
"""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from bongsu import telemetry
from bongsu.http.auth import Gate
from bongsu.http.body import described, read_as
from bongsu.http.problems import PROBLEMS, ProblemError
from bongsu.ingress.intake import Intake
from bongsu.model import Channel, Event, EventStatus, Guarantee, Id, Payload, Priority, Wire, utc_now
from bongsu.rules import DIRECT
from bongsu.rules.engine import TYPE_NAME
from bongsu.store import Store, schedule
from bongsu.store import events as statements

# In one request, and so in one row. More people than this are told by a rule with an audience of its own.
MEMBERS_LIMIT = 100_000
# A title is one line on a lock screen and a mail's subject; a body is what a page of mail holds.
TITLE_LIMIT = 200
BODY_LIMIT = 10_000
# FCM carries 4 KB in all; mail and inbox carry more, but this is for an app's own use and not a place for documents.
DATA_LIMIT = 65_536
# Further ahead is more often a mistake in the year than a plan.
AHEAD = timedelta(days=366)

# Any constant will do, as long as it stays: a key sent again must become the id it became before.
_NAMESPACE = uuid.UUID("d1b7a1f4-6a35-5d0e-8f0c-2f0f6a3c9be1")


# A title stands in a mail's header and on one line; a body has lines.
_NOT_IN_A_TITLE = re.compile(r"[\x00-\x1f\x7f]")
_NOT_IN_A_BODY = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def _type_name(name: str) -> str:
    if not TYPE_NAME.fullmatch(name):
        raise PydanticCustomError("type_name", "must begin with a letter and hold letters, digits, - and _, at most 64")
    return name


def _said(text: str, unfit: re.Pattern[str]) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "is empty: say something")
    if found := unfit.search(text):
        what = "a line break" if found[0] in "\r\n" else "a control character"
        raise PydanticCustomError("unfit", "holds {what} at {place}: remove it", {"what": what, "place": found.start()})
    return text


def _once_each(channels: list[Channel]) -> list[Channel]:
    if len(set(channels)) < len(channels):
        raise PydanticCustomError("repeated", "names a channel more than once: name each once")
    return channels


def _near(moment: datetime) -> datetime:
    if moment.timestamp() < 0:
        raise PydanticCustomError("too_early", "lies before 1970: leave it out to send at once")
    if moment - utc_now() > AHEAD:
        raise PydanticCustomError("too_late", "lies more than a year ahead: check the year")
    return moment


def _short(data: dict[str, Any]) -> dict[str, Any]:
    try:
        length = len(json.dumps(data, ensure_ascii=False))
    except ValueError:
        return data  # what cannot be written is refused, by name, when the event is made
    if length > DATA_LIMIT:
        raise PydanticCustomError(
            "too_long", "is {length} characters of JSON, the limit is {limit}", {"length": length, "limit": DATA_LIMIT}
        )
    return data


Title = Annotated[
    str, StringConstraints(max_length=TITLE_LIMIT), AfterValidator(lambda text: _said(text, unfit=_NOT_IN_A_TITLE))
]
Body = Annotated[
    str, StringConstraints(max_length=BODY_LIMIT), AfterValidator(lambda text: _said(text, unfit=_NOT_IN_A_BODY))
]


class NotificationRequest(Wire):
    """What is to be said, and to whom. What is left out is as the declared type of that name has it."""

    type: Annotated[str, AfterValidator(_type_name)]
    # Stops at the first that is none: of a hundred thousand, nobody reads more.
    user_ids: Annotated[list[Id], FailFast(), Field(min_length=1, max_length=MEMBERS_LIMIT)]
    title: Title
    body: Body
    ref_id: Id | None = None
    data: Annotated[dict[str, Any], AfterValidator(_short)] | None = None
    channels: Annotated[list[Channel], Field(min_length=1), AfterValidator(_once_each)] | None = None
    priority: Priority | None = None
    subject: Id | None = None
    guarantee: Guarantee | None = None
    critical: bool | None = None
    send_at: Annotated[AwareDatetime, AfterValidator(_near)] | None = None
    idempotency_key: Id | None = None

    def as_event(self) -> Event:
        """The event of the outbox, whose payload `rules/direct.py` reads. The same key always makes the same id."""
        fields: dict[str, Any] = {"event_type": DIRECT, "ref_id": self.ref_id, "payload": self._payload()}
        if self.idempotency_key is not None:
            fields["event_id"] = uuid.uuid5(_NAMESPACE, self.idempotency_key)
        try:
            event = Event(**fields)
        except ValidationError as error:
            mistakes = [{"loc": ["data"], "msg": one["msg"].replace("payload.data", "data")} for one in error.errors()]
            raise ProblemError(422, "Correct what `errors` names. Nothing was stored.", mistakes) from None
        return event.model_copy(update={"payload": _with_members(event, list(dict.fromkeys(self.user_ids)))})

    def _payload(self) -> dict[str, Any]:
        given = self.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude={"ref_id", "idempotency_key", "user_ids", "data"}
        )
        if self.data is not None:
            given["data"] = self.data
        if self.send_at is not None:
            # The same moment reads the same in whichever time zone it was sent.
            given["sendAt"] = self.send_at.astimezone(UTC).isoformat()
        return given


def _with_members(event: Event, member_ids: list[str]) -> Payload:
    """The payload and whom it is for. Put in last: a hundred thousand ids that were checked once need not be again."""
    payload = Payload(event.payload | {"userIds": member_ids})
    payload.text = f'{event.payload_text[:-1]},"userIds":{orjson.dumps(member_ids).decode()}}}'
    return payload


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class AcceptedNotification(_Wire):
    event_id: uuid.UUID
    status: Literal["ACCEPTED", "DUPLICATE"] = Field(description="DUPLICATE: the idempotencyKey was sent before")
    members: int = Field(description="How many are to be told, each counted once")
    send_at: datetime | None = Field(description="When it goes; null for at once")


class CancelledNotification(_Wire):
    event_id: uuid.UUID
    status: Literal["CANCELLED"]
    begun: bool = Field(description="Whether some may have been told before it was called off")


_request = TypeAdapter(NotificationRequest)
_ALSO: dict[int | str, dict[str, Any]] = {409: {**PROBLEMS[422], "description": "Conflict"}}


def router(gate: Gate, intake: Intake, store: Store) -> APIRouter:
    routes = APIRouter(
        prefix="/api/notifications",
        tags=["notifications"],
        dependencies=[Depends(gate.server)],
        responses=PROBLEMS | _ALSO,
    )
    counter = Counter(intake, store)

    @routes.post(
        "",
        status_code=202,
        response_model=AcceptedNotification,
        openapi_extra=described(NotificationRequest),
        summary="Tell members something",
    )
    async def send(request: Request) -> Response:
        return await counter.send(await read_as(request, _request))

    @routes.delete("/scheduled/{event_id}", response_model=CancelledNotification, summary="Call off what has not gone yet")
    async def cancel(event_id: uuid.UUID) -> Response:
        return await counter.cancel(event_id)

    return routes


class Counter:
    """Where notifications are handed in and called off."""

    def __init__(self, intake: Intake, store: Store) -> None:
        self._intake = intake
        self._store = store

    async def send(self, asked: NotificationRequest) -> Response:
        event = asked.as_event()
        # A moment that has passed is not a mistake: the request was late, and at once is as near as can be.
        is_ahead = asked.send_at is not None and asked.send_at > utc_now()
        is_new = await (self._schedule(event, asked.send_at) if asked.send_at and is_ahead else self._send_now(event))
        if not is_new:
            await self._compare(event)
        answer = {
            "eventId": str(event.event_id),
            "status": "ACCEPTED" if is_new else "DUPLICATE",
            "members": len(event.payload["userIds"]),
            "sendAt": event.payload["sendAt"] if is_ahead else None,
        }
        return JSONResponse(answer, status_code=202)

    async def _send_now(self, event: Event) -> bool:
        return (await self._intake.accept([event]))[0]

    async def _schedule(self, event: Event, due: datetime) -> bool:
        async with self._store.write_once() as tx:
            is_new = await schedule.add(tx, event, due)
        counted = telemetry.EVENTS_ACCEPTED if is_new else telemetry.EVENTS_DUPLICATE
        counted.labels("http").inc()
        return is_new

    async def _compare(self, event: Event) -> None:
        """A key stands for one request. Another one under it would be lost without a word, so it is refused."""
        async with self._store.read() as connection:
            before = await statements.find(connection, event.event_id)
        if before is None:
            return  # stored, and forgotten by retention in between
        if before.error == schedule.CANCELLED and before.status is EventStatus.DONE:
            raise ProblemError(409, "What was sent with this idempotencyKey has been cancelled: send it with another key")
        is_same = _exact(before.event.payload_text) == _exact(event.payload_text) and before.event.ref_id == event.ref_id
        if not is_same:
            raise ProblemError(
                409,
                f"This idempotencyKey was sent before with something else in it, as event {event.event_id}: "
                "send the same again, or take another key. Nothing was stored.",
            )

    async def cancel(self, event_id: uuid.UUID) -> Response:
        async with self._store.write_once() as tx:
            await schedule.cancel(tx, event_id, DIRECT)
        async with self._store.read() as connection:
            progress = await schedule.find_progress(connection, event_id)
        if progress is None or progress.event_type != DIRECT:
            raise ProblemError(404, f"There is no notification {event_id}: eventId is what POST /api/notifications answered")
        if not progress.is_cancelled:
            raise ProblemError(409, _TOO_LATE[progress.status])
        return JSONResponse({"eventId": str(event_id), "status": schedule.CANCELLED, "begun": progress.is_begun})


# As the numbers were written, not as floats: PostgreSQL keeps 1e23 as an integer, and as a float it is another number.
_exact = json.JSONDecoder(parse_float=Decimal, parse_int=Decimal).decode

_TOO_LATE = {
    EventStatus.DONE: "It has gone already, and what was told cannot be called back. History says to whom",
    EventStatus.FAILED: "It has failed and goes to nobody unless it is replayed, so there is nothing to cancel",
    EventStatus.PENDING: "It was replayed at this very moment: cancel it again",
}
