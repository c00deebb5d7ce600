"""The rule of pushes about chat."""

from __future__ import annotations

from typing import Any

import pytest

from bongsu.model import Channel, Guarantee, Listed
from tests.rules.events import notices_of, the_only

ROOM = "0190c2f5-7a8b-7c3d-9e4f-1234567890ab"


def unread(*member_ids: str, ref_id: str | None = ROOM, **fields: Any) -> Any:
    payload = {"memberIds": list(member_ids), "roomName": "여행", "lastSeq": 7, **fields}
    return notices_of("chat.unread", payload=payload, ref_id=ref_id)


def test_those_who_have_not_read_a_room_are_pushed_outside_the_cap_and_not_in_the_inbox() -> None:
    notice = the_only(unread("a", "b"))
    assert (notice.type.name, notice.audience, notice.ref_id, notice.digest_key) == (
        "CHAT_MESSAGE", Listed(("a", "b")), ROOM, ROOM,
    )  # fmt: skip
    assert notice.data == {"roomId": ROOM, "room": "여행"}
    kind = notice.type
    assert (kind.channels, kind.is_capped, kind.is_critical) == ((Channel.PUSH,), False, False)
    assert (kind.guarantee, kind.digest is not None, notice.bulk) == (Guarantee.AT_LEAST_ONCE, True, False)


def test_many_members_of_one_room_are_bulk() -> None:
    assert the_only(unread(*(f"m{number}" for number in range(101)))).bulk


def test_an_event_without_members_gives_nothing() -> None:
    assert unread() == []


@pytest.mark.parametrize("ref_id", [None, "trip", "0190c2f5"])
def test_what_is_not_the_id_of_a_room_is_an_error_that_names_it(ref_id: str | None) -> None:
    with pytest.raises(ValueError, match="refId must be the id of a chat room"):
        unread("a", ref_id=ref_id)
