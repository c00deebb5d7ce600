"""A room with 100,000 messages and one with 10,000 members open fast: by keys, and only as much as is shown."""

from __future__ import annotations

from uuid import UUID

from bongsu.model import new_id
from bongsu.store import Query, Store, Table
from bongsu.store.chat import LOCK_ROOMS, live, messages, pushes, removal, rooms
from bongsu.store.core.query import LARGEST_ID, ROOM_ID
from tests.support.plans import generic_plan, keep_statistics, rows_read
from tests.support.rows import Sql, add_chat_room, add_many

MESSAGES, MEMBERS, ROOMS = 20_000, 5_000, 200


async def fill(store: Store) -> UUID:
    """A room with many messages of many members; one of them is in many other rooms."""
    room, last_seq = new_id(), MESSAGES
    async with store.transaction() as tx:
        await add_chat_room(tx, room_id=room, last_seq=last_seq)
        await add_many(
            tx, "chat_members", MEMBERS, room_id=room, member_id=Sql("'m-' || CAST(number AS text)"), read_seq=last_seq
        )
        sender = Sql(f"'m-' || CAST(number % {MEMBERS // 50} + 1 AS text)")
        changed = Sql("CASE WHEN number % 50 = 0 THEN number + 10 END")
        await add_many(
            tx, "chat_messages", MESSAGES, room_id=room, seq=Sql("number + 0"), sender_id=sender,
            client_message_id=Sql("CAST(number AS text)"), changed_seq=changed,
        )  # fmt: skip
        for _ in range(ROOMS):
            await add_chat_room(tx, "m-1")
        # All can be pushed to, and were pushed to before.
        name = Sql("'m-' || CAST(number AS text)")
        number = Sql("number + 0")
        await add_many(tx, "members", MEMBERS, member_id=name)
        await add_many(tx, "devices", MEMBERS, member_id=name, token=name)
        await add_many(tx, "digests", MEMBERS, notification_id=number, member_id=name, type="CHAT_MESSAGE", key=str(room))
        ids = {"notification_id": number, "member_id": name, "message_id": number}
        await add_many(tx, "deliveries", MEMBERS, **ids, status="SUCCESS")
    await keep_statistics(store)
    return room


def queries(room: UUID) -> dict[str, tuple[Query, int]]:
    """What is run, and how many rows it may read."""
    send = messages._SEND
    sends = [(number, room, f"m-{number + 1}", f"new-{number}") for number in range(20)]
    return {
        "open": (messages.BEFORE(room, LARGEST_ID, 50), 60),
        "scroll": (messages.BEFORE(room, 10_000, 50), 60),
        "go on": (messages.AFTER(room, 10_000, 50), 60),
        "changes": (messages.CHANGED(room, 19_000, 100, *messages.FIRST_CHANGE), 200),
        "rooms of readers": (live.ROOMS_OF_MEMBERS(Table({"member_id": "text"}, [("m-1",), ("m-2",)])), 3 * ROOMS + 20),
        "states": (live.STATES(Table(ROOM_ID, [(room,)])), 10),
        "still members": (live.STILL_MEMBERS(room, Table({"member_id": "text"}, [("m-1",), ("m-2",)])), 10),
        "members": (rooms.MEMBERS_OF_ROOM(room, "m-3", 50), 60),
        "rooms of a member": (rooms.ROOMS_OF_MEMBER("m-1"), 3 * ROOMS + 20),
        "own messages": (rooms.COUNT_OWN(room, "m-1", 19_900, 20_000), 300),
        "full": (rooms.FIND_FULL_MEMBER(Table({"member_id": "text"}, [("m-1",), ("m-2",)]), 100), 110),
        # All have read: the members are looked at, in the order of their key, and nothing else.
        "push to": (pushes.CANDIDATES(room, MESSAGES, "", 50, str(room)), MEMBERS + 100),
        "what a push says": (pushes.FIND_UNREAD(Table(pushes._PUSH, [(1, room, "m-1", 3), (2, room, "m-2", None)])), 40),
        "lock": (LOCK_ROOMS(Table(ROOM_ID, [(room,)])), 10),
        "send": (messages.LOOK_UP(Table(send, sends)), 60),
        "rooms to leave": (removal.FIND_ROOMS_OF("m-1", 50), 60),
        "messages to erase": (removal.FIND_MESSAGES_OF("m-1", 50), 60),
        "erase": (removal.SCRUB(Table(removal._SCRUBBED, [(room, seq, MESSAGES) for seq in range(1, 21)])), 60),
    }


async def test_chat_reads_by_keys_only_what_it_shows(store: Store) -> None:
    room = await fill(store)
    async with store.read() as tx:
        found = await messages.find_before(tx, room, LARGEST_ID, 3)
    assert [one.seq for one in found] == [MESSAGES - 2, MESSAGES - 1, MESSAGES]
    for name, (query, limit) in queries(room).items():
        steps = await generic_plan(store, query.statement)
        assert "Seq Scan on bongsu" not in steps, (name, steps)
        if store.dialect.name == "postgresql":
            assert await rows_read(store, query) <= limit, (name, steps)
        else:
            scans = [line for line in steps.splitlines() if line.startswith("SCAN") and "bongsu" in line]
            assert scans == [], (name, steps)
