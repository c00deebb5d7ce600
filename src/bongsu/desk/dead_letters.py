"""Dead letters of every system: list them by filters, show one, replay those that match.

A replay is a run of the job `replay`. It goes in batches, newest first, and visits each dead letter once: one that fails
again meanwhile is not replayed a second time. The run says who requested it, with which filter, and how many were replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

from bongsu.clock.run import Run
from bongsu.clock.runs import Runs
from bongsu.desk.dead_filter import DeadFilter, System
from bongsu.errors import ReplayWithoutFilter, SourceNotConfigured
from bongsu.model import Member, new_id
from bongsu.model.job import Job
from bongsu.store import Store
from bongsu.store.desk.dead_letters import DeadRow, PageCursor
from bongsu.store.desk.delivery_history import Attempt
from bongsu.store.members.devices import DeviceRow
from bongsu.store.messages.content import MessageContent

# Millions of dead letters take minutes; a replay that takes a day is stuck.
REPLAY_AT_MOST = timedelta(days=1)

Progress = Callable[[int], None]


# --- what they are ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeadLetter:
    """Everything known about one dead letter of the store. An event has no content, attempts, member and device."""

    row: DeadRow
    content: MessageContent | None = None
    attempts: Sequence[Attempt] = ()
    # As they are known now.
    member: Member | None = None
    device: DeviceRow | None = None


@dataclass(frozen=True)
class RejectedMessage:
    """A message that a source of events has set aside, because it cannot be stored."""

    system: System
    # The queue that rejected it, or the name of the outbox.
    queue: str
    # What `show` and `replay --id` take.
    id: str
    error: str | None
    # As they are written in the message; None if they cannot be read.
    type: str | None
    # It may not be a UUID.
    event_id: str | None
    written_at: datetime | None
    rejected_at: datetime | None
    # As text, for `show`.
    body: str = ""


@dataclass(frozen=True)
class MessageCursor:
    """Where a page of messages ended; what it means is its source's own."""

    position: str


Letter = DeadRow | RejectedMessage
LetterDetails = DeadLetter | RejectedMessage
Cursor = PageCursor | MessageCursor


class LetterPage(NamedTuple):
    rows: Sequence[Letter]
    # None if no more follow.
    end: Cursor | None


class Replayed(NamedTuple):
    matched: int
    replayed: int


# --- where they are ---------------------------------------------------------------------------------------------------


class DeadLetterSource(Protocol):
    """A system that holds dead letters. Raises SourceError or StoreError if it cannot be reached."""

    async def list(self, asked: DeadFilter, after: Any, limit: int) -> LetterPage:
        """Newest first; nothing is removed by it. One bounded search: it may find fewer than `limit`, or none, and have a
        next page. `after` is the end of the page before, or None."""

    async def show(self, dead_id: Any) -> LetterDetails:
        """`dead_id` as DeadFilter.id has it. Raises NoSuchDeadLetter."""

    async def count(self, asked: DeadFilter) -> int:
        """How many a replay would match now."""

    async def replay_step(self, asked: DeadFilter, run: Run) -> bool:
        """Replay the next batch, and save cursor, counts (`matched`, `replayed`) and done with the run; return whether there
        is more. `run.cursor` is None at the beginning. A batch that is repeated after a crash replays what is still dead."""


class DeadLetters:
    """What an operator sees of all dead letters and does with them."""

    def __init__(self, store: Store, sources: Mapping[System, DeadLetterSource], lease_seconds: float = 60.0) -> None:
        """`lease_seconds`: after so long without a sign of this process, a clock goes on with its replays."""
        self._sources = sources
        self._runs = Runs(store, lease_seconds)
        self._job = replay_job(sources)

    async def list(self, asked: DeadFilter, after: Cursor | None, limit: int) -> LetterPage:
        return await find_source(self._sources, asked.system).list(asked, after, limit)

    async def show(self, dead_id: Any, system: System = System.STORE) -> LetterDetails:
        """Raises NoSuchDeadLetter."""
        return await find_source(self._sources, system).show(dead_id)

    async def count(self, asked: DeadFilter) -> int:
        """How many a replay would match now. Raises ReplayWithoutFilter."""
        return await find_source(self._sources, asked.system).count(_not_empty(asked))

    async def replay(
        self, asked: DeadFilter, requested_by: str, *, new_collapse_id: bool = False, progress: Progress | None = None
    ) -> Replayed:
        """Raises ReplayWithoutFilter. `progress` is called after each batch with how many matched so far."""
        find_source(self._sources, asked.system)
        ended = await self._runs.run_by_hand(
            self._job,
            requested_by,
            input=_describe_replay(_not_empty(asked), new_collapse_id=new_collapse_id),
            # Any number of replays may be under way at once.
            subject=str(new_id()),
            on_step=None if progress is None else lambda run: progress(run.done),
        )
        if ended.raised is not None:
            raise ended.raised
        return Replayed(ended.run.counts.get("matched", 0), ended.run.counts.get("replayed", 0))


def find_source(sources: Mapping[System, DeadLetterSource], system: System) -> DeadLetterSource:
    if (source := sources.get(system)) is None:
        raise SourceNotConfigured(f"There are no dead letters of {system.value} here")
    return source


def replay_job(sources: Mapping[System, DeadLetterSource]) -> Job:
    """For those who request replays, and for clocks, which go on with those of dead processes."""
    return Job(
        "replay",
        "Makes the dead letters that match a filter due again.",
        partial(_replay, sources),
        at_most_for=REPLAY_AT_MOST,
    )


async def _replay(sources: Mapping[System, DeadLetterSource], run: Run) -> str:
    asked = _not_empty(DeadFilter.model_validate(run.input["filter"]))
    source = find_source(sources, asked.system)
    while await source.replay_step(asked, run):
        pass
    return f"{run.counts['matched']} matched, {run.counts['replayed']} replayed"


def _not_empty(asked: DeadFilter) -> DeadFilter:
    if asked.is_empty:
        raise ReplayWithoutFilter
    return asked


def _describe_replay(asked: DeadFilter, *, new_collapse_id: bool) -> dict[str, Any]:
    """The input of the run."""
    names = {"event": "events", "delivery": "deliveries", "message": "messages"}
    kinds = ["message"] if asked.is_of_messages else asked.filters.kinds
    return {"filter": asked.as_json, "kinds": [names[kind] for kind in kinds], "newCollapseId": new_collapse_id}
