"""`/demo`: a price dropped in one tab rings the bell in another, while the shop goes about its own business."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, expect

from bongsu.demo import BUTTONS, PRESSED, PRODUCTS, people, with_buttons
from bongsu.model import Event
from bongsu.rules import catalogue
from bongsu.settings import Settings
from bongsu.web.shop.routes import VISITORS, Button, Pressed, event_of
from tests.conftest import KEYS
from tests.support.processes import serving
from tests.support.waiting import eventually
from tests.web.chromium import TEST_SECONDS
from tests.web.harness import Bell, Site, embedded, site_of

pytestmark = pytest.mark.timeout(TEST_SECONDS)


@pytest.fixture(scope="module")
def shop(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    environment = embedded(Settings(data_dir=tmp_path_factory.mktemp("shop"), **KEYS))
    with serving(environment, "--demo") as served, site_of(browser, served) as site:
        yield site


def enter(shop: Site, member: str) -> Bell:
    page = shop.context().new_page()
    page.goto(f"{shop.address}/demo?member={member}")
    return Bell(page).is_in("live")


def test_dropping_the_price_in_one_tab_rings_the_bell_in_another(shop: Site) -> None:
    here, there = enter(shop, "seoyeon"), enter(shop, "emma")
    lamp = here.page.locator("[data-product=demo-lamp]")
    for _ in range(2):  # again too, whatever was said of it before
        with here.page.expect_response("**/demo/buttons") as answered:
            lamp.get_by_role("button", name="가격 내리기").click()
        price = answered.value.json()["currentPrice"]
        for bell in (here, there):
            bell.page.wait_for_function(
                "(price) => window.received.notification?.some(({ refId, data }) => "
                "refId === 'demo-lamp' && data.currentPrice === price)",
                arg=price,
            )
    expect(there.page.locator("[data-product=demo-lamp] strong")).to_have_text(f"₩{price:,}")
    there.open()
    expect(there.panel.get_by_role("heading")).to_have_text("Notifications")
    expect(there.items.filter(has_text="The price has dropped!").first).to_be_visible()
    expect(here.page.locator("#toast")).to_contain_text("한지 조명")
    shop.leave()


def test_a_visitor_can_become_somebody_else_and_greet_one_person(shop: Site) -> None:
    here, there = enter(shop, "mina"), enter(shop, "lucas")
    there.page.locator("#visitor").select_option("jack")
    expect(there.page.locator("html")).to_have_attribute("lang", "en")
    there.is_in("live")
    here.page.locator("#target").select_option("jack")
    here.page.get_by_role("button", name="예약 확정하기").click()
    expect(there.open().items.filter(has_text="Your reservation is confirmed").first).to_be_visible()
    there.page.keyboard.press("Escape")
    # Back in stock goes by push and SMS, to those who have it in their cart: the history has it, the inbox does not.
    moka = there.page.locator("[data-product=demo-moka]")
    moka.get_by_role("button", name="To cart").click()
    expect(moka.get_by_role("button", name="To cart")).to_have_attribute("aria-pressed", "true")
    moka.get_by_role("button", name="Restock").click()
    asked = {"userId": "jack", "type": "BACK_IN_STOCK"}
    eventually(lambda: bool(shop.client.get("/api/admin/history", params=asked).json()["items"]), True)
    expect(there.open().items.filter(has_text="Moka Pot is available again!")).to_have_count(0)
    shop.leave()


def test_the_page_loads_nothing_from_elsewhere_and_is_not_there_without_demo(shop: Site, whole_site: Site) -> None:
    page = shop.context().new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.goto(f"{shop.address}/demo")
    Bell(page).is_in("live")
    assert all(one.startswith(shop.address) for one in asked)
    assert wrong == []
    assert whole_site.client.get("/demo").status_code == 404
    assert whole_site.client.post("/demo/visits", json={"memberId": "mina"}).status_code == 404
    shop.leave()


def test_the_shop_gives_tokens_of_its_own_people_alone_and_to_its_own_page(shop: Site) -> None:
    with httpx.Client(base_url=f"{shop.address}/demo", timeout=60) as client:
        assert client.post("/visits", json={"memberId": "a-real-person"}).status_code == 422
        assert client.post("/visits", json={"memberId": "mina"}).status_code == 200
        foreign = {"Sec-Fetch-Site": "cross-site"}
        assert client.post("/visits", json={"memberId": "mina"}, headers=foreign).status_code == 403
        press = {"button": "drop", "memberId": "mina"}
        assert client.post("/buttons", json={**press, "productId": "nothing"}).status_code == 422
        assert client.post("/buttons", json={**press, "button": "explode"}).status_code == 422
        assert client.post("/buttons", json={**press, "productId": "demo-lamp"}, headers=foreign).status_code == 403


# --- without a browser ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("button", [one for one in Button if one is not Button.CART])
def test_every_button_has_a_message_every_time(button: Button) -> None:
    rules = catalogue(Settings(), with_buttons(Settings()))
    pressed = Pressed(button=button, memberId="mina", productId="demo-lamp", targetId="seoyeon")
    subjects = set()
    for _ in range(2):
        event = event_of(pressed)
        assert event.event_type.removeprefix(PRESSED) in BUTTONS
        (notice,) = rules.detect(event)
        subjects.add(notice.subject)
    assert len(subjects) == 2


def test_the_usual_events_have_their_usual_messages() -> None:
    drop = {"previousPrice": 100, "currentPrice": 50}
    event = Event(event_type="product.price_changed", ref_id="p", payload=drop)
    usual, with_shop = catalogue(Settings()), catalogue(Settings(), with_buttons(Settings()))
    assert usual.detect(event) == with_shop.detect(event)


def test_every_button_reaches_every_visitor() -> None:
    by_id = {person.member_id: person for person in people()}
    for visitor in VISITORS:
        person = by_id[visitor]
        assert any(device.push_consent for device in person.devices.values()) or person.member.phone, visitor
        assert set(person.preferences.types) <= {"FOLLOW"}, visitor
    assert all(product.price for product in PRODUCTS.values())


def test_a_comment_made_in_one_tab_is_counted_in_another(shop: Site) -> None:
    here, there = enter(shop, "seoyeon"), enter(shop, "haeun")
    counts = "async () => (await (await fetch('/demo/counts')).json()).emma"
    for bell in (here, there):
        bell.page.locator("#target").select_option("emma")
    before: int = there.page.evaluate(counts)
    here.page.locator('[data-button="comment"]').click()
    there.page.wait_for_function(
        "(before) => Number(document.getElementById('comments').textContent.replace(/\\D/g, '')) > before", arg=before
    )


def test_a_pressed_comment_counts_as_any_other() -> None:
    event = event_of(Pressed(button=Button.COMMENT, memberId="mina", targetId="emma"))
    settings = Settings()
    (delta,) = catalogue(settings, with_buttons(settings)).evaluate(event).deltas
    assert (delta.counter, delta.key, delta.delta) == ("comments", "post-emma-1", 1)
