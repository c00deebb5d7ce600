"""How the bell comes to a stream and stays on it: sessions, other origins, restarts, refusals."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

from bongsu.settings import Settings
from tests.conftest import KEYS
from tests.support.processes import KEY, serving
from tests.support.servers import PRIVATE_PORTS
from tests.support.waiting import eventually
from tests.web.chromium import TEST_SECONDS
from tests.web.harness import Elsewhere, Site, elsewhere, embedded, stream_of, token_of

pytestmark = pytest.mark.timeout(TEST_SECONDS)


def streams(pages: Page | BrowserContext) -> list[Request]:
    """The requests for a stream that are made from now on; questions whether one may be made are none."""
    seen: list[Request] = []
    pages.on("request", lambda request: seen.append(request) if "/stream" in request.url else None)
    return seen


def free_port() -> int:
    """One that nobody is given as a client: the browser, coming back meanwhile, could take its server's place."""
    for port in random.sample(PRIVATE_PORTS, 20):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


# --- coming back ------------------------------------------------------------------------------------------------------


def test_a_server_killed_and_started_again_loses_nothing_and_repeats_nothing(
    browser: Browser, tmp_path: Path, member: str
) -> None:
    environment = embedded(Settings(data_dir=tmp_path, **KEYS))
    port = str(free_port())
    with serving(environment, "--port", port) as served, served.client(**KEY) as client:
        site = Site(browser, client)
        bells = [site.visit(member, auth=auth).is_in("live") for auth in ("cookie", "header")]
        site.notify(member, "first", "second")
        for bell in bells:
            bell.counts(2)
        served.process.kill()
        for bell in bells:
            bell.is_in("waiting")
            expect(bell.button).to_have_accessible_name("Notifications, 2 unread, Connection lost. Reconnecting…")
    with serving(environment, "--port", port) as served, served.client(**KEY) as client:
        site.client = client
        site.notify(member, "third", "fourth")
        for bell in bells:
            bell.is_in("live").counts(4)
        site.notify(member, "fifth")
        for bell in bells:
            bell.counts(5)
            expect(bell.open().items).to_have_count(5)
            assert bell.titles == ["first", "second", "third", "fourth", "fifth"]
        site.leave()


def test_the_fourth_page_closes_the_first_which_says_so_and_can_be_had_back(site: Site, member: str) -> None:
    context = site.context()
    bells = [site.visit(member, context).is_in("live") for _ in range(4)]
    first, second, *_ = bells
    first.is_in("replaced")
    asked = streams(first.page)
    site.notify(member, "news")
    for bell in bells[1:]:
        bell.counts(1)
    first.counts(0)
    expect(first.open().panel).to_contain_text("Live updates moved to a newer tab.")
    assert asked == []
    first.panel.get_by_role("button", name="Use this tab").click()
    first.is_in("live").counts(1)
    second.is_in("replaced")
    assert first.titles == ["news"]


def test_when_the_browser_gives_up_the_bell_comes_back_to_where_it_was(site: Site, member: str) -> None:
    bell = site.visit(member).is_in("live")
    site.notify(member, "first")
    bell.counts(1)
    asked = streams(bell.page)
    # An error status ends an EventSource for good.
    bell.page.route("**/stream*", lambda route: route.fulfill(status=502), times=1)
    bell.page.evaluate("() => document.querySelector('bongsu-bell').reconnect()")
    bell.has_been("live", "waiting", "live")
    site.notify(member, "second")
    bell.counts(2)
    assert bell.titles == ["first", "second"]
    newest = site.inbox(member)["items"][1]["id"]
    assert [one.url.partition("?")[2] for one in asked] == [f"lastEventId={newest}"] * 2


def test_unavailable_is_said_until_it_is_over(site: Site, member: str) -> None:
    bell = site.visit().is_in("refused")
    bell.page.route(
        "**/stream*",
        lambda route: route.fulfill(body=stream_of(("unavailable", {})), content_type="text/event-stream"),
        times=2,
    )
    bell.give(token_of(member))
    # Refused was the page before it had a token. Between two that say so, nothing else is said.
    bell.has_been("refused", "unavailable", "live")


def test_offline_is_said_at_once_and_ends_at_once(site: Site, member: str) -> None:
    context = site.context()
    bell = site.visit(member, context).is_in("live").open()
    context.set_offline(True)
    bell.is_in("offline")
    expect(bell.panel).to_contain_text("You are offline. Nothing will be missed.")
    site.notify(member, "meanwhile")
    context.set_offline(False)
    bell.is_in("live").counts(1)
    assert bell.titles == ["meanwhile"]


# --- who it is --------------------------------------------------------------------------------------------------------


def test_a_cookie_that_is_there_already_is_enough(site: Site, member: str) -> None:
    context = site.context()
    site.visit(member, context).is_in("live")
    bell = site.visit(context=context).is_in("live")
    site.notify(member, "news")
    bell.counts(1)


def test_without_anything_it_asks_the_page_for_a_token(site: Site, member: str) -> None:
    bell = site.visit().is_in("refused")
    assert bell.received("unauthorized") == [{}]
    expect(bell.open().panel).to_contain_text("Please sign in again.")
    bell.give(token_of(member))
    bell.is_in("live")
    # Somebody else: what was shown is gone.
    site.notify(member, "for the first")
    bell.counts(1)
    bell.give(token_of(f"{member}x"))
    bell.counts(0)
    bell.is_in("live")
    expect(bell.panel).to_contain_text("No notifications yet")


def test_a_session_that_runs_out_is_renewed(site: Site, member: str) -> None:
    # Without a token, one looks for a cookie in vain, and the other waits for what it was promised.
    bells = {"cookie": site.visit(auth="cookie").is_in("refused"), "header": site.visit(auth="header").is_in("connecting")}
    asked = {auth: streams(bell.page) for auth, bell in bells.items()}
    for bell in bells.values():
        lives = [4, 3600]
        bell.page.expose_function("newToken", lambda lives=lives: token_of(member, seconds=lives.pop(0)))
        bell.page.evaluate("() => (window.received.state = [])")
        bell.page.evaluate("() => (document.querySelector('bongsu-bell').getToken = () => window.newToken())")
    for bell in bells.values():
        bell.has_been("live", "waiting", "live")
    site.notify(member, "news")
    for auth, bell in bells.items():
        bell.counts(1)
        assert ["authorization" in one.headers for one in asked[auth]] == [auth == "header"] * 2


# --- from where -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["same_site", "other_site"])
def test_a_page_of_a_named_origin_has_its_bell(site: Site, partner: Elsewhere, member: str, place: str) -> None:
    context = site.context()
    asked = streams(context)
    bell = partner.visit(getattr(partner, place), context, site.address, token=token_of(member))
    bell.is_in("live")
    site.notify(member, "news")
    bell.counts(1)
    bell.open().items.first.click()
    bell.counts(0)
    eventually(lambda: site.inbox(member)["unread"], 0)
    # To another site no cookie goes without https: there the token goes in a header.
    (stream,) = asked
    assert ("authorization" in stream.headers) is (place == "other_site")


def test_a_page_of_an_origin_nobody_named_gets_nothing(site: Site, member: str) -> None:
    with elsewhere() as stranger:
        context = site.context()
        site.notify(member, "secret")
        # The cookie is there, and goes along: the page is of the same site.
        site.visit(member, context).is_in("live")
        said: list[str] = []
        context.on("console", lambda message: said.append(message.text))
        bell = stranger.visit(stranger.same_site, context, site.address, token=token_of(member)).is_in("waiting")
        bell.counts(0)
        expect(bell.open().items).to_have_count(0)
        assert any(f"add {stranger.same_site} to BONGSU_CORS_ORIGINS" in one for one in said)
