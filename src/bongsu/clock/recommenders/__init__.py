"""Recommenders: what to recommend to each of a page of members. One is open for as long as a run works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

# A push has 4 KB for everything.
NAME_LIMIT = 100


class RecommendedProduct(NamedTuple):
    product_id: str
    # None if it is not known: the text then does without it.
    name: str | None


class Recommendation(NamedTuple):
    """Products for one member, the best first."""

    products: Sequence[RecommendedProduct]
    strategy: str | None = None


@dataclass
class Recommendations:
    """By member. Who is in neither has none; `failed` are those for whom the recommender could not be asked."""

    found: Mapping[str, Recommendation]
    failed: set[str] = field(default_factory=set)


class Recommender(Protocol):
    async def recommend(self, member_ids: Sequence[str]) -> Recommendations: ...


class OpenRecommender(Protocol):
    def __call__(self, since: datetime) -> AbstractAsyncContextManager[Recommender]:
        """`since` is when active members did something at the earliest."""
