"""The order of sending: the rank that each delivery stores when it is decided. The lowest rank goes first.

| rank | what | |
|--:|---|---|
| 0 | critical to few | a confirmation, a verification code |
| 1 | critical bulk | a critical notice to all members |
| 2, 3, 4 | ordinary: HIGH, NORMAL, LOW | an event about few members |
| 5, 6, 7 | bulk: HIGH, NORMAL, LOW | a campaign |

Bulk is a notice whose audience did not fit into one step of deciding, or that says so (`bulk=True`). A replay of many dead
letters and the further rounds of the recovery job are bulk too, unless they are critical. docs/howto/campaigns.md has the
same table.
"""

from __future__ import annotations

from bongsu.model import Priority

# The number that messages store. Ranks of one kind follow each other in this order.
PRIORITY_NUMBER = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
PRIORITY_OF = {number: priority for priority, number in PRIORITY_NUMBER.items()}

CRITICAL, CRITICAL_BULK, ORDINARY, BULK = 0, 1, 2, 5
RANKS = tuple(range(BULK + len(PRIORITY_NUMBER)))

# Of so many claims of a dispatcher, which rank is asked first, for a part of the claim: each keeps a small share of the
# sending, however much of an earlier rank is due. In the others the ranks are asked in their order.
SHARED_TURNS = (None, 2, None, 5, None, 3, None, 6, None, 4, None, 7, None, 1, None, None)
SHARED_PART = 4


def slots_for(rank: int, slots: int) -> int:
    """How many of a channel's slots may be in use once deliveries of this rank are claimed.

    The rest is left to earlier ranks: critical sends go out at once, also when a provider that does not answer holds all
    other slots; and those to few also when a critical notice to all members does. A channel of two to seven slots leaves
    one, to those to few. A channel of one slot has none to leave.
    """
    reserved = 0 if slots < 2 else min(max(1, slots // 4), max(2, slots // 16))
    if rank == CRITICAL:
        return slots
    return slots - (reserved + 1) // 2 if rank == CRITICAL_BULK else slots - reserved


def rank_of(priority: Priority, *, is_critical: bool, is_bulk: bool) -> int:
    if is_critical:
        return CRITICAL_BULK if is_bulk else CRITICAL
    return (BULK if is_bulk else ORDINARY) + PRIORITY_NUMBER[priority]
