"""POST /api/notifications: send a notification to listed members, now or at a set time; and cancel it before it is sent.

The request becomes an event in the outbox and is processed like any other from there.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Literal, Protocol

import orjson
from fastapi import APIRouter, Depends, Request
from pydantic import (
    AfterValidator,
    AwareDatetime,
    FailFast,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from bongsu.api.auth import Authenticator, key_ending
from bongsu.api.bodies import BODY_LIMIT as BODY_BYTES
from bongsu.api.bodies import described, read_as
from bongsu.api.models import ApiModel, Timestamp
from bongsu.api.problems import ProblemError, problems
from bongsu.ingress.intake import Intake
from bongsu.model import Event, EventStatus, Guarantee, Id, NoticeType, Priority, Wire, utc_now
from bongsu.model.channels import ChannelName
from bongsu.model.payload import Payload
from bongsu.rules import CRITICAL_DIRECT, DIRECT
from bongsu.rules.engine import TYPE_NAME
from bongsu.rules.fields import MOST_A_MINUTE
from bongsu.store import Store, outbox
from bongsu.store.core.clock import find_now
from bongsu.store.desk.cancellations import Cancellation

# In one request, and so in one row. For more members write a rule with an audience.
MEMBERS_LIMIT = 100_000
# A title is one line on a lock screen and a mail's subject; a body is what a page of mail holds.
TITLE_LIMIT = 200
BODY_LIMIT = 10_000
# FCM carries 4 KB in all; mail and inbox carry more, but this is for an app's own use and not for documents.
DATA_LIMIT = 65_536
# Further ahead is more often a mistake in the year than a plan. A leap year, and a day for a clock that is wrong.
AHEAD = timedelta(days=366 + 1)

# Any constant will do, but it must never change: a key sent again must become the same id.
_NAMESPACE = uuid.UUID("d1b7a1f4-6a35-5d0e-8f0c-2f0f6a3c9be1")


# A title is one line and a mail's header; a body has lines.
_NOT_IN_A_TITLE = r"\x00-\x1f\x7f"
_NOT_IN_A_BODY = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f"


def _type_name(name: str) -> str:
    if not TYPE_NAME.fullmatch(name):
        raise PydanticCustomError("type_name", "must begin with a letter and hold letters, digits, - and _, at most 64")
    return name


def _printable(text: str, unfit: re.Pattern[str]) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "is empty: write something")
    if found := unfit.search(text):
        what = "a line break" if found[0] in "\r\n" else "a control character"
        raise PydanticCustomError("unfit", "holds {what} at {index}: remove it", {"what": what, "index": found.start()})
    return text


def _once_each(channels: list[str]) -> list[str]:
    if len(set(channels)) < len(channels):
        raise PydanticCustomError("repeated", "names a channel more than once: name each once")
    return channels


def _near(moment: datetime) -> datetime:
    if moment.timestamp() < 0:
        raise PydanticCustomError("too_early", "lies before 1970: check the year, or leave it out")
    if moment - utc_now() > AHEAD:
        raise PydanticCustomError("too_late", "lies more than a year ahead: check the year")
    return moment


def _short(data: dict[str, Any]) -> dict[str, Any]:
    try:
        length = len(json.dumps(data, ensure_ascii=False))
    except ValueError:
        return data  # what cannot be encoded is refused, by name, when the event is made
    if length > DATA_LIMIT:
        raise PydanticCustomError(
            "too_long", "is {length} characters of JSON, the limit is {limit}", {"length": length, "limit": DATA_LIMIT}
        )
    return data


def _not_blank(unfit: str) -> dict[str, Any]:
    """For the API's document; the check itself says what to remove."""
    return {"minLength": 1, "pattern": rf"^[^{unfit}]*[^\s{unfit}][^{unfit}]*$"}


Title = Annotated[
    str,
    Field(max_length=TITLE_LIMIT, json_schema_extra=_not_blank(_NOT_IN_A_TITLE)),
    AfterValidator(partial(_printable, unfit=re.compile(f"[{_NOT_IN_A_TITLE}]"))),
]
Body = Annotated[
    str,
    Field(max_length=BODY_LIMIT, json_schema_extra=_not_blank(_NOT_IN_A_BODY)),
    AfterValidator(partial(_printable, unfit=re.compile(f"[{_NOT_IN_A_BODY}]"))),
]


class NotificationRequest(Wire):
    """A notification and its recipients. What is left out is as the declared type of that name has it."""

    type: Annotated[str, Field(json_schema_extra={"pattern": f"^{TYPE_NAME.pattern}$"}), AfterValidator(_type_name)]
    # Stops at the first invalid id: of a hundred thousand, more are of no use to the caller.
    user_ids: Annotated[list[Id], FailFast(), Field(min_length=1, max_length=MEMBERS_LIMIT)]
    title: Title
    body: Body
    ref_id: Id | None = None
    data: Annotated[dict[str, Any], AfterValidator(_short)] | None = None
    channels: (
        Annotated[
            list[ChannelName],
            Field(min_length=1, json_schema_extra={"uniqueItems": True}),
            AfterValidator(_once_each),
        ]
        | None
    ) = None
    priority: Priority | None = None
    subject: Id | None = None
    guarantee: Guarantee | None = None
    critical: bool | None = None
    send_at: (
        Annotated[
            AwareDatetime,
            Field(json_schema_extra={"description": "With offset; from 1970 to a year from now"}),
            AfterValidator(_near),
        ]
        | None
    ) = None
    expires_at: Annotated[AwareDatetime, AfterValidator(_near)] | None = Field(
        None, description="What has not been sent by then is not sent; the inbox keeps it. As the declared type has it"
    )
    pace_per_minute: Annotated[int, Field(ge=1, le=MOST_A_MINUTE)] | None = Field(
        None, description="To how many members a minute it is sent, at most; the inbox has it at once"
    )
    idempotency_key: Id | None = None

    def as_event(self, types: Mapping[str, NoticeType]) -> Event:
        """The event of the outbox, whose payload `rules/direct.py` reads. The same key always makes the same id."""
        declared = types.get(self.type)
        is_critical = declared is not None and declared.is_critical if self.critical is None else self.critical
        event_type = CRITICAL_DIRECT if is_critical else DIRECT
        fields: dict[str, Any] = {"event_type": event_type, "ref_id": self.ref_id, "payload": self._payload()}
        if self.idempotency_key is not None:
            fields["event_id"] = uuid.uuid5(_NAMESPACE, self.idempotency_key)
        try:
            event = Event(**fields)
        except ValidationError as error:
            mistakes = [
                {"loc": ["data"], "msg": mistake["msg"].replace("payload.data", "data")} for mistake in error.errors()
            ]
            raise ProblemError(422, "Correct what `errors` names. Nothing was stored.", mistakes) from None
        return event.model_copy(update={"payload": _with_members(event, list(dict.fromkeys(self.user_ids)))})

    def _payload(self) -> dict[str, Any]:
        given = self.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude={"ref_id", "idempotency_key", "user_ids", "data"}
        )
        if self.data is not None:
            given["data"] = self.data
        # In UTC, so that the same time sent in another zone is the same request.
        for name, moment in (("sendAt", self.send_at), ("expiresAt", self.expires_at)):
            if moment is not None:
                given[name] = moment.astimezone(UTC).isoformat()
        return given


def _with_members(event: Event, member_ids: list[str]) -> Payload:
    """The payload with its recipients. Added last: a hundred thousand ids were checked once already."""
    payload = Payload(event.payload | {"userIds": member_ids})
    payload.text = f'{event.payload_text[:-1]},"userIds":{orjson.dumps(member_ids).decode()}}}'
    return payload


class AcceptedNotification(ApiModel):
    event_id: uuid.UUID
    status: Literal["ACCEPTED", "DUPLICATE"] = Field(description="DUPLICATE: the idempotencyKey was sent before")
    members: int = Field(description="How many recipients, each counted once")
    send_at: Timestamp | None = Field(description="When it is sent; null for at once")


class CancelledNotification(ApiModel):
    event_id: uuid.UUID
    status: Literal["CANCELLED"]
    begun: bool = Field(description="Whether some of its members had been decided before it was cancelled")
    cancelled: int = Field(description="Deliveries that were stopped")
    sent: int = Field(description="Deliveries that had been sent, or were being sent")


_request = TypeAdapter(NotificationRequest)
_EXAMPLE = {
    "type": "NOTICE",
    "userIds": ["member-7"],
    "title": "내일 배송됩니다",
    "body": "오전 9시부터 12시 사이에 도착합니다.",
    "idempotencyKey": "delivery-2026-03-01-7",
}


class Cancel(Protocol):
    """Cancels an event; raises if there is nothing to cancel."""

    async def __call__(self, event_id: uuid.UUID, who: str) -> Cancellation: ...


def router(
    auth: Authenticator, intake: Intake, store: Store, cancel_event: Cancel, types: Mapping[str, NoticeType]
) -> APIRouter:
    """`types` are the declared notice types: some are critical although a request does not say so."""
    routes = APIRouter(
        prefix="/api/notifications",
        tags=["notifications"],
        dependencies=[Depends(auth.server)],
        responses=problems(401, 403, 409, 422, 503),
    )
    notifications = DirectNotifications(intake, store, types)

    @routes.post(
        "",
        status_code=202,
        openapi_extra=described(NotificationRequest, example=_EXAMPLE),
        responses=problems(400, 413, 415),
        summary="Send a notification to members",
    )
    async def send(request: Request) -> AcceptedNotification:
        """To at most 100,000 members, now or at `sendAt`. The answer comes when it is stored. With an `idempotencyKey` a
        repeated request is a duplicate and sends nothing; another request under the same key is a conflict."""
        return await notifications.send(await read_as(request, _request, limit=BODY_BYTES))

    @routes.delete("/scheduled/{event_id}", responses=problems(404), summary="Cancel a notification")
    async def cancel(event_id: uuid.UUID, request: Request) -> CancelledNotification:
        """Stops what has not been sent of a notification that POST /api/notifications has accepted. 409 if all of it has
        been sent."""
        async with store.read() as tx:
            stored = await outbox.find(tx, event_id)
        if stored is None or stored.event_type not in (DIRECT, CRITICAL_DIRECT):
            raise ProblemError(404, f"There is no notification {event_id}: eventId is what POST /api/notifications answered")
        done = await cancel_event(event_id, key_ending(request))
        begun = stored.is_begun or bool(done.cancelled or done.sent)
        return CancelledNotification(
            event_id=event_id, status="CANCELLED", begun=begun, cancelled=done.cancelled, sent=done.sent
        )

    return routes


class DirectNotifications:
    """Sends notifications."""

    def __init__(self, intake: Intake, store: Store, types: Mapping[str, NoticeType]) -> None:
        self._intake = intake
        self._store = store
        self._types = types

    async def send(self, asked: NotificationRequest) -> AcceptedNotification:
        event = asked.as_event(self._types)
        # A time that has passed is not a mistake: the request was late, and is sent at once.
        is_ahead = asked.send_at is not None and await self._is_ahead(asked.send_at)
        stored = outbox.scheduled(event, asked.send_at) if asked.send_at is not None and is_ahead else event
        is_new = False
        if not await self._has_expired(asked, event):
            (is_new,) = await self._intake.accept([stored])
        if not is_new:
            await self._compare(event)
        return AcceptedNotification(
            event_id=event.event_id,
            status="ACCEPTED" if is_new else "DUPLICATE",
            members=len(event.payload["userIds"]),
            send_at=asked.send_at.astimezone(UTC) if asked.send_at and is_ahead else None,
        )

    async def _has_expired(self, asked: NotificationRequest, event: Event) -> bool:
        """Whether it repeats a request that was accepted before it expired. Refuses a new one that would never be sent."""
        if asked.expires_at is None:
            return False
        if asked.send_at is not None and asked.expires_at <= asked.send_at:
            raise _refused("expiresAt", "lies before sendAt: it would never be sent")
        if await self._is_ahead(asked.expires_at):
            return False
        async with self._store.read() as tx:
            if asked.idempotency_key is None or await outbox.find(tx, event.event_id) is None:
                raise _refused("expiresAt", "lies in the past: it would never be sent. Give a later time, or leave it out")
        return True

    async def _is_ahead(self, moment: datetime) -> bool:
        """By the store's time, by which workers find what is due."""
        async with self._store.read() as tx:
            return moment > await find_now(tx)

    async def _compare(self, event: Event) -> None:
        """Refuse another request under the same key: it would be lost silently."""
        async with self._store.read() as tx:
            before = await outbox.find(tx, event.event_id)
        if before is None:
            return  # deleted by retention in between
        if before.status is EventStatus.CANCELLED:
            raise ProblemError(409, "What was sent with this idempotencyKey has been cancelled: send it with another key")
        is_same = _exact(before.event.payload_text) == _exact(event.payload_text) and before.event.ref_id == event.ref_id
        if not is_same:
            raise ProblemError(
                409,
                f"This idempotencyKey was sent before with something else in it, as event {event.event_id}: "
                "send the same again, or take another key. Nothing was stored.",
            )


def _refused(field: str, message: str) -> ProblemError:
    return ProblemError(422, "Correct what `errors` names. Nothing was stored.", [{"loc": [field], "msg": message}])


# Numbers as they were written, not as floats: PostgreSQL stores 1e23 as an integer, which as a float is another number.
_exact = json.JSONDecoder(parse_float=Decimal, parse_int=Decimal).decode
