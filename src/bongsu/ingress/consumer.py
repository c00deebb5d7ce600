"""Consumer: takes in the messages of one Source: receive, decode, accept, acknowledge.

A message is acknowledged after the store has committed it, so a crash anywhere makes the source deliver it again, and its
event id decides that it is stored once. A message that cannot be decoded, or that the store refuses when it is alone, is
rejected with the reason; the others of its batch stand. While the store is away the messages are handed back, and nothing is
rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from bongsu.errors import BongsuError, SourceError, StoreError, TooBusy
from bongsu.ingress.decode import Decode, Mistake, Rejected, decode_apart
from bongsu.ingress.intake import BATCH_LIMIT
from bongsu.ingress.ndjson import LINE_LIMIT, SLICE_LINES
from bongsu.model import utc_now
from bongsu.model.payload import storable_text
from bongsu.runtime import telemetry
from bongsu.runtime.backoff import doubling
from bongsu.runtime.loop import FIRST_BACKOFF, LAST_BACKOFF, Loop

_T = TypeVar("_T")

# These are about the store and not about a message: they never reject one.
_STORE_AWAY = (StoreError, TooBusy)
# A reason is shown on one line of a list, and kept beside the message.
REASON_LIMIT = 500


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """A message as its source has delivered it."""

    # Rejected if the source knows already that it cannot be decoded.
    body: bytes | Rejected
    # The source's own: what it needs to acknowledge or reject the message.
    handle: Any = None
    # Whether the source knows that it has delivered the message before.
    is_redelivered: bool = False
    # When it was written, for the lag; None if the source does not know.
    written_at: datetime | None = None


class Source(Protocol):
    """Where messages come from: a queue of a broker, or the outbox table of another database.

    The Consumer settles each batch before it receives the next one: it rejects what it has to and then acknowledges the
    others, perhaps none; or it releases the whole batch. Every method connects if that is needed. Raises SourceError when
    the source cannot be used; what was not settled then is delivered again later.
    """

    @property
    def name(self) -> str:
        """In logs, in `bongsu doctor` and as the label of metrics: `outbox orders`, `notification_queue`."""

    async def receive(self, limit: int) -> Sequence[Received]:
        """The next messages, oldest first: wait until there are some, or return none after a second or so. Bounded by
        `limit` and by bytes of the source's own. May be cancelled while it waits; nothing is lost by that."""

    async def reject(self, message: Received, reason: str) -> None:
        """Set the message aside with the reason, where an operator finds it among the dead letters."""

    async def acknowledge(self, messages: Sequence[Received]) -> None:
        """These are stored: remove them. Ends the batch; messages rejected before are set aside for good now."""

    async def release(self, messages: Sequence[Received]) -> None:
        """Hand the batch back as it was: the store is away. Whether the source keeps the messages or they are delivered
        again is up to it, but that must not count as a failed delivery."""

    async def close(self) -> None:
        """Disconnect; what is not settled is delivered again. May be called twice, and `receive` connects again."""

    async def check(self) -> str:
        """For `bongsu doctor`: what was found. Raises SourceError, which names the cure."""


# Stores items and returns for each whether it was new, as Intake.accept_in_turn does, or why it is refused; the others
# stand. An exception that is not about the store (StoreError, TooBusy) is about an item: the Consumer finds out which.
Accept = Callable[[Sequence[_T]], Awaitable[Sequence[bool | Rejected]]]


class _Rejection(NamedTuple):
    message: Received
    reason: str


class _Verdict(NamedTuple):
    """What became of the messages of a batch."""

    stored: list[Received]
    rejected: list[_Rejection]
    # How many of the stored ones were not stored before.
    new: int


class Consumer(Loop, Generic[_T]):
    """Start it, and it takes in what its source delivers until it is stopped; it closes the source then."""

    def __init__(self, source: Source, decode: Decode[_T], accept: Accept[_T], *, limit: int = BATCH_LIMIT) -> None:
        # The source waits by itself.
        super().__init__(f"consumer-{source.name}", poll_seconds=0)
        self._source = source
        self._decode = decode
        self._accept = accept
        self._limit = limit
        self._source_outage = Outage(self._log, "source", source.name)
        self._store_outage = Outage(self._log, "store", source.name)
        self._metrics = _Metrics(source.name)

    async def tick(self) -> int:
        """Take in one batch."""
        try:
            batch = await self._receive()
            self._metrics.received(batch)
            self._source_outage.end()
            if batch:
                await self._take_in(batch)
        except SourceError as error:
            self._metrics.errors.inc()
            self._metrics.up.set(0)
            await self._pause(self._stopping, self._source_outage.failed(error))
            return 1  # not idle: whether there are messages is not known
        return len(batch)

    async def stop(self) -> None:
        """Finish the batch under way, then close the source."""
        await super().stop()
        await self._source.close()

    async def _receive(self) -> Sequence[Received]:
        """What the source delivers; nothing if this is stopped meanwhile."""
        receiving = asyncio.ensure_future(self._source.receive(self._limit))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({receiving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return receiving.result() if receiving.done() else ()
        finally:
            for task in (receiving, stopping):
                task.cancel()
            await asyncio.wait({receiving, stopping})

    async def _take_in(self, batch: Sequence[Received]) -> None:
        try:
            decoded, rejected = await self._decode_all(batch)
            verdict = await self._accept_all(decoded)
        except _STORE_AWAY as error:
            await self._source.release(batch)
            await self._pause(self._stopping, self._store_outage.failed(error))
            return
        self._store_outage.end()
        await self._settle(_Verdict(verdict.stored, rejected + verdict.rejected, verdict.new))

    async def _settle(self, verdict: _Verdict) -> None:
        for message, reason in verdict.rejected:
            await self._source.reject(message, reason)
        await self._source.acknowledge(verdict.stored)
        self._metrics.settled(verdict)
        if verdict.rejected:
            self._log.warning(
                "messages rejected", source=self._source.name, count=len(verdict.rejected), first=verdict.rejected[0].reason
            )

    async def _decode_all(self, batch: Sequence[Received]) -> tuple[list[tuple[Received, _T]], list[_Rejection]]:
        decoded, rejected = [], []
        for number, message in enumerate(batch, 1):
            item = await decode_received(self._decode, message.body)
            if isinstance(item, Rejected):
                rejected.append(_Rejection(message, _one_line(item.reason)))
            else:
                decoded.append((message, item))
            if number % SLICE_LINES == 0:
                await asyncio.sleep(0)  # others have their turn
        return decoded, rejected

    async def _accept_all(self, decoded: Sequence[tuple[Received, _T]]) -> _Verdict:
        """Store them together. If one of them is at fault, store the halves apart, in order, until it is alone."""
        if not decoded:
            return _Verdict([], [], 0)
        try:
            answers = await self._accept([item for _, item in decoded])
        except _STORE_AWAY:
            raise
        except Exception as error:
            if len(decoded) == 1:
                if not isinstance(error, BongsuError):
                    self._log.error("message cannot be stored", source=self._source.name, exc_info=error)
                return _Verdict([], [_Rejection(decoded[0][0], _describe(error))], 0)
            middle = len(decoded) // 2
            first, second = await self._accept_all(decoded[:middle]), await self._accept_all(decoded[middle:])
            return _Verdict(first.stored + second.stored, first.rejected + second.rejected, first.new + second.new)
        stored, rejected = [], []
        for (message, _), answer in zip(decoded, answers, strict=True):
            if isinstance(answer, Rejected):
                rejected.append(_Rejection(message, _one_line(answer.reason)))
            else:
                stored.append(message)
        return _Verdict(stored, rejected, sum(answer is True for answer in answers))


class Outage:
    """One log line when something cannot be used (another if the kind of error changes), and one when it can again. An error
    that was reported where it happened, as of a connection that several sources share, is not reported again."""

    def __init__(self, log: telemetry.Log, what: str, source: str) -> None:
        self._log = log
        self._what = what
        self._source = source
        self._failures = 0
        self._kind: type[Exception] | None = None

    def failed(self, error: Exception) -> float:
        """How many seconds to wait before the next try."""
        self._failures += 1
        if type(error) is not self._kind and not getattr(error, "is_reported", False):
            self._kind = type(error)
            self._log.warning(f"{self._what} is away", source=self._source, error=str(error))
        return doubling(FIRST_BACKOFF, self._failures, LAST_BACKOFF)

    @property
    def is_on(self) -> bool:
        return self._failures > 0

    def end(self) -> None:
        if self._kind is not None:
            self._log.info(f"{self._what} is back", source=self._source, tries=self._failures)
        self._failures, self._kind = 0, None


class _Metrics:
    def __init__(self, source: str) -> None:
        self.up = telemetry.SOURCE_UP.labels(source)
        self.errors = telemetry.SOURCE_ERRORS.labels(source)
        self._lag = telemetry.SOURCE_LAG.labels(source)
        self._accepted = telemetry.SOURCE_ACCEPTED.labels(source)
        self._rejected = telemetry.SOURCE_REJECTED.labels(source)
        self._redelivered = telemetry.SOURCE_REDELIVERED.labels(source)

    def received(self, batch: Sequence[Received]) -> None:
        self.up.set(1)
        oldest = batch[0].written_at if batch else None
        self._lag.set(max(0.0, (utc_now() - oldest).total_seconds()) if oldest is not None else 0)

    def settled(self, verdict: _Verdict) -> None:
        self._accepted.inc(verdict.new)
        self._rejected.inc(len(verdict.rejected))
        marked = sum(message.is_redelivered for message in verdict.stored)
        self._redelivered.inc(max(marked, len(verdict.stored) - verdict.new))


async def decode_received(decode: Decode[_T], body: bytes | Rejected) -> _T | Rejected:
    """As the Consumer does it: also for the list of dead letters, which finds the reason again."""
    if isinstance(body, Rejected):
        return body
    if len(body) > LINE_LIMIT:
        return Rejected([Mistake((), f"is longer than {LINE_LIMIT} bytes")])
    return await decode_apart(decode, body)


def _describe(error: Exception) -> str:
    text = str(error) if isinstance(error, BongsuError) else f"{type(error).__name__}: {error}"
    return _one_line(text)


def _one_line(text: str) -> str:
    return storable_text(" ".join(text.split()), REASON_LIMIT)
