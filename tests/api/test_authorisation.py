"""Who may call what: every route × every key, made from the routes of the application.

A route of the API says in its document which key it takes; one that says nothing, or is in no list here, fails.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp

from bongsu.api.auth import MEMBER_CALL, OPEN_CALL, SERVER_CALL, SERVER_OR_MEMBER_CALL, SESSION_COOKIE
from tests.support.served_app import RawHeaders, ServedApp

# What is not in the document, and needs no key: pages and their files, and the demo, which is refused to others than its own
# page by `Sec-Fetch-Site`.
PAGES = {
    "GET /", "GET /docs", "GET /docs/assets", "GET /openapi.json", "HEAD /openapi.json", "GET /bongsu-bell.js",
    "HEAD /bongsu-bell.js", "GET /demo", "GET /demo/{name}", "GET /demo/shelf", "GET /demo/counts", "POST /demo/visits",
    "POST /demo/buttons",
}  # fmt: skip
# The operations that anybody may call. Another one needs a reason here.
OPEN = {
    "GET /healthz",  # orchestrators ask without a key
    "GET /readyz",
    "DELETE /api/session",  # forgets a cookie, and with it the member's streams
}
MEMBER = {
    "GET /api/notifications", "GET /api/notifications/unread-count", "POST /api/notifications/{notification_id}/read",
    "POST /api/notifications/{notification_id}/unread", "POST /api/notifications/{notification_id}/archive",
    "POST /api/notifications/{notification_id}/unarchive", "DELETE /api/notifications/{notification_id}",
    "POST /api/notifications/read-all", "POST /api/notifications/seen", "GET /api/notifications/stream",
    "GET /api/preferences", "PUT /api/preferences",
    "PUT /api/devices/{device_id}", "DELETE /api/devices/{device_id}", "POST /api/session", "GET /api/chat/rooms",
    "POST /api/chat/rooms/{room_id}/read", "POST /api/chat/rooms/{room_id}/mute", "POST /api/chat/rooms/{room_id}/unmute",
}  # fmt: skip
# What servers and members call: a server for a member that it names.
EITHER = {
    "POST /api/chat/rooms", "GET /api/chat/rooms/{room_id}/members",
    "POST /api/chat/rooms/{room_id}/members/{member_id}", "DELETE /api/chat/rooms/{room_id}/members/{member_id}",
    "GET /api/chat/rooms/{room_id}/messages", "POST /api/chat/rooms/{room_id}/messages",
    "PATCH /api/chat/rooms/{room_id}/messages/{seq}", "DELETE /api/chat/rooms/{room_id}/messages/{seq}",
}  # fmt: skip
# Calls about a room, which a member who is not in it is refused too.
OF_A_ROOM = {name for name in MEMBER | EITHER if "{room_id}" in name}
EVENT_ID = "018f0000-0000-7000-8000-000000000000"


def routes_of(app: ASGIApp) -> Iterator[str]:
    """Every method and path that is routed, documented or not."""
    while not hasattr(app, "routes"):
        app = app._app  # type: ignore[attr-defined] # our own middleware
    yield from _names(app.routes)


def _names(routes: list[BaseRoute]) -> Iterator[str]:
    for route in routes:
        if (inner := getattr(route, "original_router", None)) is not None:
            yield from _names(inner.routes)
        elif isinstance(route, Mount):
            yield f"GET {route.path}"
        else:
            assert isinstance(route.methods, set)  # type: ignore[attr-defined]
            yield from (f"{method} {route.path}" for method in route.methods)  # type: ignore[attr-defined]


def documented(served: ServedApp) -> dict[str, dict[str, Any]]:
    document = json.loads(served.call("GET", "/openapi.json").body)
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def test_every_route_is_in_the_document_or_in_the_list_of_pages(served: ServedApp) -> None:
    assert sorted(routes_of(served.app)) == sorted({*documented(served), *PAGES})


def test_every_operation_declares_which_key_it_takes(served: ServedApp) -> None:
    operations = documented(served)
    declared = {name: {"security": operation.get("security")} for name, operation in operations.items()}
    assert {name for name in declared if declared[name] == OPEN_CALL} == OPEN
    assert {name for name in declared if declared[name] == MEMBER_CALL} == MEMBER
    assert {name for name in declared if declared[name] == SERVER_OR_MEMBER_CALL} == EITHER
    assert {name for name in declared if declared[name] == SERVER_CALL} == set(declared) - OPEN - MEMBER - EITHER
    for name in declared:
        # What is the operators' or the servers' is never a member's.
        assert not (name in MEMBER and "/admin/" in name), name


# --- the matrix -------------------------------------------------------------------------------------------------------

SECONDS_OF_AN_HOUR = 3600


def forged(claims: dict[str, Any], secret: str, **header: Any) -> str:
    """A token as nobody sane would make it."""
    parts = (json.dumps(part).encode() for part in ({"typ": "JWT", "alg": "HS256", **header}, claims))
    signed = b".".join(map(_encoded, parts))
    algorithm = {"HS512": "sha512"}.get(header.get("alg", ""), "sha256")
    return f"{signed.decode()}.{_encoded(hmac.digest(secret.encode(), signed, algorithm)).decode()}"


def _encoded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


def bad_keys(served: ServedApp) -> dict[str, RawHeaders]:
    """Keys that open nothing, whichever the operation takes."""
    now = int(time.time())
    claims = {"sub": "m-1", "exp": now + SECONDS_OF_AN_HOUR}
    secret = served.keys.jwt_secrets[0]
    token, key = served.token("m-1"), served.server_key
    head, body, signature = token.split(".")
    bearers = {
        "a wrong key": "no-such-key",
        "an empty key": "",
        "a key that is longer": f"{key}x",
        "a key that is shorter": key[:-1],
        "a key in another case": key.upper(),
        "all keys at once": f"{key},{key}",
        "an expired token": served.token("m-1", timedelta(seconds=-1)),
        "alg none": forged(claims, "", alg="none").rpartition(".")[0] + ".",
        "alg none, signed": forged(claims, secret, alg="none"),
        "alg None": forged(claims, secret, alg="None"),
        "no alg": forged(claims, secret, alg=None),
        "another algorithm": forged(claims, secret, alg="HS512"),
        "a public key's algorithm": forged(
            claims, secret, alg="RS256", kid="../../etc/passwd", jku="http://127.0.0.1:9/keys"
        ),
        "a critical header": forged(claims, secret, crit=["x"], x=1),
        "a wrong secret": forged(claims, "another secret of more than thirty-two bytes"),
        "an empty secret": forged(claims, ""),
        "the API key as the secret": forged(claims, key),
        "the guests' secret for another member": forged(claims, _guests_secret(served)),
        "a changed signature": f"{head}.{body}.{'A' * len(signature)}",
        "no signature": f"{head}.{body}.",
        "another body": f"{head}.{served.token('m-2').split('.')[1]}.{signature}",
        "no end": forged({"sub": "m-1"}, secret),
        "an end that is text": forged({**claims, "exp": "never"}, secret),
        "no member": forged({"exp": claims["exp"]}, secret),
        "a number as member": forged({**claims, "sub": 1}, secret),
        "an empty member": forged({**claims, "sub": ""}, secret),
        "a member with a control character": forged({**claims, "sub": "m-1\x00"}, secret),
        "not yet valid": forged({**claims, "nbf": now + SECONDS_OF_AN_HOUR}, secret),
        "claims that are a list": forged([claims], secret),  # type: ignore[arg-type]
    }
    found = {name: [(b"authorization", f"Bearer {given}".encode())] for name, given in bearers.items()}
    return {
        **found,
        "nothing": [],
        "the key as Basic": [(b"authorization", f"Basic {key}".encode())],
        "the key without a scheme": [(b"authorization", key.encode())],
        "the token without a scheme": [(b"authorization", token.encode())],
        "the key in the cookie": [(b"cookie", f"{SESSION_COOKIE}={key}".encode())],
        "the key in another cookie": [(b"cookie", f"key={key}; api_key={key}; authorization=Bearer {key}".encode())],
        "the token in another cookie": [(b"cookie", f"session={token}; token={token}".encode())],
        "the token as X-API-Key": [(b"x-api-key", token.encode())],
        "the key as X-Auth-Token": [(b"x-auth-token", key.encode()), (b"proxy-authorization", f"Bearer {key}".encode())],
        "a wrong key before the right one": [
            (b"authorization", b"Bearer wrong"),
            (b"authorization", f"Bearer {key}".encode()),
        ],
        "a wrong key beside the cookie": [
            (b"authorization", b"Bearer wrong"),
            (b"cookie", f"{SESSION_COOKIE}={token}".encode()),
        ],
    }


def _guests_secret(served: ServedApp) -> str:
    assert served.keys.guests is not None
    return served.keys.guests.secret


def _bearer(given: str) -> RawHeaders:
    return [(b"authorization", f"Bearer {given}".encode())]


def target(operation: str) -> str:
    """A path that nothing depends on: what it names does not exist."""
    path = operation.split(" ")[1]
    return re.sub(r"\{(\w+)\}", lambda found: EVENT_ID if found[1] == "event_id" else "nobody", path)


def calls(served: ServedApp) -> Iterator[tuple[str, str, str]]:
    for operation in documented(served):
        yield operation, operation.split(" ")[0], target(operation)


def test_no_operation_is_opened_by_a_bad_key(served: ServedApp) -> None:
    keys = bad_keys(served)
    for operation, method, path in calls(served):
        if operation in OPEN:
            continue
        for name, headers in keys.items():
            answer = served.call(method, path, headers, b"{}")
            assert answer.status == 401, (operation, name, answer)
            assert answer.header("www-authenticate") == "Bearer", (operation, name)
            assert not _repeats(answer.body, headers), (operation, name, answer)


def test_no_key_is_taken_from_the_address(served: ServedApp) -> None:
    for operation, method, path in calls(served):
        if operation not in OPEN:
            for key in (served.server_key, served.token("m-1")):
                query = "&".join(f"{name}={key}" for name in ("key", "api_key", "token", "access_token", "authorization"))
                assert served.call(method, f"{path}?{query}", (), b"{}").status == 401, operation


def test_a_member_token_opens_what_members_call_and_nothing_else(served: ServedApp) -> None:
    token = served.token("m-1")
    for operation, method, path in calls(served):
        by_header = served.call(method, path, _bearer(token), b"{}")
        by_cookie = served.call(method, path, [(b"cookie", f"{SESSION_COOKIE}={token}".encode())], b"{}")
        if operation in OF_A_ROOM:
            assert (by_header.status, by_cookie.status) in ((403, 403), (422, 422)), (operation, by_header, by_cookie)
            assert b"other kind" not in by_header.body, (operation, by_header)
        elif operation in MEMBER | EITHER:
            assert by_header.status not in (401, 403), (operation, by_header)
            # A cookie is not made from a cookie.
            assert (by_cookie.status == 401) == (operation == "POST /api/session"), (operation, by_cookie)
        elif operation not in OPEN:
            assert (by_header.status, by_cookie.status) == (403, 403), (operation, by_header, by_cookie)


def test_an_api_key_opens_what_servers_call_and_nothing_of_a_member(served: ServedApp) -> None:
    key = served.server_key
    for operation, method, path in calls(served):
        for headers in (_bearer(key), [(b"x-api-key", key.encode())]):
            answer = served.call(method, path, headers, b"{}")
            if operation in MEMBER:
                assert answer.status == 403, (operation, answer)
            elif operation not in OPEN:
                assert answer.status not in (401, 403), (operation, answer)


def test_a_cookie_is_not_taken_from_a_page_of_another_site(served: ServedApp) -> None:
    cookie = (b"cookie", f"{SESSION_COOKIE}={served.token('m-1')}".encode())
    for operation, method, path in calls(served):
        if operation in (MEMBER | EITHER) - {"POST /api/session"}:
            for origin in (b"https://evil.example", b"null", b"http://[", b"http://bongsu.evil.example"):
                headers = [cookie, (b"origin", origin), (b"host", b"bongsu")]
                assert served.call(method, path, headers, b"{}").status == 403, (operation, origin)


def _repeats(body: bytes, headers: RawHeaders) -> bool:
    """Whether an answer shows what was sent as a key: callers log what they are answered."""
    sent = [part for _, value in headers for part in re.split(rb"[ =;,]+", value) if len(part) > 12]
    return any(part in body for part in sent)


# --- one member and another -------------------------------------------------------------------------------------------


def test_a_member_reaches_nothing_of_another_member(served: ServedApp) -> None:
    """By every operation of members: what m-2 has looks the same before and after m-1 has called all of them."""
    mine, theirs, server = _bearer(served.token("m-1")), _bearer(served.token("m-2")), _bearer(served.server_key)
    device = json.dumps({"token": "token-of-m-2", "platform": "ANDROID", "pushConsent": True}).encode()
    assert served.call("PUT", "/api/devices/phone", theirs, device).status == 200
    assert served.call("PUT", "/api/preferences", theirs, b'{"enabled":false}').status == 200

    def state() -> list[bytes]:
        paths = ("/api/members/m-2/devices", "/api/members/m-2/preferences")
        return [served.call("GET", path, server).body for path in paths]

    before = state()
    for operation in sorted(MEMBER):
        method, path = operation.split(" ")
        for member_id in ("m-2", "..%2Fm-2", "m-1%2F..%2Fm-2"):
            place = re.sub(r"\{\w+\}", "phone", path)
            for at in (place, f"{place}?memberId={member_id}&userId={member_id}&sub={member_id}"):
                answer = served.call(method, at, [*mine, (b"x-member-id", b"m-2"), (b"x-user-id", b"m-2")], b"{}")
                assert b"token-of-m-2" not in answer.body, (operation, answer)
    assert state() == before
