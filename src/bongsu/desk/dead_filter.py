"""Which dead letters are asked for: of which system, and what they have in common."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import BeforeValidator, Field, PlainSerializer, StringConstraints, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from bongsu.desk.lists import ListFilter
from bongsu.model import Id, Name
from bongsu.model.channels import ChannelName
from bongsu.store.core.query import LARGEST_ID
from bongsu.store.desk.dead_letters import Filters, Kind, State


class System(StrEnum):
    """Where dead letters are: in the store, or where a source of events has set its messages aside."""

    STORE = "store"
    OUTBOX = "outbox"
    RABBITMQ = "rabbitmq"


def _dead_id(given: object, info: ValidationInfo) -> int | UUID | str:
    """A delivery's number or an event's UUID, which also says which kind it is. The id of a message is any text."""
    text = given if isinstance(given, str) else ""
    if info.data.get("source") not in (None, System.STORE):
        if text and len(text) <= 500 and text.isprintable():
            return text
        raise PydanticCustomError("id", "must be the id of a message, as the list shows it")
    if re.fullmatch(r"[0-9]{1,19}", text) and int(text) <= LARGEST_ID:
        return int(text)
    try:
        return UUID(text)
    except ValueError:
        raise PydanticCustomError("id", "must be a delivery's number or an event's UUID") from None


# For the API's document. Numbers of 19 digits fit in part; of another system than the store it is any text.
_Number = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,18}$")]
# As text in a replay's input too, which is read again by a process that continues the replay.
DeadId = Annotated[
    int | UUID | str,
    BeforeValidator(_dead_id, json_schema_input_type=_Number | UUID),
    PlainSerializer(str, when_used="json"),
]

_NOTHING_FITS = (
    "nothing fits: an event is FAILED or UNHANDLED and has no channel or userId, a delivery is FAIL or UNKNOWN, and a "
    "message of another source is REJECTED and has id, queue, type, eventId, from and to"
)


class DeadFilter(ListFilter):
    """What the dead letters have in common; `from` and `to` are about when they failed or ended."""

    # Before `id`, whose form it decides.
    source: System | None = Field(None, description="Where they are; left out, it is the store")
    id: DeadId | None = None
    kind: Kind | None = None
    state: State | None = Field(
        None, description="FAILED and UNHANDLED of events, FAIL and UNKNOWN of deliveries, REJECTED of messages"
    )
    code: Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00]+$")] | None = None
    channel: ChannelName | None = None
    type: Name | None = Field(None, description="The notification's type, or the event's")
    user_id: Id | None = None
    event_id: UUID | None = None
    queue: Name | None = Field(None, description="The queue that rejected the message, or the name of the outbox")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not (self._fits_messages if self.is_of_messages else self.queue is None and self.filters.kinds):
            raise PydanticCustomError("kinds", _NOTHING_FITS)
        return self

    @property
    def system(self) -> System:
        return self.source or System.STORE

    @property
    def is_of_messages(self) -> bool:
        """Whether it is about another system than the store."""
        return self.system is not System.STORE

    @property
    def _fits_messages(self) -> bool:
        has_no_other = self.code is None and self.channel is None and self.user_id is None
        return has_no_other and self.kind in (None, Kind.MESSAGE) and self.state in (None, State.REJECTED)

    @property
    def filters(self) -> Filters:
        """For the store."""
        return Filters(
            id=None if isinstance(self.id, str) else self.id,
            kind=self.kind,
            state=self.state,
            code=self.code,
            channel=self.channel,
            type=self.type,
            member_id=self.user_id,
            event_id=self.event_id,
            since=self.since,
            until=self.until,
        )

    @property
    def is_empty(self) -> bool:
        return not self.as_json

    @property
    def as_json(self) -> dict[str, Any]:
        """As it is stored with the replay."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, include=set(DeadFilter.model_fields))
