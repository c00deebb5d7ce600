"""Statements about the channels that apps declare: each gets a bit once per store, and processes learn it from there."""

from __future__ import annotations

from collections.abc import Collection

from bongsu.errors import BadApp
from bongsu.model.channels import FIRST_OWN_BIT, MOST_OWN, use_declared
from bongsu.store.core.locks import lock_names
from bongsu.store.core.query import same
from bongsu.store.core.store import Store

_LAST_BIT = FIRST_OWN_BIT << (MOST_OWN - 1)

# Gives a channel the next bit, unless it has one or none is left. Run under the lock of the channels' names.
_DECLARE = same(f"""
    INSERT INTO bongsu_channels (name, bit)
    SELECT CAST($1 AS text), CASE WHEN last.bit IS NULL THEN {FIRST_OWN_BIT} ELSE last.bit * 2 END
    FROM (SELECT max(bit) AS bit FROM bongsu_channels) AS last
    WHERE last.bit IS NULL OR last.bit < {_LAST_BIT}
    ON CONFLICT (name) DO NOTHING""")

# All channels that were ever declared.
_FIND_DECLARED = same("SELECT name, bit FROM bongsu_channels")


async def declare_channels(store: Store, names: Collection[str]) -> None:
    """Give each of these a bit, unless it has one; then know all channels of the store."""
    if names:
        async with store.transaction() as tx:
            # Two processes that start at once would otherwise take the same bit.
            await tx.fetch(lock_names(["channels"]))
            await tx.execute(*(_DECLARE(name) for name in sorted(names)))
    known = await load_channels(store)
    if missing := sorted(set(names) - known):
        raise BadApp(
            f"Channel {missing[0]} is one too many: a store takes {MOST_OWN} channels of apps, and never forgets one"
        )


async def load_channels(store: Store) -> set[str]:
    """Know the channels that apps have declared in this store; return their names."""
    async with store.read() as tx:
        bits = {row["name"]: row["bit"] for row in await tx.fetch(_FIND_DECLARED())}
    use_declared(bits)
    return set(bits)
