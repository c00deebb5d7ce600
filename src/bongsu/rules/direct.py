"""The rule for `POST /api/notifications`, which writes its request into the outbox as an event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bongsu.model import Channel, Event, Guarantee, Listed, Notice, NoticeType, Priority
from bongsu.rules import fields
from bongsu.rules.engine import Rules

# A critical one has an event type of its own: workers claim by type, and those first.
DIRECT = "bongsu.notification"
CRITICAL_DIRECT = "bongsu.notification.critical"
UNDECLARED_CHANNELS = (Channel.PUSH, Channel.IN_APP)


def direct(types: Mapping[str, NoticeType]) -> Rules:
    """Fields that the request leaves out come from the declared type of that name."""
    rules = Rules()

    @rules.rule(DIRECT, critical=False)
    @rules.rule(CRITICAL_DIRECT, critical=True)
    def requested(event: Event) -> Iterable[Notice]:
        payload = event.payload
        recipients = fields.member_ids(payload, "userIds")
        if recipients is None:
            raise ValueError("payload.userIds is missing: list the members to notify")
        notice = Notice(
            _type(payload, types),
            Listed(recipients),
            # Without a subject, no request is a duplicate of another.
            subject=fields.text(payload, "subject") or str(event.event_id),
            ref_id=event.ref_id,
            data=fields.mapping(payload, "data"),
            title=fields.title_of(payload),
            body=fields.required_text(payload, "body"),
            expires_at=fields.time_of(payload, "expiresAt"),
        )
        return [notice] if recipients else ()

    return rules


def _type(payload: Mapping[str, Any], types: Mapping[str, NoticeType]) -> NoticeType:
    name = fields.required_text(payload, "type")
    if not name:
        raise ValueError("payload.type is empty: name the notification's type")
    base = types.get(name) or NoticeType(name, UNDECLARED_CHANNELS)
    channels, priority, guarantee = (payload.get(key) for key in ("channels", "priority", "guarantee"))
    critical = fields.flag(payload, "critical")
    pace = fields.pace_of(payload.get("pacePerMinute"), "payload.pacePerMinute")
    return replace(
        base,
        channels=base.channels if channels is None else fields.channels_of(channels, "payload.channels"),
        priority=base.priority if priority is None else fields.member_of(Priority, priority, "payload.priority"),
        guarantee=base.guarantee if guarantee is None else fields.member_of(Guarantee, guarantee, "payload.guarantee"),
        is_critical=base.is_critical if critical is None else critical,
        pace_per_minute=base.pace_per_minute if pace is None else pace,
        # Its title and body are sent as they are.
        digest=None,
    )
