"""What members send over the WebSocket about chat: `send`, `read`, `typing` and `resume`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from uuid import UUID

from pydantic import Field, TypeAdapter, ValidationError

from bongsu.chat.fanout import Fanout
from bongsu.chat.live_rooms import LiveRooms
from bongsu.chat.order import ChatOrder
from bongsu.chat.rooms import ROOMS_PER_MEMBER, Rooms, as_room_id
from bongsu.errors import (
    BadChatMessage,
    BongsuError,
    NotInRoom,
    RateLimited,
    StoreError,
    TooBusy,
)
from bongsu.live.member_state import Stream
from bongsu.live.wire_ws import frame
from bongsu.model import Id, Name, Wire
from bongsu.runtime import telemetry
from bongsu.runtime.rate_limit import RateLimit
from bongsu.store.core.query import LARGEST_ID

# Messages of one socket that are being stored. The next frame is read when there are fewer: TCP slows the client down.
PENDING_LIMIT = 64
# Frames other than `send` that a member may send to this process: so many a second in the long run, and so many at once,
# because a client that comes back resumes all its rooms. More wait, and TCP slows the client down: a socket that sends only
# `typing` would take most of the time of the process.
FRAMES_PER_SECOND = 50.0
FRAMES_AT_ONCE = 2 * ROOMS_PER_MEMBER
TURN_SECONDS = 0.1
# `typing` of a member in a room is passed on once within this time; clients show it for several seconds.
TYPING_SECONDS = 1.0

_log = telemetry.log("bongsu.chat")


class Refused(Exception):
    """A frame that is answered with an error, by code and detail, and what it was about."""

    def __init__(self, code: str, detail: str, about: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.about = dict(about or {})


class _Send(Wire):
    op: str
    room_id: Id
    client_message_id: Name = Field(max_length=255)
    message: str


class _Read(Wire):
    op: str
    room_id: Id
    seq: int = Field(ge=0, le=LARGEST_ID, strict=True)


class _Typing(Wire):
    op: str
    room_id: Id


class _Resume(Wire):
    op: str
    room_id: Id
    after_seq: int = Field(ge=0, le=LARGEST_ID, strict=True)


_M = TypeVar("_M", bound=Wire)
_SEND, _READ = TypeAdapter(_Send), TypeAdapter(_Read)
_TYPING, _RESUME = TypeAdapter(_Typing), TypeAdapter(_Resume)


def _parse(adapter: TypeAdapter[_M], given: Mapping[str, Any]) -> _M:
    try:
        return adapter.validate_python(given)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, problem["loc"]))
        raise Refused("BAD_FRAME", f"{location}: {problem['msg']}"[:300], _about(given)) from None


def _about(given: Mapping[str, Any]) -> dict[str, str]:
    """By which the client knows which of its frames an answer is about."""
    about = {name: given.get(name) for name in ("roomId", "clientMessageId")}
    return {name: value for name, value in about.items() if isinstance(value, str) and len(value) < 300}


def refusal_of(error: BongsuError, about: Mapping[str, Any]) -> Refused:
    match error:
        case NotInRoom():
            return Refused("FORBIDDEN", str(error), about)
        case RateLimited():
            return Refused("RATE_LIMITED", str(error), {**about, "retryAfter": error.retry_after})
        case BadChatMessage():
            return Refused("BAD_MESSAGE", str(error), about)
        case StoreError() | TooBusy():
            return Refused("UNAVAILABLE", "It could not be stored or read now: send it again in a moment", about)
    return Refused("REFUSED", str(error), about)


class ChatOps:
    """One for a process: what its sockets do."""

    def __init__(self, order: ChatOrder, rooms: Rooms, live_rooms: LiveRooms, fanout: Fanout) -> None:
        self.order = order
        self.rooms = rooms
        self.live_rooms = live_rooms
        self.fanout = fanout
        self._frames = RateLimit(FRAMES_PER_SECOND, FRAMES_AT_ONCE)

    async def take_turn(self, stream: Stream) -> None:
        """Wait while the member's sockets send more frames than is allowed."""
        while stream.connection.backlog() >= 0:
            try:
                self._frames.count(stream.member_id)
                return
            except RateLimited:
                await asyncio.sleep(TURN_SECONDS)


class ChatSocket:
    """The chat of one socket."""

    def __init__(self, ops: ChatOps, stream: Stream, refuse: Callable[[Refused], None]) -> None:
        """`refuse` answers a `send` that was refused after the next frame was read."""
        self._ops = ops
        self._stream = stream
        self._refuse = refuse
        self._slots = asyncio.Semaphore(PENDING_LIMIT)
        self._sending: set[asyncio.Task[None]] = set()
        self._typed: dict[UUID, float] = {}

    async def do(self, given: Mapping[str, Any]) -> None:
        """Raises Refused."""
        about = _about(given)
        if given["op"] != "send":
            await self._ops.take_turn(self._stream)
        try:
            match given["op"]:
                case "send":
                    await self._send(_parse(_SEND, given))
                case "read":
                    await self._read(_parse(_READ, given))
                case "typing":
                    await self._typing(_parse(_TYPING, given))
                case "resume":
                    await self._resume(_parse(_RESUME, given))
        except BongsuError as error:
            raise refusal_of(error, about) from error

    async def _send(self, given: _Send) -> None:
        """Does not wait until it is stored: the next frame may be sent with the same commit, behind it."""
        await self._slots.acquire()
        task = asyncio.create_task(self._store(given))
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._slots.release()

    async def _store(self, given: _Send) -> None:
        about = {"roomId": given.room_id, "clientMessageId": given.client_message_id}
        try:
            sent = await self._ops.order.send(
                as_room_id(given.room_id), self._stream.member_id, given.client_message_id, given.message
            )
        except BongsuError as error:
            self._refuse(refusal_of(error, about))
        except Exception:
            _log.exception("chat message not stored")
            self._refuse(Refused("UNAVAILABLE", "It could not be stored: send it again in a moment", about))
        else:
            self._stream.connection.write(frame("ack", **about, seq=sent.seq, sentAt=sent.sent_at))

    async def _read(self, given: _Read) -> None:
        """The mark comes back as `read`, to this socket too, if it has moved."""
        await self._ops.rooms.mark_read(self._stream.member_id, as_room_id(given.room_id), given.seq)

    async def _typing(self, given: _Typing) -> None:
        room_id = as_room_id(given.room_id)
        if not self._ops.live_rooms.is_reader(self._stream, room_id):
            await self._ops.rooms.state(self._stream.member_id, room_id)
        now = time.monotonic()
        if now - self._typed.get(room_id, -TYPING_SECONDS) >= TYPING_SECONDS:
            self._typed[room_id] = now
            self._ops.fanout.typing(room_id, self._stream.member_id)

    async def _resume(self, given: _Resume) -> None:
        state = await self._ops.rooms.state(self._stream.member_id, as_room_id(given.room_id))
        seq = await self._ops.live_rooms.resume(self._stream, state, given.after_seq)
        self._stream.connection.write(frame("resumed", roomId=str(state.room_id), seq=seq))
