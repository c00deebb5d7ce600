"""Listed: the members are in the notice itself."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from bongsu.decide.audience.recipients import Recipients, Remainder
from bongsu.model import Listed


def add_listed(found: Recipients, remainders: Sequence[Remainder]) -> None:
    """As many lists as fit into the step."""
    for remainder in remainders:
        if isinstance(remainder.audience, Listed) and found.remaining > 0:
            member_ids = remainder.audience.member_ids
            found.add(remainder.notice_index, member_ids[bisect_right(member_ids, remainder.after) :])
