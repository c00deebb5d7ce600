"""The buttons of the demo's page: each press is an event of its own type, for which no dedup window applies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bongsu.model import Event
from bongsu.rules import Effect, Rules, catalogue
from bongsu.settings import Settings

# Event types of pressed buttons begin with this.
PRESSED = "demo."
BUTTONS = (
    "product.price_changed", "product.stock_changed", "post.liked", "comment.created", "reservation.confirmed",
    "notice.published",
)  # fmt: skip


def with_buttons(settings: Settings, app: Rules | None = None) -> Rules:
    """The app's rules, and the catalogue's rules for pressed buttons.

    The subject is the event itself: a second press notifies again, also just after the demo's own event about the same.
    """
    usual = catalogue(settings)
    rules = Rules(app or Rules())

    def effects_of(event: Event) -> Iterable[Effect]:
        unprefixed = event.model_copy(update={"event_type": event.event_type.removeprefix(PRESSED)})
        usually = usual.evaluate(unprefixed)
        return [*(replace(notice, subject=str(event.event_id)) for notice in usually.notices), *usually.deltas]

    for event_type in BUTTONS:
        rules.rule(PRESSED + event_type)(effects_of)
    return rules
