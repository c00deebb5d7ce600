"""Items that are counted once, such as comments, by whichever of their names.

An item has several names: a comment that of the event which created it, and its own id. Its state is kept under one of them,
its root; the others point to it. Counting an item adds 1 to its counter unless it was counted or deleted before; deleting
one takes 1 away if it is counted, and otherwise leaves a tombstone. If an event names two items that were not known to be
one, they become one. Both flags only ever go from no to yes, so the order in which events come does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from bongsu.model.counter import Delta
from bongsu.store.core.locks import lock_names
from bongsu.store.core.query import Table, Transaction, in_both
from bongsu.store.counters import COUNTER_KEY, KeySum

# Steps that change items lock one of so many names for each counter that they change, so that two of them see what the
# other has done. Fewer → steps about different posts wait for each other; more → a step may hold more locks.
STRIPES = 64

_NAME = {**COUNTER_KEY, "name": "text"}
_ITEM = {**_NAME, "root": "text", "is_counted": "boolean", "is_deleted": "boolean"}

# The rows of the names given ($1), and those that their roots lead to. Run under the locks of their counters.
FIND_ITEMS = in_both(
    lambda d: (
        f"""
    WITH RECURSIVE found AS (
        SELECT x.counter, x.key, x.name, x.root, x.is_counted, x.deleted_at
        FROM {d.table("given", _NAME, 1)}
        JOIN bongsu_counted_items AS x ON x.counter = given.counter AND x.key = given.key AND x.name = given.name
        UNION
        SELECT y.counter, y.key, y.name, y.root, y.is_counted, y.deleted_at
        FROM found AS f
        JOIN bongsu_counted_items AS y ON y.counter = f.counter AND y.key = f.key AND y.name = f.root)
    SELECT counter, key, name, root, is_counted, deleted_at IS NOT NULL AS is_deleted FROM found"""
    )
)

# Writes the rows given ($1); what is deleted keeps the time at which it was. Run under the locks of their counters.
_WRITE_ITEMS = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_counted_items (counter, key, name, root, is_counted, deleted_at)
    SELECT given.counter, given.key, given.name, given.root, given.is_counted, CASE WHEN given.is_deleted THEN {d.now} END
    FROM {d.table("given", _ITEM, 1)} WHERE true
    ON CONFLICT (counter, key, name) DO UPDATE
    SET root = excluded.root, is_counted = excluded.is_counted,
        deleted_at = coalesce(bongsu_counted_items.deleted_at, excluded.deleted_at)"""
    )
)


@dataclass
class Item:
    """The row of one name. With a root, the state is that of the root."""

    root: str | None = None
    is_counted: bool = False
    is_deleted: bool = False

    @property
    def value(self) -> int:
        return int(self.is_counted and not self.is_deleted)


class KnownItems:
    """The items of one counter that a step is about, and what it makes of them. No I/O."""

    def __init__(self, items: Mapping[str, Item]) -> None:
        self._items = dict(items)
        # Names whose rows have changed, in the order of change.
        self._changed: dict[str, None] = {}

    def apply(self, names: Sequence[str], delta: int) -> int:
        """Count (+1) or delete (-1) the item of these names; return by how much the counter changes."""
        roots = {self._root(name): None for name in names}
        states = [self._items.get(root, Item()) for root in roots]
        before = sum(state.value for state in states)
        kept = next(iter(roots))
        merged = Item(
            is_counted=delta > 0 or any(state.is_counted for state in states),
            is_deleted=delta < 0 or any(state.is_deleted for state in states),
        )
        self._set(kept, merged)
        for name in (*roots, *names):
            if name != kept:
                self._set(name, Item(kept))
        return merged.value - before

    @property
    def changed(self) -> list[tuple[str, Item]]:
        return [(name, self._items[name]) for name in self._changed]

    def _root(self, name: str) -> str:
        while (item := self._items.get(name)) is not None and item.root is not None:
            name = item.root
        return name

    def _set(self, name: str, item: Item) -> None:
        if self._items.get(name) != item:
            self._items[name] = item
            self._changed[name] = None


async def count_items(tx: Transaction, deltas: Sequence[Delta]) -> list[KeySum]:
    """Count and delete these items in the order given; return what that adds to their counters."""
    if not deltas:
        return []
    await tx.fetch(lock_names(stripe_of(delta.counter, delta.key) for delta in deltas))
    names = sorted({(delta.counter, delta.key, name) for delta in deltas for name in delta.item})
    found: dict[tuple[str, str], dict[str, Item]] = {}
    for row in await tx.fetch(FIND_ITEMS(Table(_NAME, names))):
        item = Item(row["root"], bool(row["is_counted"]), bool(row["is_deleted"]))
        found.setdefault((row["counter"], row["key"]), {})[row["name"]] = item
    known = {(delta.counter, delta.key): KnownItems({}) for delta in deltas}
    known |= {key: KnownItems(items) for key, items in found.items()}
    sums = [
        KeySum(delta.counter, delta.key, known[delta.counter, delta.key].apply(delta.item, delta.delta)) for delta in deltas
    ]
    if changed := list(_rows(known)):
        await tx.execute(_WRITE_ITEMS(Table(_ITEM, changed)))
    return sums


def _rows(known: Mapping[tuple[str, str], KnownItems]) -> Iterable[tuple[str, str, str, str | None, bool, bool]]:
    for (counter, key), items in known.items():
        for name, item in items.changed:
            yield counter, key, name, item.root, item.is_counted, item.is_deleted


def stripe_of(counter: str, key: str) -> str:
    """The name to lock before items of this counter are changed."""
    number = int.from_bytes(blake2b(f"{counter} {key}".encode(), digest_size=2).digest()) % STRIPES
    return f"counted items {number}"
