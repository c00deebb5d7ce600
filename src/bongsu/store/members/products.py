"""Statements about products and members' behaviors: which member did what with which product, and when last."""

from __future__ import annotations

from collections.abc import Sequence

from bongsu.model import Behavior, Product
from bongsu.store.core.query import Table, Transaction, fetch_one, in_both, same
from bongsu.store.members import ensure_members

# Creates the product or replaces it. Locks the product's row.
_PUT_PRODUCT = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_products (product_id, name, price, stock)
    VALUES ($1, $2, $3, $4)
    ON CONFLICT (product_id) DO UPDATE
    SET name = excluded.name, price = excluded.price, stock = excluded.stock, updated_at = {d.now}"""
    )
)

# One product, by its key. Locks nothing.
_FIND_PRODUCT = same("SELECT name, price, stock FROM bongsu_products WHERE product_id = $1")

_BEHAVIOR = {"product_id": "text", "member_id": "text", "action": "text", "at": "timestamptz"}

# Keeps the newest time of each member, product and action, in whatever order they arrive; no time means now.
# Locks rows in key order, so that two callers cannot deadlock.
_ADD_BEHAVIORS = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_behaviors (product_id, member_id, action, acted_at)
    SELECT given.product_id, given.member_id, given.action, max(coalesce(given.at, {d.now}))
    FROM {d.table("given", _BEHAVIOR, 1)} WHERE true
    GROUP BY given.product_id, given.member_id, given.action
    ORDER BY given.product_id, given.member_id, given.action
    ON CONFLICT (product_id, member_id, action)
    DO UPDATE SET acted_at = excluded.acted_at WHERE excluded.acted_at > bongsu_behaviors.acted_at"""
    )
)


async def put_product(tx: Transaction, product_id: str, product: Product) -> None:
    await tx.execute(_PUT_PRODUCT(product_id, product.name, product.price, product.stock))


async def find_product(tx: Transaction, product_id: str) -> Product | None:
    row = await fetch_one(tx, _FIND_PRODUCT(product_id))
    return None if row is None else Product.model_construct(**dict(row))


async def add_behaviors(tx: Transaction, behaviors: Sequence[Behavior]) -> None:
    """Store them; members that are not known yet are created."""
    await ensure_members(tx, (behavior.user_id for behavior in behaviors))
    rows = [(behavior.product_id, behavior.user_id, behavior.action.value, behavior.at) for behavior in behaviors]
    if rows:
        await tx.execute(_ADD_BEHAVIORS(Table(_BEHAVIOR, rows)))
