"""Decoding: msgspec reads a plain event as pydantic does or leaves it to pydantic, which alone rejects and says why."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from bongsu.ingress.decode import Rejected, decode_behavior, decode_event, decode_json
from bongsu.ingress.decode import _decode_plain_event as read_line
from bongsu.model import Event
from bongsu.model.payload import read_payload
from bongsu.store.outbox import NewEvent

PLAIN = b'{"eventType":"x","occurredAt":"2026-01-02T03:04:05.678901+09:00","actorId":"a","payload":{"a":[1,"\xea\xb0\x80"]}}'


def exactly(line: bytes) -> Event | None:
    event = decode_json(TypeAdapter(Event), line)
    return None if isinstance(event, Rejected) else event


def fields(event: Event | NewEvent) -> dict[str, Any]:
    """What is stored, the payload as the value it is read back as. Numbers by their kind too: 1 is not 1.0 here."""
    names = ("event_id", "event_type", "actor_id", "target_id", "ref_id")
    return {name: getattr(event, name) for name in names} | {
        "occurred_at": event.occurred_at.astimezone(UTC),
        "payload": repr(read_payload(event.payload_text)),
    }


def agree(line: bytes, *, generated: frozenset[str] = frozenset()) -> NewEvent | None:
    """What msgspec reads: nothing, or what pydantic reads. `generated` fields are made anew by each."""
    fast = read_line(line)
    if fast is not None:
        exact = exactly(line)
        assert exact is not None, "msgspec accepted what pydantic rejects"
        ours, theirs = fields(fast), fields(exact)
        for name in generated:
            del ours[name], theirs[name]
        assert ours == theirs
    return fast


# Characters that something may trip over: controls, the edges of encodings, what JSON escapes, what is invisible.
letters = st.characters(exclude_categories=()) | st.sampled_from(
    '\x00\x1f\x7f\x85\xa0\u2028\ufeff\uffff\U0010ffff\\"/{}[]가'
)
words = st.text(letters, max_size=12) | st.integers(min_value=199, max_value=257).map(lambda length: "가" * length)
numbers = (
    st.integers()
    | st.floats()
    | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**30, -0.0, 5e-324, 1.7976931348623157e308, 0.1])
)
payloads = st.dictionaries(
    words,
    st.recursive(
        st.none() | st.booleans() | numbers | words,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
        max_leaves=12,
    ),
    max_size=5,
)
times = (
    st.datetimes(timezones=st.timezones() | st.just(UTC)).map(datetime.isoformat)
    | st.datetimes(min_value=datetime(1969, 12, 25), max_value=datetime(2100, 1, 1)).map(
        lambda moment: f"{moment.isoformat()}Z"
    )
    | st.from_regex(
        r"(19|20)[0-9]{2}-[01][0-9]-[0-3][0-9][Tt _][0-2][0-9]:[0-6][0-9]:[0-6][0-9]"
        r"([.,][0-9]{0,9})?(Z|z|[+-][0-9]{2}:?[0-9]{2})?"
    )
    | st.sampled_from(["2026-W01-1T00:00:00Z", "20260101T000000Z", "2026-01-01", "", "1767225600", "2016-12-31T23:59:60Z"])
    | numbers
    | st.none()
)
ids = (
    st.uuids().flatmap(
        lambda one: st.sampled_from([str(one), str(one).upper(), one.hex, one.urn, f"{{{one}}}", one.hex[:-1]])
    )
    | words
    | st.none()
)
others = words | st.none() | st.integers() | st.lists(words, max_size=1)
events = st.fixed_dictionaries(
    {"eventType": words},
    optional={
        "eventId": ids,
        "occurredAt": times,
        "actorId": others,
        "targetId": others,
        "refId": words,
        "payload": payloads,
    },
)


def generated(event: dict[str, Any]) -> frozenset[str]:
    made = {"eventId": "event_id", "occurredAt": "occurred_at"}
    return frozenset(name for sent, name in made.items() if sent not in event)


@given(events, st.booleans())
@example({"eventType": "x", "occurredAt": "2026-01-01T00:00:00.1234567Z"}, False)
@example({"eventType": "x", "payload": {"a": "\x00"}}, True)
@example({"eventType": "x", "payload": {"a": "\ud83d\ude00"}}, True)
@example({"eventType": "x", "payload": {"a": 1e400}}, False)
@example({"eventType": "x", "payload": {"a": int("9" * 500)}}, False)
def test_whatever_is_sent_the_two_ways_agree(event: dict[str, Any], is_ascii: bool) -> None:
    line = json.dumps(event, ensure_ascii=is_ascii).encode(errors="surrogatepass")
    agree(line, generated=generated(event))


@given(st.data())
def test_a_damaged_line_is_read_alike_or_left_to_the_exact_parser(data: st.DataObject) -> None:
    """Bytes of a good line taken out, doubled or replaced: broken UTF-8, repeated keys, numbers no parser should take."""
    line = bytearray(PLAIN)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(line) - 1))
        length = data.draw(st.integers(0, 4))
        line[place : place + length] = data.draw(
            st.binary(max_size=3)
            | st.sampled_from(
                [b"\\u0000", b"\\ud800", b"1e999", b"-", b"0", b'","actorId":"b', b"NaN", b"null", b"\xed\xa0\x80"]
            )
        )
    agree(bytes(line), generated=frozenset({"event_id"} | (set() if b'"occurredAt"' in line else {"occurred_at"})))


@given(
    st.builds(
        dict,
        eventType=st.text(st.sampled_from("abc.가_"), min_size=1, max_size=200),
        eventId=st.uuids().map(str),
        occurredAt=st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2026, 1, 1), timezones=st.just(UTC)).map(
            datetime.isoformat
        ),
        refId=st.text(st.sampled_from("abc-가"), min_size=1, max_size=255) | st.none(),
        payload=st.dictionaries(
            st.text(st.sampled_from("abc가"), max_size=5),
            st.integers() | st.text(st.sampled_from('x가\n"'), max_size=9) | st.none(),
            max_size=5,
        ),
    ),
    st.booleans(),
)
def test_an_ordinary_event_is_read_by_msgspec(event: dict[str, Any], is_ascii: bool) -> None:
    assert agree(json.dumps(event, ensure_ascii=is_ascii).encode()) is not None


@pytest.mark.parametrize(
    "payload",
    [
        '{"a":' + "[" * 63 + "]" * 63 + "}",
        '{"a":' + "[" * 64 + "]" * 64 + "}",
        '{"a":' + "[" * 5000 + "]" * 5000 + "}",
        '{"a":"' + "x" * 65_536 + '"}',
        '{"a":"' + "x" * 65_537 + '"}',
        '{"a":1,"a":2}',
        '{"a":' + "9" * 5000 + "}",
        '{"a":-0}',
        '{"a":01}',
        '{"a":1.}',
        '{"a":Infinity}',
        "[]",
        "null",
        '"{}"',
    ],
)
def test_payloads_at_the_limits_are_read_alike(payload: str) -> None:
    line = b'{"eventType":"x","payload":' + payload.encode() + b"}"
    agree(line, generated=frozenset({"event_id", "occurred_at"}))
    assert isinstance(decode_event(line), Rejected) == (exactly(line) is None)


def test_fields_left_out_get_their_defaults() -> None:
    row = read_line(b'{"eventType":"x"}')
    assert row is not None
    assert isinstance(row.event_id, UUID)
    assert row.event_id.version == 7
    assert abs(row.occurred_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert row[3:] == (None, None, None, "{}", None)


def test_what_msgspec_leaves_pydantic_decides() -> None:
    assert isinstance(decode_event(PLAIN), NewEvent)
    assert isinstance(decode_event(b'{"eventType":"x","occurredAt":"2026-01-01T00:00:00.1234567Z"}'), Event)


def test_a_rejection_names_every_mistake_and_where_it_is() -> None:
    rejected = decode_event(b'{"eventType":"","refId":7}')
    assert isinstance(rejected, Rejected)
    assert [tuple(mistake.location) for mistake in rejected.mistakes] == [("eventType",), ("refId",)]
    assert rejected.reason.startswith("eventType: ")
    assert rejected.is_json


def test_what_is_not_json_is_rejected_as_such() -> None:
    rejected = decode_behavior(b"{")
    assert isinstance(rejected, Rejected)
    assert not rejected.is_json
    assert rejected.reason.startswith("Invalid JSON")
