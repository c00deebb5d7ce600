"""A push to members who were not there: who gets one, when, and what it says, on both databases."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from bongsu.chat.push import MEMBERS
from bongsu.cli.why_view import row_sentences
from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.channels.limits.priority_semaphore import PrioritySemaphore
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.desk.erase import Erasures
from bongsu.desk.why import find_view
from bongsu.model import Priority
from bongsu.rules.chat import UNREAD
from bongsu.runtime.loop import running
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.chat import pushes
from bongsu.store.desk import history
from bongsu.store.desk.history import Filters, Status
from bongsu.store.ranks import rank_of
from tests.support.chat import Chat
from tests.support.chat_push import Pushing, room_of
from tests.support.decisions import rows, set_preferences
from tests.support.rows import Sql, add_many, set_columns
from tests.support.runs import LEASE_SECONDS
from tests.support.senders import HeldSender, until_all_ended

ONE, MANY = "ann: {}", "ann: {}\n{} unread messages."


@pytest.fixture
def pushing(chat: Chat, settings: Settings) -> Pushing:
    return Pushing(chat, settings)


async def events(store: Store) -> int:
    ((count,),) = await rows(store, "SELECT count(*) FROM bongsu_events WHERE event_type = $1", UNREAD)
    return int(count)


async def codes(store: Store) -> list[tuple[str, str | None]]:
    found = await rows(store, "SELECT status, code FROM bongsu_deliveries ORDER BY delivery_id")
    return [(row["status"], row["code"]) for row in found]


# --- who ----------------------------------------------------------------------------------------------------------------


async def test_members_who_are_not_there_are_pushed_one_text_however_many_messages_came(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob", "cho", name="Weekend trip")
    await pushing.chat.send(room, "ann", *(f"text {number}" for number in range(20)))
    await pushing.look()
    await pushing.decide()
    sent = await pushing.deliver()
    assert sorted(one.member_id for one in sent) == ["bob", "cho"]
    assert {(one.type, one.title, one.body, one.ref_id) for one in sent} == {
        ("CHAT_MESSAGE", "Weekend trip", MANY.format("text 19", 20), str(room))
    }
    assert sent[0].data == {"roomId": str(room), "seq": 20, "senderId": "ann", "count": 20}
    assert await events(pushing.store) == 1
    assert await pushing.pushed() == {}


async def test_one_message_has_no_count_and_each_language_its_text(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob")
    await pushing.add_members("cho", locale="ko")
    await pushing.chat.rooms.add(None, room, "cho")
    await pushing.chat.send(room, "ann", "hi")
    assert await pushing.pushed() == {"bob": "ann: hi", "cho": "ann: hi"}
    await pushing.chat.send(room, "ann", *map(str, range(1_999)))
    assert await pushing.pushed() == {
        "bob": "ann: 1998\n2,000 unread messages.",
        "cho": "ann: 1998\n읽지 않은 메시지가 2,000개 있어요.",
    }


async def test_those_who_are_connected_have_read_or_have_muted_the_room_are_left_out(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob", "cho", "dan", "eve")
    pushing.presence.connected = {"bob"}
    await pushing.chat.send(room, "ann", "hi")
    await pushing.chat.rooms.mark_read("cho", room, 1)
    await pushing.chat.rooms.mute("dan", room, True)
    assert await pushing.pushed() == {"eve": ONE.format("hi")}
    await pushing.chat.rooms.mute("dan", room, False)
    await pushing.chat.send(room, "eve", "hello")
    assert sorted(await pushing.pushed()) == ["ann", "cho", "dan"]


async def test_a_room_without_anybody_to_push_to_makes_no_event(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob")
    await pushing.chat.rooms.create(None, "no device", ["zoe", "bob"])
    pushing.presence.connected = {"bob"}
    await pushing.chat.send(room, "ann", "hi")
    assert await pushing.pushed() == {}
    assert await events(pushing.store) == 0


async def test_who_closes_the_page_without_reading_is_pushed_at_the_second_look(pushing: Pushing) -> None:
    """A connection may also be dead already."""
    room = await room_of(pushing, "ann", "bob", "cho")
    pushing.presence.connected = {"bob", "cho"}
    await pushing.chat.send(room, "ann", "hi")
    await pushing.push.tick()
    ((waits,),) = await rows(pushing.store, "SELECT push_due IS NOT NULL FROM bongsu_chat_rooms")
    assert waits
    pushing.presence.connected = {"cho"}
    assert await pushing.pushed() == {"bob": ONE.format("hi")}
    # Not for ever: the next message begins it anew.
    ((waits,),) = await rows(pushing.store, "SELECT push_due IS NOT NULL FROM bongsu_chat_rooms")
    assert not waits


async def test_while_presence_is_not_known_everybody_counts_as_absent(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob")
    pushing.presence.connected = None
    await pushing.chat.send(room, "ann", "hi")
    assert await pushing.pushed() == {"bob": ONE.format("hi")}


async def test_one_s_own_and_deleted_messages_are_not_pushed(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob", "cho")
    await pushing.chat.send(room, "ann", "secret")
    await pushing.chat.order.delete(room, "ann", 1)
    await pushing.chat.send(room, "bob", "mine")
    assert await pushing.pushed() == {"ann": "bob: mine", "cho": "bob: mine\n2 unread messages."}


async def test_what_was_not_pushed_about_for_a_day_is_no_news(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob")
    await pushing.chat.send(room, "ann", "hi")
    await set_columns(pushing.store, "chat_rooms", last_sent_at=timedelta(hours=-25))
    assert await pushing.pushed() == {}
    await pushing.chat.send(room, "ann", "again")
    assert await pushing.pushed() == {"bob": MANY.format("again", 2)}


# --- preferences --------------------------------------------------------------------------------------------------------


async def test_members_switch_the_type_or_everything_off(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob", "cho", "dan")
    await set_preferences(pushing.store, "bob", enabled=False)
    await set_preferences(pushing.store, "cho", types={"CHAT_MESSAGE": {"enabled": False}})
    await pushing.chat.send(room, "ann", "hi")
    assert await pushing.pushed() == {"dan": ONE.format("hi")}
    view = await find_view(pushing.store, pushing.settings, "cho", None, 10)
    (row,) = view.rows
    assert (row.status, list(row_sentences(view, row))) == (
        Status.USER_OPTED_OUT,
        ["not notified: has turned CHAT_MESSAGE off"],
    )


async def test_pushes_about_chat_need_no_room_under_the_daily_cap_and_take_none(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob")
    for number in range(pushing.settings.daily_limit + 2):
        await pushing.chat.send(room, "ann", str(number))
        assert list(await pushing.pushed()) == ["bob"]
    ((count,),) = await rows(pushing.store, "SELECT capped_count FROM bongsu_members WHERE member_id = 'bob'")
    assert count == 0
    await set_columns(pushing.store, "members", capped_count=pushing.settings.daily_limit, capped_day=Sql("2000000"))
    await pushing.chat.send(room, "ann", "over")
    assert list(await pushing.pushed()) == ["bob"]


async def test_a_night_of_messages_is_one_push_in_the_morning_with_what_is_unread_then(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob")
    await set_preferences(pushing.store, "bob", quiet_hours={"start": "00:00", "end": "23:59"})
    for number in range(3):
        await pushing.chat.send(room, "ann", f"night {number}")
        await pushing.look()
        await pushing.decide()
        assert await pushing.deliver(ends_quiet_hours=False) == []
    assert await events(pushing.store) == 1
    (push,) = await pushing.deliver()
    assert push.body == MANY.format("night 2", 3)


# --- between the decision and the push ----------------------------------------------------------------------------------


async def decided(pushing: Pushing) -> UUID:
    """A room with a push to bob that waits."""
    room = await room_of(pushing, "ann", "bob")
    await pushing.chat.send(room, "ann", "first", "second")
    await pushing.look()
    await pushing.decide()
    return room


async def test_what_was_read_before_the_push_went_is_not_pushed(pushing: Pushing) -> None:
    room = await decided(pushing)
    await pushing.chat.rooms.mark_read("bob", room, 2)
    assert await pushing.deliver() == []
    assert await codes(pushing.store) == [("CANCELLED", "READ")]
    view = await find_view(pushing.store, pushing.settings, "bob", None, 10)
    (row,) = view.rows
    assert (row.status, row.title) == (Status.CANCELLED, "trip")
    said = "PUSH to phone: not sent: the member read it before the push was sent"
    assert list(row_sentences(view, row)) == [said]


async def test_a_push_says_what_is_unread_when_it_goes(pushing: Pushing) -> None:
    room = await decided(pushing)
    await pushing.chat.rooms.mark_read("bob", room, 1)
    await pushing.chat.order.edit(room, "ann", 2, "edited")
    assert [one.body for one in await pushing.deliver()] == [ONE.format("edited")]


async def test_a_deleted_text_is_not_pushed(pushing: Pushing) -> None:
    room = await decided(pushing)
    await pushing.chat.order.delete(room, "ann", 2)
    assert [one.body for one in await pushing.deliver()] == [MANY.format("first", 2)]
    await pushing.chat.send(room, "ann", "third")
    await pushing.look()
    await pushing.decide()
    for seq in (1, 3):
        await pushing.chat.order.delete(room, "ann", seq)
    assert await pushing.deliver() == []
    assert (await codes(pushing.store))[-1] == ("CANCELLED", "DELETED")


async def test_a_room_that_was_muted_or_left_meanwhile_is_not_pushed(pushing: Pushing) -> None:
    room = await decided(pushing)
    await pushing.chat.rooms.mute("bob", room, True)
    assert await pushing.deliver() == []
    await pushing.chat.rooms.mute("bob", room, False)
    await pushing.chat.send(room, "ann", "third")
    await pushing.look()
    await pushing.decide()
    await pushing.chat.rooms.remove(None, room, "bob")
    assert await pushing.deliver() == []
    assert await codes(pushing.store) == [("CANCELLED", "MUTED"), ("CANCELLED", "LEFT_ROOM")]


async def test_what_waits_for_its_turn_is_not_sent_when_it_is_read_or_its_message_deleted(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob", "cho", "dan")
    await pushing.chat.send(room, "ann", "first", "second")
    await pushing.look()
    await pushing.decide()
    await set_columns(pushing.store, "deliveries", due=timedelta(seconds=-1))
    sender = HeldSender()
    dispatcher = Dispatcher(pushing.store, GuardedSender(sender, semaphore=PrioritySemaphore(1)), pushing.settings)
    async with running(dispatcher), asyncio.timeout(60):
        await sender.has_begun.wait()
        begun = sender.sent[0].member_id
        reader, other = sorted({"bob", "cho", "dan"} - {begun})
        await pushing.chat.rooms.mark_read(reader, room, 2)
        await pushing.chat.order.delete(room, "ann", 2)
        claimed_again = "SELECT 1 FROM bongsu_deliveries WHERE member_id = $1 AND epoch > 1 AND status = 'SENDING'"
        while not await rows(pushing.store, claimed_again, other):
            await asyncio.sleep(0)
        sender.may_answer.set()
        await until_all_ended(pushing.store, dispatcher)
    said = {one.member_id: one.body for one in sender.sent}
    assert said == {begun: MANY.format("second", 2), other: MANY.format("first", 2)}
    found = await rows(pushing.store, "SELECT code FROM bongsu_deliveries WHERE member_id = $1", reader)
    assert [row["code"] for row in found] == ["READ"]


async def test_an_erased_sender_is_not_pushed_and_an_erased_member_gets_nothing(pushing: Pushing) -> None:
    room = await decided(pushing)
    erasures = Erasures(pushing.store, pushing.chat.signals, LEASE_SECONDS)
    await erasures.erase("ann", "test")
    assert await pushing.deliver() == []
    await pushing.add_members("cho")
    await pushing.chat.rooms.add(None, room, "cho")
    await pushing.chat.send(room, "cho", "third")
    await pushing.look()
    await pushing.decide()
    await erasures.erase("bob", "test")
    assert await pushing.deliver() == []
    assert await rows(pushing.store, "SELECT 1 FROM bongsu_deliveries WHERE member_id = 'bob'") == []


async def test_the_texts_of_messages_stay_in_chat(pushing: Pushing) -> None:
    """History and events have the room's name."""
    await decided(pushing)
    await pushing.deliver()
    async with pushing.store.read() as tx:
        (row,), _ = await history.find_page(tx, Filters(member_id="bob"))
    assert (row.status, row.title, row.body) == (Status.SENT, "trip", "You have new messages.")
    for table in ("events", "messages", "digests"):
        assert not [row for row in await rows(pushing.store, f"SELECT * FROM bongsu_{table}") if "second" in str(tuple(row))]


# --- once, whatever fails -----------------------------------------------------------------------------------------------


async def test_while_a_push_waits_it_is_the_only_one(pushing: Pushing) -> None:
    """When the provider is back, it says all that came meanwhile."""
    room = await decided(pushing)
    for number in range(5):
        await pushing.chat.send(room, "ann", f"more {number}")
        await pushing.look()
        await pushing.decide()
    assert [one.body for one in await pushing.deliver()] == [MANY.format("more 4", 7)]


async def test_a_look_that_was_overtaken_changes_nothing(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob")
    await pushing.chat.send(room, "ann", "hi")
    async with pushing.store.transaction() as tx:
        (slow,) = await pushes.claim_rooms(tx, 0, 10, 30, timedelta(days=1))
    await pushing.look()
    assert await events(pushing.store) == 1
    await pushing.push._look_unless_overtaken(slow)
    assert await events(pushing.store) == 1
    assert await pushing.pushed() == {"bob": ONE.format("hi")}


async def test_two_that_look_at_once_push_once(pushing: Pushing) -> None:
    rooms = [await room_of(pushing, f"a{number}", f"b{number}") for number in range(10)]
    await asyncio.gather(*(pushing.chat.send(room, f"a{number}", "hi") for number, room in enumerate(rooms)))
    others = [pushing.another() for _ in range(3)]

    async def work() -> None:
        while sum(await asyncio.gather(*(other.tick() for other in others))):
            pass

    await work()
    assert await events(pushing.store) == len(rooms)
    await pushing.decide()
    assert sorted(one.member_id for one in await pushing.deliver()) == [f"b{number}" for number in range(10)]


async def test_what_came_during_a_look_is_looked_at_after_it(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob")
    await pushing.chat.send(room, "ann", "one")
    async with pushing.store.transaction() as tx:
        (begun,) = await pushes.claim_rooms(tx, 0, 10, 30, timedelta(days=1))
    await pushing.chat.send(room, "ann", "two")
    await pushing.push._look_unless_overtaken(begun)
    await pushing.decide()
    await pushing.deliver()
    assert await pushing.push.tick() == 1
    await pushing.decide()
    assert [one.body for one in await pushing.deliver()] == [MANY.format("two", 2)]


async def test_a_room_with_many_absent_members_is_one_event_for_a_thousand_and_then_rests(pushing: Pushing) -> None:
    room = await room_of(pushing, "ann", "bob")
    count = MEMBERS + 200
    name = Sql("'m-' || CAST(number + 100000 AS text)")
    async with pushing.store.transaction() as tx:
        await add_many(tx, "members", count, member_id=name)
        await add_many(tx, "devices", count, member_id=name, token=name)
        await add_many(tx, "chat_members", count, room_id=room, member_id=name)
    await pushing.chat.send(room, "ann", *map(str, range(50)))
    await pushing.look()
    assert await events(pushing.store) == 2
    await pushing.chat.send(room, "bob", "more")
    assert await pushing.push.tick() == 0
    await pushing.decide()
    ((rank,),) = await rows(pushing.store, "SELECT DISTINCT rank FROM bongsu_deliveries")
    assert rank == rank_of(Priority.HIGH, is_critical=False, is_bulk=True)
    ((pushed,),) = await rows(pushing.store, "SELECT count(*) FROM bongsu_deliveries")
    assert pushed == count + 1
