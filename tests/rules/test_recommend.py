"""The rule of the daily recommendation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from bongsu.model import Channel, Listed, Priority
from bongsu.rules import catalogue
from bongsu.settings import Settings
from tests.rules.events import notices_of, the_only

PRODUCTS = [{"productId": "p-2", "productName": "연필"}, {"productId": "p-1", "productName": "지우개"}, {"productId": "p-9"}]


def ready(products: Any = PRODUCTS, **fields: Any) -> Any:
    return notices_of("recommendation.ready", payload={"products": products, **fields}, target_id="a")


def test_a_recommendation_names_its_products_and_is_bulk() -> None:
    notice = the_only(ready(strategy="seen-together"))
    assert (notice.type.name, notice.audience, notice.ref_id, notice.bulk) == ("RECOMMENDATION", Listed(("a",)), "p-2", True)
    assert notice.data == {
        "productIds": ["p-2", "p-1", "p-9"], "productNames": ["연필", "지우개"], "strategy": "seen-together",
    }  # fmt: skip
    kind = catalogue(Settings()).types["RECOMMENDATION"]
    assert notice.type is kind
    assert (kind.channels, kind.priority, kind.is_critical) == ((Channel.PUSH, Channel.IN_APP), Priority.NORMAL, False)


def test_the_recommendation_of_another_day_is_not_a_duplicate() -> None:
    days = [datetime(2026, 3, day, tzinfo=UTC) for day in (1, 1, 2)]
    notices = [
        the_only(notices_of("recommendation.ready", payload={"products": PRODUCTS}, target_id="a", occurred_at=day))
        for day in days
    ]
    assert [notice.subject for notice in notices] == ["2026-03-01 a", "2026-03-01 a", "2026-03-02 a"]


def test_the_day_is_that_of_the_run_where_it_is_given() -> None:
    assert the_only(ready(day="2026-03-05")).subject == "2026-03-05 a"


def test_without_products_or_a_member_there_is_nothing_to_send() -> None:
    assert ready([]) == []
    assert notices_of("recommendation.ready", payload={"products": PRODUCTS}) == []


@pytest.mark.parametrize("products", [None, "p-1", [1], [{"productId": 7}], [{"productId": "p", "productName": 7}]])
def test_what_is_not_a_list_of_products_is_refused(products: Any) -> None:
    with pytest.raises(ValueError, match="product"):
        ready(products)
