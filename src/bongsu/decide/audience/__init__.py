"""Who is next in the audiences of a step: a bounded number of members, in id order, behind the last one decided.

The id of the last member is the cursor, so a fan-out that was interrupted continues where it stopped. Each kind of audience
has a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from bongsu.decide.audience.everyone import add_everyone
from bongsu.decide.audience.interested import InterestedMembers
from bongsu.decide.audience.listed import add_listed
from bongsu.decide.audience.recipients import Recipients, Remainder
from bongsu.decide.audience.selected import add_selected
from bongsu.model import Everyone, Interested, Listed, Selected
from bongsu.store.core.query import Transaction

__all__ = ["NextRecipients", "Recipients", "Remainder"]


class NextRecipients:
    """Finds them. An audience whose size is not known beforehand has a step to itself, unless it is one of many that are
    small."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._interested = InterestedMembers()

    async def find(self, tx: Transaction, remainders: Sequence[Remainder], now: datetime) -> Recipients:
        """What fits into a step: lists first, then one kind of the others. The rest waits for the next step."""
        found = Recipients(self._limit)
        add_listed(found, remainders)
        others = [remainder for remainder in remainders if not isinstance(remainder.audience, Listed)]
        if not others or found.remaining <= 0:
            return found
        first = others[0]
        if not isinstance(first.audience, Interested) and not found.is_empty:
            return found
        match first.audience:
            case Selected():
                await add_selected(tx, found, first)
            case Interested():
                await self._interested.add(tx, found, others, now)
            case Everyone():
                await add_everyone(tx, found, first)
            case _:
                raise TypeError(
                    f"{first.audience!r:.100} is not an audience: write Listed, Interested, Everyone or Selected"
                )
        return found
