"""A notification goes out by the channels that were asked for. Without IN_APP it is not in the inbox."""

from __future__ import annotations

from uuid import uuid4

from bongsu.api.inbox import Inbox, InboxPage, PageQuery, ReadAll, UnreadCount
from bongsu.decide.worker import EventWorker
from bongsu.live.announce import Announcer
from bongsu.model import Event
from bongsu.rules import catalogue
from bongsu.rules.direct import DIRECT
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import member_topic
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from bongsu.store.desk import history
from bongsu.store.inbox import live
from bongsu.store.messages.content import MessageCache
from tests.support.decisions import (
    Clock,
    ClockedDecider,
    add_members,
    delivery_channels,
    rows,
    run_worker,
    set_preferences,
    unread_is_exact,
)
from tests.support.rows import set_columns


def code(*channels: str) -> Event:
    payload = {"type": "CODE", "userIds": ["a"], "channels": list(channels), "title": "Your code", "body": "123456"}
    return Event(event_type=DIRECT, event_id=uuid4(), payload=payload)


async def send(store: Store, settings: Settings, *events: Event) -> list[bytes | None]:
    """Decide them, and return what the member's open pages are told."""
    await add_members(store, "a", device=True)
    await set_columns(store, "members", {"member_id": "a"}, phone="010")
    async with store.transaction() as tx:
        await outbox.add(tx, events)
    announced: list[bytes | None] = []
    signals = LocalSignals()
    announcer = Announcer(store, signals, MessageCache())
    with signals.listen(member_topic("a"), announced.append):
        worker = EventWorker(
            store, catalogue(settings), settings, ClockedDecider(store, settings, Clock()), announcer.decided
        )
        await run_worker(worker)
        await announcer.stop()
    return announced


async def test_an_sms_alone_is_not_in_the_inbox_and_the_history_has_it(store: Store, settings: Settings) -> None:
    announced = await send(store, settings, code("SMS"))
    assert await delivery_channels(store) == [("a", "SMS")]
    inbox = Inbox(store)
    for query in (PageQuery(), PageQuery(unread="true")):
        assert await inbox.page("a", query) == InboxPage(items=[], next=None, unread=0)
    assert await inbox.unread_count("a") == UnreadCount(unread=0)
    assert announced == []
    async with store.read() as tx:
        (row,), _ = await history.find_page(tx, history.Filters(member_id="a"))
        assert await live.find_recipients(tx, [row.message_id]) == []
    assert (row.channels, row.title, row.notification_id is not None) == (("SMS",), "Your code", True)
    # It cannot be marked as read either.
    assert row.notification_id is not None
    assert await inbox.read("a", row.notification_id) is None
    assert await inbox.read_all("a") == ReadAll(read=0, unread=0)
    assert [one[0] for one in await rows(store, "SELECT read_at FROM bongsu_notifications")] == [None]


async def test_beside_others_only_those_for_the_inbox_count(store: Store, settings: Settings) -> None:
    announced = await send(store, settings, code("SMS"), code("IN_APP"), code("PUSH", "SMS"), code("SMS", "IN_APP"))
    assert len(announced) == 2
    inbox = Inbox(store)
    page = await inbox.page("a", PageQuery())
    assert (len(page.items), page.unread) == (2, 2)
    assert await unread_is_exact(store)
    first = await inbox.read("a", int(page.items[0].id))
    assert first is not None
    assert first.unread == 1
    assert await inbox.read_all("a") == ReadAll(read=1, unread=0)
    assert await unread_is_exact(store)


async def test_a_member_who_wants_a_type_by_sms_alone_does_not_find_it_in_the_inbox(
    store: Store, settings: Settings
) -> None:
    await set_preferences(store, "a", types={"CODE": {"channels": ["SMS"]}})
    assert await send(store, settings, code("SMS", "IN_APP")) == []
    assert await Inbox(store).unread_count("a") == UnreadCount(unread=0)
    assert await delivery_channels(store) == [("a", "SMS")]
