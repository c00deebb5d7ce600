"""A page sets up its bell: script, element and property in whatever order, moved, removed, and set again."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route, expect

from tests.web.chromium import TEST_SECONDS
from tests.web.harness import Bell, Site, token_of
from tests.web.test_connection import streams

pytestmark = pytest.mark.timeout(TEST_SECONDS)

ELEMENT = "<bongsu-bell></bongsu-bell>"
SCRIPT = '<script src="/bongsu-bell.js"></script>'
DEFERRED = '<script src="/bongsu-bell.js" defer></script>'
MODULE = '<script type="module" src="/bongsu-bell.js"></script>'
# A script that is added to the page when the rest of it has run, as bundlers and tag managers do.
LATER = """<script>addEventListener("load", () => setTimeout(() => {
  const script = document.createElement("script");
  script.src = "/bongsu-bell.js";
  document.head.append(script);
}))</script>"""
SET = "<script>set(document.querySelector('bongsu-bell'))</script>"

ORDERS = {
    "deferred script, element, property in an ordinary script": DEFERRED + ELEMENT + SET,
    "element, property, script at the end": ELEMENT + SET + SCRIPT,
    "script, element, property": SCRIPT + ELEMENT + SET,
    "element, script, property": ELEMENT + SCRIPT + SET,
    "element, property in a module, script as a module": ELEMENT
    + SET.replace("<script>", '<script type="module">')
    + MODULE,
    "script as a module, element, property in a module": MODULE
    + ELEMENT
    + SET.replace("<script>", '<script type="module">'),
    "rendered, property in an effect after the paint, script later": """<div id="root"></div><script>
      root.innerHTML = "<header><bongsu-bell></bongsu-bell></header>";
      requestAnimationFrame(() => setTimeout(() => set(root.querySelector("bongsu-bell"))));
    </script>"""
    + LATER,
    "script, rendered, property in an effect after the paint": SCRIPT
    + """<div id="root"></div><script>
      root.append(document.createElement("bongsu-bell"));
      requestAnimationFrame(() => setTimeout(() => set(root.firstChild)));
    </script>""",
    "created with its property before the script, added before it": """<body><script>
      const bell = document.createElement("bongsu-bell");
      set(bell);
      document.body.append(bell);
    </script>"""
    + SCRIPT,
    "created with its property before the script, added after it": """<body><script>
      const bell = document.createElement("bongsu-bell");
      set(bell);
    </script>"""
    + SCRIPT
    + "<script>document.body.append(bell)</script>",
    "created with its property after the script": "<body>"
    + SCRIPT
    + """<script>
      const bell = document.createElement("bongsu-bell");
      set(bell);
      document.body.append(bell);
    </script>""",
    "from a template, property set before it is on the page": "<body><template><bongsu-bell></bongsu-bell></template>"
    + SCRIPT
    + """<script>
      const copy = document.querySelector("template").content.cloneNode(true);
      set(copy.firstChild);
      document.body.append(copy);
    </script>""",
    "asked for when the script has come, and set then": ELEMENT
    + "<script>customElements.whenDefined('bongsu-bell').then(() => set(document.querySelector('bongsu-bell')))</script>"
    + LATER,
}
PROPERTIES = {"getToken": "async () => '{token}'", "token": "'{token}'"}


def page_of(order: str, name: str, token: str) -> str:
    value = PROPERTIES[name].format(token=token)
    return f'<!doctype html><html lang="en"><script>const set = (bell) => (bell.{name} = {value})</script>{order}'


# Both properties are upgraded by the same line: one order has the other.
CASES = [(order, "getToken") for order in ORDERS] + [("element, property, script at the end", "token")]


@pytest.mark.parametrize(("order", "name"), CASES)
def test_it_works_in_whatever_order_script_element_and_property_come(site: Site, member: str, order: str, name: str) -> None:
    site.notify(member, "before")
    bell = site.show(page_of(ORDERS[order], name, token_of(member))).is_in("live")
    bell.counts(1)
    # Set later, it goes through the setter as well.
    bell.page.evaluate(
        "([name, token]) => (document.querySelector('bongsu-bell')[name] = name === 'token' ? token : () => token)",
        [name, token_of(f"{member}x")],
    )
    bell.counts(0)
    bell.is_in("live")
    site.notify(f"{member}x", "news")
    bell.counts(1)
    assert bell.titles == ["news"]


def test_moved_removed_and_added_again_it_goes_on(site: Site, member: str) -> None:
    site.notify(member, "first")
    bell = site.show(page_of(ORDERS["element, property, script at the end"], "getToken", token_of(member))).is_in("live")
    expect(bell.open().items).to_have_count(1)
    bell.page.evaluate("() => document.body.append(document.createElement('main'))")
    bell.page.evaluate("() => document.querySelector('main').append(document.querySelector('bongsu-bell'))")
    expect(bell.panel).to_be_hidden()
    bell.is_in("live")
    site.notify(member, "second")
    bell.counts(2)
    bell.page.evaluate("() => (window.removed = document.querySelector('bongsu-bell')).remove()")
    asked = streams(bell.page)
    # What is done to it while it is on no page opens nothing.
    bell.page.evaluate("() => window.removed.reconnect()")
    site.notify(member, "third")
    assert asked == []
    bell.page.evaluate("() => document.body.append(window.removed)")
    bell.is_in("live").counts(3)
    site.notify(member, "fourth")
    bell.counts(4)
    expect(bell.open().items).to_have_count(4)
    assert bell.titles == ["second", "fourth"]
    assert len(asked) == 1


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_set_twice_opens_one_stream(site: Site, member: str, name: str) -> None:
    page = page_of(ORDERS["script, element, property"], name, token_of(member))
    again = "<script>const value = document.querySelector('bongsu-bell')." + name + "</script>"
    bell = site.show(page + again).is_in("live")
    asked = streams(bell.page)
    # As a framework does each time it renders; by the second timeout, what the first set off has begun.
    bell.page.evaluate(
        f"() => (document.querySelector('bongsu-bell').{name} = value, "
        "new Promise((done) => setTimeout(() => setTimeout(done, 10), 10)))"
    )
    site.notify(member, "news")
    bell.is_in("live").counts(1)
    assert asked == []
    assert bell.titles == ["news"]


def test_the_same_token_again_after_a_refusal_is_another_try(site: Site, member: str) -> None:
    bell = site.visit()
    bell.is_in("refused")
    bell.page.route("**/api/session", lambda route: route.fulfill(status=401), times=1)
    token = token_of(member)
    bell.give(token)
    bell.page.wait_for_function("() => window.received.unauthorized?.length === 2")
    bell.give(token)
    bell.is_in("live")


def test_of_two_members_set_one_after_the_other_the_last_has_the_session(site: Site, member: str) -> None:
    """The first one's session is asked for and not answered yet when the second one's is."""
    site.notify(f"{member}x", "for the last")
    bell = site.visit().is_in("refused")
    held: list[Route] = []
    first = token_of(member)

    def hold(route: Route) -> None:
        if route.request.headers["authorization"] == f"Bearer {first}":
            held.append(route)
        else:
            route.continue_()

    bell.page.route("**/api/session", hold)
    with bell.page.expect_request("**/api/session"):
        bell.give(first)
    bell.give(token_of(f"{member}x"))
    bell.counts(1)
    bell.is_in("live")
    # An answer that comes now must not make the first one's session the browser's.
    release(bell, held)
    site.notify(f"{member}x", "more for the last")
    bell.counts(2)
    bell.page.reload()
    bell.is_in("live").counts(2)


def release(bell: Bell, held: list[Route]) -> None:
    (route,) = held
    bell.page.evaluate("() => fetch('/healthz')")
    route.continue_()
    bell.page.evaluate("() => fetch('/healthz')")
