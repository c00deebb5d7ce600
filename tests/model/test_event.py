"""Event: what exists can be stored, and what cannot be stored cannot exist."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bongsu.model import Event, new_id, utc_now
from bongsu.model.payload import DEPTH_LIMIT, STRING_LIMIT


def refusal(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Event(**{"event_type": "x", **fields})
    (error,) = caught.value.errors(include_url=False)
    return f"{error['loc'][0]} {error['msg']}"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"event_type": ""}, "event_type String should have at least 1"),
        ({"event_type": "x" * 201}, "event_type String should have at most 200"),
        ({"event_type": "a\x00b"}, "event_type String should match"),
        ({"event_type": 7}, "event_type Input should be a valid string"),
        ({"ref_id": ""}, "ref_id String should have at least 1"),
        ({"ref_id": "x" * 10_000_000}, "ref_id String should have at most 255"),
        ({"actor_id": "\ud800"}, "actor_id Input should be a valid string, unable to parse raw data as a unicode"),
        ({"target_id": 5}, "target_id Input should be a valid string"),
        ({"event_id": "not a uuid"}, "event_id Input should be a valid UUID"),
        ({"occurred_at": datetime(2026, 1, 1)}, "occurred_at Input should have timezone info"),
        ({"occurred_at": utc_now() + timedelta(days=2)}, "occurred_at lies more than a day in the future"),
        ({"occurred_at": datetime(1, 1, 1, tzinfo=UTC)}, "occurred_at lies before 1970"),
        ({"occurred_at": datetime.max.replace(tzinfo=UTC)}, "occurred_at lies more than a day in the future"),
        ({"payload": []}, "payload Input should be a valid dictionary"),
        ({"payload": {"price": math.nan}}, "payload contains NaN"),
        ({"payload": {"price": [math.inf]}}, "payload contains NaN"),
        ({"payload": {"a": {"b": ["x", "\x00"]}}}, "payload payload.a.b[1] contains a NUL"),
        ({"payload": {"a": {"k\x00": 1}}}, "contains a NUL"),
        ({"payload": {"a": "\udfff"}}, "payload contains a lone surrogate"),
        (
            {"payload": {"a": "x" * 10_000_000}},
            f"payload payload.a is 10000000 characters long, the limit is {STRING_LIMIT}",
        ),
        ({"payload": {"a": nested(DEPTH_LIMIT)}}, "payload nests deeper"),
        ({"payload": {"a": nested(100_000)}}, "payload nests deeper"),
        ({"payload": {"a": 10**5000}}, "payload contains NaN, an infinity or a number beyond all range"),
        ({"payload": {"a": {1, 2}}}, "payload is not JSON"),
        ({"unknown": 1}, "unknown Extra inputs"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_place(fields: dict[str, Any], says: str) -> None:
    assert says in refusal(**fields)


def test_what_is_only_unusual_is_accepted() -> None:
    event = Event(
        event_type="한글.이벤트",
        event_id=str(new_id()),  # type: ignore[arg-type]
        payload={"backslash": "\\u0000 is no NUL", "long": "x" * STRING_LIMIT, "deep": nested(DEPTH_LIMIT - 2), "": None},
    )
    assert json.loads(event.payload_text) == event.payload


def test_an_event_is_frozen() -> None:
    with pytest.raises(ValidationError):
        Event(event_type="x").event_type = "y"  # type: ignore[misc]


def test_the_wire_is_camel_case() -> None:
    event = Event.model_validate_json('{"eventType":"x","refId":"1","occurredAt":"2026-01-01T09:00:00+09:00"}')
    assert event.occurred_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert set(event.model_dump(by_alias=True)) == {
        "eventType", "eventId", "occurredAt", "actorId", "targetId", "refId", "payload",
    }  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=8), inner, max_size=4),
    max_leaves=20,
)


def storable(value: Any) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case str():
            return "\x00" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)
        case dict():
            return all(storable(key) and storable(inner) for key, inner in value.items())
        case list():
            return all(map(storable, value))
    return True


@given(st.dictionaries(st.text(st.characters(), max_size=8), JSON, max_size=4))
def test_a_payload_is_accepted_exactly_when_both_databases_could_keep_it(payload: dict[str, Any]) -> None:
    try:
        event = Event(event_type="x", payload=payload)
    except ValidationError:
        assert not storable(payload)
    else:
        assert storable(payload)
        assert json.loads(event.payload_text) == payload


def test_ids_are_version_7_and_rise_with_time() -> None:
    ids = [new_id() for _ in range(10_000)]
    assert {one.version for one in ids} == {7}
    assert {one.variant for one in ids} == {"specified in RFC 4122"}
    assert len(set(ids)) == len(ids)
    times = [one.int >> 64 for one in ids]
    assert times == sorted(times)
