"""Rules of a shop: price drops and restocked products."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from bongsu.model import Action, Channel, Event, Interested, Notice, Priority
from bongsu.rules.engine import Rules
from bongsu.settings import Settings

_types = Rules()
PRICE_DROP = _types.type("PRICE_DROP", channels=[Channel.PUSH, Channel.IN_APP], priority=Priority.HIGH)
BACK_IN_STOCK = _types.type("BACK_IN_STOCK", channels=[Channel.PUSH, Channel.SMS], priority=Priority.HIGH)

INTERESTED = frozenset({Action.VIEW, Action.CLICK, Action.ADD_TO_CART})
CARTED = frozenset({Action.ADD_TO_CART})


def commerce(settings: Settings) -> Rules:
    rules = Rules(_types)
    threshold = _exact(settings.price_drop_threshold)
    assert threshold is not None

    @rules.rule("product.price_changed")
    def price_changed(event: Event) -> Iterable[Notice]:
        previous, current = event.payload.get("previousPrice"), event.payload.get("currentPrice")
        drop = drop_percentage(previous, current)
        if event.ref_id is None or drop is None or drop < threshold:
            return ()
        return [
            Notice(
                PRICE_DROP,
                Interested(event.ref_id, INTERESTED, settings.interested_user_days),
                subject=event.ref_id,
                ref_id=event.ref_id,
                product_id=event.ref_id,
                data={"previousPrice": previous, "currentPrice": current, "dropPercentage": math.floor(drop)},
            )
        ]

    @rules.rule("product.stock_changed")
    def stock_changed(event: Event) -> Iterable[Notice]:
        stock = back_in_stock(event.payload.get("previousStock"), event.payload.get("currentStock"))
        if event.ref_id is None or stock is None:
            return ()
        return [
            Notice(
                BACK_IN_STOCK,
                Interested(event.ref_id, CARTED, settings.cart_user_days),
                subject=event.ref_id,
                ref_id=event.ref_id,
                product_id=event.ref_id,
                data={"currentStock": stock},
            )
        ]

    @rules.rule("product.updated")
    def product_updated(_event: Event) -> Iterable[Notice]:
        """A product's description was edited: no notification, and no dead letter either."""
        return ()

    return rules


def drop_percentage(previous: object, current: object) -> Fraction | None:
    """By how many per cent the price fell, exactly; None when it did not, or if one of them is not a price."""
    before, after = _exact(previous), _exact(current)
    if before is None or after is None or before <= 0 or not 0 <= after < before:
        return None
    return (before - after) / before * 100


def back_in_stock(previous: object, current: object) -> int | None:
    """The new stock if there was none before; else None."""
    before, after = _exact(previous), _exact(current)
    if before is None or after is None or before != 0 or after <= 0 or after.denominator != 1:
        return None
    return int(after)


def _exact(value: object) -> Fraction | None:
    """The number as it was written: 0.3 is three tenths, not the binary fraction next to it."""
    match value:
        case bool():
            return None
        case int():
            return Fraction(value)
        case float() if math.isfinite(value):
            return Fraction(repr(value))
    return None
