"""Behaviours, which are what members did with products, into the store."""

from __future__ import annotations

from collections.abc import Sequence

from bongsu.model import Behavior
from bongsu.store import Store
from bongsu.store.members import products


async def keep_behaviors(store: Store, behaviors: Sequence[Behavior]) -> list[bool]:
    """Store them in one transaction. Each counts as accepted; of several alike the newest is kept."""
    await store.run(lambda tx: products.add_behaviors(tx, behaviors))
    return [True] * len(behaviors)
