"""Requests that no document describes: headers, paths, cursors and bodies of any bytes. None is answered with a 5xx, every
status is one that the operation documents, and every refusal is a problem."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import fields
from datetime import datetime
from typing import Any, get_type_hints
from urllib.parse import quote
from uuid import UUID

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from bongsu.api.paging import encode_parts
from bongsu.store.desk.dead_letters import Kind
from bongsu.store.desk.dead_letters import PageCursor as DeadCursor
from bongsu.store.desk.event_progress import PageCursor as EventCursor
from bongsu.store.desk.history import PageCursor as HistoryCursor
from tests.support.hostile import hostile_texts
from tests.support.long_runs import examples
from tests.support.served_app import Answer, RawHeaders, ServedApp

PAGES = ("/", "/docs", "/openapi.json", "/bongsu-bell.js", "/docs/assets/swagger-ui.css", "/demo", "/demo/shelf", "/nowhere")
LISTS = {
    "/api/admin/events": EventCursor,
    "/api/admin/dead": DeadCursor,
    "/api/admin/history": HistoryCursor,
    "/api/notifications": None,
}
# Any path and method may be answered so: there is nothing of that name, or it does not take that method.
ANYWHERE = {404, 405}

fuzz = hypothesis.settings(max_examples=examples(100), database=None, suppress_health_check=list(HealthCheck))

# --- what is sent -----------------------------------------------------------------------------------------------------

_NAMES = (
    "host", "origin", "cookie", "authorization", "x-api-key", "content-type", "content-length", "accept", "last-event-id",
    "x-request-id", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "forwarded", "sec-fetch-site", "range",
    "if-match",
    "if-none-match", "if-modified-since", "accept-encoding", "expect", "transfer-encoding", "access-control-request-method",
    "access-control-request-headers", "upgrade", "connection", "x-http-method-override",
)  # fmt: skip
_PIECES = (
    "[", "]", "http://[", "https://[::1", "http://bongsu", "https://shop.example", "null", "Bearer", "bearer ", "Basic ",
    "bongsu_session=", ";", "=", ",", '"', "*", "*/*", "bytes=0-", "bytes=5-1,,", "W/", "application/json",
    "application/x-ndjson", "; charset=", "utf-16", "-1", "9" * 30, "1e9", "%00", "%", "\t", "\x7f", "\xff",
    "Thu, 01 Jan 1970 00:00:00 GMT",
    "eyJhbGciOiJub25lIn0.e30.",
)  # fmt: skip
# Of the bytes that an HTTP parser lets through.
_VALUES = st.lists(
    st.sampled_from(_PIECES).map(lambda text: text.encode("latin-1"))
    | st.binary(max_size=12).map(lambda data: re.sub(rb"[\x00-\x08\x0a-\x1f]", b"", data)),
    max_size=5,
).map(b"".join)


def _maybe(name: bytes, *starts: bytes) -> st.SearchStrategy[list[tuple[bytes, bytes]]]:
    """Half of the time one header of that name, mostly with a start that makes it worth reading."""
    values = st.tuples(st.sampled_from((*starts, b"")), _VALUES).map(b"".join)
    return st.just([]) | values.map(lambda value: [(name, value)])


# A key, and where it comes from, are read together: neither alone leads far.
HEADERS = st.tuples(
    _maybe(b"cookie", b"bongsu_session=x", b"bongsu_session=", b"a=b; bongsu_session="),
    _maybe(b"origin", b"http://", b"https://", b"http://["),
    _maybe(b"host", b"bongsu", b"["),
    _maybe(b"authorization", b"Bearer ", b"bearer eyJhbGciOiJIUzI1NiJ9."),
    st.lists(st.tuples(st.sampled_from(_NAMES).map(str.encode), _VALUES), max_size=4),
).map(lambda parts: [header for part in parts for header in part])

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | hostile_texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
BODIES = (
    _JSON.map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=60)
    | st.sampled_from(
        [b"", b"[" * 5_000, b'{"a":' * 5_000, b"\xef\xbb\xbf{}", b"null\x00", b"1e999", b'{"a":1,"a":2}', b"9" * 5_000]
    )
)
CONTENT_TYPES = st.sampled_from(
    [
        "application/json", "application/json; charset=utf-16", "application/x-ndjson", "application/jsonl", "text/plain",
        "", "/", "multipart/form-data",
    ]
)  # fmt: skip

_IDS = (
    ".", "..", "%2e%2E", "%2F", "%2f..%2f", "bob%2Fdevices", "%00", "%1f", "%ff", "%C0%AF", "%", "%zz", "%25%32%46",
    "%0d%0aX:%20y", "%5c", ";a=b",
    "scheduled", "read-all", "seen", "stream", "1", "-1", "01", "9" * 19, "9" * 30, "018f0000-0000-7000-8000-000000000000",
    "{018f0000-0000-7000-8000-000000000000}", "urn:uuid:018f0000-0000-7000-8000-000000000000", "%E2%80%AE", "x" * 300,
)  # fmt: skip
IDS = (
    st.sampled_from(_IDS)
    | hostile_texts.map(lambda text: quote(text.encode("utf-8", "surrogatepass"), safe=""))
    | st.binary(min_size=1, max_size=8).map(lambda data: quote(data, safe=""))
)

_MOMENTS = st.datetimes(timezones=st.timezones() | st.none()).map(lambda moment: moment.isoformat()) | st.sampled_from(
    ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2026-01-01", "infinity", "now"]
)
_PARTS: st.SearchStrategy[Any] = (
    _MOMENTS
    | st.uuids().map(str)
    | st.integers(-(2**70), 2**70)
    | st.sampled_from(["event", "delivery", "", "\x00", None, True, 1.5, [], {}])
    | st.text(max_size=5)
)
_OF_TYPES: dict[Any, st.SearchStrategy[Any]] = {
    datetime: _MOMENTS,
    UUID: st.uuids().map(str),
    int: st.integers(-1, 2**63),
    str: st.text(max_size=5),
    Kind: st.sampled_from(list(Kind)).map(str),
}


def _like(kind: type[Any]) -> st.SearchStrategy[str]:
    """Cursors of that kind, some with a part that is not."""
    hints = get_type_hints(kind)
    parts = [_mostly(_OF_TYPES[hints[field.name]]) for field in fields(kind)]
    return st.tuples(*parts).map(lambda given: encode_parts(*given))


def _mostly(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 4).flatmap(lambda number: part if number else _PARTS)


CURSORS = (
    st.lists(_PARTS, max_size=5).map(lambda parts: encode_parts(*parts))
    | _JSON.map(lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).decode())
    | st.binary(max_size=20).map(lambda data: base64.urlsafe_b64encode(data).decode())
    | hostile_texts
    | st.integers(-1, 2**64).map(str)
)

# --- what is answered -------------------------------------------------------------------------------------------------


class Documented:
    """The application, and what its document says of each operation."""

    def __init__(self, served: ServedApp) -> None:
        self._served = served
        document = json.loads(served.call("GET", "/openapi.json").body)
        self._statuses: dict[str, set[int]] = {}
        self._checks: dict[str, str] = {}
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                name = f"{method.upper()} {path}"
                self._statuses[name] = {int(status) for status in operation["responses"]}
                self._checks[name] = "".join(name for each in operation["security"] for name in each)
        self.operations = sorted(self._statuses)

    def key_of(self, operation: str) -> RawHeaders:
        """What opens it."""
        keys = {"apiKey": self._served.server_key, "memberToken": self._served.token("m-1")}
        key = keys.get(self._checks[operation])
        return [(b"authorization", f"Bearer {key}".encode())] if key else []

    def call(self, operation: str, target: str, headers: RawHeaders = (), body: bytes = b"") -> Answer:
        method, path = operation.split(" ")
        answer = self._served.call(method, target, headers, body)
        shown = (method, target, headers, body, answer)
        # In this process there is no connection to stream on.
        assert answer.status < 500 or (path == "/api/notifications/stream" and answer.status == 503), shown
        # An id may be another path's name, as in POST /api/notifications/%2e/read.
        assert answer.status in self._statuses[operation] | ANYWHERE, shown
        if answer.status >= 400:
            assert answer.header("content-type") == "application/problem+json", shown
            assert {"type", "title", "status", "detail"} <= json.loads(answer.body).keys(), shown
        assert not any(set(value) & set("\r\n\x00") for _, value in answer.headers), shown
        return answer


@pytest.fixture(scope="module")
def documented(served: ServedApp) -> Documented:
    return Documented(served)


def filled(operation: str, member_id: str = "m-1", other_id: str = "1") -> str:
    path = operation.split(" ")[1].replace("{member_id}", member_id)
    return re.sub(r"\{\w+\}", lambda _: other_id, path)


# --- tests ------------------------------------------------------------------------------------------------------------


@fuzz
@given(data=st.data())
def test_no_header_is_answered_with_a_5xx(documented: Documented, data: st.DataObject) -> None:
    operation = data.draw(st.sampled_from(documented.operations))
    key = documented.key_of(operation) if data.draw(st.booleans()) else []
    documented.call(operation, filled(operation), [*data.draw(HEADERS), *key], data.draw(BODIES))


@fuzz
@given(
    headers=HEADERS,
    path=st.sampled_from(PAGES),
    method=st.sampled_from(["GET", "HEAD", "POST", "OPTIONS", "TRACE", "get", "X"]),
)
def test_no_header_to_a_page_is_answered_with_a_5xx(served: ServedApp, headers: RawHeaders, path: str, method: str) -> None:
    assert served.call(method, path, headers).status < 500


@fuzz
@given(
    origin=_VALUES, host=_VALUES, path=st.sampled_from(["/api/preferences", "/api/notifications/stream", "/api/admin/stats"])
)
def test_no_origin_and_no_host_of_a_cookies_page_is_answered_with_a_5xx(
    documented: Documented, origin: bytes, host: bytes, path: str
) -> None:
    headers = [(b"cookie", b"bongsu_session=x"), (b"origin", b"http://" + origin), (b"host", b"x" + host)]
    documented.call(f"GET {path}", path, headers)


@fuzz
@given(data=st.data())
def test_no_id_in_a_path_is_answered_with_a_5xx(documented: Documented, data: st.DataObject) -> None:
    operation = data.draw(st.sampled_from([name for name in documented.operations if "{" in name]))
    target = filled(operation, data.draw(IDS), data.draw(IDS))
    documented.call(operation, target, documented.key_of(operation), data.draw(BODIES))


@fuzz
@given(data=st.data())
def test_no_body_is_answered_with_a_5xx(documented: Documented, data: st.DataObject) -> None:
    operation = data.draw(st.sampled_from([name for name in documented.operations if name.split()[0] in ("POST", "PUT")]))
    content_type = (b"content-type", data.draw(CONTENT_TYPES).encode())
    ids = {"member_id": "m-1", "other_id": "018f0000-0000-7000-8000-000000000000"}
    documented.call(operation, filled(operation, **ids), [*documented.key_of(operation), content_type], data.draw(BODIES))


@fuzz
@given(data=st.data())
def test_no_cursor_and_no_parameter_is_answered_with_a_5xx(documented: Documented, data: st.DataObject) -> None:
    path, kind = data.draw(st.sampled_from(sorted(LISTS.items(), key=str)))
    cursors = CURSORS if kind is None else _like(kind) | CURSORS
    names = st.sampled_from(
        ["cursor", "from", "to", "limit", "status", "state", "id", "eventId", "userId", "type", "code", "unread"]
    )
    values: Any = CURSORS | _MOMENTS | hostile_texts
    query = [("cursor", data.draw(cursors)), *data.draw(st.lists(st.tuples(names, values), max_size=2))]
    kept = query if data.draw(st.booleans()) else query[:1]
    text = "&".join(f"{name}={quote(value.encode('utf-8', 'surrogatepass'), safe='')}" for name, value in kept)
    operation = f"GET {path}"
    documented.call(operation, f"{path}?{text}", documented.key_of(operation))
