"""The daily recommendation. The job `recommend` publishes one event for each member; any other source may do so too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bongsu.model import Channel, Event, Listed, Notice
from bongsu.rules import fields
from bongsu.rules.engine import Rules

READY = "recommendation.ready"

recommend = Rules()
# A day later the next one comes.
RECOMMENDATION = recommend.type("RECOMMENDATION", channels=[Channel.PUSH, Channel.IN_APP], expires_hours=24)


@recommend.rule(READY)
def recommended(event: Event) -> Iterable[Notice]:
    """To the target, with the products in the order of the payload. Bulk: one member each, but of all members at once."""
    products = _products(event.payload)
    if event.target_id is None or not products:
        return ()
    strategy = fields.text(event.payload, "strategy")
    return [
        Notice(
            RECOMMENDATION,
            Listed((event.target_id,)),
            # With the day: however long the dedup window is, the next day's is not a duplicate. The job gives the day of
            # BONGSU_TIMEZONE, as in the event's id.
            subject=f"{fields.text(event.payload, 'day') or event.occurred_at.date()} {event.target_id}",
            ref_id=next(iter(products)),
            data={
                "productIds": list(products),
                "productNames": [name for name in products.values() if name],
                **({"strategy": strategy} if strategy else {}),
            },
            bulk=True,
        )
    ]


def _products(payload: Mapping[str, Any]) -> dict[str, str | None]:
    """The names by the ids, in order; None where the name is not known."""
    given = payload.get("products")
    if not isinstance(given, list | tuple):
        raise ValueError(f"payload.products must be a list of products, not {given!r:.100}")
    names = {}
    for index, product in enumerate(given):
        if not isinstance(product, Mapping) or not isinstance(product.get("productId"), str):
            raise ValueError(f"payload.products[{index}] must be an object with a productId, not {product!r:.100}")
        names[product["productId"]] = fields.text(product, "productName")
    return names
