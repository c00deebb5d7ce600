"""Everyone: all members, in id order."""

from __future__ import annotations

from bongsu.decide.audience.recipients import Recipients, Remainder
from bongsu.store.core.query import Transaction
from bongsu.store.decisions import recipients


async def add_everyone(tx: Transaction, found: Recipients, remainder: Remainder) -> None:
    # One more than fits: an audience that fills the step is not a large one.
    members = await recipients.find_everyone(tx, remainder.after, found.remaining + 1)
    found.add(remainder.notice_index, members)
