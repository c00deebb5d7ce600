"""The texts of pushes about chat, made when they are sent, because what a member has not read changes until then.

So the texts of messages are nowhere but in chat: a deleted message is not pushed, and an erased one stays in no other table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from uuid import UUID

import orjson

from bongsu.deliver.withheld import Withheld
from bongsu.errors import BadTemplate
from bongsu.model.notice import CHAT_MESSAGE
from bongsu.render.templates import Templates
from bongsu.runtime import telemetry
from bongsu.store import Transaction
from bongsu.store.chat.pushes import PushOf, Unread, find_unread
from bongsu.store.deliveries import ClaimedDelivery
from bongsu.store.messages.content import MessageContent

# Characters of a message's text. Devices show fewer, and with the longest room name FCM takes it in any language.
TEXT_LIMIT = 200
_log = telemetry.log("bongsu.chat-contents")


class ChatContentLoader:
    @cached_property
    def _templates(self) -> Templates:
        """Read when the first push about chat is sent: most channels never send one."""
        return Templates.load()

    async def load(
        self, tx: Transaction, claimed: Iterable[ClaimedDelivery], contents: Mapping[int, MessageContent]
    ) -> dict[int, MessageContent | Withheld]:
        """The present texts of those of these deliveries that are about chat. `contents` are by notification."""
        pushes = _pushes(claimed, contents)
        found = await find_unread(tx, pushes) if pushes else {}
        return {push.notification_id: self._content(contents, push, found) for push in pushes}

    async def find_outdated(
        self, tx: Transaction, claimed: Iterable[ClaimedDelivery], contents: Mapping[int, MessageContent]
    ) -> dict[int, Withheld | None]:
        """Those of these, which were loaded and wait to be sent, that must not go as they are. None: the message that they
        show was deleted, and there are others."""
        pushes = _pushes(claimed, contents)
        found = await find_unread(tx, pushes) if pushes else {}
        reasons = {push.notification_id: _why_withheld(found.get(push.notification_id)) for push in pushes}
        return {
            one: Withheld(reason, contents[one].is_bulk) if reason else None
            for one, reason in reasons.items()
            if reason or not found[one].has_shown
        }

    def _content(
        self, contents: Mapping[int, MessageContent], push: PushOf, found: Mapping[int, Unread]
    ) -> MessageContent | Withheld:
        content, unread = contents[push.notification_id], found.get(push.notification_id)
        if (reason := _why_withheld(unread)) is not None:
            return Withheld(reason, content.is_bulk)
        assert unread is not None
        assert unread.message is not None
        data = {"roomId": content.ref_id, "seq": unread.seq, "senderId": unread.sender_id, "count": unread.count}
        given = {
            "room": unread.room,
            "sender": unread.sender_id,
            "message": shortened(unread.message),
            "count": unread.count,
            "others": unread.count - 1,
        }
        try:
            text = self._templates.render(CHAT_MESSAGE, content.locale, given)
        except BadTemplate as error:
            # What was rendered when it was decided is better than no push.
            _log.error("push about chat has no text of its messages", error=error.detail)
            return replace(content, data_json=orjson.dumps(data).decode())
        return replace(content, title=text.title, body=text.body, data_json=orjson.dumps(data).decode())


def _pushes(claimed: Iterable[ClaimedDelivery], contents: Mapping[int, MessageContent]) -> list[PushOf]:
    """Each notification once, however many devices it goes to."""
    pushes: dict[int, PushOf] = {}
    for delivery in claimed:
        content = contents.get(delivery.notification_id)
        if content is not None and content.type == CHAT_MESSAGE and content.ref_id is not None:
            notification_id, seq = delivery.notification_id, content.data.get("seq")
            pushes[notification_id] = PushOf(
                notification_id, UUID(content.ref_id), delivery.member_id, seq if isinstance(seq, int) else None
            )
    return list(pushes.values())


def _why_withheld(unread: Unread | None) -> str | None:
    if unread is None:
        return "LEFT_ROOM"
    if unread.is_muted:
        return "MUTED"
    if unread.message is None:
        return "READ" if unread.count <= 0 else "DELETED"
    return None


def shortened(text: str) -> str:
    return text if len(text) <= TEXT_LIMIT else f"{text[: TEXT_LIMIT - 1]}…"
