"""Several processes write to the same rooms: one order, without holes. What was acknowledged is stored, whatever dies."""

from __future__ import annotations

import asyncio
import signal

from bongsu.chat.rooms import Rooms
from bongsu.desk.erase import Erasures
from bongsu.settings import Settings
from bongsu.store import Store
from tests.chat.killed_sender import send_and_die, send_many
from tests.support.chat import Chat, chatting
from tests.support.processes import forks
from tests.support.runs import LEASE_SECONDS


async def test_a_message_that_was_acknowledged_is_there_after_a_kill(chat: Chat, store: Store, settings: Settings) -> None:
    room = await chat.room("a")
    answers, ours = forks.Pipe(duplex=False)
    process = forks.Process(target=send_and_die, args=(settings, room, ours))
    process.start()
    ours.close()
    await asyncio.to_thread(process.join)
    assert process.exitcode == -signal.SIGKILL
    acknowledged = []
    while answers.poll():
        try:
            acknowledged.append(answers.recv())
        except EOFError:
            break
    found = {one.seq: one.message for one in await chat.history.after("a", room, 0, 100)}
    assert (len(acknowledged), acknowledged[-1][1]) == (10, "text-9")
    assert {seq: found[seq] for seq, _ in acknowledged} == dict(acknowledged)
    assert sorted(found) == list(range(1, len(found) + 1))
    # The sender who got no answer sends again, and all have one place.
    for number in range(30):
        await chat.send(room, "a", f"text-{number}")
    assert [one.seq for one in await chat.history.after("a", room, 0, 100)] == list(range(1, 31))


async def test_processes_that_write_to_the_same_rooms_share_one_order(chat: Chat, store: Store, settings: Settings) -> None:
    count, senders = 10, ["a", "b", "c", "d"]
    rooms = [await chat.room(*senders) for _ in range(2)]
    # The same senders in both: who sends by two instances at once has each message stored once.
    processes = [forks.Process(target=send_many, args=(settings, rooms, names, count)) for names in (senders, senders[:2])]
    for process in processes:
        process.start()
    for process in processes:
        await asyncio.to_thread(process.join)
    assert [process.exitcode for process in processes] == [0, 0]
    for room in rooms:
        found = await chat.history.after(None, room, 0, 100)
        assert [one.seq for one in found] == list(range(1, count * len(senders) + 1))
        for sender in senders:
            assert [one.message for one in found if one.sender_id == sender] == [str(number) for number in range(count)]
            assert (await chat.of(sender, room)).unread == count * (len(senders) - 1)


async def test_nothing_deadlocks_while_all_kinds_of_writers_meet(store: Store, settings: Settings) -> None:
    """On PostgreSQL the servers' logs are searched for deadlocks at the end of the run, also those that were repeated."""
    async with chatting(store, settings) as chat, chatting(store, settings) as other:
        rooms = [await chat.room("a", "b", "c", "gone") for _ in range(4)]

        async def send(by: Chat, name: str) -> None:
            for number in range(15):
                await asyncio.gather(*(by.send(room, sender, f"{name}-{number}") for room in rooms for sender in "ab"))

        async def read() -> None:
            for number in range(30):
                await asyncio.gather(*(chat.rooms.mark_read(who, room, number * 3) for room in rooms for who in "ac"))

        async def change() -> None:
            for _ in range(10):
                await asyncio.gather(*(other.order.edit(room, "a", 1, "edited") for room in rooms))

        async def come_and_go() -> None:
            joins = Rooms(store, other.rooms._fanout)
            for _ in range(5):
                await asyncio.gather(*(joins.add(None, room, "gone") for room in reversed(rooms)))
                await asyncio.gather(*(other.send(room, "gone", "text") for room in rooms))
                await Erasures(store, chat.signals, LEASE_SECONDS, batch=2).erase("gone", "cli:tester")

        await asyncio.gather(*(chat.send(room, "a", "first") for room in rooms))
        await asyncio.gather(send(chat, "x"), send(other, "y"), read(), change(), come_and_go())
        for room in rooms:
            for member in "abc":
                found = await chat.rooms.mark_read(member, room, 10**6)
                assert (found.read_seq, found.unread) == (66, 0)
            seqs = [one.seq for one in await chat.history.after("a", room, 0, 100)]
            assert seqs == list(range(1, 67))
