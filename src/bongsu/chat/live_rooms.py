"""Live rooms: what happens in chat rooms reaches the readers that this process has, in the order of each room, once.

A room with readers here has a position: everything up to `seq` was sent to its readers, and `changes` edits, deletions and
departures were applied. A signal that is next in order is sent at once, encoded once for each wire; no reader is waited
for. One that shows a gap waits for a moment, because signals of two processes overtake each other; then the room is read
from the store, once for all its readers. So are rooms whose signals may have been missed, and at each ping those of the
member. A message shows how many changes the room had when it was committed: so no message is sent to a member whose removal
was committed before it, whether or not the signal about that has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from uuid import UUID

import orjson

from bongsu.chat import signals as kinds
from bongsu.chat.fanout import changed_frame, message_frame
from bongsu.chat.live_room import PAGE, LiveRoom, send_missed, send_to, write
from bongsu.chat.signals import RoomSignal, read_signal
from bongsu.errors import NotInRoom, StoreError
from bongsu.live.member_state import OpenStreams, Stream
from bongsu.runtime.loop import Loop
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import room_topic
from bongsu.store import Store, Transaction
from bongsu.store.chat import live as statements
from bongsu.store.chat import messages
from bongsu.store.chat.live import RoomState

# How long a signal may be late. After that the store is read. Shorter → reads that bring nothing new.
LATE_SECONDS = 0.03
# Signals of one room that wait for one before them. More are read from the store.
AHEAD_LIMIT = 1_000
# Members checked, and rooms read, before others have their turn.
MEMBERS = 200
ROOMS = 100
# Writes to readers before other tasks run.
PIECE = 1_000


class LiveRooms(Loop):
    def __init__(self, store: Store, signals: Signals, open_streams: OpenStreams) -> None:
        super().__init__("chat-rooms", poll_seconds=60)
        self._store = store
        self._signals = signals
        self._open_streams = open_streams
        self._rooms: dict[UUID, LiveRoom] = {}
        # The rooms of each reader.
        self._of: dict[Stream, set[LiveRoom]] = {}
        # Rooms to be read, and members whose rooms are: at most all that are here.
        self._marked: dict[LiveRoom, None] = {}
        self._to_check: dict[str, None] = {}
        self._catching_up: set[asyncio.Task[int]] = set()

    # --- readers come and go ------------------------------------------------------------------------------------------

    async def attach(self, stream: Stream) -> None:
        """Send the stream what happens in its member's rooms from now on. Detach it in any case."""
        self._of[stream] = set()
        async with self._store.read() as tx:
            found = await statements.find_rooms_of(tx, [stream.member_id])
        if stream in self._of:
            self._compare(stream, found[stream.member_id])

    def detach(self, stream: Stream) -> None:
        for room in self._of.pop(stream, ()):
            self._drop(stream, room)

    def is_reader(self, stream: Stream, room_id: UUID) -> bool:
        room = self._rooms.get(room_id)
        return room is not None and stream in room.readers

    def check(self, member_ids: Iterable[str]) -> None:
        """Signals about these members and their rooms may have been missed."""
        self._to_check.update(dict.fromkeys(member_ids))
        self.wake()

    def on_joined(self, member_id: str, data: bytes) -> None:
        """The member has joined a room. Readers are sent all that came after that."""
        signal = read_signal(data)
        if signal is None:
            return
        state = RoomState(UUID(signal.frame()["roomId"]), signal.seq, signal.changes)
        for stream in self._open_streams.of(member_id):
            if stream in self._of and not self.is_reader(stream, state.room_id):
                write(stream, stream.connection.wire.chat(False, signal.data))
                self._enter(stream, state)
                if self._rooms[state.room_id].seq > state.last_seq:
                    self._catch_up(stream, state)

    def _catch_up(self, stream: Stream, state: RoomState) -> None:
        """Others were sent messages that came after the member had joined."""
        # From now on: a message that comes before the task begins is read by it.
        self._rooms[state.room_id].paused[stream] = []
        task = asyncio.create_task(self.resume(stream, state, state.last_seq))
        self._catching_up.add(task)
        task.add_done_callback(self._caught_up)

    def _caught_up(self, task: asyncio.Task[int]) -> None:
        self._catching_up.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.warning("messages of a joined room not sent", error=str(error))

    async def stop(self) -> None:
        await super().stop()
        for task in self._catching_up:
            task.cancel()

    def _enter(self, stream: Stream, state: RoomState) -> None:
        room = self._rooms.get(state.room_id)
        if room is None:
            room = self._rooms[state.room_id] = LiveRoom(state)
            listener = functools.partial(self._on_signal, room)
            room.subscription.enter_context(self._signals.listen(room_topic(room.room_id), listener))
            # What comes before the subscription is confirmed is read then.
            self._mark(room)
        elif room.changes > state.changes:
            # The member may have left since the state was read.
            room.is_suspect = True
            self._mark(room)
        room.readers[stream] = None
        self._of[stream].add(room)

    def _drop(self, stream: Stream, room: LiveRoom) -> None:
        room.readers.pop(stream, None)
        room.paused.pop(stream, None)
        room.sent.pop(stream, None)
        if not room.readers and self._rooms.get(room.room_id) is room:
            del self._rooms[room.room_id]
            room.subscription.close()
            self._marked.pop(room, None)

    def _compare(self, stream: Stream, states: Sequence[RoomState]) -> None:
        """Enter rooms that the stream is not in, and read those that have come further, or that it may have left."""
        listed = {state.room_id for state in states}
        for room in self._of[stream]:
            if room.room_id not in listed:
                room.is_suspect = True
                self._mark(room)
        for state in states:
            if not self.is_reader(stream, state.room_id):
                self._enter(stream, state)
            room = self._rooms[state.room_id]
            if state.last_seq > room.seq or state.changes > room.changes:
                self._mark(room)

    # --- signals ------------------------------------------------------------------------------------------------------

    def _on_signal(self, room: LiveRoom, data: bytes | None) -> None:
        signal = read_signal(data)
        if signal is None:
            # Of missed signals, and of an erasure: also that a member has left.
            room.is_suspect = True
            self._mark(room)
        elif signal.kind == kinds.MESSAGE:
            self._on_message(room, signal)
        elif signal.kind == kinds.CHANGED:
            self._on_change(room, signal)
        elif signal.kind == kinds.LEFT:
            self._on_left(room, signal)
        elif signal.kind == kinds.READ:
            send_to(room.readers, signal.data)
        else:
            # The member's own connections know.
            member_id = signal.frame()["memberId"]
            others = [stream for stream in room.readers if stream.member_id != member_id]
            send_to(others, signal.data, is_best_effort=signal.kind == kinds.TYPING)

    def _on_message(self, room: LiveRoom, signal: RoomSignal) -> None:
        frames = signal.frames()
        if signal.seq == room.seq + 1 and room.may_send(signal.changes):
            room.send_messages(frames)
            if room.ahead:
                room.send_ahead()
        elif signal.seq + len(frames) - 1 > room.seq:
            for seq, data in enumerate(frames, signal.seq):
                if seq > room.seq and len(room.ahead) < AHEAD_LIMIT:
                    room.ahead[seq] = signal._replace(seq=seq, data=data)
            # The store may have been read up to some of them.
            room.send_ahead()
            if room.ahead:
                self._wait(room)

    def _on_change(self, room: LiveRoom, signal: RoomSignal) -> None:
        if signal.changes == room.changes + 1 and room.seq >= signal.seq and not room.is_reading:
            room.send_change(signal.data)
            room.changes = signal.changes
            room.send_ahead()
        elif signal.changes > room.changes:
            room.is_behind = True
            self._wait(room)

    def _on_left(self, room: LiveRoom, signal: RoomSignal) -> None:
        self._remove_members(room, {signal.frame()["memberId"]})
        send_to(room.readers, signal.data)
        if signal.changes == room.changes + 1:
            room.changes = signal.changes
            room.send_ahead()
        elif not signal.changes or signal.changes > room.changes:
            room.is_behind = True
            self._wait(room)

    def _remove_members(self, room: LiveRoom, member_ids: set[str]) -> None:
        """They have left the room."""
        for stream in [reader for reader in room.readers if reader.member_id in member_ids]:
            frame = orjson.dumps({"op": "left", "roomId": str(room.room_id), "memberId": stream.member_id})
            write(stream, stream.connection.wire.chat(False, frame))
            self._of[stream].discard(room)
            self._drop(stream, room)

    def _wait(self, room: LiveRoom) -> None:
        """For signals that are late. If none comes, the room is read."""
        if room.waiting_since is None:
            room.waiting_since = room.seq
            asyncio.get_running_loop().call_later(LATE_SECONDS, self._stop_waiting, room)

    def _stop_waiting(self, room: LiveRoom) -> None:
        since, room.waiting_since = room.waiting_since, None
        if room.is_behind or (room.ahead and room.seq == since):
            self._mark(room)
        elif room.ahead:
            self._wait(room)

    # --- reading the store --------------------------------------------------------------------------------------------

    def _mark(self, room: LiveRoom) -> None:
        self._marked[room] = None
        self.wake()

    async def tick(self) -> int:
        members = list(islice(self._to_check, MEMBERS))
        rooms = list(islice(self._marked, ROOMS))
        for member_id in members:
            del self._to_check[member_id]
        for room in rooms:
            del self._marked[room]
        try:
            if members:
                await self._check_members(members)
            if rooms:
                await self._read_rooms([room for room in rooms if room.readers])
        except StoreError:
            self._to_check.update(dict.fromkeys(members))
            for room in rooms:
                if room.readers:
                    # What was known of it may have been cleared by the read that failed.
                    room.is_suspect = True
                    self._marked[room] = None
            raise
        return len(members) + len(rooms)

    async def _check_members(self, member_ids: Sequence[str]) -> None:
        async with self._store.read() as tx:
            found = await statements.find_rooms_of(tx, member_ids)
        for member_id, states in found.items():
            for stream in self._open_streams.of(member_id):
                if stream in self._of:
                    self._compare(stream, states)

    async def _read_rooms(self, rooms: Sequence[LiveRoom]) -> None:
        await asyncio.gather(*(self._subscribed(room) for room in rooms if not room.is_subscribed))
        async with self._store.read() as tx:
            states = {state.room_id: state for state in await statements.find_states(tx, [room.room_id for room in rooms])}
            for room in rooms:
                # A room that was deleted had no members any more.
                await self._read_room(
                    tx, room, states.get(room.room_id) or RoomState(room.room_id, room.seq, room.changes + 1)
                )

    async def _subscribed(self, room: LiveRoom) -> None:
        # If Redis is away, the streams are closed; if it is back, the listener is called.
        room.is_subscribed = await self._signals.wait_subscribed(room_topic(room.room_id))

    async def _read_room(self, tx: Transaction, room: LiveRoom, state: RoomState) -> None:
        """Send what is missing up to the state that was read before: a later change is announced later."""
        if room.is_suspect or room.is_behind or state.changes > room.changes:
            room.is_suspect = room.is_behind = False
            asked = {stream.member_id for stream in room.readers}
            self._remove_members(room, asked - await statements.find_members_among(tx, room.room_id, asked))
        room.is_reading = state.changes > room.changes
        try:
            if room.is_reading:
                await self._send_changed(tx, room)
            await self._send_new(tx, room, state)
        finally:
            room.is_reading = False
            room.send_ahead()

    async def _send_changed(self, tx: Transaction, room: LiveRoom) -> None:
        key = messages.FIRST_CHANGE
        while True:
            found, key = await messages.find_changed(tx, room.room_id, room.seq, PAGE, key)
            for number, message in enumerate(found, 1):
                room.send_change(orjson.dumps(changed_frame(message)))
                await _give_way(room, number)
            if len(found) < PAGE:
                return

    async def _send_new(self, tx: Transaction, room: LiveRoom, state: RoomState) -> None:
        found = await messages.find_after(tx, room.room_id, room.seq, PAGE) if state.last_seq > room.seq else []
        for number, message in enumerate(found, 1):
            # Signals may have brought it meanwhile.
            if room.seq < message.seq <= state.last_seq:
                room.send_message(message.seq, orjson.dumps(message_frame(message)))
            await _give_way(room, number)
        if len(found) == PAGE and room.seq < state.last_seq:
            self._mark(room)
        else:
            # Not before: signals about messages of the next page may have texts from before a change.
            room.changes = max(room.changes, state.changes)

    # --- resuming -----------------------------------------------------------------------------------------------------

    async def resume(self, stream: Stream, state: RoomState, after: int) -> int:
        """Send the reader what came and changed after a seq, then go on with what is new; return the last seq sent.

        The state is one that the store had after the member's right to read was checked.
        """
        if stream not in self._of:
            # It could not be served, or has ended.
            return after
        if not self.is_reader(stream, state.room_id):
            self._enter(stream, state)
        room = self._rooms[state.room_id]
        # Another resume of this reader ends when it sees that this list is not its own.
        later: list[bytes] = []
        room.paused[stream] = later
        room.sent.pop(stream, None)
        try:
            return await self._resume(stream, room, min(after, state.last_seq), later)
        finally:
            if room.paused.get(stream) is later:
                del room.paused[stream]

    async def _resume(self, stream: Stream, room: LiveRoom, after: int, later: list[bytes]) -> int:
        await self._resume_changes(stream, room, after, later)
        while room.paused.get(stream) is later and not stream.connection.is_ended:
            sent_before = room.seq
            async with self._reading(stream, room) as tx:
                found = await messages.find_after(tx, room.room_id, after, PAGE)
            frames = (orjson.dumps(message_frame(message)) for message in found)
            await send_missed(stream, room, frames, is_message=True)
            # What others were sent before the read, and is not there, was removed by retention.
            after = found[-1].seq if found else max(after, sent_before)
            # Nothing else runs between this and the end of the pause.
            if room.paused.get(stream) is later and after >= room.seq and len(found) < PAGE:
                write(stream, b"".join(later))
                if after > room.seq:
                    room.sent[stream] = after
                break
        return after

    async def _resume_changes(self, stream: Stream, room: LiveRoom, after: int, later: list[bytes]) -> None:
        key = messages.FIRST_CHANGE
        while room.paused.get(stream) is later and not stream.connection.is_ended:
            async with self._reading(stream, room) as tx:
                changed, key = await messages.find_changed(tx, room.room_id, after, PAGE, key)
            await send_missed(stream, room, (orjson.dumps(changed_frame(message)) for message in changed))
            if len(changed) < PAGE:
                return

    @contextlib.asynccontextmanager
    async def _reading(self, stream: Stream, room: LiveRoom) -> AsyncIterator[Transaction]:
        """Read what is sent to one member. Raises NotInRoom if they were removed before the end of it: the signal about
        that may be late, and what was read may have been stored after it."""
        async with self._store.read() as tx:
            yield tx
            if not await statements.find_members_among(tx, room.room_id, [stream.member_id]):
                self._remove_members(room, {stream.member_id})
                raise NotInRoom("You are not in this room")


async def _give_way(room: LiveRoom, number: int) -> None:
    """Let other tasks run after every PIECE writes, when so many frames were written to all readers."""
    if number * len(room.readers) % PIECE < len(room.readers):
        await asyncio.sleep(0)
