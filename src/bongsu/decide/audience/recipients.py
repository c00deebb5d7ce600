"""What is left of the audiences of a step, and what the step takes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bongsu.model import Audience
from bongsu.store.decisions.audience_snapshots import NoticeKey


@dataclass(frozen=True)
class Remainder:
    """What is left of a notice's audience: the members behind a cursor. A list is in id order."""

    # The index of the notice among those of the step.
    notice_index: int
    audience: Audience
    key: NoticeKey
    after: str = ""


@dataclass
class Recipients:
    """The next members of some audiences, and which audiences have more of them."""

    limit: int
    # By notice index, sorted. Audiences that are not here wait for another step.
    members: dict[int, list[str]] = field(default_factory=dict)
    unfinished: set[int] = field(default_factory=set)
    count: int = 0

    @property
    def remaining(self) -> int:
        return self.limit - self.count

    @property
    def is_empty(self) -> bool:
        return not self.count

    def add(self, notice_index: int, member_ids: Sequence[str], *, is_more: bool = False) -> None:
        """All of an audience; only the first of the step may be taken in part. `is_more`: it has others beside these.

        So an audience is left unfinished only if it does not fit into a whole step: that makes it bulk.
        """
        is_part = is_more or len(member_ids) > self.remaining
        if is_part and self.count:
            return
        taken = list(member_ids[: self.remaining])
        self.members[notice_index] = taken
        self.count += len(taken)
        if is_part:
            self.unfinished.add(notice_index)

    def cursor(self, notice_index: int) -> str | None:
        """The last member taken of an unfinished audience; None if that audience is done."""
        return self.members[notice_index][-1] if notice_index in self.unfinished else None
