"""The rule for chat: a push to members who were not there when messages came."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from bongsu.model import Channel, Digest, Event, Guarantee, Listed, Notice, Priority
from bongsu.model.notice import CHAT_MESSAGE
from bongsu.rules import fields
from bongsu.rules.engine import Rules

UNREAD = "chat.unread"

# With more members its deliveries rank as those of a campaign: a large room must not delay the pushes of others.
MOST_AT_ONCE = 100

chat = Rules()
PUSH_ABOUT_CHAT = chat.type(
    CHAT_MESSAGE,
    # Not the inbox: the room is one, with unread counts and marks of its own, and every message would be there twice.
    channels=[Channel.PUSH],
    priority=Priority.HIGH,
    # Sent again it replaces the first one on the device, with what is new by then.
    guarantee=Guarantee.AT_LEAST_ONCE,
    expires_hours=24,
    # The room was waited for already. What matters is that a push that waits, for the end of quiet hours, is one.
    digest=Digest(seconds=1),
    # Members expect to learn of each message, and what else they are sent must not depend on how much others talk.
    capped=False,
)


@chat.rule(UNREAD)
def unread(event: Event) -> Iterable[Notice]:
    """To members who have not read a room. The event says who, and the name of the room; the texts stay in chat."""
    room_id, members = _room_id(event.ref_id), fields.member_ids(event.payload, "memberIds")
    if not members:
        return ()
    return [
        Notice(
            PUSH_ABOUT_CHAT,
            Listed(members),
            subject=str(event.event_id),
            ref_id=room_id,
            digest_key=room_id,
            data={"roomId": room_id, "room": fields.text(event.payload, "roomName") or room_id},
            bulk=len(members) > MOST_AT_ONCE,
        )
    ]


def _room_id(given: str | None) -> str:
    try:
        return str(UUID(given or ""))
    except ValueError:
        raise ValueError(f"refId must be the id of a chat room, not {given!r:.100}") from None
