"""The messages of a step: which a notice may need, by locale, and their content."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta

from bongsu.decide.progress import EventInProgress
from bongsu.model import Notice
from bongsu.model.channels import to_bits
from bongsu.render.templates import Templates
from bongsu.store import decisions
from bongsu.store.core.query import Transaction
from bongsu.store.decisions import Message
from bongsu.store.ranks import PRIORITY_NUMBER

# Message ids by the place of their notice in the step and by the locale of the content.
MessageIds = Mapping[tuple[int, str], int]


class Messages:
    def __init__(self, templates: Templates) -> None:
        self._templates = templates

    def content_locale(self, notice: Notice, locale: str) -> str:
        """The locale of the message that a member of that locale gets."""
        if notice.title is not None and notice.body is not None:
            return ""  # the same for everyone
        return self._templates.locale_for(notice.type.name, locale or None)

    def count_new(self, event: EventInProgress, locales: Sequence[str]) -> int:
        """How many messages the next step of this event may have to write."""
        return sum(known is None for known in self._known([event], locales).values())

    def assign_ids(self, events: Sequence[EventInProgress], locales: Sequence[str], new_ids: Sequence[int]) -> MessageIds:
        """For each notice and locale that may be needed: the id of its message, a new one where none is written yet."""
        new = iter(new_ids)
        return {one: next(new) if known is None else known for one, known in self._known(events, locales).items()}

    def _known(self, events: Sequence[EventInProgress], locales: Sequence[str]) -> dict[tuple[int, str], int | None]:
        return {
            (place, locale): event.messages.get((event.notice, locale))
            for place, event in enumerate(events)
            for locale in (self.content_locale(event.current_notice, one) for one in locales)
        }

    async def render_new(
        self,
        tx: Transaction,
        events: Sequence[EventInProgress],
        ids: MessageIds,
        needed: Set[int],
        notified: Set[int],
        bulk: Set[int],
        now: datetime,
    ) -> list[tuple[EventInProgress, Message]]:
        """The messages that are needed and not written yet. Suppressions have one too; `notified` have a notification.

        `bulk` are the places of notices whose audiences did not fit into one step.
        """
        new = [
            (place, locale, message_id)
            for (place, locale), message_id in ids.items()
            if message_id in needed and message_id not in events[place].messages.values()
        ]
        products = sorted({one for place, _, _ in new if (one := events[place].current_notice.product_id) is not None})
        names = await decisions.find_product_names(tx, products) if products else {}
        written = []
        for place, locale, message_id in new:
            message = self._render(events[place], locale, message_id, names, now)
            last_notified_at = now if message_id in notified else None
            written.append((events[place], message._replace(last_notified_at=last_notified_at, is_bulk=place in bulk)))
        return written

    def _render(
        self,
        event: EventInProgress,
        locale: str,
        message_id: int,
        product_names: Mapping[str, str],
        now: datetime,
    ) -> Message:
        notice = event.current_notice
        product_name = product_names.get(notice.product_id or "")
        content = self._templates.phrase(notice, event.claimed.event, locale or None, product_name)
        hours = notice.type.expires_hours
        return Message(
            message_id=message_id,
            event_id=event.event_id,
            notice_index=event.notice,
            locale=locale,
            type=notice.type.name,
            subject=notice.subject,
            title=content.title,
            body=content.body,
            ref_id=notice.ref_id,
            data=json.dumps(dict(notice.data), ensure_ascii=False, allow_nan=False, separators=(",", ":")),
            channels=to_bits(notice.type.channels),
            priority=PRIORITY_NUMBER[notice.type.priority],
            guarantee=notice.type.guarantee.value,
            is_critical=notice.type.is_critical,
            created_at=now,
            expires_at=None if hours is None else now + timedelta(hours=hours),
        )
