"""The dead letters of RabbitMQ: the messages in the dead-letter queues of the four work queues."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bongsu.chat.intake import decode_chat_message
from bongsu.chat.order import check_text
from bongsu.clock.run import Run
from bongsu.desk.dead_filter import DeadFilter, System
from bongsu.desk.dead_letters import LetterPage, MessageCursor, RejectedMessage
from bongsu.errors import BadChatMessage, BadCursor, NoSuchDeadLetter
from bongsu.ingress.consumer import decode_received
from bongsu.ingress.decode import Rejected
from bongsu.ingress.rabbitmq.dead_letters import DeadLetterReader, DeadMessage, read_dead_letters
from bongsu.ingress.rabbitmq.envelope import decode_message, peek
from bongsu.ingress.rabbitmq.topology import AGGREGATES, CHAT_FANOUT, CHAT_PERSIST, NOTIFICATIONS, QUEUES, WorkQueue
from bongsu.settings import Settings

# Messages that one page looks at: about half a second.
SEARCHED = 1_000
# Messages that are returned to their queue together, and counted in the run.
BATCH = 100
# Of a message that is shown.
BODY_LIMIT = 10_000

_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    NOTIFICATIONS.name: decode_message,
    AGGREGATES.name: decode_message,
    CHAT_PERSIST.name: decode_chat_message,
    CHAT_FANOUT.name: decode_chat_message,
}
# Why the broker dead-letters a message that no consumer has rejected.
_OF_THE_BROKER: Mapping[str, str] = {
    "delivery_limit": "delivery limit: it was delivered too often without an answer, as when it ends the process",
    "expired": "expired: it waited in the queue for longer than its publisher, or a policy, allows",
}


class RabbitDeadLetters:
    """A DeadLetterSource. One queue after the other, and each from the oldest message: a queue is read from its head."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.rabbitmq_url
        self._chat_max_bytes = settings.chat_max_bytes

    async def list(self, asked: DeadFilter, after: MessageCursor | None, limit: int) -> LetterPage:
        found: list[RejectedMessage] = []
        queue_index, skipped = _read_cursor(after)
        for number, queue in enumerate(_queues(asked)):
            if number < queue_index:
                continue
            async with read_dead_letters(self._url, queue) as reader:
                looked = 0
                while reader and (message := await reader.next()):
                    looked += 1
                    if looked <= skipped:
                        continue
                    if _matches(asked, letter := await self._letter(message)):
                        found.append(letter)
                    if len(found) == limit or looked - skipped == SEARCHED:
                        return LetterPage(found, MessageCursor(f"{number}:{looked}"))
            skipped = 0
        return LetterPage(found, None)

    async def show(self, dead_id: str) -> RejectedMessage:
        asked = DeadFilter.model_validate({"source": System.RABBITMQ, "id": str(dead_id)})
        for queue in _queues(asked):
            async with read_dead_letters(self._url, queue) as reader:
                while reader and (message := await reader.next()):
                    if _matches(asked, letter := await self._letter(message)):
                        return letter
        raise NoSuchDeadLetter(f"There is no message {dead_id} in a dead-letter queue of RabbitMQ")

    async def count(self, asked: DeadFilter) -> int:
        total = 0
        for queue in _queues(asked):
            async with read_dead_letters(self._url, queue) as reader:
                while reader and (message := await reader.next()):
                    total += _matches(asked, await self._letter(message))
        return total

    async def replay_step(self, asked: DeadFilter, run: Run) -> bool:
        """One dead-letter queue from head to end: what does not match is held until then, so that nothing is met twice. A
        process that takes the run over begins the queue again, and what was replayed is no longer there."""
        queues = _queues(asked)
        queue_index = run.cursor or 0
        if queue_index >= len(queues):
            return False
        async with read_dead_letters(self._url, queues[queue_index]) as reader:
            if reader is not None:
                await reader.prepare_replay()
                await self._replay_queue(reader, asked, run)
        await run.save(cursor=queue_index + 1)
        return True

    async def _replay_queue(self, reader: DeadLetterReader, asked: DeadFilter, run: Run) -> None:
        mark = f"run {run.run_id}"
        is_end = False
        while not is_end:
            batch: list[DeadMessage] = []
            while len(batch) < BATCH and not is_end:
                message = await reader.next()
                is_end = message is None
                # Marked: this run has replayed it, and it has failed again.
                if message and message.mark != mark and _matches(asked, await self._letter(message)):
                    batch.append(message)
            replayed = await reader.replay(batch, mark)
            await run.save(counts={"matched": len(batch), "replayed": replayed}, done=len(batch))

    async def _letter(self, message: DeadMessage) -> RejectedMessage:
        event_id, event_type = peek(message.body)
        return RejectedMessage(
            system=System.RABBITMQ,
            queue=message.queue.name,
            id=message.id,
            error=await self._error(message),
            type=event_type,
            event_id=event_id,
            written_at=message.written_at,
            rejected_at=message.rejected_at,
            body=message.delivered.body[:BODY_LIMIT].decode(errors="replace"),
        )

    async def _error(self, message: DeadMessage) -> str:
        """Of most the broker knows only that it was rejected: they are decoded again for the reason."""
        if (known := _OF_THE_BROKER.get(message.reason or "")) is not None:
            return known
        decoded = await decode_received(_DECODERS[message.queue.name], message.body)
        if isinstance(decoded, Rejected):
            return decoded.reason
        if message.queue is not CHAT_PERSIST:
            return f"{message.reason or 'of unknown reason'}: the worker's log has the reason (messages rejected)"
        try:
            check_text(decoded.message, self._chat_max_bytes)
        except BadChatMessage as error:
            return error.detail
        return f"{decoded.sender_id} was not in room {decoded.room_id}"


def _queues(asked: DeadFilter) -> Sequence[WorkQueue]:
    """Those that the filter is about. The id of a message begins with its dead-letter queue, unless it is an eventId."""
    of_id = str(asked.id).partition(":")[0] if asked.id is not None and ":" in str(asked.id) else None
    return [
        queue
        for queue in QUEUES
        if asked.queue in (None, queue.name, queue.dead_letters) and of_id in (None, queue.dead_letters)
    ]


def _matches(asked: DeadFilter, letter: RejectedMessage) -> bool:
    rejected_at = letter.rejected_at
    return (
        (asked.id is None or str(asked.id) in (letter.id, letter.event_id))
        and (asked.type is None or asked.type == letter.type)
        and (asked.event_id is None or str(asked.event_id) == (letter.event_id or "").lower())
        and (asked.since is None or (rejected_at is not None and rejected_at >= asked.since))
        and (asked.until is None or (rejected_at is not None and rejected_at < asked.until))
    )


def _read_cursor(after: MessageCursor | None) -> tuple[int, int]:
    """The number of the queue, and how many of its messages were seen. Raises BadCursor for one of another source."""
    if after is None:
        return 0, 0
    if (read := re.fullmatch(r"([0-9]):([0-9]{1,9})", after.position)) is None:
        raise BadCursor
    return int(read[1]), int(read[2])
