"""GET /api/admin/history: the notifications and suppressions of all members, with every delivery, newest first."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from bongsu.api.auth import Gate
from bongsu.api.paging import is_id, no_cursor, unwrap, wrap
from bongsu.api.problems import PROBLEMS, ProblemError
from bongsu.model import Id, Name
from bongsu.model.channels import ChannelName
from bongsu.store import Store
from bongsu.store.desk import history as statements
from bongsu.store.desk.delivery_history import DeliveryRow
from bongsu.store.desk.history import Filters, HistoryRow, PageCursor, Status

_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


def _moment(given: str) -> datetime:
    try:
        moment = datetime.fromisoformat(given)
        if moment.tzinfo is not None and _FIRST <= moment < _LAST:
            return moment
    except ValueError:
        pass
    raise PydanticCustomError("moment", "must be a time with offset, as 2026-03-01T09:00:00Z; a + in a URL is written %2B")


def _bare(cursor: str) -> PageCursor:
    match unwrap(cursor):
        case [message_id, str(member_id)] if is_id(message_id) and "\x00" not in member_id:
            return PageCursor(message_id, member_id)
    raise no_cursor()


def wrapped(place: PageCursor) -> str:
    """A place as a cursor."""
    return wrap(place.message_id, place.member_id)


Moment = Annotated[datetime, BeforeValidator(_moment, json_schema_input_type=str)]


class HistoryQuery(BaseModel):
    """The filters. An unknown name is refused: a misspelt filter would match everything."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    user_id: Id | None = None
    type: Name | None = Field(None, description="The notification's type, such as PRICE_DROP")
    event_id: UUID | None = None
    status: Status | None = None
    channel: ChannelName | None = Field(None, description="Sent on this channel; of suppressions, what would have been")
    since: Moment | None = Field(None, alias="from", description="Decided at this moment or later")
    until: Moment | None = Field(None, alias="to", description="Decided before this moment")
    limit: int = Field(50, ge=1, le=200, description="How many at most")
    cursor: Annotated[PageCursor, BeforeValidator(_bare, json_schema_input_type=str)] | None = Field(
        None, description="What `next` of the page before said"
    )

    @model_validator(mode="after")
    def _in_order(self) -> HistoryQuery:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise PydanticCustomError("order", "`from` must lie before `to`")
        return self

    @property
    def filters(self) -> Filters:
        return Filters(self.user_id, self.type, self.event_id, self.status, self.channel, self.since, self.until)


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class AttemptItem(_Wire):
    at: datetime
    millis: int
    code: str = Field(description="SUCCESS, or the code of the failure")


class DeliveryItem(_Wire):
    delivery_id: str
    channel: str
    device_id: str | None
    status: str = Field(description="READY, SENDING, SUCCESS, FAIL, UNKNOWN or CANCELLED")
    code: str | None
    tries: int = Field(description="Attempts in the current round: a recovery or replay starts a new one")
    attempts: list[AttemptItem] = Field(description="All attempts, of every round")
    simulated: bool
    created_at: datetime
    finished_at: datetime | None
    due: datetime


class HistoryItem(_Wire):
    member_id: str
    event_id: UUID
    type: str
    subject: str
    title: str
    message: str
    notification_id: str | None = Field(description="null if it was suppressed")
    status: Status
    channels: list[str]
    created_at: datetime
    read_at: datetime | None
    locale: str | None = Field(description="null if the text was given and not rendered from a template")
    deliveries: list[DeliveryItem]


class HistoryPage(_Wire):
    items: list[HistoryItem] = Field(description="May be fewer than `limit`, or none, although there is a next page")
    next: str | None = Field(description="The cursor of the next page, if there is one")


def router(gate: Gate, store: Store) -> APIRouter:
    routes = APIRouter(prefix="/api/admin", tags=["operations"], dependencies=[Depends(gate.server)], responses=PROBLEMS)

    @routes.get(
        "/history",
        response_model=HistoryPage,
        summary="List notifications and suppressions with their deliveries, newest first",
    )
    async def find_history(query: Annotated[HistoryQuery, Query()], request: Request) -> Response:
        refuse_repeats(request)
        async with store.read() as tx:
            page = await statements.find_page(tx, query.filters, query.cursor, query.limit)
        more = None if page.next is None else wrapped(page.next)
        return JSONResponse({"items": [_item(row) for row in page.rows], "next": more})

    return routes


def refuse_repeats(request: Request) -> None:
    """Refuse a parameter that is given twice: one of the values would be ignored silently."""
    names = [name for name, _ in request.query_params.multi_items()]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        mistakes = [{"loc": ["query", name], "msg": "is given more than once: give it once"} for name in repeated]
        raise ProblemError(422, "Each parameter takes one value: correct what `errors` names.", mistakes)


def _item(row: HistoryRow) -> dict[str, Any]:
    return {
        "memberId": row.member_id,
        "eventId": str(row.event_id),
        "type": row.type,
        "subject": row.subject,
        "title": row.title,
        "message": row.body,
        "notificationId": None if row.notification_id is None else str(row.notification_id),
        "status": row.status.value,
        "channels": list(row.channels),
        "createdAt": row.created_at.isoformat(),
        "readAt": row.read_at and row.read_at.isoformat(),
        "locale": row.locale or None,
        "deliveries": [_delivery(one) for one in row.deliveries],
    }


def _delivery(one: DeliveryRow) -> dict[str, Any]:
    return {
        "deliveryId": str(one.delivery_id),
        "channel": one.channel,
        "deviceId": one.device_id,
        "status": one.status,
        "code": one.code,
        "tries": one.attempts,
        "attempts": [{"at": each.at.isoformat(), "millis": each.millis, "code": each.code} for each in one.all_attempts],
        "simulated": one.is_simulated,
        "createdAt": one.created_at.isoformat(),
        "finishedAt": one.finished_at and one.finished_at.isoformat(),
        "due": one.due.isoformat(),
    }
