"""The chat on `/demo`, in two tabs as two members: in order, once, also when the connection breaks in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Locator, Page, WebSocketRoute, expect

from bongsu.settings import Settings
from tests.conftest import KEYS
from tests.support.processes import serving
from tests.web.chromium import TEST_SECONDS
from tests.web.harness import Site, embedded, site_of

pytestmark = pytest.mark.timeout(TEST_SECONDS)


@pytest.fixture(scope="module")
def demo(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    environment = embedded(Settings(data_dir=tmp_path_factory.mktemp("chat"), **KEYS))
    with serving(environment, "--demo") as served, site_of(browser, served) as site:
        yield site


@pytest.fixture
def shop(demo: Site) -> Iterator[Site]:
    yield demo
    demo.leave()


@dataclass
class Chat:
    """The chat in one tab, by what a visitor sees of it."""

    page: Page
    # The sockets that the page has opened; the ops of frames that get lost on the way to the page, and from it.
    sockets: list[WebSocketRoute] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    lost_from_page: set[str] = field(default_factory=set)

    @classmethod
    def enter(cls, shop: Site, member: str, room: str = "") -> Chat:
        chat = cls(shop.context().new_page())
        chat.page.route_web_socket("**/api/chat/ws", chat._connect)
        chat.page.goto(f"{shop.address}/demo?member={member}")
        if room:
            chat.open(room)
        return chat

    def _connect(self, socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        server.on_message(lambda frame: None if json.loads(frame)["op"] in self.lost else socket.send(frame))
        socket.on_message(lambda frame: None if json.loads(frame)["op"] in self.lost_from_page else server.send(frame))
        self.sockets.append(socket)

    def open(self, room: str) -> Chat:
        self.page.locator("#chat").scroll_into_view_if_needed()
        self.room(room).click()
        expect(self.page.locator("#chat-name")).to_have_text(room)
        return self

    def break_off(self) -> None:
        self.sockets[-1].close(code=1012, reason="restart")

    def room(self, name: str) -> Locator:
        return self.page.get_by_role("navigation").get_by_role("button").filter(has_text=name)

    @property
    def messages(self) -> Locator:
        return self.page.get_by_role("log").locator(".message")

    def message(self, text: str) -> Locator:
        return self.messages.filter(has_text=text)

    @property
    def texts(self) -> list[str]:
        return self.page.get_by_role("log").locator(".bubble").all_text_contents()

    def say(self, text: str) -> None:
        self.page.locator("#chat-text").fill(text)
        self.page.locator("#chat-text").press("Enter")

    def has_sent(self, text: str) -> None:
        expect(self.page.locator(".message:not(.is-pending)").filter(has_text=text)).to_have_count(1)


def room_of(shop: Site, *members: str) -> str:
    """A new room of these members; its name."""
    name = f"room {uuid4().hex[:8]}"
    answer = shop.client.post("/api/chat/rooms", json={"name": name, "memberIds": members})
    assert answer.status_code == 201, answer.text
    return name


def room_id_of(chat: Chat, name: str) -> str:
    found = chat.page.locator("#chat-rooms li").filter(has_text=name).get_attribute("data-room")
    assert found
    return found


def test_two_members_talk_in_order_and_see_who_types_is_online_and_has_read(shop: Site) -> None:
    room = room_of(shop, "mina", "emma")
    mina, emma = Chat.enter(shop, "mina", room), Chat.enter(shop, "emma", room)
    mina.say("안녕하세요")
    expect(emma.message("안녕하세요")).to_have_count(1)
    emma.page.locator("#chat-text").press_sequentially("Hi")
    expect(mina.page.locator("#chat-typing")).to_have_text("Emma님이 입력하고 있어요")
    expect(mina.page.locator("#chat-typing")).to_be_empty()
    emma.page.locator("#chat-text").press("Enter")
    for number in range(5):
        mina.say(f"mina {number}")
        emma.say(f"emma {number}")
    for chat in (mina, emma):
        expect(chat.messages).to_have_count(12)
        expect(chat.page.locator(".is-pending")).to_have_count(0)
    assert mina.texts == emma.texts
    assert [text for text in emma.texts if text.startswith("emma")] == [f"emma {number}" for number in range(5)]
    # Both look at the room, so all messages are read by all.
    expect(mina.page.locator(".beside i")).to_have_count(0)
    expect(mina.messages.last).to_be_in_viewport()
    mina.page.locator("#chat-who").click()
    expect(mina.messages.last).to_be_in_viewport()
    expect(mina.page.locator("#chat-members li").filter(has_text="Emma").locator(".is-online")).to_be_visible()


def test_a_message_counts_as_unread_until_its_room_is_opened_and_muted_rooms_count_apart(shop: Site) -> None:
    room, other = room_of(shop, "seoyeon", "liam"), room_of(shop, "seoyeon", "liam")
    seoyeon, liam = Chat.enter(shop, "seoyeon", other), Chat.enter(shop, "liam", room)
    count = seoyeon.room(room).locator(".count")
    liam.say("one")
    liam.say("two")
    expect(count).to_have_text("2")
    expect(liam.message("two").locator(".beside i")).to_have_text("1")
    with_all = int(seoyeon.page.locator("#chat-badge").inner_text())
    seoyeon.open(room)
    expect(count).to_be_hidden()
    expect(seoyeon.page.locator(".new-line")).to_be_visible()
    expect(liam.message("two").locator(".beside i")).to_have_count(0)
    seoyeon.page.get_by_role("button", name="알림 끄기").click()
    expect(seoyeon.page.get_by_role("button", name="알림 켜기")).to_have_attribute("aria-pressed", "true")
    seoyeon.open(other)
    liam.say("three")
    expect(count).to_have_text("1")
    expect(seoyeon.page.locator("#chat-badge")).to_have_text(str(with_all - 2))
    # It is as it was after the page was loaded again. That opens the newest room, which is then read.
    liam.open(other).say("four")
    expect(seoyeon.message("four")).to_be_visible()
    seoyeon.page.reload()
    expect(count).to_have_text("1")
    expect(seoyeon.room(room).locator(".mute-mark")).to_be_visible()


def test_a_message_is_edited_and_deleted_by_its_sender_and_never_read_as_html(shop: Site) -> None:
    room = room_of(shop, "haeun", "lucas")
    haeun, lucas = Chat.enter(shop, "haeun", room), Chat.enter(shop, "lucas", room)
    evil = '<img src=x onerror="window.broken = true"> & <b>bold</b>'
    haeun.say(evil)
    expect(lucas.message(evil)).to_have_count(1)
    for chat in (haeun, lucas):
        assert chat.page.locator("#chat img, #chat .bubble b").count() == 0
        assert chat.page.evaluate("() => window.broken") is None
    expect(lucas.message(evil).get_by_role("button")).to_have_count(0)
    # By keyboard alone: the last own message is edited with the arrow.
    haeun.page.locator("#chat-text").press("ArrowUp")
    expect(haeun.page.locator("#chat-text")).to_have_value(evil)
    haeun.say("plain")
    expect(lucas.message("plain")).to_contain_text("edited")
    expect(haeun.page.locator("#chat-editing")).to_be_hidden()
    haeun.message("plain").get_by_role("button", name="메시지 삭제").focus()
    haeun.page.keyboard.press("Enter")
    expect(lucas.messages.last).to_contain_text("This message was deleted")
    assert "plain" not in lucas.texts


def test_what_was_sent_while_the_connection_was_broken_comes_in_order_and_once(shop: Site) -> None:
    room = room_of(shop, "minjae", "jack")
    minjae, jack = Chat.enter(shop, "minjae", room), Chat.enter(shop, "jack", room)
    minjae.say("before")
    expect(jack.message("before")).to_have_count(1)
    # It is stored, and neither the answer nor the message comes: the page cannot know.
    jack.lost = {"ack", "message"}
    jack.say("is it there?")
    expect(minjae.message("is it there?")).to_have_count(1)
    expect(jack.message("is it there?")).to_have_class("message is-own is-first is-pending")
    minjae.say("it is")
    minjae.has_sent("it is")
    # And one that the server was never sent.
    jack.lost_from_page = {"send"}
    jack.say("on its way")
    expect(jack.page.locator(".is-pending")).to_have_count(2)
    jack.lost.clear()
    jack.lost_from_page.clear()
    jack.break_off()
    for chat in (jack, minjae):
        chat.has_sent("on its way")
        chat.has_sent("is it there?")
    assert len(jack.sockets) == 2
    assert jack.texts == minjae.texts == ["before", "is it there?", "it is", "on its way"]
    jack.say("after")
    expect(minjae.message("after")).to_have_count(1)


def test_a_message_that_is_refused_says_so_and_can_be_discarded(shop: Site) -> None:
    room = room_of(shop, "emma", "mina")
    emma = Chat.enter(shop, "emma", room)
    emma.say("x" * 5_000)
    refused = emma.page.locator(".is-refused")
    expect(refused).to_contain_text("Not sent")
    refused.get_by_role("button", name="Discard").click()
    expect(emma.messages).to_have_count(0)
    # Who is removed from the room sees it no longer.
    emma.say("hello")
    emma.has_sent("hello")
    assert shop.client.delete(f"/api/chat/rooms/{room_id_of(emma, room)}/members/emma").status_code == 204
    expect(emma.room(room)).to_have_count(0)


def test_earlier_messages_are_loaded_on_request(shop: Site) -> None:
    room = room_of(shop, "liam", "emma")
    liam = Chat.enter(shop, "liam", room)
    room_id = room_id_of(liam, room)
    for number in range(1, 41):
        body: dict[str, Any] = {"clientMessageId": str(number), "message": f"number {number}", "senderId": "emma"}
        assert shop.client.post(f"/api/chat/rooms/{room_id}/messages", json=body).status_code == 200
    expect(liam.message("number 40")).to_have_count(1)
    liam.page.reload()
    liam.open(room)
    expect(liam.messages).to_have_count(30)
    liam.page.get_by_role("button", name="Show earlier messages").click()
    expect(liam.messages).to_have_count(40)
    assert liam.texts == [f"number {number}" for number in range(1, 41)]
    expect(liam.page.get_by_role("button", name="Show earlier messages")).to_be_hidden()
