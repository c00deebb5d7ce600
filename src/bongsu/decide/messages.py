"""The messages of a step: which a notice may need, by locale, and their content."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from bongsu.decide.progress import EventInProgress
from bongsu.model import Notice
from bongsu.model.channels import to_bits
from bongsu.render.templates import Templates
from bongsu.store import decisions
from bongsu.store.core.query import Transaction
from bongsu.store.decisions import Message
from bongsu.store.decisions.digests import Actor, DigestText
from bongsu.store.ranks import PRIORITY_NUMBER

# Types and sets of locales whose content locales are cached.
MOST_TYPES = 256

# Message ids by the index of their notice in the step and by the locale of the content.
MessageIds = Mapping[tuple[int, str], int]


class Messages:
    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        # Worked out once for a type and the locales of members, of which there are few.
        self._locales_of_type = lru_cache(MOST_TYPES)(self._find_locales)

    def content_locales(self, notice: Notice, locales: Sequence[str]) -> Mapping[str, str]:
        """By the locale of a member: the locale of the message that the member gets."""
        if notice.title is not None and notice.body is not None:
            return dict.fromkeys(locales, "")  # the same for everyone
        return self._locales_of_type(notice.type.name, tuple(locales))

    def count_new(self, event: EventInProgress, locales: Sequence[str]) -> int:
        """How many messages the next step of this event may have to write."""
        return sum(message_id is None for message_id in self._written(event, locales).values())

    def assign_ids(self, events: Sequence[EventInProgress], locales: Sequence[str], new_ids: Sequence[int]) -> MessageIds:
        """For each notice and locale that may be needed: the id of its message, a new one where none is written yet."""
        new = iter(new_ids)
        return {
            (notice_index, locale): next(new) if message_id is None else message_id
            for notice_index, event in enumerate(events)
            for locale, message_id in self._written(event, locales).items()
        }

    def _written(self, event: EventInProgress, locales: Sequence[str]) -> dict[str, int | None]:
        """By the locales of the content: the message that an earlier step has written, if any."""
        contents = self.content_locales(event.current_notice, locales).values()
        return {locale: event.messages.get((event.notice, locale)) for locale in contents}

    def _find_locales(self, type_name: str, locales: Sequence[str]) -> Mapping[str, str]:
        return {locale: self._templates.locale_for(type_name, locale or None) for locale in locales}

    async def render_new(
        self,
        tx: Transaction,
        events: Sequence[EventInProgress],
        ids: MessageIds,
        needed: Set[int],
        notified: Set[int],
        bulk: Set[int],
        now: datetime,
        *,
        are_digests: bool = False,
    ) -> list[tuple[EventInProgress, Message]]:
        """The messages that are needed and not written yet. Suppressions have one too; `notified` have a notification.

        `bulk` are the indexes of notices whose audiences did not fit into one step.
        """
        new = [
            (notice_index, locale, message_id)
            for (notice_index, locale), message_id in ids.items()
            if message_id in needed and message_id not in events[notice_index].messages.values()
        ]
        notices = [events[notice_index].current_notice for notice_index, _, _ in new]
        names = await self.product_names(tx, notices)
        written = []
        for notice_index, locale, message_id in new:
            message = self._render(events[notice_index], locale, message_id, names, now, is_digest=are_digests)
            last_notified_at = now if message_id in notified else None
            written.append(
                (events[notice_index], message._replace(last_notified_at=last_notified_at, is_bulk=notice_index in bulk))
            )
        return written

    async def product_names(self, tx: Transaction, notices: Sequence[Notice]) -> Mapping[str, str]:
        """The names of their products, as far as they are known."""
        products = sorted({notice.product_id for notice in notices if notice.product_id is not None})
        return await decisions.find_product_names(tx, products) if products else {}

    def render_digest(
        self,
        event: EventInProgress,
        locale: str,
        product_names: Mapping[str, str],
        count: int,
        actors: Sequence[Actor],
    ) -> DigestText:
        """The text of a digest after the current notice of this event, its newest. `actors` are the newest, newest first."""
        notice, product = event.current_notice, product_names.get(event.current_notice.product_id or "")
        names = [actor.name for actor in actors]
        content = self._templates.phrase(notice, event.claimed.event, locale or None, product, gathered=(count, names))
        return DigestText(content.title, content.body, as_json(digest_data(notice.data, count, actors)))

    def _render(
        self,
        event: EventInProgress,
        locale: str,
        message_id: int,
        product_names: Mapping[str, str],
        now: datetime,
        *,
        is_digest: bool,
    ) -> Message:
        notice = event.current_notice
        product_name = product_names.get(notice.product_id or "")
        content = self._templates.phrase(notice, event.claimed.event, locale or None, product_name)
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
            data=as_json(dict(notice.data)),
            channels=to_bits(notice.type.channels),
            priority=PRIORITY_NUMBER[notice.type.priority],
            guarantee=notice.type.guarantee.value,
            is_critical=notice.type.is_critical,
            created_at=now,
            expires_at=_expiry(notice, now),
            is_digest=is_digest,
        )


def digest_data(data: Mapping[str, Any], count: int, actors: Sequence[Actor]) -> dict[str, Any]:
    """The data of its newest notice, how many it has gathered, and the ids of the newest actors, newest first."""
    return {**data, "count": count, "actorIds": [actor.actor_id for actor in actors if actor.actor_id is not None]}


def as_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _expiry(notice: Notice, now: datetime) -> datetime | None:
    """The notice's own time, else so long after it is decided as its type has it."""
    hours = notice.type.expires_hours
    return notice.expires_at or (None if hours is None else now + timedelta(hours=hours))
