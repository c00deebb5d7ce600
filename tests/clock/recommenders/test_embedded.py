"""The embedded recommender: what it chooses, and that it asks by pages and by indexes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bongsu.clock.recommenders import embedded as module
from bongsu.clock.recommenders.embedded import EmbeddedRecommender, OpenEmbedded, choose
from bongsu.model import Action, Product
from bongsu.store import Store
from bongsu.store.core.query import same
from bongsu.store.members import products
from bongsu.store.members import recommendations as statements
from bongsu.store.members.recommendations import ACTIONS_LIMIT, SEEN_LIMIT, SIMILAR_LIMIT, MemberProducts
from tests.support.decisions import add_behaviors, add_members
from tests.support.plans import generic_plan
from tests.support.rows import Sql, add_for_each

NOW = datetime.now(UTC)
SINCE = NOW - timedelta(days=7)
YESTERDAY, LONG_AGO = NOW - timedelta(days=1), NOW - timedelta(days=100)


async def add_products(store: Store, *product_ids: str, stock: int | None = None) -> None:
    async with store.transaction() as tx:
        for product_id in product_ids:
            await products.put_product(tx, product_id, Product(name=f"Name of {product_id}", price=1, stock=stock))


async def recommended(store: Store, *member_ids: str, limit: int = 3) -> dict[str, list[str]]:
    async with OpenEmbedded(store, limit)(SINCE) as recommender:
        answer = await recommender.recommend(member_ids)
    assert answer.failed == set()
    return {member_id: [product.product_id for product in one.products] for member_id, one in answer.found.items()}


async def test_what_was_seen_together_comes_first_then_what_is_popular(store: Store) -> None:
    await add_behaviors(store, "mine", "a", "b", "c", at=YESTERDAY)
    await add_behaviors(store, "together", "b", "c", at=YESTERDAY)
    await add_behaviors(store, "less", "c", at=YESTERDAY)
    await add_behaviors(store, "popular", "d", "e", "f", "g", at=YESTERDAY)
    assert await recommended(store, "a", "d") == {
        "a": ["together", "less", "popular"],
        # Nobody who saw it saw anything else.
        "d": ["mine", "together", "less"],
    }
    async with OpenEmbedded(store, 3)(SINCE) as recommender:
        found = (await recommender.recommend(["a", "d"])).found
    assert [found[member_id].strategy for member_id in ("a", "d")] == ["seen-together", "popular"]


async def test_what_was_bought_is_never_recommended_however_long_ago(store: Store) -> None:
    await add_behaviors(store, "mine", "a", "b", at=YESTERDAY)
    await add_behaviors(store, "together", "b", at=YESTERDAY)
    await add_behaviors(store, "popular", "b", "c", "d", at=YESTERDAY)
    await add_behaviors(store, "together", "a", action=Action.PURCHASE, at=LONG_AGO)
    await add_behaviors(store, "mine", "a", action=Action.PURCHASE, at=YESTERDAY)
    assert await recommended(store, "a") == {"a": ["popular"]}
    await add_behaviors(store, "popular", "a", action=Action.PURCHASE, at=LONG_AGO)
    assert await recommended(store, "a") == {}


async def test_there_are_as_many_as_the_limit_when_there_are_enough(store: Store) -> None:
    """Products that nobody has seen lately, and at last those that the member has."""
    await add_products(store, "x", "y")
    await add_behaviors(store, "mine", "a", at=YESTERDAY)
    await add_behaviors(store, "old", "b", at=LONG_AGO)
    assert await recommended(store, "a", limit=2) == {"a": ["x", "y"]}
    assert await recommended(store, "a", limit=5) == {"a": ["x", "y", "mine"]}


async def test_what_is_sold_out_is_not_recommended_and_names_are_known(store: Store) -> None:
    await add_products(store, "gone", stock=0)
    await add_products(store, "there", stock=2)
    await add_behaviors(store, "gone", "b", "c", at=YESTERDAY)
    await add_behaviors(store, "there", "b", at=YESTERDAY)
    await add_behaviors(store, "unnamed", "b", at=YESTERDAY)
    await add_behaviors(store, "mine", "a", "b", at=YESTERDAY)
    async with OpenEmbedded(store, 2)(SINCE) as recommender:
        answer = await recommender.recommend(["a"])
    assert list(answer.found["a"].products) == [("there", "Name of there"), ("unnamed", None)]


async def test_a_crawler_is_read_in_part(store: Store) -> None:
    """Of one who saw everything, the last products count."""
    # The older, the earlier in the order of ids, by which those that are as frequent are ranked.
    ids = [f"p-{900 - number}" for number in range(ACTIONS_LIMIT + 5)]
    for number, product_id in enumerate(ids):
        await add_behaviors(store, product_id, "crawler", at=YESTERDAY - timedelta(minutes=number))
    await add_behaviors(store, ids[0], "a", at=YESTERDAY)
    async with store.read() as tx:
        similar = await statements.find_similar(tx, [ids[0]], SINCE)
        own = await statements.find_products_of_members(tx, ["crawler"], SINCE)
    assert set(similar[ids[0]]) == set(ids[ACTIONS_LIMIT - SIMILAR_LIMIT : ACTIONS_LIMIT])
    assert own["crawler"].seen == ids[:SEEN_LIMIT]


async def test_what_is_learnt_is_asked_once_and_kept_within_bounds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for product_id in ("p-1", "p-2", "p-3"):
        await add_behaviors(store, product_id, "a", "b", at=YESTERDAY)
    asked: list[str] = []
    find_similar = statements.find_similar

    async def counted(tx, product_ids, since):  # type: ignore[no-untyped-def]
        asked.extend(product_ids)
        return await find_similar(tx, product_ids, since)

    monkeypatch.setattr(statements, "find_similar", counted)
    monkeypatch.setattr(module, "PRODUCTS_PAGE", 2)
    recommender = EmbeddedRecommender(store, 3, SINCE)
    first = await recommender.recommend(["a"])
    assert (await recommender.recommend(["a"])).found == first.found
    assert asked == ["p-1", "p-2", "p-3"]
    monkeypatch.setattr(module, "SIMILAR_KEPT", 1)
    assert (await recommender.recommend(["b"])).found["b"] == first.found["a"]
    assert asked == ["p-1", "p-2", "p-3"] * 2


IDS = st.sampled_from([f"p{number}" for number in range(12)])


@given(
    st.lists(IDS, unique=True), st.sets(IDS), st.dictionaries(IDS, st.integers(1, 5)), st.lists(IDS, unique=True),
    st.sets(IDS), st.integers(1, 6),
)  # fmt: skip
def test_as_many_as_there_are_each_once_and_none_that_was_bought(
    seen: list[str], bought: set[str], together: dict[str, int], popular: list[str], sold_out: set[str], limit: int
) -> None:
    chosen = choose(MemberProducts(seen, bought), together, popular, sold_out, limit)
    possible = {*seen, *together, *popular} - bought - sold_out
    assert len(chosen) == len(set(chosen)) == min(limit, len(possible))
    assert set(chosen) <= possible
    new = [product_id for product_id in chosen if product_id not in seen]
    assert chosen[: len(new)] == new
    counts = [together.get(product_id, 0) for product_id in new]
    assert counts == sorted(counts, reverse=True)


async def test_members_and_what_they_did_are_found_by_indexes(store: Store) -> None:
    await add_members(store, *[f"m-{number}" for number in range(500)])
    async with store.transaction() as tx:
        await add_for_each(
            tx,
            "behaviors",
            "members AS p, bongsu_members AS m WHERE p.member_id < 'm-11'",
            product_id=Sql("'p-' || p.member_id"),
            member_id=Sql("m.member_id"),
        )
    async with store.transaction() as tx:
        await tx.execute(same("ANALYZE")())
    for statement in (statements.FIND_PAGE, statements.FIND_PRODUCTS_OF_MEMBERS, statements.FIND_SIMILAR):
        steps = await generic_plan(store, statement)
        assert "bongsu_behaviors_member" in steps, steps
        assert "Seq Scan" not in steps, steps
        assert "SCAN b\n" not in steps, steps
