"""The recommender that needs no service: products seen together with what a member saw, then popular ones, none bought.

Three statements for a page of members, none for a single one. What is seen together with a product is asked once for a run
and kept: it is the same for all who saw it. What was learnt is forgotten with the run, so there is nothing to erase.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice

from bongsu.clock.recommenders import NAME_LIMIT, Recommendation, Recommendations, RecommendedProduct
from bongsu.store import Store
from bongsu.store.members import recommendations as statements
from bongsu.store.members.recommendations import MemberProducts

# Popular products, many more than are recommended: a member may have bought most of them.
POPULAR_LIMIT = 1_000
# Products of one statement. More would keep it running for longer than a second.
PRODUCTS_PAGE = 1_000
# Products whose others are kept in memory, about half a kilobyte each.
SIMILAR_KEPT = 100_000

# Members chosen for before others of the process have their turn: about 5 ms.
CHOSEN_AT_ONCE = 100

SEEN_TOGETHER, POPULAR = "seen-together", "popular"


class EmbeddedRecommender:
    def __init__(self, store: Store, limit: int, since: datetime) -> None:
        self._store = store
        self._limit = limit
        self._since = since
        self._popular: list[str] | None = None
        self._similar: dict[str, Mapping[str, int]] = {}
        # None for a product that is not known.
        self._names: dict[str, str | None] = {}
        self._sold_out: set[str] = set()

    async def recommend(self, member_ids: Sequence[str]) -> Recommendations:
        async with self._store.read() as tx:
            products = await statements.find_products_of_members(tx, member_ids, self._since)
        await self._learn({seen for each in products.values() for seen in each.seen})
        found = {}
        for number, (member_id, own) in enumerate(products.items()):
            if number % CHOSEN_AT_ONCE == 0:
                await asyncio.sleep(0)
            if chosen := self._choose(own):
                found[member_id] = chosen
        return Recommendations(found)

    def _choose(self, own: MemberProducts) -> Recommendation | None:
        together = count_together(own.seen, self._similar)
        ids = choose(own, together, self._popular or (), self._sold_out, self._limit)
        if not ids:
            return None
        strategy = SEEN_TOGETHER if ids[0] in together else POPULAR
        return Recommendation([RecommendedProduct(id_, self._names.get(id_)) for id_ in ids], strategy)

    async def _learn(self, seen: Collection[str]) -> None:
        """What is seen together with these, the popular products, and the names of all that may be recommended."""
        if self._popular is None:
            async with self._store.read() as tx:
                self._popular = await statements.find_popular(tx, self._since, POPULAR_LIMIT)
            await self._learn_names(self._popular)
        if len(self._similar) > SIMILAR_KEPT:
            self._similar.clear()
        for page in _pages(sorted(set(seen) - self._similar.keys())):
            async with self._store.read() as tx:
                similar = await statements.find_similar(tx, page, self._since)
            self._similar |= similar
            await self._learn_names({other for others in similar.values() for other in others})

    async def _learn_names(self, product_ids: Iterable[str]) -> None:
        for page in _pages(sorted(set(product_ids) - self._names.keys())):
            async with self._store.read() as tx:
                known = await statements.find_names(tx, page)
            self._names |= dict.fromkeys(page)
            self._names |= {product_id: name[:NAME_LIMIT] for product_id, (name, _) in known.items()}
            self._sold_out |= {product_id for product_id, (_, is_sold_out) in known.items() if is_sold_out}


def count_together(seen: Iterable[str], similar: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """The products that are seen together with these, and how often."""
    counts: dict[str, int] = {}
    for product_id in seen:
        for other_id, count in similar[product_id].items():
            counts[other_id] = counts.get(other_id, 0) + count
    return counts


def choose(
    own: MemberProducts, together: Mapping[str, int], popular: Sequence[str], sold_out: Collection[str], limit: int
) -> list[str]:
    """What is seen most with what the member saw, then what is popular; what the member has seen already only where there
    is nothing else; never what the member bought."""
    seen = set(own.seen)

    def is_new(product_id: str) -> bool:
        return product_id not in seen and product_id not in own.bought and product_id not in sold_out

    news = ((-count, product_id) for product_id, count in together.items() if is_new(product_id))
    chosen = [product_id for _, product_id in heapq.nsmallest(limit, news)]
    others = (product_id for product_id in popular if is_new(product_id) and product_id not in together)
    known = (product_id for product_id in own.seen if product_id not in own.bought and product_id not in sold_out)
    chosen += islice(others, limit - len(chosen))
    chosen += islice(known, limit - len(chosen))
    return chosen


def _pages(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), PRODUCTS_PAGE):
        yield ids[start : start + PRODUCTS_PAGE]


class OpenEmbedded:
    """Opens one for each run."""

    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self._limit = limit

    @contextlib.asynccontextmanager
    async def __call__(self, since: datetime) -> AsyncIterator[EmbeddedRecommender]:
        yield EmbeddedRecommender(self._store, self._limit, since)
