"""Hostile text in a stream: each notification stays one event with that text in it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from bongsu.live import encode
from bongsu.live.wire_sse import SSE
from bongsu.model import Guarantee, utc_now
from bongsu.store.messages.content import MessageContent
from tests.support.hostile import hostile_texts

# The store has no half surrogate pairs: neither database keeps them.
storable_texts = hostile_texts.map(lambda text: text.encode("utf-8", "replace").decode())


@given(
    st.tuples(storable_texts, storable_texts, storable_texts, storable_texts),
    st.dictionaries(storable_texts, storable_texts),
    st.sampled_from([None, 1]),
)
def test_a_notification_is_one_event_whatever_it_says(
    texts: tuple[str, str, str, str], data: dict[str, str], indent: int | None
) -> None:
    kind, title, body, ref_id = texts
    stored = json.dumps(data, ensure_ascii=False, indent=indent)
    content = MessageContent(1, "e-1", kind, title, body, ref_id, stored, Guarantee.AT_MOST_ONCE, "ko", 1, None)
    data_of_it = encode.with_id(7, encode.after_id(utc_now(), content))
    chunk = SSE.event(encode.NOTIFICATION, 7, data_of_it)
    size, _, rest = chunk.partition(b"\r\n")
    frame = rest.removesuffix(b"\r\n")
    assert int(size, 16) == len(frame)
    # A line ends with CR, LF or both, and with nothing else (the HTML standard, 9.2.6).
    assert b"\r" not in frame
    first, second, third, *end = frame.split(b"\n")
    assert (first, second, end) == (b"id: 7", b"event: notification", [b"", b""])
    shown = json.loads(third.removeprefix(b"data: "))
    assert shown.pop("createdAt")
    assert shown == {"id": "7", "type": kind, "title": title, "message": body, "refId": ref_id, "data": data}
