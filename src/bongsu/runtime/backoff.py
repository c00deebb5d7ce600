"""How long to wait before the next try: exponential backoff with jitter."""

from __future__ import annotations

import random


def doubling(first_seconds: float, tries: int, most_seconds: float = 3600.0) -> float:
    """The wait after that many tries: first, twice that, four times that, …

    Between 80 and 120 per cent of it, so that what failed together does not come back together.
    """
    exact = min(most_seconds, first_seconds * 2.0 ** min(tries - 1, 30))
    return exact * random.uniform(0.8, 1.2)  # noqa: S311 (spreading load, not keeping secrets)
