"""Rules among members."""

from __future__ import annotations

from typing import Any

import pytest

from bongsu.model import Channel, Guarantee, Listed, Priority
from tests.rules.events import notices_of, the_only

TO_A_TARGET = [("follow.created", "FOLLOW"), ("post.liked", "POST_LIKE"), ("comment.created", "POST_COMMENT")]


@pytest.mark.parametrize(("event_type", "name"), TO_A_TARGET)
def test_the_target_is_notified(event_type: str, name: str) -> None:
    notice = the_only(notices_of(event_type, actor_id="a", target_id="b", ref_id="1", payload={"actorName": "지민"}))
    assert (notice.type.name, notice.audience, notice.ref_id) == (name, Listed(("b",)), "1")
    assert notice.type.channels == (Channel.IN_APP, Channel.PUSH)
    assert (notice.type.priority, notice.type.guarantee) == (Priority.NORMAL, Guarantee.AT_MOST_ONCE)
    assert not notice.type.is_critical
    assert notice.data == {"actorId": "a", "actorName": "지민"}


@pytest.mark.parametrize(("event_type", "_name"), TO_A_TARGET)
def test_nobody_is_notified_of_their_own_act(event_type: str, _name: str) -> None:
    assert notices_of(event_type, actor_id="a", target_id="a", ref_id="1") == []


@pytest.mark.parametrize(("event_type", "_name"), TO_A_TARGET)
def test_without_a_target_nobody_is_notified(event_type: str, _name: str) -> None:
    assert notices_of(event_type, actor_id="a", ref_id="1") == []


def subject(event_type: str, **fields: Any) -> str:
    return the_only(notices_of(event_type, target_id="b", **fields)).subject


def test_a_like_again_is_a_duplicate_and_a_like_by_another_is_not() -> None:
    first = subject("post.liked", actor_id="a", ref_id="1")
    assert subject("post.liked", actor_id="a", ref_id="1") == first
    assert subject("post.liked", actor_id="c", ref_id="1") != first
    assert subject("post.liked", actor_id="a", ref_id="2") != first


def test_a_follow_again_is_a_duplicate_and_a_follow_by_another_is_not() -> None:
    assert subject("follow.created", actor_id="a") == subject("follow.created", actor_id="a", ref_id="7")
    assert subject("follow.created", actor_id="a") != subject("follow.created", actor_id="c")


def test_every_comment_is_one_of_its_own() -> None:
    assert subject("comment.created", actor_id="a", ref_id="1") != subject("comment.created", actor_id="a", ref_id="1")


def test_a_closed_vote_notifies_those_it_names_but_not_who_closed_it() -> None:
    payload = {"memberIds": ["b", "a", "c", "b"]}
    notice = the_only(notices_of("vote.closed", actor_id="a", ref_id="v", payload=payload))
    assert (notice.type.name, notice.audience, notice.subject) == ("VOTE_CLOSED", Listed(("b", "c")), "v")
    assert notice.type.channels == (Channel.IN_APP, Channel.PUSH)


@pytest.mark.parametrize("payload", [{}, {"memberIds": None}, {"memberIds": []}, {"memberIds": ["a"]}])
def test_a_vote_without_others_notifies_nobody(payload: dict[str, Any]) -> None:
    assert notices_of("vote.closed", actor_id="a", target_id="b", ref_id="v", payload=payload) == []


@pytest.mark.parametrize("wrong", ["b", {"b": 1}, 7, True, [1], ["b", None], [""], ["x" * 256], ["a\nb"]])
def test_member_ids_of_another_shape_are_refused_by_name(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^payload\.memberIds.* must be .*member id"):
        notices_of("vote.closed", payload={"memberIds": wrong})


def test_an_actors_name_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"payload\.actorName must be a text, not 7"):
        notices_of("post.liked", actor_id="a", target_id="b", payload={"actorName": 7})
