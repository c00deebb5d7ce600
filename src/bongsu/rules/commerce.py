"""Rules of a shop."""

from __future__ import annotations

from collections.abc import Iterable

from bongsu.model import Event, Notice
from bongsu.rules.engine import Rules

commerce = Rules()


@commerce.rule("product.updated")
def product_updated(_event: Event) -> Iterable[Notice]:
    """A product's page was edited. Nobody needs to be told."""
    return ()
