"""Bodies that are cast are the bodies that would have been built, byte for byte, and refused are the same."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bongsu.deliver.channels import body_templates, fcm
from bongsu.deliver.channels.body_templates import BodyTemplates
from bongsu.model import Priority
from bongsu.outcome import Outgoing, Refused

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
A_COLLAPSE_ID = "0123456789abcdefghijABCDEFGHIJ_-"

words = st.fixed_dictionaries(
    {
        "type": st.text(max_size=10),
        "title": st.text(max_size=1500),
        "body": st.text(max_size=1500) | st.just("가" * 1200) | st.just("\ud800"),
        "ref_id": st.none() | st.text(max_size=10),
        "data": st.dictionaries(st.sampled_from(["nid", "from", "a", "가"]), st.text(max_size=20) | st.floats()),
        "priority": st.sampled_from(Priority),
        "is_silent": st.booleans(),
        "expires_at": st.none() | st.timedeltas(timedelta(-1), timedelta(60)).map(lambda after: NOW + after),
    }
)
own = st.fixed_dictionaries(
    {
        "notification_id": st.integers(0, 2**63 - 1),
        "address": st.text(max_size=30),
        "collapse_id": st.sampled_from(
            [A_COLLAPSE_ID, A_COLLAPSE_ID[::-1], "short", "", "not allowed, and too long by far"]
        ),
    }
)


@given(words, st.lists(st.tuples(own, st.timedeltas(timedelta(0), timedelta(seconds=5))), min_size=1, max_size=5))
def test_cast_is_as_built(said: dict[str, Any], deliveries: list[tuple[dict[str, Any], timedelta]]) -> None:
    forms = BodyTemplates()
    for fields, later in deliveries:
        one = Outgoing(delivery_id=1, member_id="m", message_id=7, **said, **fields)
        assert forms.request_body(one, NOW + later) == fcm.request_body(one, NOW + later)


def test_messages_are_not_mixed_up() -> None:
    forms = BodyTemplates()
    one = outgoing(message_id=1, title="one")
    for _ in range(2):
        for each in (one, replace(one, message_id=2, title="another"), replace(one, message_id=0, title="of no message")):
            assert forms.request_body(each, NOW) == fcm.request_body(each, NOW)


def test_forms_are_kept_but_not_all() -> None:
    forms = BodyTemplates()
    for message_id in range(1, 2 * body_templates.KEPT):
        assert not isinstance(forms.request_body(outgoing(message_id=message_id), NOW), Refused)
    assert len(forms._forms) == body_templates.KEPT


def outgoing(**fields: Any) -> Outgoing:
    given: dict[str, Any] = {
        "delivery_id": 1, "notification_id": 12, "member_id": "m", "address": "token", "type": "PRICE_DROP",
        "title": "title", "body": "body", "collapse_id": A_COLLAPSE_ID,
    }  # fmt: skip
    return Outgoing(**(given | fields))
