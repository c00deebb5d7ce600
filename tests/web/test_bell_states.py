"""What a member does with a notification in the bell, in a real Chromium: by the menu of a row, by keys, in other tabs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.support.waiting import eventually
from tests.web.chromium import TEST_SECONDS
from tests.web.harness import Bell, Site, stream_of, token_of

pytestmark = pytest.mark.timeout(TEST_SECONDS)

UNREAD = re.compile("is-unread")


def titles(items: Locator) -> list[str]:
    return items.locator("b").all_text_contents()


def has(bell: Bell, *expected: str) -> None:
    """The list shows these, newest first."""
    expect(bell.items.locator("b")).to_have_text(list(expected))


def stored(site: Site, member: str, **params: str) -> list[str]:
    return [item["title"] for item in site.inbox(member, **params)["items"]]


def archive_of(bell: Bell) -> Locator:
    return bell.panel.get_by_role("button", name="Show the archive")


# --- by the menu ------------------------------------------------------------------------------------------------------


def test_one_is_marked_as_read_and_as_unread_again(site: Site, member: str) -> None:
    site.notify(member, "first", "second")
    bell = site.visit(member).is_in("live").open()
    bell.act(1, "Mark as read")
    bell.counts(1)
    expect(bell.items.nth(1)).not_to_have_class(UNREAD)
    # To mark it is not to choose it.
    assert bell.received("select") == []
    bell.act(1, "Mark as unread")
    bell.counts(2)
    expect(bell.items.nth(1)).to_have_class(UNREAD)
    eventually(lambda: site.inbox(member)["unread"], 2)
    expect(bell.menu).to_be_hidden()


def test_what_is_archived_leaves_the_list_and_can_be_brought_back(site: Site, member: str) -> None:
    site.notify(member, "first", "second", "third")
    bell = site.visit(member).is_in("live").open()
    bell.act(1, "Archive")
    has(bell, "third", "first")
    bell.counts(2)
    expect(bell.element.get_by_role("status").first).to_have_text("Archived")
    archive_of(bell).click()
    expect(bell.panel).to_have_accessible_name("Archive")
    has(bell, "second")
    assert stored(site, member, archived="true") == ["second"]
    bell.act(0, "Move to notifications")
    expect(bell.panel).to_contain_text("The archive is empty")
    bell.panel.get_by_role("button", name="Back to notifications").click()
    has(bell, "third", "second", "first")
    expect(bell.items.nth(1)).not_to_have_class(UNREAD)
    bell.counts(2)
    eventually(lambda: stored(site, member), ["third", "second", "first"])


def test_what_is_deleted_is_gone_from_the_list_and_from_the_archive(site: Site, member: str) -> None:
    site.notify(member, "first", "second", "third")
    bell = site.visit(member).is_in("live").open()
    bell.act(0, "Delete")
    has(bell, "second", "first")
    bell.act(0, "Archive")
    archive_of(bell).click()
    has(bell, "second")
    bell.act(0, "Delete")
    expect(bell.panel).to_contain_text("The archive is empty")
    eventually(lambda: (stored(site, member), stored(site, member, archived="true")), (["first"], []))
    # The panel begins with the inbox again.
    bell.page.keyboard.press("Escape")
    has(bell.open(), "first")


def test_the_archive_has_pages_too(site: Site, member: str) -> None:
    site.notify(member, *(f"number {number}" for number in range(22)))
    headers = {"Authorization": f"Bearer {token_of(member)}"}
    for item in site.inbox(member, limit="100")["items"]:
        site.client.post(f"/api/notifications/{item['id']}/archive", headers=headers).raise_for_status()
    bell = site.visit(member).is_in("live").open()
    expect(bell.panel).to_contain_text("No notifications yet")
    archive_of(bell).click()
    expect(bell.items).to_have_count(20)
    bell.panel.get_by_role("button", name="Show older").click()
    expect(bell.items).to_have_count(22)
    assert titles(bell.items)[-1] == "number 0"


@pytest.mark.parametrize("is_inbox_away", [False, True])
def test_a_row_comes_back_when_the_server_would_not_do_it(site: Site, member: str, is_inbox_away: bool) -> None:
    site.notify(member, "first", "second", "third")
    bell = site.visit(member).is_in("live").open()
    bell.page.route(re.compile(r"/archive$|/notifications/\d+$"), lambda route: route.fulfill(status=503))
    if is_inbox_away:
        bell.page.route("**/api/notifications?*", lambda route: route.fulfill(status=503))
    for name in ("Archive", "Delete"):
        bell.act(1, name)
        expect(bell.panel).to_contain_text("That did not work")
        has(bell, "third", "second", "first")
        expect(bell.items.nth(1)).to_have_class(UNREAD)
        bell.counts(3)


# --- by keys ----------------------------------------------------------------------------------------------------------


def test_the_menu_can_be_used_with_keys(site: Site, member: str) -> None:
    site.notify(member, "first", "second", "third")
    bell = site.visit(member).is_in("live").open()
    keys, entries = bell.page.keyboard, bell.menu.get_by_role("menuitem")
    keys.press("ArrowDown")
    keys.press("ContextMenu")
    expect(bell.menu).to_have_accessible_name("Actions for second")
    expect(entries).to_have_text(["Mark as read", "Archive", "Delete"])
    expect(entries.nth(0)).to_be_focused()
    more = bell.panel.get_by_role("button", name="Actions for second")
    expect(more).to_have_attribute("aria-expanded", "true")
    for key, place in (("ArrowDown", 1), ("End", 2), ("ArrowDown", 0), ("ArrowUp", 2), ("Home", 0)):
        keys.press(key)
        expect(entries.nth(place)).to_be_focused()
    keys.press("Escape")
    expect(bell.menu).to_be_hidden()
    expect(bell.panel).to_be_visible()
    expect(bell.items.nth(1)).to_be_focused()
    expect(more).to_have_attribute("aria-expanded", "false")
    # By the row's own button, which is next to it.
    keys.press("ArrowRight")
    expect(more).to_be_focused()
    keys.press("Enter")
    keys.press("ArrowDown")
    keys.press("Enter")
    has(bell, "third", "first")
    # The focus is on the row that has taken its place, and at the end of the list on the last one.
    expect(bell.items.nth(1)).to_be_focused()
    for left in (["third"], []):
        keys.press("Shift+F10")
        keys.press("End")
        keys.press("Space")
        has(bell, *left)
        expect(bell.items.nth(0) if left else bell.panel).to_be_focused()
    keys.press("Escape")
    expect(bell.button).to_be_focused()


def test_tab_leaves_the_menu_for_what_comes_after_its_row(site: Site, member: str) -> None:
    site.notify(member, "first", "second")
    bell = site.visit(member).is_in("live").open()
    keys = bell.page.keyboard
    keys.press("ContextMenu")
    keys.press("Tab")
    expect(bell.menu).to_be_hidden()
    expect(bell.panel.get_by_role("button", name="Actions for second")).to_be_focused()


def test_the_menu_closes_with_a_click_elsewhere_and_with_its_row(site: Site, member: str) -> None:
    site.notify(member, "first", "second")
    bell = site.visit(member).is_in("live").open()
    bell.items.nth(0).press("ContextMenu")
    expect(bell.menu).to_be_visible()
    bell.panel.get_by_role("heading").click()
    expect(bell.menu).to_be_hidden()
    expect(bell.panel).to_be_visible()


# --- what happens elsewhere -------------------------------------------------------------------------------------------


def hears(site: Site, member: str, *frames: tuple[str, Any]) -> Bell:
    """A page whose stream says this and ends, and which gets no other."""

    def speak(route: Route) -> None:
        bell.page.route("**/stream*", lambda later: later.abort())
        route.fulfill(body=stream_of(*frames), content_type="text/event-stream")

    bell = site.visit().is_in("refused")
    bell.page.route("**/stream*", speak)
    bell.give(token_of(member))
    return bell.has_been("refused", "live", "waiting").open()


def test_each_event_of_the_stream_is_shown(site: Site, member: str) -> None:
    site.notify(member, "first", "second", "third", "fourth")
    fourth, third, second, first = site.inbox(member)["items"]
    grown = {**third, "title": "third and another", "updatedAt": third["createdAt"]}
    bell = hears(
        site, member,
        ("read", {"upTo": second["id"]}), ("updated", grown), ("withdrawn", {"id": first["id"]}),
        ("seen", {"upTo": fourth["id"]}), ("badge", {"unread": 2}),
    )  # fmt: skip
    has(bell, "fourth", "third and another", "second")
    for place, is_unread in enumerate((True, True, False)):
        unread = expect(bell.items.nth(place))
        (unread.to_have_class if is_unread else unread.not_to_have_class)(UNREAD)
    assert bell.received("updated") == [grown]
    assert bell.received("read") == [{"upTo": second["id"]}]
    assert bell.received("withdrawn") == [{"id": first["id"]}]


def test_what_is_not_on_the_pages_that_are_shown_is_not_put_below_them(site: Site, member: str) -> None:
    site.notify(member, *(f"number {number}" for number in range(22)))
    [_, oldest] = site.inbox(member, site.inbox(member)["next"])["items"]
    bell = hears(site, member, ("updated", {**oldest, "readAt": oldest["createdAt"]}))
    expect(bell.items).to_have_count(20)
    bell.panel.get_by_role("button", name="Show older").click()
    expect(bell.items).to_have_count(22)


def test_an_answer_that_an_event_has_overtaken_is_asked_for_again(site: Site, member: str) -> None:
    """As when the server reads the inbox, and the member marks one as read elsewhere before the answer comes."""
    site.notify(member, *(f"number {number}" for number in range(22)))
    [one, _] = site.inbox(member, site.inbox(member)["next"])["items"]
    headers = {"Authorization": f"Bearer {token_of(member)}"}
    bell = site.visit(member).is_in("live").open()

    def answer_late(route: Route) -> None:
        bell.page.unroute("**/api/notifications?*cursor*")
        answer = route.fetch()
        site.client.post(f"/api/notifications/{one['id']}/read", headers=headers).raise_for_status()
        bell.page.wait_for_function("() => (window.received.badge ?? []).length > 1")
        route.fulfill(response=answer)

    bell.page.route("**/api/notifications?*cursor*", answer_late)
    bell.panel.get_by_role("button", name="Show older").click()
    expect(bell.items).to_have_count(22)
    expect(bell.items.nth(20)).not_to_have_class(UNREAD)


def test_an_answer_to_read_all_does_not_count_what_has_come_since(site: Site, member: str) -> None:
    """As when a notification comes between the marking and its answer."""
    site.notify(member, "first", "second")
    bell = site.visit(member).is_in("live").open()

    def answer_late(route: Route) -> None:
        answer = route.fetch()
        site.notify(member, "third")
        bell.page.wait_for_function("() => (window.received.badge ?? []).at(-1).unread === 1")
        route.fulfill(response=answer)

    bell.page.route("**/read-all", answer_late)
    with bell.page.expect_response("**/read-all") as late:
        bell.panel.get_by_role("button", name="Mark all as read").click()
    late.value.finished()
    site.notify(member, "fourth")
    bell.counts(2)
    assert [one["unread"] for one in bell.received("badge")] == [2, 0, 1, 2]
    for place, is_unread in enumerate((True, True, False, False)):
        unread = expect(bell.items.nth(place))
        (unread.to_have_class if is_unread else unread.not_to_have_class)(UNREAD)


def test_the_list_is_seen_when_it_is_opened_and_not_before(site: Site, member: str) -> None:
    site.notify(member, "first")
    bell = site.visit(member).is_in("live")
    assert site.inbox(member)["items"][0]["seenAt"] is None
    bell.open()
    eventually(lambda: [item["seenAt"] is None for item in site.inbox(member)["items"]], [False])
    # What comes while it is open is seen too.
    site.notify(member, "second")
    eventually(lambda: [item["seenAt"] is None for item in site.inbox(member)["items"]], [False, False])
    bell.counts(2)


def test_nothing_is_posted_when_everything_was_seen(site: Site, member: str) -> None:
    site.notify(member, "first")
    bell = site.visit(member).is_in("live")
    posted: list[str] = []
    bell.page.on("request", lambda request: posted.append(request.url) if "/seen" in request.url else None)
    with bell.page.expect_response("**/api/notifications/seen"):
        bell.open()
    bell.page.keyboard.press("Escape")
    bell.open()
    with bell.page.expect_response("**/read"):
        bell.items.nth(0).click()
    assert len(posted) == 1


# --- in other tabs ----------------------------------------------------------------------------------------------------


def test_what_is_done_in_one_tab_is_seen_in_the_others(site: Site, member: str) -> None:
    """In one that is open, with its list or without, and in one that comes back to the page after it was away."""
    site.notify(member, "first", "second", "third", "fourth")
    context = site.context()
    here, there, closed = (site.visit(member, context).is_in("live") for _ in range(3))
    has(there.open(), "fourth", "third", "second", "first")
    here.open()
    here.act(3, "Mark as read")
    expect(there.items.nth(3)).not_to_have_class(UNREAD)
    here.act(3, "Mark as unread")
    expect(there.items.nth(3)).to_have_class(UNREAD)
    here.act(2, "Archive")
    here.act(0, "Delete")
    has(there, "third", "first")
    there.counts(2)
    archive_of(there).click()
    has(there, "second")
    archive_of(here).click()
    here.act(0, "Move to notifications")
    expect(there.panel).to_contain_text("The archive is empty")
    there.panel.get_by_role("button", name="Back to notifications").click()
    has(there, "third", "second", "first")
    here.panel.get_by_role("button", name="Back to notifications").click()
    here.panel.get_by_role("button", name="Mark all as read").click()
    for bell in (here, there, closed):
        bell.counts(0)
    expect(there.element.locator(".is-unread")).to_have_count(0)
    has(closed.open(), "third", "second", "first")
    expect(closed.element.locator(".is-unread")).to_have_count(0)


def test_an_answer_to_one_member_does_not_count_for_the_next(site: Site, member: str) -> None:
    other = f"{member}-other"
    site.notify(member, "first", "second")
    site.notify(other, "third", "fourth", "fifth")
    bell = site.visit(member, auth="header").is_in("live").open()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    bell.page.route("**/read", hold)
    bell.act(0, "Mark as read")
    bell.give(token_of(other))
    bell.counts(3)
    bell.is_in("live")
    with bell.page.expect_response("**/read"):
        held[0].continue_()
    site.notify(other, "sixth")
    bell.counts(4)
    assert [one["unread"] for one in bell.received("badge")] == [2, 1, 3, 4]


def test_what_is_deleted_from_the_archive_leaves_it_in_the_others(site: Site, member: str) -> None:
    site.notify(member, "first", "second", "third")
    context = site.context()
    here, there = (site.visit(member, context).is_in("live").open() for _ in range(2))
    here.act(0, "Archive")
    here.act(0, "Archive")
    for bell in (here, there):
        has(bell, "first")
        archive_of(bell).click()
        has(bell, "third", "second")
    # The newest of them: what stands above the answer of the server is not new.
    here.act(0, "Delete")
    has(there, "second")


def test_a_tab_that_was_away_is_told_what_has_changed_meanwhile(site: Site, member: str) -> None:
    site.notify(member, "first", "second", "third", "fourth")
    context = site.context()
    here, away = site.visit(member).is_in("live").open(), site.visit(member, context).is_in("live")
    context.set_offline(True)
    away.is_in("offline")
    asked: list[str] = []
    away.page.on("request", lambda request: asked.append(request.url) if "notifications?" in request.url else None)
    here.act(0, "Archive")
    here.act(0, "Delete")
    here.act(0, "Mark as read")
    site.notify(member, "fifth")
    has(here, "fifth", "second", "first")
    eventually(lambda: site.inbox(member)["unread"], 2)
    context.set_offline(False)
    has(away.is_in("live").open(), "fifth", "second", "first")
    expect(away.items.nth(1)).not_to_have_class(UNREAD)
    away.counts(2)
    # From the stream: the inbox was not read again for it.
    assert asked == []
