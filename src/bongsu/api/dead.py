"""/api/admin/dead: list dead letters, show one, and replay those that match."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, ValidationInfo

from bongsu.api.auth import Authenticator, key_ending
from bongsu.api.bodies import described, read_as
from bongsu.api.history import AttemptItem
from bongsu.api.models import ApiModel, Page, QueryModel, RequestModel, Timestamp
from bongsu.api.paging import CursorText, decode_cursor, encode_cursor
from bongsu.api.problems import problems
from bongsu.api.query import CURSOR, refuse_repeats
from bongsu.desk.dead_filter import DeadFilter, System
from bongsu.desk.dead_letters import Cursor, DeadLetters, Letter, LetterDetails, MessageCursor, RejectedMessage, Replayed
from bongsu.errors import NoSuchDeadLetter
from bongsu.store.desk.dead_letters import DeadRow, Kind, PageCursor, State


def _cursor(given: str, info: ValidationInfo) -> Cursor:
    """Of the source that is asked: pages of messages end differently from those of the store."""
    is_of_messages = info.data.get("source") not in (None, System.STORE)
    kind: type[Any] = MessageCursor if is_of_messages else PageCursor
    cursor: Cursor = decode_cursor(kind, given)
    return cursor


class DeadQuery(DeadFilter):
    limit: int = Field(50, ge=1, le=200, description="How many at most")
    cursor: Annotated[Cursor, BeforeValidator(_cursor, json_schema_input_type=CursorText)] | None = CURSOR


class ShowQuery(QueryModel):
    source: System = Field(System.STORE, description="Where it is")


class ReplayRequest(RequestModel):
    """Which dead letters to replay, and how."""

    filter: DeadFilter | None = Field(None, description="At least one of its names must be given")
    dry_run: bool = Field(False, description="Count them and change nothing")
    new_collapse_id: bool = Field(False, description="Show it in addition to what may have arrived, not instead")


_request: TypeAdapter[ReplayRequest] = TypeAdapter(ReplayRequest)


class DeadItem(ApiModel):
    source: System
    kind: Kind
    id: str = Field(description="A delivery's number or an event's UUID; of a message, its id in its source")
    state: State
    code: str | None = Field(None, description="Of an event, the kind of error")
    error: str | None
    type: str | None = Field(description="null if a message is written so that it cannot be read")
    event_id: str | None = Field(description="A UUID; of a message, what is written there")
    queue: str | None = Field(None, description="The queue that rejected the message, or the name of the outbox")
    member_id: str | None = None
    channel: str | None = None
    device_id: str | None = None
    notification_id: str | None = None
    title: str | None = None
    tries: int = 0
    rounds: int = Field(0, description="How often the recovery job has retried it")
    retryable: bool = Field(False, description="Whether the recovery job may retry it again")
    created_at: Timestamp | None
    finished_at: Timestamp | None = Field(description="When it failed, was found unhandled, or ended")


class DeadPage(Page[DeadItem]):
    pass


class DeadDetails(DeadItem):
    body: str | None = Field(description="Of a delivery, its text; of a message, what was received, up to 10,000 characters")
    attempts: list[AttemptItem] = Field(description="To send a delivery, in the order in which they were made")


class ReplayResult(ApiModel):
    matched: int
    replayed: int


def router(auth: Authenticator, dead_letters: DeadLetters) -> APIRouter:
    routes = APIRouter(
        prefix="/api/admin", tags=["operations"], dependencies=[Depends(auth.server)], responses=problems(401, 403, 422, 503)
    )

    @routes.get("/dead", summary="List dead letters")
    async def list_dead(query: Annotated[DeadQuery, Query()], request: Request) -> DeadPage:
        """Events that FAILED or were UNHANDLED, then deliveries that ended FAIL or UNKNOWN, newest first; with `source`, the
        messages that another system has set aside. The filters are combined with AND."""
        refuse_repeats(request)
        rows, end = await dead_letters.list(query, query.cursor, query.limit)
        return DeadPage(items=[_item(row) for row in rows], next=end and encode_cursor(end))

    @routes.get("/dead/{id}", summary="Show a dead letter", responses=problems(404))
    async def show(
        dead_id: Annotated[str, Path(alias="id", description="As the list has it")],
        query: Annotated[ShowQuery, Query()],
        request: Request,
    ) -> DeadDetails:
        """What the list says of it, with its text and the attempts to send it."""
        refuse_repeats(request)
        try:
            asked = DeadFilter.model_validate({"source": query.source, "id": dead_id})
        except ValidationError:
            raise NoSuchDeadLetter("There is no such dead letter") from None
        return _details(await dead_letters.show(asked.id, asked.system))

    @routes.post(
        "/dead/replay",
        openapi_extra=described(ReplayRequest, example={"filter": {"code": "UNREGISTERED"}, "dryRun": True}),
        responses=problems(400, 413, 415),
        summary="Replay dead letters",
    )
    async def replay(request: Request) -> ReplayResult:
        """Make the dead letters that match due again, newest first, and record who asked for it. With `dryRun` they are
        counted only. A filter without any name is refused."""
        asked = await read_as(request, _request)
        wanted = asked.filter or DeadFilter()
        if asked.dry_run:
            done = Replayed(await dead_letters.count(wanted), 0)
        else:
            done = await dead_letters.replay(wanted, key_ending(request), new_collapse_id=asked.new_collapse_id)
        return ReplayResult(matched=done.matched, replayed=done.replayed)

    return routes


def _details(letter: LetterDetails) -> DeadDetails:
    if isinstance(letter, RejectedMessage):
        return DeadDetails(**dict(_message(letter)), body=letter.body, attempts=[])
    return DeadDetails(
        **dict(_stored(letter.row)),
        body=letter.content and letter.content.body,
        attempts=[AttemptItem(at=each.at, millis=each.millis, code=each.code) for each in letter.attempts],
    )


def _item(row: Letter) -> DeadItem:
    return _message(row) if isinstance(row, RejectedMessage) else _stored(row)


def _message(row: RejectedMessage) -> DeadItem:
    return DeadItem(
        source=row.system,
        kind=Kind.MESSAGE,
        id=row.id,
        state=State.REJECTED,
        error=row.error,
        type=row.type,
        event_id=row.event_id,
        queue=row.queue,
        created_at=row.written_at,
        finished_at=row.rejected_at,
    )


def _stored(row: DeadRow) -> DeadItem:
    return DeadItem(
        source=System.STORE,
        kind=row.kind,
        id=row.id,
        state=row.state,
        code=row.code,
        error=row.error,
        type=row.type,
        event_id=str(row.event_id),
        member_id=row.member_id,
        channel=row.channel,
        device_id=row.device_id,
        notification_id=None if row.notification_id is None else str(row.notification_id),
        title=row.title,
        tries=row.attempts,
        rounds=row.rounds,
        retryable=row.is_retryable,
        created_at=row.created_at,
        finished_at=row.finished_at,
    )
