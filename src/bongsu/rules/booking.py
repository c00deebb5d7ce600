"""Rules of a house that takes reservations: what is confirmed and what it announces must arrive."""

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
    """Also to whoever confirmed it themselves: it is a receipt, not news of somebody else."""
    if event.target_id is None:
        return ()
    return [Notice(RESERVATION_CONFIRMED, Listed((event.target_id,)), subject=event.ref_id or "", ref_id=event.ref_id)]


@booking.rule("notice.published", critical=True)
def published(event: Event) -> Iterable[Notice]:
    """To the members it names, or to all when it names no list. An empty list is a list: nobody."""
    told = fields.member_ids(event.payload, "memberIds")
    audience: Audience = Everyone() if told is None else Listed(told)
    title, body = fields.title_of(event.payload), fields.needed_text(event.payload, "body")
    if told == ():
        return ()
    return [Notice(NOTICE, audience, subject=event.ref_id or "", ref_id=event.ref_id, title=title, body=body)]
