"""What chat calls are sent and answer, over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from fastapi import Path
from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from bongsu.api.models import ApiModel, QueryModel, Timestamp
from bongsu.api.paging import cursor_of
from bongsu.api.query import CURSOR
from bongsu.chat.rooms import MEMBERS_AT_ONCE
from bongsu.model import Id, Name, Wire
from bongsu.store.chat import ChatMessage
from bongsu.store.core.query import LARGEST_ID

# --- what is sent -----------------------------------------------------------------------------------------------------

Text = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00]+$")]
SeqInPath = Annotated[int, Path(ge=1, le=LARGEST_ID, description="The message's position in the room")]


class NewRoom(Wire):
    """A chat room to create."""

    name: Name
    member_ids: Annotated[list[Id], Field(max_length=MEMBERS_AT_ONCE)] = Field(default_factory=list)


class OutgoingMessage(Wire):
    """A message to send."""

    client_message_id: Name = Field(max_length=255, description="Your own id of the message: sent twice, it is stored once")
    message: Text = Field(description="At most BONGSU_CHAT_MAX_BYTES bytes of UTF-8")
    sender_id: Id | None = Field(None, description="Server calls only: the member who sends it")


class EditedMessage(Wire):
    """The new text of a message."""

    message: Text = Field(description="At most BONGSU_CHAT_MAX_BYTES bytes of UTF-8")
    sender_id: Id | None = Field(None, description="Server calls only: the member who sent it")


class ReadUpTo(Wire):
    """How far a member has read."""

    seq: Annotated[int, Field(ge=0, le=LARGEST_ID)] = Field(description="Beyond the last message, it means the last one")


class HistoryQuery(QueryModel):
    """Which part of the history is asked for."""

    after_seq: int | None = Field(None, ge=0, le=LARGEST_ID, description="The first messages after this one")
    before_seq: int | None = Field(None, ge=0, le=LARGEST_ID, description="The last messages before this one")
    limit: int = Field(50, ge=1, le=100, description="How many at most")

    @model_validator(mode="after")
    def _has_one_direction(self) -> Self:
        if self.after_seq is not None and self.before_seq is not None:
            raise PydanticCustomError("direction", "give afterSeq or beforeSeq, not both")
        return self


@dataclass(frozen=True)
class MemberCursor:
    """The last member of a page."""

    member_id: str


class MembersQuery(QueryModel):
    limit: int = Field(50, ge=1, le=100, description="How many at most")
    cursor: Annotated[MemberCursor, cursor_of(MemberCursor)] | None = CURSOR


# --- what is answered -------------------------------------------------------------------------------------------------


class RoomItem(ApiModel):
    room_id: str
    name: str
    member_ids: list[str]


class RoomOfMemberItem(ApiModel):
    room_id: str
    name: str
    first_seq: int = Field(description="The oldest message that is kept")
    last_seq: int = Field(description="The newest message; 0 if there is none yet")
    read_seq: int = Field(description="Up to where you have read")
    unread: int = Field(description="Messages of others after that")
    muted: bool
    last_sent_at: Timestamp = Field(description="When the newest message was sent, or the room was created")


class RoomList(ApiModel):
    items: list[RoomOfMemberItem]


class MemberOfRoomItem(ApiModel):
    member_id: str
    joined_at: Timestamp
    read_seq: int
    online: bool | None = Field(description="Whether they have a stream or socket open; null if that is not known now")


class MessageItem(ApiModel):
    seq: int = Field(description="1, 2, 3, … without holes")
    sender_id: str | None = Field(description="null if the sender was erased")
    message: str | None = Field(description="null if it was deleted")
    client_message_id: str | None
    sent_at: Timestamp
    edited_at: Timestamp | None
    deleted_at: Timestamp | None


class SentMessageItem(MessageItem):
    room_id: str


class MessageList(ApiModel):
    items: list[MessageItem] = Field(description="Ascending")


class ReadMarkItem(ApiModel):
    read_seq: int
    last_seq: int
    unread: int


def message_item(message: ChatMessage) -> MessageItem:
    return MessageItem(
        seq=message.seq,
        sender_id=message.sender_id,
        message=message.message,
        client_message_id=message.client_message_id,
        sent_at=message.sent_at,
        edited_at=message.edited_at,
        deleted_at=message.deleted_at,
    )


def sent_item(message: ChatMessage) -> SentMessageItem:
    return SentMessageItem(room_id=str(message.room_id), **message_item(message).model_dump())
