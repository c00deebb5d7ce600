"""dispatch: deliveries claimed, sent to the simulator and recorded, against the HTTP client alone and against other task
queues and clients. And flat: neither finished deliveries in the table nor a slow channel slow down the others."""

from __future__ import annotations

import contextlib
import cProfile
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import urlsplit

import asyncpg

from bench import cpu
from bench.ground import Ground
from bench.measure import Contest, Measure
from bench.outbound import Outbound, SlowMail, outbound
from bench.rivals import Rival
from bench.serving import busiest
from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.claimer import SHARE
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.model import Channel
from bongsu.model.channels import find_channel
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import RANKS, Success

TITLE = "dispatch to FCM"
BARE_BUDGET = 0.65
FIREBASE_BUDGET = 20.0
PROCRASTINATE_BUDGET = 20.0
CELERY_BUDGET = 5.0
FLAT_BUDGET = 1.20
SLOW_BUDGET = 1.10

# About a second of ours.
DELIVERIES = 10_000
PROFILED = 20_000
# What the dispatcher has claimed at once, and what it claims at a time.
SLOTS = find_channel(Channel.PUSH).concurrency
BATCH = SLOTS // SHARE
# What the slow channel can have under way.
MAILS = find_channel(Channel.EMAIL).concurrency
BATCHES = 40
FINISHED = 5_000_000
QUICK_FINISHED = 500_000
SLOW_SECONDS = 10.0
# More than the slow channel can take in a turn.
BACKLOG = 4_000

# Rows without which the extra "bench" is not complete, by the package they need.
RIVALS = {"procrastinate": "procrastinate", "celery": "Celery"}


async def contests(ground: Ground) -> AsyncGenerator[Contest, None]:
    async with outbound(ground, DELIVERIES) as ours:
        yield _against_bare(ours)
        for budget, rival in _rivals(ground, ours):
            async with rival as theirs:
                yield _against(ours, theirs, budget)
        yield _beside_slow_mail(ours)
    async with _queue(await ground.postgres()) as empty, _queue(await ground.postgres()) as full:
        finished = QUICK_FINISHED if ground.is_quick else FINISHED
        await full.add_finished(finished)
        yield _flat(empty, full, finished)


async def notes(ground: Ground) -> dict[str, str]:
    """Whose time it is, where ours goes, and what was left out."""
    found = {}
    async with outbound(ground, PROFILED) as ours:
        found["Whose processor time, per send"] = await _shares(ours)
        await ours.fill()
        profile = cProfile.Profile()
        profile.enable()
        await ours.carry()
        profile.disable()
        file = ours.crowd.settings.data_dir / "dispatch.prof"
        profile.dump_stats(file)
        found[f"Profile of {PROFILED:,} deliveries, our process"] = busiest(file)
    if missing := [name for package, name in RIVALS.items() if find_spec(package) is None]:
        found["Left out"] = f"Not installed: {', '.join(missing)}. `pip install -e '.[bench]'` adds them."
    if ground.is_quick:
        found["Quick"] = f"A first impression: {QUICK_FINISHED:,} finished deliveries instead of {FINISHED:,}."
    return found


# --- against others -----------------------------------------------------------------------------------------------------


def _against_bare(ours: Outbound) -> Contest:
    return Contest(
        f"claim, send, record, {SLOTS:,} at once", "the HTTP client alone in a loop", "delivery", Measure.SPEED,
        ours.post, ours.carry, ours.fill, units_a_turn=ours.count, budget=BARE_BUDGET,
    )  # fmt: skip


def _against(ours: Outbound, theirs: Rival, budget: float) -> Contest:
    async def prepare() -> None:
        await ours.fill()
        await theirs.fill()

    return Contest(
        f"claim, send, record, {SLOTS:,} at once", theirs.name, "delivery", Measure.SPEED, theirs.send, ours.carry,
        prepare, units_a_turn=ours.count, baseline_units_a_turn=theirs.count, budget=budget,
    )  # fmt: skip


def _rivals(ground: Ground, ours: Outbound) -> list[tuple[float, contextlib.AbstractAsyncContextManager[Rival]]]:
    """Those that are installed. Each module imports its package, so none is loaded before it is known to be there."""
    from bench.rivals.firebase import firebase

    address, settings = ours.simulator.address, ours.crowd.settings
    found: list[tuple[float, contextlib.AbstractAsyncContextManager[Rival]]] = []
    found.append((FIREBASE_BUDGET, firebase(address, ours.bodies)))
    if find_spec("procrastinate"):
        from bench.rivals.procrastinate_jobs import procrastinate

        found.append((PROCRASTINATE_BUDGET, procrastinate(settings.database_url, ours.url, ours.bodies)))
    if find_spec("celery"):
        from bench.rivals.celery_worker import celery

        found.append((CELERY_BUDGET, celery(settings.data_dir, ours.url, ours.bodies)))
    return found


# --- a slow channel -----------------------------------------------------------------------------------------------------


def _beside_slow_mail(ours: Outbound) -> Contest:
    async def alone() -> float:
        await ours.fill(BACKLOG)
        return await ours.carry()

    async def beside() -> float:
        await ours.fill(BACKLOG)
        mail = SlowMail(SLOW_SECONDS, MAILS)
        other = Dispatcher(ours.crowd.store, GuardedSender(mail), ours.crowd.settings)
        await other.start()
        try:
            await mail.is_full.wait()
            return await ours.carry()
        finally:
            mail.hang_up()
            await other.stop()

    return Contest(
        f"push while {MAILS} e-mails wait {SLOW_SECONDS:.0f} s each for an answer", "push alone", "delivery",
        Measure.TIME, alone, beside, units_a_turn=ours.count, budget=SLOW_BUDGET,
    )  # fmt: skip


# --- flat ---------------------------------------------------------------------------------------------------------------


@dataclass
class _Queue:
    """Deliveries of one database, claimed and recorded as the dispatcher does it, without sending."""

    store: Store
    # For rows by the million: a statement of the store's may not take as long as that.
    plain: asyncpg.Connection
    # Ids up to this one are of deliveries that were finished long ago, and stay.
    finished: int = 0

    async def add_finished(self, count: int) -> None:
        """Each with the attempt that ended it."""
        self.finished = count
        await self.plain.execute(
            f"""INSERT INTO bongsu_deliveries
                    (delivery_id, notification_id, member_id, message_id, channel, device_id, status, rank, due,
                     attempts, epoch, reference, created_at, finished_at)
                SELECT n, n, 'member-' || n, 1, 'PUSH', 'phone', 'SUCCESS', 1, at, 1, 1,
                       'projects/shop/messages/' || n, at, at
                FROM generate_series(1, {count}) AS n, (SELECT now() - interval '1 day' AS at) AS old"""
        )
        await self.plain.execute(
            f"""INSERT INTO bongsu_attempts (delivery_id, epoch, began_at, millis, code)
                SELECT n, 1, now() - interval '1 day', 40, 'SUCCESS' FROM generate_series(1, {count}) AS n"""
        )
        await self._vacuum()

    async def fill(self) -> None:
        for table in ("deliveries", "attempts"):
            await self.plain.execute(f"DELETE FROM bongsu_{table} WHERE delivery_id > {self.finished}")
        await self.plain.execute(
            f"""INSERT INTO bongsu_deliveries
                    (delivery_id, notification_id, member_id, message_id, channel, device_id, rank, due, created_at)
                SELECT {self.finished} + n, {self.finished} + n, 'member-' || n, 2, 'PUSH', 'phone', 1, now(), now()
                FROM generate_series(1, {BATCH * BATCHES}) AS n"""
        )
        await self._vacuum()

    async def _vacuum(self) -> None:
        await self.plain.execute("VACUUM ANALYZE bongsu_deliveries, bongsu_attempts")
        await self.plain.execute("CHECKPOINT")

    async def drain(self) -> None:
        """One batch."""
        claimed = await statements.claim(self.store, Channel.PUSH, RANKS, BATCH, 60, "bench")
        now = time.monotonic()
        successes = [Success(one.delivery_id, one.epoch, now, 40, "projects/shop/messages/1") for one in claimed]
        recorded = await statements.record(self.store, Channel.PUSH, successes)
        assert len(claimed) == len(recorded) == BATCH, "the sides did different work"


@contextlib.asynccontextmanager
async def _queue(settings: Settings) -> AsyncIterator[_Queue]:
    store = Store.open(settings)
    plain = await asyncpg.connect(settings.database_url)
    try:
        yield _Queue(store, plain)
    finally:
        await plain.close()
        await store.close()


def _flat(empty: _Queue, full: _Queue, finished: int) -> Contest:
    async def prepare() -> None:
        await empty.fill()
        await full.fill()

    return Contest(
        f"claim and record, {finished:,} finished deliveries in the table", "none in the table", "delivery",
        Measure.TIME, empty.drain, full.drain, prepare, turns=BATCHES, units_a_turn=BATCH, budget=FLAT_BUDGET,
    )  # fmt: skip


# --- notes --------------------------------------------------------------------------------------------------------------


async def _shares(ours: Outbound) -> str:
    port = urlsplit(ours.simulator.address).port
    assert port is not None
    lines = [cpu.HEAD]
    for name, work in (("the HTTP client alone", ours.post), ("claim, send, record", ours.carry)):
        await ours.fill()
        lines.append((await cpu.shared(work, port)).line(name, ours.count))
    return "\n".join(lines)
