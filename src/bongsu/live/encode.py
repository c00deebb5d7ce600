"""What is sent to readers, as JSON: encoded once, whatever the wire. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from bongsu.store.inbox.changes import Change, Marks
from bongsu.store.inbox.live import InboxState, NewNotification
from bongsu.store.messages.content import MessageContent
from bongsu.store.messages.digests import NotificationContents

# A reader reconnects after this long. Randomised, so that those that lost the same server do not return together.
RETRY_SECONDS = (1.0, 3.0)
# For every thousand disconnected together, the time within which they reconnect grows by this much.
SPREAD_SECONDS = 2.0
# A page that was closed in favour of a newer one would close that one in turn if it reconnected at once.
REPLACED_RETRY_SECONDS = (60.0, 120.0)


class Event(NamedTuple):
    """One thing that a reader is sent: its place in the member's cursor, its name, and a JSON object.

    Without a name it is not sent: the cursor moves past it.
    """

    key: int
    name: bytes
    data: bytes


def retry_milliseconds(together: int = 0) -> int:
    """When a reader reconnects that is one of so many disconnected together."""
    first, last = RETRY_SECONDS
    return _between(first, last + SPREAD_SECONDS * together / 1000)


def replaced_milliseconds() -> int:
    return _between(*REPLACED_RETRY_SECONDS)


def _between(first: float, last: float) -> int:
    return round(random.uniform(first, last) * 1000)  # noqa: S311 (spreading load, not keeping secrets)


# --- a notification ---------------------------------------------------------------------------------------------------

NOTIFICATION = b"notification"
UPDATED = b"updated"
WITHDRAWN = b"withdrawn"

_ID = b'{"id":"'


def _fields(created_at: datetime, content: MessageContent) -> dict[str, Any]:
    """A notification as its member sees it. The one place where a row and its content become JSON for readers."""
    # As it is stored, numbers of any length included. A line break can only be white space there, and would end the event.
    data = orjson.Fragment(content.data_json.replace("\n", " ").replace("\r", " "))
    return {
        "id": "",
        "createdAt": created_at.isoformat(),
        "type": content.type,
        "title": content.title,
        "message": content.body,
        "refId": content.ref_id,
        "data": data,
    }


def after_id(created_at: datetime, content: MessageContent) -> bytes:
    """A notification's JSON from the end of its id on: the same for all that one step of a fan-out wrote of a message."""
    return orjson.dumps(_fields(created_at, content)).removeprefix(_ID)


def with_id(notification_id: int, rest: bytes) -> bytes:
    """The JSON for one member; `rest` comes from `after_id`, encoded once for all members."""
    return b"%b%d%b" % (_ID, notification_id, rest)


def encode_notifications(
    notifications: Iterable[NewNotification], contents: NotificationContents, state: InboxState | None
) -> list[Event]:
    """A member who wants no notifications gets the critical ones only; without a state, all."""
    encoded = []
    for one in notifications:
        content = contents.of(one.notification_id, one.message_id)
        if content is not None and (state is None or state.is_enabled or content.is_critical):
            data = with_id(one.notification_id, after_id(one.created_at, content))
            encoded.append(Event(one.notification_id, NOTIFICATION, data))
    return encoded


# --- what has changed -------------------------------------------------------------------------------------------------


def encode_change(change: Change, contents: NotificationContents) -> Event:
    """The notification as it is now; or that it has left the inbox. Also to a member who wants no notifications: it is in
    the list that the page shows, and what was done in one tab is shown in the others."""
    if not change.is_in_inbox:
        return Event(change.change_id, WITHDRAWN, b'{"id":"%d"}' % change.notification_id)
    content = contents.of(change.notification_id, change.message_id)
    if content is None:
        return Event(change.change_id, b"", b"")
    json = {
        **_fields(change.created_at, content),
        "id": str(change.notification_id),
        "readAt": _time(change.read_at),
        "seenAt": _time(change.seen_at),
        "archivedAt": _time(change.archived_at),
        "updatedAt": _time(change.updated_at),
    }
    return Event(change.change_id, UPDATED, orjson.dumps(json))


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def encode_marks(marks: Marks, after: int, last: int) -> list[Event]:
    """The marks whose change ids are above `after`, up to `last`."""
    return [Event(key, name.encode(), b'{"upTo":"%d"}' % up_to) for name, key, up_to in marks.between(after, last)]
