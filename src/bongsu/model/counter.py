"""Delta: what a rule wants counted, and what may name a counter."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bongsu.model.base import DOTS, ID_LIMIT

# It stands in a URL's path, in Redis keys and in labels of metrics.
COUNTER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
# A delta and a value are 64-bit integers, as both databases store them.
LARGEST, SMALLEST = 2**63 - 1, -(2**63)
# The counter of comments. Its Redis keys say `comment`, as the teams that read them know them.
COMMENTS = "comments"
RESERVED = frozenset({"comment"})

_KEY = re.compile(rf"[^\x00-\x1f\x7f]{{1,{ID_LIMIT}}}")


def is_counter_name(name: str) -> bool:
    return COUNTER_NAME.fullmatch(name) is not None and name not in RESERVED


@dataclass(frozen=True)
class Delta:
    """Change a counter by so much, once, when the event is DONE.

    With the names of an `item`, +1 counts that item and -1 takes it back: each item once, by whichever of its names, in
    whatever order the two come. An item that was deleted is never counted again.
    """

    counter: str
    key: str
    delta: int = 1
    item: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.counter, str) or not is_counter_name(self.counter):
            raise ValueError(f"{self.counter!r:.100} cannot name a counter: take letters, digits, - and _, at most 64")
        if not isinstance(self.key, str) or not _KEY.fullmatch(self.key) or self.key in DOTS:
            raise ValueError(f"{self.key!r:.100} cannot be the key of a counter: take a text of 1 to {ID_LIMIT} characters")
        if not isinstance(self.delta, int) or isinstance(self.delta, bool) or not SMALLEST <= self.delta <= LARGEST:
            raise ValueError(f"{self.delta!r:.100} is not a delta: take a 64-bit integer")
        if isinstance(self.item, str) or not all(isinstance(name, str) and _is_item_name(name) for name in self.item):
            raise ValueError(f"{self.item!r:.100} does not name an item: give a tuple of texts of 1 to 300 characters")
        if self.item and self.delta not in (1, -1):
            raise ValueError(f"an item is counted with 1 and taken back with -1, not {self.delta}")


def _is_item_name(name: str) -> bool:
    # Enough for an id and what it is prefixed with.
    return 0 < len(name) <= 300 and "\x00" not in name
