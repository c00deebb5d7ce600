"""campaign: critical and ordinary sends while a campaign goes to everybody, and how soon a campaign stops."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import operator
import statistics
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

import orjson
import psutil
from rich.progress import Progress
from tests.support.servers import start_redis

from bench.campaign_app import CAMPAIGN
from bench.client import Client, encode
from bench.crowd import Crowd
from bench.ground import KEYS, Ground
from bench.measure import Comparison, Contest, Measure, nothing
from bench.sends import EVENTS_A_SECOND, LOOK_SECONDS, Kind, Latencies, Sends, p99, post_event
from bench.serving import Server, serving
from bench.tally import CAMPAIGN_TITLE, Sent, Tally, tallying
from bongsu.deliver.channels.push.sender import SENDS_PER_MINUTE
from bongsu.settings import Settings
from bongsu.store.core.query import same

TITLE = "campaigns"
# Of the time from the request until FCM has accepted the push, for 99 of 100 events: in seconds, and for critical ones in
# times that of the idle service.
BUDGET_SECONDS = {Kind.CRITICAL: 1.0, Kind.ORDINARY: 2.0}
CRITICAL_BUDGET = 10.0
# Of the campaign's speed while it has the service to itself.
SPEED_BUDGET = 0.95
# Of the answer to the cancel, and of the last send after it.
CANCEL_SECONDS = 2.0

FCM_MILLIS = 40
PATIENCE_SECONDS = 300.0
# A cancelled campaign of which nothing was sent for so long has stopped.
STOPPED_SECONDS = 4.0


@dataclass(frozen=True)
class Scale:
    members: int
    rounds: int
    # How long events are sent to the idle service.
    idle_seconds: float
    # The campaigns that are cancelled: to so many members, each after so many seconds.
    cancelled_members: int
    cancelled_after: tuple[float, ...]


FULL = Scale(300_000, 3, 15.0, 1_000_000, (5.0, 15.0))
QUICK = Scale(100_000, 2, 8.0, 300_000, (3.0, 6.0))

_IS_ANY_LEFT = same("""
    SELECT EXISTS (SELECT 1 FROM bongsu_deliveries WHERE status IN ('READY', 'SENDING'))
        OR EXISTS (SELECT 1 FROM bongsu_events WHERE status = 'PENDING')
        OR EXISTS (SELECT 1 FROM bongsu_cancellations WHERE finished_at IS NULL) AS is_any""")

# What the contests have found besides their ratios, for the notes.
_trials: list[Trial] = []


async def contests(ground: Ground) -> AsyncGenerator[Contest, None]:
    _trials.clear()
    scale = QUICK if ground.is_quick else FULL
    redis = start_redis()
    try:
        for name, settings in (
            ("SQLite", await ground.sqlite()),
            ("PostgreSQL and Redis", (await ground.postgres()).model_copy(update={"redis_url": redis.url})),
        ):
            async with _trial(name, settings, scale) as trial:
                _trials.append(trial)
                yield _speed(trial)
                yield _latency(trial, "until FCM has accepted it", lambda one: one.accepted, CRITICAL_BUDGET)
                # Without FCM's own time, which is most of the time on the idle service.
                yield _latency(trial, "until FCM has it", lambda one: one.sent)
                await trial.cancel_some()
    finally:
        redis.stop()


async def notes(ground: Ground) -> dict[str, str]:
    found = {
        "From the request to FCM": _latency_table(_trials),
        "Cancel": _cancel_table(_trials),
        "Whose processor time": _load_table(_trials),
    }
    if ground.is_quick:
        found["Quick"] = (
            f"A first impression: {QUICK.rounds} rounds instead of {FULL.rounds}, campaigns to {QUICK.members:,} members "
            f"instead of {FULL.members:,}, cancelled ones to {QUICK.cancelled_members:,} instead of "
            f"{FULL.cancelled_members:,}."
        )
    return found


# --- one store --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cancelled:
    """A campaign that was cancelled after some seconds: how long the answer took, and how long after it the last push was
    accepted; below zero, before it."""

    after: float
    answered: float
    last: float
    sent: int


@dataclass
class Trial:
    """A service with all roles in one process on one store, with many members, and what was measured of it."""

    name: str
    scale: Scale
    crowd: Crowd
    tally: Tally
    server: Server
    sends: Sends
    idle: list[dict[Kind, Latencies]] = field(default_factory=list)
    beside: list[dict[Kind, Latencies]] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    cancelled: list[Cancelled] = field(default_factory=list)
    _number: int = 0

    async def prepare(self) -> None:
        """What events need while there is no campaign. The first few of a process find nothing warm, and do not count."""
        if not self.idle:
            await self.sends.run(2.0)
            await self._cancel_after(2.0)
        self.idle.append(await self.sends.run(self.scale.idle_seconds))
        await self._settle()

    async def send_alone(self) -> float:
        """A campaign with nothing else; the seconds until FCM has accepted the last of it."""
        async with self._watched():
            seconds = await self._campaign()
        await self._settle()
        return seconds

    async def send_beside(self) -> float:
        """The same while other events come in."""
        async with self.sends.running() as found:
            seconds = await self._campaign()
        self.beside.append(found)
        await self._settle()
        return seconds

    async def cancel_some(self) -> None:
        await self.crowd.grow(self.scale.cancelled_members)
        for seconds in self.scale.cancelled_after:
            self.cancelled.append(await self._cancel_after(seconds))

    async def _campaign(self) -> float:
        title, _, began = await self._begin()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (accepted := await self.tally.campaign(title)).count < self.crowd.count:
                await asyncio.sleep(LOOK_SECONDS)
        assert accepted.count == self.crowd.count, f"{accepted.count:,} sends to {self.crowd.count:,} members"
        return accepted.last - began

    async def _begin(self) -> tuple[str, str, float]:
        """Its title, its event and when the request began."""
        self._number += 1
        title, event_id = f"{CAMPAIGN_TITLE} {self._number}", str(uuid4())
        client = await Client.connect(self.server.port)
        began = time.monotonic()
        await client.send(post_event(CAMPAIGN, eventId=event_id, refId=title))
        client.close()
        return title, event_id, began

    async def _cancel_after(self, seconds: float) -> Cancelled:
        title, event_id, began = await self._begin()
        await asyncio.sleep(seconds)
        client = await Client.connect(self.server.port)
        body = orjson.dumps({"withdraw": False})
        asked = time.monotonic()
        path = f"/api/admin/events/{event_id}/cancel"
        async with asyncio.timeout(PATIENCE_SECONDS):
            await client.send(encode(path, body, "application/json", KEYS["api_keys"]), b"HTTP/1.1 200 ")
        answered = time.monotonic()
        client.close()
        accepted = await self._stopped(title, answered)
        await self._settle()
        assert accepted.count < self.crowd.count, "nothing was left to cancel"
        return Cancelled(asked - began, answered - asked, accepted.last - answered, accepted.count)

    async def _stopped(self, title: str, answered: float) -> Sent:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                accepted = await self.tally.campaign(title)
                if time.monotonic() - max(answered, accepted.last) > STOPPED_SECONDS:
                    return accepted
                await asyncio.sleep(LOOK_SECONDS)

    async def _settle(self) -> None:
        """Until everything is recorded, so that nothing of this is left to what comes next."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                async with self.crowd.store.read() as tx:
                    (row,) = await tx.fetch(_IS_ANY_LEFT())
                if not row["is_any"]:
                    return
                await asyncio.sleep(LOOK_SECONDS)

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        before, began = Load.of(self), time.monotonic()
        yield
        self.loads.append(Load.of(self).since(before, time.monotonic() - began))


@contextlib.asynccontextmanager
async def _trial(name: str, settings: Settings, scale: Scale) -> AsyncIterator[Trial]:
    with tallying(FCM_MILLIS) as tally:
        # The daily limit is not what is measured.
        changes = {"fcm_url": tally.address, "fcm_project": "bench", "daily_limit": 1_000_000}
        crowd = await Crowd.gathered(settings.model_copy(update=changes), scale.members)
        try:
            async with serving(crowd.settings, role="all", app="bench.campaign_app:app") as server:
                yield Trial(name, scale, crowd, tally, server, Sends(server.port, tally, scale.members))
        finally:
            await crowd.leave()


# --- contests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FewRounds(Contest):
    """A turn takes half a minute: so many rounds, and none to warm up."""

    rounds: int = 1

    async def hold(self, progress: Progress, rounds: int) -> Comparison:
        del rounds
        task = progress.add_task(self.name, total=self.rounds)
        seconds = []
        for number in range(self.rounds):
            seconds.append(await self._round(number))
            progress.advance(task)
        return Comparison(self.name, self.against, self.unit, self.measure, self.budget, tuple(seconds))


@dataclass(frozen=True)
class _Measured(Contest):
    """What the rounds of an earlier contest have measured on the way."""

    pairs: Callable[[], Sequence[tuple[float, float]]] = tuple

    async def hold(self, progress: Progress, rounds: int) -> Comparison:
        del progress, rounds
        return Comparison(self.name, self.against, self.unit, self.measure, self.budget, tuple(self.pairs()))


def _speed(trial: Trial) -> Contest:
    return _FewRounds(
        f"{trial.name}, a campaign to {trial.scale.members:,}, {EVENTS_A_SECOND} other events a second",
        "the campaign alone",
        "member",
        Measure.SPEED,
        trial.send_alone,
        trial.send_beside,
        trial.prepare,
        units_a_turn=trial.scale.members,
        budget=SPEED_BUDGET,
        rounds=trial.scale.rounds,
    )


def _latency(
    trial: Trial, until: str, times: Callable[[Latencies], Sequence[float]], budget: float | None = None
) -> Contest:
    def pairs() -> list[tuple[float, float]]:
        rounds = zip(trial.idle, trial.beside, strict=True)
        return [(p99(times(idle[Kind.CRITICAL])), p99(times(beside[Kind.CRITICAL]))) for idle, beside in rounds]

    return _Measured(
        f"{trial.name}, critical event during the campaign {until}, 99 of 100",
        "the same on the idle service",
        "event",
        Measure.TIME,
        nothing,
        nothing,
        budget=budget,
        pairs=pairs,
    )


# --- notes ------------------------------------------------------------------------------------------------------------


class Load(NamedTuple):
    """Processor seconds; or, by the second, how many cores were busy."""

    service: float
    database: float
    simulator: float
    others: float

    @classmethod
    def of(cls, trial: Trial) -> Load:
        """So far."""
        family = psutil.Process().children(recursive=True)
        service, simulator = (_seconds(psutil.Process(pid)) for pid in (trial.server.pid, trial.tally.pid))
        database = sum(_seconds(one) for one in family if one.name().startswith(("postgres", "redis")))
        machine = psutil.cpu_times()
        busy = machine.user + machine.nice + machine.system
        return cls(service, database, simulator, busy - service - database - simulator - _seconds(psutil.Process()))

    def since(self, before: Load, seconds: float) -> Load:
        return Load(*((one - other) / seconds for one, other in zip(self, before, strict=True)))


def _seconds(process: psutil.Process) -> float:
    """With those it has started and that have ended: PostgreSQL has a process for each connection."""
    return float(sum(process.cpu_times()[:4]))


def _latency_table(trials: Sequence[Trial]) -> str:
    lines = [
        "Seconds from the first byte of an event's request, of all rounds together: until FCM, which takes about "
        f"{FCM_MILLIS} ms, has accepted the push; and of these until the request was answered, and until FCM had the push.",
        "",
        "| | idle, median | 99 of 100 | during, median | 99 of 100 | budget | | answered, 99 of 100 | at FCM, 99 of 100 |",
        "|---|--:|--:|--:|--:|--:|---|--:|--:|",
    ]
    for trial in trials:
        for kind in Kind:
            idle = functools.reduce(operator.add, (one[kind] for one in trial.idle))
            beside = functools.reduce(operator.add, (one[kind] for one in trial.beside))
            seconds = (statistics.median(idle.accepted), p99(idle.accepted), statistics.median(beside.accepted))
            cells = (
                f"{trial.name}, {kind.name.lower()}",
                *(f"{one:.3f}" for one in (*seconds, p99(beside.accepted))),
                f"≤ {BUDGET_SECONDS[kind]:.0f}",
                _verdict(p99(beside.accepted) <= BUDGET_SECONDS[kind]),
                *(f"{p99(one):.3f}" for one in (beside.answered, beside.sent)),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cancel_table(trials: Sequence[Trial]) -> str:
    members = trials[0].scale.cancelled_members
    lines = [
        f"A campaign to {members:,} members is cancelled while it runs. The time of the last push is counted from the "
        "answer; below zero it came before.",
        "",
        f"| | cancelled after | pushes accepted | answered after | last push accepted | budget ≤ {CANCEL_SECONDS:.0f} s |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for trial in trials:
        for one in trial.cancelled:
            is_met = max(one.answered, one.last) <= CANCEL_SECONDS
            times = f"{one.after:.0f} s | {one.sent:,} | {one.answered:.2f} s | {one.last:.2f} s"
            lines.append(f"| {trial.name} | {times} | {_verdict(is_met)} |")
    return "\n".join(lines)


def _load_table(trials: Sequence[Trial]) -> str:
    lines = [
        "Cores that were busy during a campaign alone. The simulator is one thread: near 1 it would be what limits. The "
        f"service keeps to FCM's quota of {SENDS_PER_MINUTE / 60:,.0f} sends a second.",
        "",
        "| | service | PostgreSQL and Redis | simulator | other programs on the machine |",
        "|---|--:|--:|--:|--:|",
    ]
    for trial in trials:
        busy = (statistics.mean(cores) for cores in zip(*trial.loads, strict=True))
        lines.append(f"| {trial.name} | {' | '.join(f'{max(0.0, one):.2f}' for one in busy)} |")
    return "\n".join(lines)


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"
