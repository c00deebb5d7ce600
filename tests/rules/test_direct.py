"""A notice somebody asked for over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from bongsu.model import Channel, Guarantee, Listed, NoticeType, Priority
from bongsu.rules import DIRECT, App, catalogue
from bongsu.settings import Settings
from tests.rules.events import notices_of, the_only

LEAST = {"type": "MARKETING", "userIds": ["a", "b"], "title": "봄 할인", "body": "{{ 7*7 }}"}


def test_what_is_left_out_is_modest() -> None:
    notice = the_only(notices_of(DIRECT, payload=LEAST))
    assert notice.type == NoticeType("MARKETING", (Channel.PUSH, Channel.IN_APP))
    assert (notice.audience, notice.title, notice.body) == (Listed(("a", "b")), "봄 할인", "{{ 7*7 }}")
    assert notice.data == {}


def test_what_is_left_out_is_as_the_type_of_that_name_declares_it() -> None:
    notice = the_only(notices_of(DIRECT, payload=LEAST | {"type": "RESERVATION_CONFIRMED"}))
    assert notice.type == catalogue(Settings()).types["RESERVATION_CONFIRMED"]


def test_a_type_of_the_users_own_counts_too() -> None:
    app = App()
    shipped = app.type("SHIPPED", channels=["SMS"], duplicate_hours=5)
    notice = the_only(notices_of(DIRECT, catalogue(Settings(), app), LEAST | {"type": "SHIPPED", "priority": "LOW"}))
    assert notice.type == NoticeType("SHIPPED", (Channel.SMS,), Priority.LOW, duplicate_hours=5)
    assert shipped.priority is Priority.NORMAL


def test_every_field_can_be_given() -> None:
    more = {
        "data": {"coupon": "X"},
        "channels": ["EMAIL", "SMS", "EMAIL"],
        "priority": "HIGH",
        "subject": "spring",
        "guarantee": "at_least_once",
        "critical": True,
    }
    notice = the_only(notices_of(DIRECT, payload=LEAST | more))
    assert notice.type == NoticeType(
        "MARKETING", (Channel.EMAIL, Channel.SMS), Priority.HIGH, Guarantee.AT_LEAST_ONCE, is_critical=True
    )
    assert (notice.subject, notice.data) == ("spring", {"coupon": "X"})


def test_two_requests_without_a_subject_are_no_duplicates() -> None:
    assert len({the_only(notices_of(DIRECT, payload=LEAST, ref_id="1")).subject for _ in range(2)}) == 2


def test_a_hundred_thousand_members_are_notified_once_each() -> None:
    ids = [f"member-{number}" for number in range(100_000)]
    audience = the_only(notices_of(DIRECT, payload=LEAST | {"userIds": [*ids, "member-0"]})).audience
    assert audience == Listed(tuple(ids))


def test_an_empty_list_notifies_nobody() -> None:
    assert notices_of(DIRECT, payload=LEAST | {"userIds": []}) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"type": None}, "payload.type is missing"),
        ({"type": ""}, "payload.type is empty"),
        ({"userIds": None}, "payload.userIds is missing"),
        ({"userIds": "a"}, "payload.userIds must be a list"),
        ({"userIds": ["a", 7]}, r"payload.userIds\[1\] must be a member id"),
        ({"title": None}, "payload.title is missing"),
        ({"body": []}, "payload.body must be a text"),
        ({"data": []}, "payload.data must be an object"),
        ({"channels": []}, "payload.channels must be a list of some of PUSH, SMS, EMAIL, IN_APP"),
        ({"channels": "PUSH"}, "payload.channels must be a list of some of"),
        ({"channels": ["FAX"]}, "payload.channels takes PUSH, SMS, EMAIL, IN_APP, not 'FAX'"),
        ({"priority": 1}, "payload.priority takes HIGH, NORMAL, LOW, not 1"),
        ({"guarantee": "twice"}, "payload.guarantee takes at_least_once, at_most_once, not 'twice'"),
        ({"critical": "yes"}, "payload.critical must be true or false"),
        ({"subject": 5}, "payload.subject must be a text"),
    ],
)
def test_what_has_the_wrong_shape_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        notices_of(DIRECT, payload=LEAST | change)
