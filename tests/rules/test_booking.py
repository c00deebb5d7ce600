"""What must arrive: confirmations and announcements."""

from __future__ import annotations

from typing import Any

import pytest

from bongsu.model import Channel, Everyone, Guarantee, Listed
from tests.rules.events import said, the_one

SAYS = {"title": "점검 안내", "body": "{{ 오늘 }} 밤 점검이 있습니다."}


def test_a_confirmed_reservation_is_critical_and_must_arrive() -> None:
    notice = the_one(said("reservation.confirmed", actor_id="a", target_id="a", ref_id="r-1"))
    assert (notice.type.name, notice.audience) == ("RESERVATION_CONFIRMED", Listed(("a",)))
    assert (notice.subject, notice.ref_id) == ("r-1", "r-1")
    assert notice.type.channels == (Channel.PUSH, Channel.IN_APP, Channel.EMAIL)
    assert (notice.type.is_critical, notice.type.guarantee) == (True, Guarantee.AT_LEAST_ONCE)


def test_a_reservation_of_nobody_is_told_nobody() -> None:
    assert said("reservation.confirmed", ref_id="r-1") == []


def test_a_notice_that_names_no_list_is_for_everyone() -> None:
    notice = the_one(said("notice.published", payload=SAYS))
    assert (notice.type.name, notice.audience) == ("NOTICE", Everyone())
    assert (notice.title, notice.body) == (SAYS["title"], SAYS["body"])
    assert notice.type.channels == (Channel.PUSH, Channel.IN_APP)
    assert (notice.type.is_critical, notice.type.guarantee) == (True, Guarantee.AT_LEAST_ONCE)


def test_a_notice_is_for_those_it_names_and_an_empty_list_names_nobody() -> None:
    assert the_one(said("notice.published", payload=SAYS | {"memberIds": ["a", "b"]})).audience == Listed(("a", "b"))
    assert said("notice.published", payload=SAYS | {"memberIds": []}) == []


def test_two_notices_about_nothing_in_particular_are_no_duplicates() -> None:
    subjects = {the_one(said("notice.published", payload=SAYS)).subject for _ in range(2)}
    assert len(subjects) == 2
    assert the_one(said("notice.published", payload=SAYS, ref_id="n-1")).subject == "n-1"


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"body": "b"}, "payload.title is missing"),
        ({"title": " ", "body": "b"}, "payload.title is empty"),
        ({"title": "t"}, "payload.body is missing"),
        ({"title": "t", "body": 7}, "payload.body must be a text, not 7"),
        ({"title": "t", "body": "b", "memberIds": "all"}, "payload.memberIds must be a list of member ids, not 'all'"),
    ],
)
def test_a_notice_that_says_nothing_is_refused_by_name(payload: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        said("notice.published", payload=payload)
