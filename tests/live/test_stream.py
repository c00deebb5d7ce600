"""What a stream tells, on both databases: first what was missed, then what comes, each once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import httpx
import pytest

from bongsu.api.http_protocol import HttpProtocol
from bongsu.api.ws_protocol import WebSocketProtocol
from bongsu.clock.jobs.retain import retain_job
from bongsu.decide.step import CHUNK, Decider
from bongsu.decide.worker import EventWorker
from bongsu.errors import StoreUnreachable
from bongsu.live import announce, catchup, hub
from bongsu.live.member_state import LONG_AGO
from bongsu.model import Event, Listed
from bongsu.render.templates import Templates
from bongsu.rules import Rules
from bongsu.runtime.topics import MESSAGES_TOPIC
from bongsu.store import Transaction, outbox
from bongsu.store.core.query import same
from bongsu.store.inbox import live as live_statements
from bongsu.store.inbox.changes import MemberChanges
from bongsu.store.messages import content
from bongsu.store.messages.content import MessageCache, MessageContent
from bongsu.store.messages.digests import NotificationContents
from tests.live.client import EventSource
from tests.live.harness import Live, bearer, write
from tests.support.decisions import rules_notifying, run_worker, set_preferences, trigger_event
from tests.support.rows import Sql, add_for_each, set_columns
from tests.support.runs import run_by_hand

FIND_OTHERS = same("SELECT notification_id FROM bongsu_notifications WHERE member_id = 'm-2' ORDER BY notification_id")


async def test_a_page_hears_of_a_notification_and_of_how_many_are_unread(live: Live) -> None:
    async with live.open() as page:
        await page.until_live()
        assert page.seen("badge") == [{"unread": 0}]
        [one] = await live.ring(title="사과", body="이제\n900원", ref_id="sku-1", data='{"big":12345678901234567890123}')
        await page.until_seen("badge", 2)
    [told] = page.seen("notification")
    assert told.pop("createdAt")
    assert told == {
        "id": str(one), "type": "POST_LIKE", "title": "사과", "message": "이제\n900원", "refId": "sku-1",
        "data": {"big": 12345678901234567890123},
    }  # fmt: skip
    assert page.seen("badge")[-1] == {"unread": 1}
    assert page.last_id == str(one)


async def test_the_first_time_it_tells_the_last_unread_oldest_first(live: Live) -> None:
    ids, _ = await write(live.store, "m-1", 14)
    async with httpx.AsyncClient(base_url=live.address, headers=bearer(live.settings, "m-1"), timeout=60) as inbox:
        await inbox.post(f"/api/notifications/{ids[-1]}/read")
        await inbox.post(f"/api/notifications/{ids[-3]}/read")
    unread = [one for one in ids if one not in (ids[-1], ids[-3])]
    async with live.open() as page:
        await page.until_told(unread[-10:])
        # Beyond what was told lie those that were read, and that they were read: behind the reader all the same.
        await page.until(lambda page: int(page.last_id) > ids[-1])
        later = await live.ring()
        await page.until_told([*unread[-10:], *later])
    assert page.seen("badge")[0] == {"unread": 12}


async def test_with_a_cursor_it_tells_all_that_came_after_read_or_not(live: Live) -> None:
    ids, _ = await write(live.store, "m-1", 30)
    async with httpx.AsyncClient(base_url=live.address, headers=bearer(live.settings, "m-1"), timeout=60) as inbox:
        await inbox.post("/api/notifications/read-all")
    by_header = live.open()
    by_query = EventSource([live.address], by_header.headers, path=f"/api/notifications/stream?lastEventId={ids[4]}")
    by_header.last_id = str(ids[4])
    async with by_header, by_query:
        for page in (by_header, by_query):
            await page.until_told(ids[5:])
            assert page.seen("reset") == []


async def test_a_cursor_at_a_notification_that_retention_deleted_still_works(live: Live) -> None:
    ids, _ = await write(live.store, "m-1", 6)
    await set_columns(live.store, "notifications", {"notification_id": ids[:3]}, created_at=timedelta(days=-31))
    await run_by_hand(live.store, retain_job(live.settings))
    page = live.open()
    page.last_id = str(ids[1])
    async with page:
        await page.until_told(ids[3:])
        # Everything that it has seen goes, and what comes then is new to it.
        await set_columns(live.store, "notifications", created_at=timedelta(days=-31))
        await run_by_hand(live.store, retain_job(live.settings))
        back = live.open()
        back.last_id = page.last_id
        async with back:
            await back.until_live()
            new = await live.ring("m-1")
            await back.until_told(new)
            await page.until_told([*ids[3:], *new])
    assert back.seen("badge")[-1] == {"unread": 1}


async def test_beyond_the_bound_the_newest_come_and_a_reset_says_so(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MISSED_LIMIT", 5)
    ids, _ = await write(live.store, "m-1", 9)
    page = live.open()
    page.last_id = str(ids[0])
    async with page:
        await page.until_told(ids[-5:])
    assert page.frames[0].event == "reset"
    exact = live.open()
    exact.last_id = str(ids[3])
    async with exact:
        await exact.until_told(ids[-5:])
    assert exact.seen("reset") == []


async def test_what_is_no_cursor_begins_anew(live: Live) -> None:
    ids, _ = await write(live.store, "m-1", 2)
    for given in ("nonsense", "-1", "9" * 30, "1; DROP"):
        page = live.open()
        page.last_id = given
        async with page:
            await page.until_told(ids)


async def test_a_cursor_of_another_store_does_not_deafen(live: Live) -> None:
    await write(live.store, "m-1", 2)
    page = live.open()
    page.last_id = str(2**62)
    async with page:
        await page.until_seen("badge")
        later = await live.ring()
        await page.until_told(later)


async def test_what_does_not_go_by_in_app_is_neither_counted_nor_told(live: Live) -> None:
    async with live.open() as page:
        await page.until_live()
        _, [message] = await write(live.store, "m-1")
        async with live.store.transaction() as tx:
            await set_columns(tx, "notifications", channels=3)
            await set_columns(tx, "members", unread=0)
        live.ringer.announcer.announce([message])
        later = await live.ring()
        await page.until_told(later)
        assert (await page.until_seen("badge", 2)) == [{"unread": 0}, {"unread": 1}]
    async with live.open() as again:
        await again.until_told(later)


async def test_reading_elsewhere_changes_the_badge_of_every_page(live: Live) -> None:
    ids, _ = await write(live.store, "m-1", 3)
    async with live.open() as one, live.open() as other, live.open("m-2") as stranger:
        for page in (one, other):
            await page.until_told(ids)
        await stranger.until_live()
        async with httpx.AsyncClient(base_url=live.address, headers=bearer(live.settings, "m-1"), timeout=60) as inbox:
            await inbox.post(f"/api/notifications/{ids[0]}/read")
            for page in (one, other):
                assert (await page.until_seen("badge", 2))[-1] == {"unread": 2}
            await inbox.post("/api/notifications/read-all")
            for page in (one, other):
                assert (await page.until_seen("badge", 3))[-1] == {"unread": 0}
    assert stranger.seen("badge") == [{"unread": 0}]


async def test_who_wants_nothing_is_told_nothing_but_what_is_critical(live: Live) -> None:
    await write(live.store, "m-1", 2)
    _, [critical] = await write(live.store, "m-1")
    await set_columns(live.store, "messages", {"message_id": critical}, is_critical=True)
    await set_preferences(live.store, "m-1", enabled=False)
    async with live.open() as page:
        await page.until_live()
        assert len(page.told) == 1


async def test_a_message_to_many_is_named_and_read_by_who_has_its_readers(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announce, "FEW", 0)
    named: list[bytes | None] = []
    with live.signals.listen(MESSAGES_TOPIC, named.append):
        async with live.open("m-1") as one, live.open("m-2") as two, live.open("m-3") as three:
            for page in (one, two, three):
                await page.until_live()
            first, second = await live.ring("m-1", 3), await live.ring("m-2", 2)
            await one.until_told(first)
            await two.until_told(second)
            assert three.told == []
    assert named


async def test_signals_in_any_order_and_any_number_tell_each_once_in_order(live: Live) -> None:
    """As when two workers commit one after the other and are heard the other way round."""
    async with live.open() as page:
        await page.until_live()
        ids: list[int] = []
        messages: list[int] = []
        for _ in range(6):
            one, its = await write(live.store, "m-1")
            ids += one
            messages += its
        for message in reversed(messages):
            live.ringer.announcer.announce([message])
            await live.ringer.announcer.idle.wait()
        live.ringer.announcer.announce(messages)
        await page.until_told(ids)
        last = await live.ring()
        await page.until_told([*ids, *last])


async def test_a_signal_that_was_lost_costs_a_ping_and_no_more(live: Live) -> None:
    async with live.open() as page:
        await page.until_live()
        ids, _ = await write(live.store, "m-1", 2)
        live.gateway.catch_up.mark(["m-1"])  # as the PingSchedule does with every ping
        await page.until_told(ids)


async def test_the_whole_way_from_an_event(live: Live) -> None:
    async with live.open("a") as one, live.open("b") as other:
        await one.until_live()
        await other.until_live()
        async with live.store.transaction() as tx:
            await outbox.add(tx, [trigger_event("1"), trigger_event("2")])
        decider = Decider(live.store, Templates.load(), live.settings)
        await run_worker(
            EventWorker(
                live.store, rules_notifying(Listed(("a", "b"))), live.settings, decider, live.ringer.announcer.decided
            )
        )
        for page in (one, other):
            await page.until_seen("notification", 2)
            assert (await page.until_seen("badge", 2))[-1]["unread"] in (1, 2)


@pytest.mark.parametrize("moment", ["before the read", "after the read", "both"])
async def test_what_is_committed_and_announced_while_a_page_attaches_is_told_once(
    live: Live, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    find, written = live_statements.find_inbox_state, (await write(live.store, "m-1"))[0]

    async def commit() -> None:
        written.extend(await live.ring())
        await live.ringer.announcer.idle.wait()

    async def find_while_committing(tx: Transaction, member_id: str) -> live_statements.InboxState | None:
        if moment != "after the read":
            await commit()
        found = await find(tx, member_id)
        if moment != "before the read":
            await commit()
        return found

    monkeypatch.setattr(live_statements, "find_inbox_state", find_while_committing)
    async with live.open() as page:
        await page.until(lambda page: page.told[-1:] == written[-1:])
        await page.until_told(written + await live.ring())


async def test_a_stream_that_has_more_to_be_told_than_the_others_is_told_all_of_it(live: Live) -> None:
    """As when it becomes live while the store is being read from where the others are."""
    async with live.open() as page:
        await page.until_live()
        ids, _ = await write(live.store, "m-1", 3)
        member = live.gateway.open_streams.members()[0]
        found = catchup._Found(
            [member], [ids[1]], (), MemberChanges((), {}), {}, {}, LONG_AGO, NotificationContents({}, {}), cut_at=None
        )
        live.gateway.catch_up._send_piece([(ids[2], 0, None, b"", b"")], found)
        await page.until_told(ids)
        assert member.cursor() == ids[2]


async def test_a_stream_that_becomes_live_between_two_of_a_members_is_not_told_past_the_first(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live.open() as page:
        await page.until_live()
        catch_up, open_streams = live.gateway.catch_up, live.gateway.open_streams
        [stream] = open_streams.of("m-1")
        send, calls = catch_up._send_piece, 0

        def send_late(*what: Any) -> int:
            nonlocal calls
            calls += 1
            stream.is_live = calls != 1
            try:
                return send(*what)
            finally:
                stream.is_live = True

        monkeypatch.setattr(catch_up, "_send_piece", send_late)
        monkeypatch.setattr(catchup, "PIECE", 1)
        ids, _ = await write(live.store, "m-1", 2)
        catch_up.mark(["m-1"])
        await page.until_told(ids)
        assert [one.cursor() for one in open_streams.members()] == [ids[-1]]


async def test_signals_that_keep_coming_put_nobody_off(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """As during a long fan-out: each is about everybody, and comes before everybody has been looked at."""
    monkeypatch.setattr(catchup, "MEMBERS", 1)
    find = live_statements.find_new
    looked_at: list[str] = []

    async def find_and_signal_again(tx: Any, cursors: dict[str, int], limit: int) -> Any:
        looked_at.extend(cursors)
        if len(looked_at) < 12:
            live.gateway.catch_up.on_broadcast(b"again")
        return await find(tx, cursors, limit)

    async with live.open("m-1") as one, live.open("m-2") as two, live.open("m-3") as three:
        for page in (one, two, three):
            await page.until_live()
        catch_up = live.gateway.catch_up
        monkeypatch.setattr(live_statements, "find_new", find_and_signal_again)
        catch_up.on_broadcast(b"once")
        async with asyncio.timeout(20):
            while len(looked_at) < 12:
                await asyncio.sleep(0.01)
            await catch_up.idle.wait()
    assert looked_at[:12] == ["m-1", "m-2", "m-3"] * 4
    assert len(looked_at) % 3 == 0


async def test_those_who_were_being_read_when_the_store_failed_are_read_again(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catchup, "MEMBERS", 1)
    find = live_statements.find_new
    calls = 0

    async def find_or_fail(tx: Any, cursors: dict[str, int], limit: int) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreUnreachable("gone for a moment")
        return await find(tx, cursors, limit)

    members = ["m-1", "m-2", "m-3", "m-4"]
    async with contextlib.AsyncExitStack() as stack:
        pages = [await stack.enter_async_context(live.open(one)) for one in members]
        for page in pages:
            await page.until_live()
        monkeypatch.setattr(live_statements, "find_new", find_or_fail)
        ids = [(await write(live.store, one))[0] for one in members]
        live.gateway.catch_up.on_broadcast(b"once")
        for page, written in zip(pages, ids, strict=True):
            await page.until_told(written)


async def test_after_the_store_failed_a_notification_without_a_signal_is_sent_too(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a worker's commit succeeded and its answer was lost: it announces nothing."""
    find, has_failed = live_statements.find_new, False

    async def fail_once(tx: Any, cursors: dict[str, int], limit: int) -> Any:
        nonlocal has_failed
        if not has_failed:
            has_failed = True
            raise StoreUnreachable("gone for a moment")
        return await find(tx, cursors, limit)

    async with live.open("m-1") as one, live.open("m-2") as other:
        await one.until_live()
        await other.until_live()
        ids, _ = await write(live.store, "m-2")
        monkeypatch.setattr(live_statements, "find_new", fail_once)
        live.gateway.catch_up.mark(["m-1"])
        await other.until_told(ids)


async def test_those_who_were_being_read_are_marked_however_often_the_reading_is_cancelled(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catchup, "MEMBERS", 1)
    reading = asyncio.Event()

    async def hang(tx: Any, cursors: dict[str, int], limit: int) -> Any:
        reading.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)

    async with live.open("m-1") as one, live.open("m-2") as two:
        await one.until_live()
        await two.until_live()
        catch_up = live.gateway.catch_up
        await catch_up.stop()
        monkeypatch.setattr(live_statements, "find_new", hang)
        catch_up.on_broadcast(b"once")
        looking = asyncio.create_task(catch_up.tick())
        await reading.wait()
        while not looking.done():
            looking.cancel()
            await asyncio.sleep(0.002)
        with pytest.raises(asyncio.CancelledError):
            await looking
        assert set(catch_up._marked) == {"m-1", "m-2"}


async def test_messages_that_reached_two_readers_in_another_order_are_told_to_each_in_its_own(live: Live) -> None:
    async with live.open("m-1") as one, live.open("m-2") as other:
        await one.until_live()
        await other.until_live()
        mine, [first, second] = await write(live.store, "m-1", 2)
        async with live.store.transaction() as tx:
            # The second message before the first.
            for message_id in (second, first):
                copied = {"message_id": message_id, "created_at": Sql("created_at")}
                source = f"notifications WHERE notification_id = {mine[0]}"
                await add_for_each(tx, "notifications", source, member_id="m-2", **copied)
            others = [row["notification_id"] for row in await tx.fetch(FIND_OTHERS())]
        live.gateway.catch_up.mark(["m-1", "m-2"])
        await one.until_told(mine)
        await other.until_told(others)


async def test_what_a_member_does_not_want_is_read_once_and_is_behind_them(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catchup, "NOTIFICATIONS", 2)
    async with live.open() as page:
        await page.until_live()
        ids, _ = await write(live.store, "m-1", 5)
        await set_preferences(live.store, "m-1", enabled=False)
        catch_up = live.gateway.catch_up
        catch_up.mark(["m-1"])
        async with asyncio.timeout(20):
            await catch_up.idle.wait()
        assert [one.cursor() for one in live.gateway.open_streams.members()] == [ids[-1]]
        assert page.told == []


async def test_what_was_decided_last_is_announced_before_the_worker_ends(live: Live) -> None:
    async with live.open() as page:
        await page.until_live()
        ids, messages = await write(live.store, "m-1", 2)
        announcer = announce.Announcer(live.store, live.signals, MessageCache())
        announcer.announce(messages)
        await announcer.stop()
        await page.until_told(ids)


async def test_what_a_step_has_written_is_announced_in_the_stores_words_without_reading_them(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for: list[int] = []
    find = content.find_content

    async def find_content(tx: Transaction, messages: Sequence[int]) -> dict[int, MessageContent]:
        looked_for.extend(messages)
        return await find(tx, messages)

    monkeypatch.setattr(content, "find_content", find_content)
    rules = rules_notifying(
        Listed(("m-1",)), ref_id='사과\n"1"', data={"big": 12345678901234567890123, "text": "line\nline"}
    )
    message_cache = MessageCache()
    announcer = announce.Announcer(live.store, live.signals, message_cache)
    async with live.open() as page:
        await page.until_live()
        async with live.store.transaction() as tx:
            await outbox.add(tx, [trigger_event("1")])
        settings = live.settings
        decider = Decider(live.store, Templates.load(), settings, message_cache=message_cache)
        await run_worker(EventWorker(live.store, rules, settings, decider, announcer.decided))
        await announcer.stop()
        await page.until_seen("notification", 1)
        assert looked_for == []
    async with live.open() as later:
        await later.until_seen("notification", 1)
    assert later.seen("notification") == page.seen("notification")
    assert looked_for


class Counting:
    """Remembers which messages had their recipients counted in the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: list[int] = []
        count = live_statements.count_recipients

        async def count_recipients(tx: Transaction, messages: Sequence[int], limit: int) -> dict[int, int]:
            self.messages.extend(messages)
            return await count(tx, messages, limit)

        monkeypatch.setattr(live_statements, "count_recipients", count_recipients)


async def decide_and_announce(live: Live, rules: Rules, events: Sequence[Event], chunk: int = CHUNK) -> None:
    async with live.store.transaction() as tx:
        await outbox.add(tx, events)
    decider = Decider(live.store, Templates.load(), live.settings, chunk)
    await run_worker(EventWorker(live.store, rules, live.settings, decider, live.ringer.announcer.decided))


@pytest.mark.parametrize("readers", [1, announce.FEW, announce.FEW + 1])
async def test_the_recipients_of_a_message_decided_in_one_step_are_not_counted_again(
    live: Live, monkeypatch: pytest.MonkeyPatch, readers: int
) -> None:
    named: list[bytes | None] = []
    counting = Counting(monkeypatch)
    members = tuple(f"m-{number}" for number in range(readers))
    with live.signals.listen(MESSAGES_TOPIC, named.append):
        async with live.open(members[-1]) as page:
            await page.until_live()
            await decide_and_announce(live, rules_notifying(Listed(members)), [trigger_event("1")])
            await page.until_seen("notification")
    assert bool(named) == (readers > announce.FEW)
    assert counting.messages == []


async def test_each_message_of_a_step_is_announced_by_its_own_number_of_recipients(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message for one member beside one for many: their average would be few, or many, for both."""
    named: list[bytes | None] = []
    counting = Counting(monkeypatch)
    many = tuple(f"m-{number}" for number in range(announce.FEW + 1))
    audiences = {"1": Listed(many), "2": Listed(("alone",))}
    with live.signals.listen(MESSAGES_TOPIC, named.append):
        async with live.open(many[0]) as page, live.open("alone") as other:
            await page.until_live()
            await other.until_live()
            await decide_and_announce(
                live, rules_notifying(lambda event: audiences[str(event.ref_id)]), [trigger_event("1"), trigger_event("2")]
            )
            await page.until_seen("notification")
            await other.until_seen("notification")
    assert [len(json.loads(data)) for data in named if data] == [1]
    assert counting.messages == []


async def test_the_recipients_of_a_message_decided_in_several_steps_are_counted(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(monkeypatch)
    members = tuple(f"m-{number}" for number in range(5))
    async with live.open(members[-1]) as page:
        await page.until_live()
        await decide_and_announce(live, rules_notifying(Listed(members)), [trigger_event("1")], chunk=2)
        await page.until_seen("notification")
    assert counting.messages


async def test_a_connection_that_has_ended_is_gone_without_being_looked_for(live: Live) -> None:
    """Ten thousand readers who leave must not stay until the collector has a reason to look at what is old."""
    known = connections()
    gc.disable()
    try:
        async with live.open() as page:
            await page.until_live()
            await live.ring()
            await page.until_seen("badge", 2)
            here = connections() - known
            assert len(here) == 1, "the connection's, whatever it speaks"
        async with asyncio.timeout(20):
            while len(here):
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


def connections() -> weakref.WeakSet[asyncio.Protocol]:
    # By type: some objects of others do not like to be asked what they are.
    return weakref.WeakSet(one for one in gc.get_objects() if type(one) in (HttpProtocol, WebSocketProtocol))
