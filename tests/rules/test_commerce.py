"""A shop's rules: the decisions against an independent formulation, and every row of the contract."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bongsu.model import Action, Channel, Event, Guarantee, Interested, Priority
from bongsu.rules import catalogue
from bongsu.rules.commerce import back_in_stock, commerce, drop_percentage
from bongsu.settings import Settings
from tests.rules.events import notices_of, the_only

prices = st.one_of(
    st.integers(0, 10**9),
    st.decimals(0, 10**6, places=2).map(float),
    st.floats(min_value=0, max_value=1e12, allow_subnormal=False),
)
no_numbers = st.one_of(
    st.none(),
    st.booleans(),
    st.text(),
    st.sampled_from([float("nan"), float("inf"), float("-inf"), "100", [], {}]),
)


def falls_enough(previous: float, current: float, threshold: float) -> bool:
    """Without a division, in decimal: p - c >= p * t / 100."""
    with localcontext() as context:
        context.prec = 2_000
        before, after, percent = (Decimal(str(number)) for number in (previous, current, threshold))
        return before > 0 and after < before and (before - after) * 100 >= before * percent


@given(prices, prices, st.one_of(st.integers(0, 100), st.floats(0, 100, allow_subnormal=False)))
def test_a_price_drop_is_notified_from_the_threshold_on_and_exactly(
    previous: float, current: float, threshold: float
) -> None:
    rules = commerce(Settings(price_drop_threshold=threshold))
    notices = notices_of("product.price_changed", rules, {"previousPrice": previous, "currentPrice": current}, ref_id="p")
    assert bool(notices) is falls_enough(previous, current, Settings(price_drop_threshold=threshold).price_drop_threshold)


@given(st.integers(1, 10**9), st.integers(0, 10**9))
def test_the_percentage_is_a_whole_number_rounded_down(previous: int, current: int) -> None:
    rules = commerce(Settings(price_drop_threshold=0))
    notices = notices_of("product.price_changed", rules, {"previousPrice": previous, "currentPrice": current}, ref_id="p")
    if current >= previous:
        assert notices == []
    else:
        whole = the_only(notices).data["dropPercentage"]
        assert type(whole) is int
        assert previous * whole <= (previous - current) * 100 < previous * (whole + 1)


@pytest.mark.parametrize(
    ("previous", "current", "is_told"),
    [
        (10_000, 9_000, True),
        (10_000, 9_001, False),
        (1_000_000_000, 900_000_001, False),  # 9.9999999 per cent
        (0.3, 0.27, True),  # ten per cent as written, less in binary
        (19.99, 17.991, True),
        (10_000, 0, True),
        (10_000, 10_000, False),
        (9_000, 10_000, False),
    ],
)
def test_ten_per_cent_is_ten_per_cent(previous: float, current: float, is_told: bool) -> None:
    payload = {"previousPrice": previous, "currentPrice": current}
    assert bool(notices_of("product.price_changed", payload=payload, ref_id="p")) is is_told


@given(st.one_of(no_numbers, st.integers(max_value=0), st.floats(max_value=0)), st.one_of(prices, no_numbers))
def test_no_previous_price_no_drop(previous: Any, current: Any) -> None:
    assert drop_percentage(previous, current) is None


@given(prices, st.one_of(no_numbers, st.integers(max_value=-1)))
def test_no_current_price_no_drop(previous: Any, current: Any) -> None:
    assert drop_percentage(previous, current) is None


@given(st.one_of(st.integers(-5, 5), st.floats(-2, 2), no_numbers), st.one_of(st.integers(), st.floats(), no_numbers))
def test_back_in_stock_is_from_nothing_to_a_whole_number_of_something(previous: Any, current: Any) -> None:
    whole = all(isinstance(one, int | float) and not isinstance(one, bool) and one % 1 == 0 for one in (previous, current))
    is_back = whole and previous == 0 and current > 0
    assert back_in_stock(previous, current) == (Decimal(str(current)) if is_back else None)


def test_a_price_drop_as_the_contract_has_it() -> None:
    payload = {"previousPrice": 12_000, "currentPrice": 9_900}
    notice = the_only(notices_of("product.price_changed", payload=payload, ref_id="sku-1"))
    assert notice.audience == Interested("sku-1", frozenset({Action.VIEW, Action.CLICK, Action.ADD_TO_CART}), 7)
    assert (notice.type.name, notice.type.priority) == ("PRICE_DROP", Priority.HIGH)
    assert notice.type.channels == (Channel.PUSH, Channel.IN_APP)
    assert (notice.type.is_critical, notice.type.guarantee) == (False, Guarantee.AT_MOST_ONCE)
    assert (notice.ref_id, notice.product_id) == ("sku-1", "sku-1")
    assert notice.data == {"previousPrice": 12_000, "currentPrice": 9_900, "dropPercentage": 17}


def test_a_second_drop_of_a_product_has_the_subject_of_the_first() -> None:
    falls = [{"previousPrice": 100, "currentPrice": 80}, {"previousPrice": 80, "currentPrice": 10}]
    subjects = {the_only(notices_of("product.price_changed", payload=fall, ref_id="sku-1")).subject for fall in falls}
    assert subjects == {"sku-1"}


def test_back_in_stock_as_the_contract_has_it() -> None:
    payload = {"previousStock": 0, "currentStock": 5}
    notice = the_only(notices_of("product.stock_changed", payload=payload, ref_id="sku-1"))
    assert notice.audience == Interested("sku-1", frozenset({Action.ADD_TO_CART}), 30)
    assert (notice.type.name, notice.type.priority) == ("BACK_IN_STOCK", Priority.HIGH)
    assert notice.type.channels == (Channel.PUSH, Channel.SMS)
    assert (notice.subject, notice.ref_id, notice.product_id) == ("sku-1", "sku-1", "sku-1")
    assert notice.data == {"currentStock": 5}


@pytest.mark.parametrize("payload", [{}, {"previousStock": 1, "currentStock": 2}, {"previousStock": 0, "currentStock": 0}])
def test_stock_that_was_there_or_still_is_not_is_no_news(payload: dict[str, Any]) -> None:
    assert notices_of("product.stock_changed", payload=payload, ref_id="p") == []


def test_how_far_back_interest_reaches_can_be_set() -> None:
    rules = commerce(Settings(interested_user_days=3, cart_user_days=4))
    price = {"previousPrice": 2, "currentPrice": 1}
    stock = {"previousStock": 0, "currentStock": 1}
    days = []
    for notice in (
        the_only(notices_of("product.price_changed", rules, price, ref_id="p")),
        the_only(notices_of("product.stock_changed", rules, stock, ref_id="p")),
    ):
        assert isinstance(notice.audience, Interested)
        days.append(notice.audience.days)
    assert days == [3, 4]


def test_a_change_without_a_product_notifies_nobody() -> None:
    assert notices_of("product.price_changed", payload={"previousPrice": 2, "currentPrice": 1}) == []
    assert notices_of("product.stock_changed", payload={"previousStock": 0, "currentStock": 1}) == []


def test_an_edited_product_is_no_news() -> None:
    assert catalogue(Settings()).detect(Event(event_type="product.updated", ref_id="p")) == []
