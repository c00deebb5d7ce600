"""A browser's own WebSocket, on a page of ours: with the session cookie, and with a token in the first frame."""

from __future__ import annotations

import pytest

from tests.web.chromium import TEST_SECONDS
from tests.web.harness import Site, token_of

pytestmark = pytest.mark.timeout(TEST_SECONDS)

OPEN = """([query, first]) => {
    const url = new URL(`/api/chat/ws${query}`, location.href);
    url.protocol = "ws:";
    window.frames_ = []; window.closed_ = null;
    const socket = window.socket_ = new WebSocket(url);
    socket.onopen = () => first && socket.send(JSON.stringify(first));
    socket.onmessage = event => window.frames_.push(JSON.parse(event.data));
    socket.onclose = event => window.closed_ = event.code;
}"""
SIGN_IN = "token => fetch('/api/session', {method: 'POST', headers: {Authorization: `Bearer ${token}`}})"
TITLES = "() => window.frames_.filter(frame => frame.op === 'notification').map(frame => frame.title)"


def test_a_browsers_websocket_gets_what_a_stream_gets(site: Site, member: str) -> None:
    page = site.context().new_page()
    # A page that the server itself has sent: to one that the test makes up, Chromium allows no socket to this machine.
    page.goto(f"{site.address}/healthz")
    page.evaluate(SIGN_IN, token_of(member))
    by_frame = ["", {"op": "auth", "token": token_of(member), "notifications": True}]
    for number, wishes in enumerate((["?notifications=true", None], by_frame), 1):
        page.evaluate(OPEN, wishes)
        page.wait_for_function("() => window.frames_.some(frame => frame.op === 'cursor' || frame.op === 'notification')")
        site.notify(member, f"title {number}")
        page.wait_for_function(f"() => window.frames_.some(frame => frame.title === 'title {number}')")
        page.wait_for_function(f"() => window.frames_.some(frame => frame.op === 'badge' && frame.unread === {number})")
        page.evaluate("() => window.socket_.close()")
    # With the cursor of the first, the second comes and no other.
    first = page.evaluate("() => window.frames_.find(frame => frame.title === 'title 1').cursor")
    page.evaluate(OPEN, [f"?notifications=true&after={first}", None])
    page.wait_for_function("() => window.frames_.some(frame => frame.op === 'notification')")
    assert page.evaluate(TITLES) == ["title 2"]
    page.evaluate("() => fetch('/api/session', {method: 'DELETE'})")
    page.wait_for_function("() => window.closed_ === 4401")
