"""What must arrive: confirmations and announcements."""

from __future__ import annotations

from typing import Any

import pytest

from bongsu.model import Channel, Everyone, Guarantee, Listed
from tests.rules.events import notices_of, the_only

TEXT = {"title": "점검 안내", "body": "{{ 오늘 }} 밤 점검이 있습니다."}


def test_a_confirmed_reservation_is_critical_and_must_arrive() -> None:
    notice = the_only(notices_of("reservation.confirmed", actor_id="a", target_id="a", ref_id="r-1"))
    assert (notice.type.name, notice.audience) == ("RESERVATION_CONFIRMED", Listed(("a",)))
    assert (notice.subject, notice.ref_id) == ("r-1", "r-1")
    assert notice.type.channels == (Channel.PUSH, Channel.IN_APP, Channel.EMAIL)
    assert (notice.type.is_critical, notice.type.guarantee) == (True, Guarantee.AT_LEAST_ONCE)


def test_a_reservation_without_a_member_notifies_nobody() -> None:
    assert notices_of("reservation.confirmed", ref_id="r-1") == []


def test_a_notice_that_names_no_list_is_for_everyone() -> None:
    notice = the_only(notices_of("notice.published", payload=TEXT))
    assert (notice.type.name, notice.audience) == ("NOTICE", Everyone())
    assert (notice.title, notice.body) == (TEXT["title"], TEXT["body"])
    assert notice.type.channels == (Channel.PUSH, Channel.IN_APP)
    assert (notice.type.is_critical, notice.type.guarantee) == (True, Guarantee.AT_LEAST_ONCE)


def test_a_notice_is_for_those_it_names_and_an_empty_list_names_nobody() -> None:
    assert the_only(notices_of("notice.published", payload=TEXT | {"memberIds": ["a", "b"]})).audience == Listed(("a", "b"))
    assert notices_of("notice.published", payload=TEXT | {"memberIds": []}) == []


def test_two_notices_about_nothing_in_particular_are_no_duplicates() -> None:
    subjects = {the_only(notices_of("notice.published", payload=TEXT)).subject for _ in range(2)}
    assert len(subjects) == 2
    assert the_only(notices_of("notice.published", payload=TEXT, ref_id="n-1")).subject == "n-1"


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"body": "b"}, "payload.title is missing"),
        ({"title": " ", "body": "b"}, "payload.title is empty"),
        ({"title": "t"}, "payload.body is missing"),
        ({"title": "t", "body": 7}, "payload.body must be a text, not 7"),
        ({"title": "t", "body": "b", "memberIds": "all"}, "payload.memberIds must be a list of member ids, not 'all'"),
    ],
)
def test_a_notice_without_a_text_is_refused_with_the_missing_field(payload: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        notices_of("notice.published", payload=payload)
