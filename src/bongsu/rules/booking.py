"""Rules for bookings: confirmed reservations and published notices. Both are critical."""

from __future__ import annotations

from collections.abc import Iterable

from bongsu.model import Audience, Channel, Event, Everyone, Guarantee, Listed, Notice
from bongsu.rules import fields
from bongsu.rules.engine import Rules

booking = Rules()
RESERVATION_CONFIRMED = booking.type(
    "RESERVATION_CONFIRMED",
    channels=[Channel.PUSH, Channel.IN_APP, Channel.EMAIL],
    guarantee=Guarantee.AT_LEAST_ONCE,
    critical=True,
)
NOTICE = booking.type("NOTICE", channels=[Channel.PUSH, Channel.IN_APP], guarantee=Guarantee.AT_LEAST_ONCE, critical=True)


@booking.rule("reservation.confirmed", critical=True)
def confirmed(event: Event) -> Iterable[Notice]:
    """Also sent if the actor is the target: it is a receipt."""
    if event.target_id is None:
        return ()
    return [Notice(RESERVATION_CONFIRMED, Listed((event.target_id,)), subject=event.ref_id or "", ref_id=event.ref_id)]


@booking.rule("notice.published", critical=True)
def published(event: Event) -> Iterable[Notice]:
    """To the listed members, or to everyone without a list. An empty list means no recipients."""
    recipients = fields.member_ids(event.payload, "memberIds")
    audience: Audience = Everyone() if recipients is None else Listed(recipients)
    title, body = fields.title_of(event.payload), fields.required_text(event.payload, "body")
    if recipients == ():
        return ()
    return [Notice(NOTICE, audience, subject=event.ref_id or "", ref_id=event.ref_id, title=title, body=body)]
