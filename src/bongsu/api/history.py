"""GET /api/admin/history: the notifications and suppressions of all members, with every delivery, newest first."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from bongsu.api.auth import Authenticator
from bongsu.api.models import ApiModel, Page, Timestamp
from bongsu.api.paging import cursor_of, encode_cursor
from bongsu.api.problems import problems
from bongsu.api.query import CURSOR, refuse_repeats
from bongsu.desk.lists import ListFilter
from bongsu.model import Id, Name
from bongsu.model.channels import ChannelName
from bongsu.store import Store
from bongsu.store.desk import history as statements
from bongsu.store.desk.delivery_history import DeliveryRow
from bongsu.store.desk.history import Filters, HistoryRow, PageCursor, Status


class HistoryQuery(ListFilter):
    """`from` and `to` are about when it was decided."""

    user_id: Id | None = None
    type: Name | None = Field(None, description="The notification's type, such as PRICE_DROP")
    event_id: UUID | None = None
    status: Status | None = None
    channel: ChannelName | None = Field(None, description="Sent on this channel; of suppressions, what would have been")
    limit: int = Field(50, ge=1, le=200, description="How many at most")
    cursor: Annotated[PageCursor, cursor_of(PageCursor)] | None = CURSOR

    @property
    def filters(self) -> Filters:
        return Filters(self.user_id, self.type, self.event_id, self.status, self.channel, self.since, self.until)


class AttemptItem(ApiModel):
    at: Timestamp
    millis: int
    code: str = Field(description="SUCCESS, or the code of the failure")


class DeliveryItem(ApiModel):
    delivery_id: str
    channel: str
    device_id: str | None
    status: str = Field(description="READY, SENDING, SUCCESS, FAIL, UNKNOWN or CANCELLED")
    code: str | None
    tries: int = Field(description="Attempts in the current round: a recovery or replay starts a new one")
    attempts: list[AttemptItem] = Field(description="All attempts, of every round")
    simulated: bool
    created_at: Timestamp
    finished_at: Timestamp | None
    due: Timestamp


class HistoryItem(ApiModel):
    member_id: str
    event_id: UUID
    type: str
    subject: str
    title: str
    message: str
    notification_id: str | None = Field(description="null if it was suppressed or merged")
    merged_into: str | None = Field(description="The notification (a digest) that it was merged into, if it was")
    status: Status
    channels: list[str]
    created_at: Timestamp
    read_at: Timestamp | None
    archived_at: Timestamp | None = Field(description="When the member archived it, if it is in the archive")
    deleted_at: Timestamp | None = Field(description="When the member deleted it from their inbox")
    locale: str | None = Field(description="null if the text was given and not rendered from a template")
    deliveries: list[DeliveryItem]


class HistoryPage(Page[HistoryItem]):
    pass


def router(auth: Authenticator, store: Store) -> APIRouter:
    routes = APIRouter(
        prefix="/api/admin", tags=["operations"], dependencies=[Depends(auth.server)], responses=problems(401, 403, 422, 503)
    )

    @routes.get("/history", summary="List notifications and suppressions")
    async def find_history(query: Annotated[HistoryQuery, Query()], request: Request) -> HistoryPage:
        """With every delivery and attempt, newest first. The filters are combined with AND."""
        refuse_repeats(request)
        async with store.read() as tx:
            rows, end = await statements.find_page(tx, query.filters, query.cursor, query.limit)
        return HistoryPage(items=[_item(row) for row in rows], next=end and encode_cursor(end))

    return routes


def _item(row: HistoryRow) -> HistoryItem:
    return HistoryItem(
        member_id=row.member_id,
        event_id=row.event_id,
        type=row.type,
        subject=row.subject,
        title=row.title,
        message=row.body,
        notification_id=None if row.notification_id is None else str(row.notification_id),
        merged_into=None if row.merged_into is None else str(row.merged_into),
        status=row.status,
        channels=list(row.channels),
        created_at=row.created_at,
        read_at=row.read_at,
        archived_at=row.archived_at,
        deleted_at=row.deleted_at,
        locale=row.locale or None,
        deliveries=[_delivery(delivery) for delivery in row.deliveries],
    )


def _delivery(row: DeliveryRow) -> DeliveryItem:
    return DeliveryItem(
        delivery_id=str(row.delivery_id),
        channel=row.channel,
        device_id=row.device_id,
        status=row.status,
        code=row.code,
        tries=row.attempts,
        attempts=[AttemptItem(at=attempt.at, millis=attempt.millis, code=attempt.code) for attempt in row.all_attempts],
        simulated=row.is_simulated,
        created_at=row.created_at,
        finished_at=row.finished_at,
        due=row.due,
    )
