"""The bell on a page, in a real Chromium, with Bongsu running behind it."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from bongsu.live.announce import announce_changes
from bongsu.runtime.loop import running
from bongsu.runtime.redis_signals import RedisSignals
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.query import same
from tests.conftest import KEYS
from tests.live.harness import withdraw
from tests.support.processes import serving
from tests.support.servers import RedisServer
from tests.support.waiting import eventually
from tests.web.chromium import TEST_SECONDS
from tests.web.harness import Site, embedded, site_of, stream_of, token_of

pytestmark = pytest.mark.timeout(TEST_SECONDS)

HOSTILE = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>'


# --- ringing and reading ----------------------------------------------------------------------------------------------


def test_it_rings_and_counts_on_every_page_of_the_member_and_on_nobody_elses(site: Site, member: str) -> None:
    context = site.context()
    one, other = site.visit(member, context).is_in("live"), site.visit(member, context).is_in("live")
    stranger = site.visit(f"{member}x").is_in("live")
    site.notify(member, "first", "second")
    for bell in (one, other):
        bell.counts(2)
        expect(bell.button).to_have_accessible_name("Notifications, 2 unread")
        assert bell.titles == ["first", "second"]
        # One after the other, or both at once where the first was still under way when the second came.
        assert [one["unread"] for one in bell.received("badge")] in ([1, 2], [2])
    stranger.counts(0)
    assert stranger.titles == []


@pytest.mark.parametrize(("count", "said"), [(1, "New notification: number 1"), (2, "2 new notifications")])
def test_what_comes_is_announced_and_several_at_once_as_a_number(site: Site, member: str, count: int, said: str) -> None:
    come = [("notification", {"id": str(n), "type": "NOTICE", "title": f"number {n}"}) for n in range(1, count + 1)]

    def speak(route: Route) -> None:
        bell.page.unroute("**/stream*")
        route.fulfill(body=stream_of(*come), content_type="text/event-stream")

    bell = site.visit().is_in("refused")
    bell.page.route("**/stream*", speak)
    bell.give(token_of(member))
    expect(bell.element.get_by_role("status").first).to_have_text(said)


def test_what_is_read_on_one_page_is_read_on_all(site: Site, member: str) -> None:
    site.notify(member, "first", "second", "third")
    context = site.context()
    here, there = site.visit(member, context).is_in("live"), site.visit(member, context).is_in("live")
    there.counts(3)
    there.open()
    here.open().items.nth(1).click()
    for bell in (here, there):
        bell.counts(2)
        expect(bell.items.nth(1)).not_to_have_class(re.compile("is-unread"))
        expect(bell.items.nth(0)).to_have_class(re.compile("is-unread"))
    assert [one["title"] for one in here.received("select")] == ["second"]
    here.panel.get_by_role("button", name="Mark all as read").click()
    for bell in (here, there):
        bell.counts(0)
        expect(bell.element.locator(".is-unread")).to_have_count(0)
        expect(bell.panel.get_by_role("button", name="Mark all as read")).to_be_disabled()
    eventually(lambda: site.inbox(member)["unread"], 0)


def test_a_page_may_keep_a_choice_from_being_read(site: Site, member: str) -> None:
    site.notify(member, "first")
    bell = site.visit(member).is_in("live")
    bell.page.evaluate("() => document.addEventListener('bongsu:select', (event) => event.preventDefault())")
    bell.open().items.first.click()
    site.notify(member, "second")
    bell.counts(2)


def test_what_the_server_would_not_do_is_taken_back_and_said(site: Site, member: str) -> None:
    site.notify(member, "first")
    bell = site.visit(member).is_in("live").open()
    bell.page.route("**/read-all", lambda route: route.fulfill(status=503))
    bell.panel.get_by_role("button", name="Mark all as read").click()
    expect(bell.panel).to_contain_text("That did not work")
    bell.counts(1)
    expect(bell.items.first).to_have_class(re.compile("is-unread"))


def test_a_notification_that_is_not_for_the_inbox_does_not_ring(site: Site, member: str) -> None:
    site.client.put(f"/api/members/{member}", json={"email": "m@shop.example"}).raise_for_status()
    bell = site.visit(member).is_in("live")
    site.notify(member, "by letter", channels=["EMAIL"])
    site.notify(member, "in the app")
    bell.counts(1)
    expect(bell.open().items).to_have_count(1)
    expect(bell.items.first).to_contain_text("in the app")


def test_the_inbox_is_paged_from_new_to_old(site: Site, member: str) -> None:
    empty = site.visit(member).is_in("live").open()
    expect(empty.panel).to_contain_text("No notifications yet")
    site.notify(member, *(f"number {number}" for number in range(23)))
    expect(empty.items).to_have_count(23)
    bell = site.visit(member).is_in("live").open()
    expect(bell.items).to_have_count(20)
    bell.panel.get_by_role("button", name="Show older").click()
    expect(bell.items).to_have_count(23)
    expect(bell.items.nth(20)).to_be_focused()
    assert [text.split("About")[0] for text in bell.items.locator("b").all_text_contents()] == [
        f"number {number}" for number in reversed(range(23))
    ]
    expect(bell.panel.get_by_role("button", name="Show older")).to_be_hidden()


def test_hostile_words_are_shown_as_words(site: Site, member: str) -> None:
    site.notify(member, f"before {HOSTILE}", body=HOSTILE)
    bell = site.visit(member).is_in("live").open()
    site.notify(member, f"live {HOSTILE}", body=HOSTILE)
    for place, when in enumerate(("live", "before")):
        expect(bell.items.nth(place).locator("b")).to_have_text(f"{when} {HOSTILE}")
        expect(bell.items.nth(place).locator("p")).to_have_text(HOSTILE)
    assert bell.element.locator("img, script").count() == 0
    assert bell.page.evaluate("() => window.harmed") is None


# --- withdrawn --------------------------------------------------------------------------------------------------------


FIND_MESSAGE = same("SELECT message_id FROM bongsu_notifications WHERE notification_id = $1")


def withdraw_one(settings: Settings, notification_id: str) -> None:
    """As another process does it: the signal goes through Redis."""

    async def act() -> None:
        store = Store.open(settings)
        try:
            async with running(RedisSignals(settings.redis_url)) as signals:
                async with store.read() as tx:
                    [row] = await tx.fetch(FIND_MESSAGE(int(notification_id)))
                announce_changes(signals, [one for one, _ in await withdraw(store, row["message_id"])])
        finally:
            await store.close()

    # Playwright's own loop runs in this thread.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, act()).result()


def test_what_was_withdrawn_leaves_the_open_list_and_the_count(
    browser: Browser, redis_server: RedisServer, tmp_path: Path, member: str
) -> None:
    settings = Settings(data_dir=tmp_path, redis_url=redis_server.url, **KEYS)
    # So long between pings that none brings the new count before the signal: the bell would read the inbox for it.
    environment = {**embedded(settings), "BONGSU_REDIS_URL": settings.redis_url, "BONGSU_SSE_PING_SECONDS": "600"}
    with (
        serving(environment) as served,
        site_of(browser, served) as site,
    ):
        site.notify(member, "from the inbox", "stays")
        bells = [site.visit(member, auth=auth).is_in("live") for auth in ("cookie", "header")]
        closed = site.visit(member).is_in("live")
        site.notify(member, "from the stream")
        bell, other = (one.open() for one in bells)
        for one in (bell, other, closed):
            one.counts(3)
        asked: list[str] = []
        for one in (bell, other):
            one.page.on("request", lambda request: asked.append(request.url))
        ids = {one["title"]: one["id"] for one in site.inbox(member)["items"]}
        bell.items.nth(0).focus()
        withdraw_one(settings, ids["from the stream"])
        for one in (bell, other):
            one.counts(2)
            assert one.items.locator("b").all_text_contents() == ["stays", "from the inbox"]
            assert one.received("withdrawn") == [{"id": ids["from the stream"]}]
        expect(bell.items.nth(0)).to_be_focused()
        withdraw_one(settings, ids["from the inbox"])
        for one in (bell, other):
            one.counts(1)
            expect(one.items).to_have_text([re.compile("stays")])
            expect(one.items.nth(0)).to_have_class(re.compile("is-unread"))
        withdraw_one(settings, ids["stays"])
        for one in (bell, other):
            one.counts(0)
            expect(one.panel).to_contain_text("No notifications yet")
        closed.counts(0)
        expect(closed.open().panel).to_contain_text("No notifications yet")
        # The badge was expected: nobody had to read the inbox again.
        assert asked == []


def test_an_answer_of_the_inbox_does_not_bring_back_what_was_withdrawn(site: Site, member: str) -> None:
    """As when the server read the inbox before the withdrawal and its answer comes after the event."""
    site.notify(member, *(f"number {number}" for number in range(22)))
    [_, gone] = site.inbox(member, site.inbox(member)["next"])["items"]

    def speak(route: Route) -> None:
        bell.page.unroute("**/stream*")
        route.fulfill(body=stream_of(("withdrawn", {"id": gone["id"]})), content_type="text/event-stream")

    bell = site.visit().is_in("refused")
    bell.page.route("**/stream*", speak)
    bell.give(token_of(member))
    bell.has_been("refused", "live", "waiting", "live")
    assert bell.received("withdrawn") == [{"id": gone["id"]}]
    bell.open().panel.get_by_role("button", name="Show older").click()
    expect(bell.items).to_have_count(21)
    expect(bell.items.nth(20)).to_contain_text("number 1")


# --- for everybody ----------------------------------------------------------------------------------------------------


def test_everything_can_be_done_with_keys(site: Site, member: str) -> None:
    site.notify(member, "first", "second", "third")
    bell = site.visit(member).is_in("live")
    keys = bell.page.keyboard
    bell.page.locator("#before").focus()
    keys.press("Tab")
    expect(bell.button).to_be_focused()
    expect(bell.button).to_have_attribute("aria-expanded", "false")
    keys.press("Enter")
    expect(bell.button).to_have_attribute("aria-expanded", "true")
    expect(bell.panel).to_have_accessible_name("Notifications")
    expect(bell.items.nth(0)).to_be_focused()
    for key, place in (("ArrowDown", 1), ("End", 2), ("ArrowDown", 2), ("ArrowUp", 1), ("Home", 0)):
        keys.press(key)
        expect(bell.items.nth(place)).to_be_focused()
    keys.press("Space")
    bell.counts(2)
    site.notify(member, "fourth")
    expect(bell.items).to_have_count(4)
    expect(bell.items.nth(1)).to_be_focused()  # the same one, lower by one
    keys.press("Escape")
    expect(bell.panel).to_be_hidden()
    expect(bell.button).to_be_focused()
    keys.press("ArrowDown")
    expect(bell.panel).to_be_visible()
    bell.page.locator("#after").focus()
    expect(bell.panel).to_be_hidden()
    bell.open().page.mouse.click(5, 400)
    expect(bell.panel).to_be_hidden()


def test_it_speaks_the_language_of_the_page_of_its_own_attribute_or_of_the_browser(site: Site, member: str) -> None:
    site.notify(member, "소식")
    korean = site.visit(member, lang="ko-KR").is_in("live").open()
    expect(korean.button).to_have_accessible_name("알림, 읽지 않은 알림 1개")
    expect(korean.panel.get_by_role("button", name="모두 읽음으로 표시")).to_be_enabled()
    expect(korean.items.locator("time")).to_have_text("지금")
    english = site.visit(member, lang="ko").is_in("live")
    english.page.evaluate("() => document.querySelector('bongsu-bell').setAttribute('lang', 'en')")
    expect(english.button).to_have_accessible_name("Notifications, 1 unread")
    browsers_own = site.visit(member, site.context(locale="ko-KR"), lang="").is_in("live")
    expect(browsers_own.button).to_have_accessible_name("알림, 읽지 않은 알림 1개")


def test_it_wears_the_pages_colours_and_the_night(site: Site, member: str) -> None:
    def surface(**options: str) -> str:
        bell = site.visit(f"{member}{options}", site.context(**options)).is_in("live").open()
        bell.page.add_style_tag(content="bongsu-bell { --bongsu-badge: rgb(1, 2, 3) }")
        expect(bell.badge).to_have_css("background-color", "rgb(1, 2, 3)")
        color: str = bell.panel.evaluate("(panel) => getComputedStyle(panel).backgroundColor")
        return color

    assert surface(color_scheme="light") == "rgb(255, 255, 255)"
    assert surface(color_scheme="dark") == "rgb(27, 30, 37)"


# --- other events -----------------------------------------------------------------------------------------------------


def test_a_reset_reads_the_inbox_anew_and_chat_is_handed_to_the_page(site: Site, member: str) -> None:
    said = {"roomId": "r", "seq": 1, "senderId": "a", "message": "안녕"}

    def speak(route: Route) -> None:
        site.notify(member, "unheard of")
        frames = stream_of(("badge", {"unread": 0}), ("chat", said), ("reset", {"reason": "too-many-missed"}))
        bell.page.unroute("**/stream*")
        route.fulfill(body=frames, content_type="text/event-stream")

    bell = site.visit().is_in("refused")
    bell.page.route("**/stream*", speak)
    bell.give(token_of(member))
    bell.counts(1)
    assert bell.received("chat") == [said]
    expect(bell.open().items).to_have_count(1)
    bell.is_in("live")
    # Shown once, although the stream that followed told of it too.
    assert bell.titles == ["unheard of"]
