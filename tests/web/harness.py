"""Pages with a bell on them, of the server's own origin and of others, and members who are notified."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from tests.conftest import KEYS
from tests.support.processes import KEY, Served
from tests.support.waiting import eventually

# Nothing here takes a second but coming back after `retry:`, which is three at most.
expect.set_options(timeout=15_000)

# What the bell tells the page, kept for the test.
LISTENER = """
window.received = {};
for (const name of ["notification", "updated", "withdrawn", "read", "badge", "state", "select", "chat", "unauthorized"])
  document.addEventListener(`bongsu:${name}`, (event) => (window.received[name] ??= []).push(event.detail));
"""


def token_of(member_id: str, **lifetime: float) -> str:
    keys = Keys((KEYS["api_keys"],), (KEYS["jwt_secret"],))
    return keys.member_token(member_id, timedelta(**(lifetime or {"hours": 1})))


def embedded(settings: Settings) -> dict[str, str]:
    """The environment of a server with a store of its own."""
    return {
        "BONGSU_DATA_DIR": str(settings.data_dir),
        "BONGSU_JWT_SECRET": settings.jwt_secret,
        "BONGSU_API_KEYS": settings.api_keys,
        "BONGSU_CORS_ORIGINS": settings.cors_origins,
        "BONGSU_POLL_SECONDS": "0.05",
        "BONGSU_DAILY_LIMIT": "1000",
    }


def html(address: str, lang: str = "en", **attributes: str) -> str:
    given = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return (
        f'<!doctype html><html lang="{lang}"><meta charset="utf-8"><title>A site</title>'
        f'<script src="{address}/bongsu-bell.js" defer></script><p><button id="before">before</button> '
        f'<bongsu-bell{given}></bongsu-bell> <button id="after">after</button>'
    )


@dataclass
class Bell:
    """The bell on a page, by what a visitor sees of it."""

    page: Page

    @property
    def element(self) -> Locator:
        return self.page.locator("bongsu-bell")

    @property
    def button(self) -> Locator:
        return self.element.locator("[part=bell]")

    @property
    def badge(self) -> Locator:
        return self.element.locator("[part=badge]")

    @property
    def panel(self) -> Locator:
        return self.element.get_by_role("dialog")

    @property
    def items(self) -> Locator:
        """The rows, without the buttons of their menus."""
        return self.panel.get_by_role("listitem").locator("[part~=item]")

    @property
    def menu(self) -> Locator:
        return self.panel.get_by_role("menu")

    def act(self, place: int, name: str) -> None:
        """Choose something from the menu of a row."""
        self.panel.get_by_role("listitem").nth(place).locator("[part=more]").click()
        self.menu.get_by_role("menuitem", name=name, exact=True).click()

    def is_in(self, state: str) -> Bell:
        expect(self.element).to_have_attribute("state", state)
        return self

    def has_been(self, *states: str) -> Bell:
        """In these states and no others, one after the other. Some are too short to be looked at."""
        told = "(wanted) => (window.received.state ?? []).map((one) => one.state).join() === wanted"
        self.page.wait_for_function(told, arg=",".join(states), timeout=15_000)
        return self

    def counts(self, unread: int) -> None:
        if unread:
            expect(self.badge).to_have_text(str(unread))
        else:
            expect(self.badge).to_be_hidden()

    def open(self) -> Bell:
        # Behind another tab it is painted once a second, and a click waits for that.
        self.page.bring_to_front()
        self.button.click()
        expect(self.panel).to_be_visible()
        return self

    def received(self, name: str) -> list[Any]:
        found: list[Any] = self.page.evaluate("(name) => window.received[name] ?? []", name)
        return found

    @property
    def titles(self) -> list[str]:
        return [one["title"] for one in self.received("notification")]

    def give(self, token: str) -> None:
        self.page.evaluate("(token) => (document.querySelector('bongsu-bell').token = token)", token)


@dataclass
class Site:
    """Bongsu, and browsers in front of it."""

    browser: Browser
    client: httpx.Client
    contexts: list[BrowserContext] = field(default_factory=list)

    @property
    def address(self) -> str:
        return str(self.client.base_url).rstrip("/")

    def context(self, **options: Any) -> BrowserContext:
        context = self.browser.new_context(**options)
        context.add_init_script(LISTENER)
        self.contexts.append(context)
        return context

    def visit(self, member_id: str = "", context: BrowserContext | None = None, lang: str = "en", **attributes: str) -> Bell:
        """A page of the server's own origin. Another origin's is visited with `visit_at`."""
        if member_id:
            attributes["token"] = token_of(member_id)
        return self.show(html("", lang, **attributes), context)

    def show(self, body: str, context: BrowserContext | None = None) -> Bell:
        """A page of the server's own origin, with this HTML."""
        page = (context or self.context()).new_page()
        page.route(f"{self.address}/site", lambda route: route.fulfill(body=body, content_type="text/html"))
        page.goto(f"{self.address}/site")
        return Bell(page)

    def notify(self, member_id: str, *titles: str, **words: Any) -> None:
        """Notifications in this order: each is in the inbox before the next is sent, and all are when this returns."""
        for title in titles:
            body = {"type": "NOTICE", "userIds": [member_id], "title": title, "body": f"About {title}", **words}
            answer = self.client.post("/api/notifications", json=body)
            assert answer.status_code == 202, answer.text
            event_id = answer.json()["eventId"]
            eventually(lambda: self.client.get(f"/api/events/{event_id}").json()["status"], "DONE")  # noqa: B023

    def inbox(self, member_id: str, cursor: str | None = None, **params: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token_of(member_id)}"}
        params |= {} if cursor is None else {"cursor": cursor}
        answer: dict[str, Any] = self.client.get("/api/notifications", headers=headers, params=params).json()
        return answer

    def leave(self) -> None:
        for context in self.contexts:
            context.close()
        self.contexts.clear()


@contextlib.contextmanager
def site_of(browser: Browser, served: Served) -> Iterator[Site]:
    with served.client(**KEY) as client:
        site = Site(browser, client)
        try:
            yield site
        finally:
            site.leave()


class Elsewhere:
    """Somebody else's web server: the same pages at 127.0.0.1 (the same site as Bongsu's) and at localhost (another)."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        port = server.server_address[1]
        self.same_site = f"http://127.0.0.1:{port}"
        self.other_site = f"http://localhost:{port}"
        self.page = ""

    def visit(self, origin: str, context: BrowserContext, address: str, **attributes: str) -> Bell:
        self.page = html(address, **attributes)
        page = context.new_page()
        page.goto(f"{origin}/")
        return Bell(page)


@contextlib.contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = place.page.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody needs to know."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        place = Elsewhere(server)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield place
        finally:
            server.shutdown()
            thread.join()


def stream_of(*frames: tuple[str, Any], retry: int = 100) -> str:
    """What a server might say on a stream before it closes it."""
    return f"retry: {retry}\n\n" + "".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in frames)
