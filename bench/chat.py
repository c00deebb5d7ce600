"""chat: messages a second, stored and sent to everybody in the room; messages to a crowded room; how soon one is seen."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote
from uuid import UUID

import orjson
import psutil
from tests.support.servers import start_redis

from bench import cores
from bench.bare_chat import bare_of, new_room_ids
from bench.broadcast import UPGRADE
from bench.client import Client
from bench.ground import Ground
from bench.host import Taken
from bench.measure import Contest, Measure
from bench.serving import Server, busiest, listening, serving
from bench.streams import room_for
from bench.talkers import TEXT, Talkers, talkers
from bongsu.api.websocket import PATH
from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.chat.rooms import create_room

TITLE = "chat"
ROOMS, MEMBERS = 100, 10
LISTENERS = 2_000
RATE_BUDGETS = {ROOMS: 3_000, 1: 500}
STARLETTE_BUDGET, BROADCAST_BUDGET = 2.0, 1.3
# Messages a turn: some seconds of them.
MANY, FEW, BARE = 6_000, 2_000, 2_000
# Messages of one turn to the crowded room, each written when the one before was.
BURST = 10
TURNS = 3
PACE, PACE_SECONDS, QUICK_PACE_SECONDS = 500, 10, 5
PACE_ROUNDS, QUICK_PACE_ROUNDS = 5, 3
DELAY_BUDGET_SECONDS = 0.050
# Members here write more than people do.
RATE_LIMIT = 1_000_000
PROFILED = 200
ROLES = "api,gateway"


@dataclass
class Found:
    """What contests found besides their times."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    budgets: dict[str, int] = field(default_factory=dict)
    inversions: int = 0
    messages: int = 0


_found = Found()


async def contests(ground: Ground) -> AsyncGenerator[Contest, None]:
    global _found  # noqa: PLW0603 (a bench is a pair of functions)
    _found = Found()
    room_for(2 * LISTENERS + ROOMS * MEMBERS)
    for database in ("PostgreSQL, two instances and Redis", "SQLite, embedded"):
        for rooms, messages in ((ROOMS, MANY), (1, FEW)):
            async with _chat(ground, database, rooms) as chat:
                yield chat.contest(database, rooms, messages)
    async for contest in _crowds(ground):
        yield contest


async def notes(ground: Ground) -> dict[str, str]:
    lines = ["| | messages a second | min-max | budget | |", "|---|--:|--:|--:|---|"]
    for name, rates in _found.rates.items():
        middle, budget = statistics.median(rates), _found.budgets[name]
        verdict = "met" if middle >= budget else "missed"
        lines.append(f"| {name} | {middle:,.0f} | {min(rates):,.0f}-{max(rates):,.0f} | ≥ {budget:,} | {verdict} |")
    order = (
        f"Each reader checked the seq of every message it was sent: of {_found.messages:,} that were delivered, "
        f"{_found.inversions} did not come right after the one before (budget: 0)."
    )
    return {
        "Messages a second, from the first send until every member has all of them": "\n".join(lines),
        f"From the send to the reader, at {PACE} messages a second": await _delays(ground),
        f"Whose processor time, one of {BURST} messages to {LISTENERS:,} listeners": await _shares(ground),
        f"Profile of {PROFILED} such messages, our service": await _profile(ground),
        "Order": order,
    }


# --- rooms --------------------------------------------------------------------------------------------------------------


@dataclass
class Chat:
    """A service of one or two instances, and rooms whose members are connected to both by turns."""

    settings: Settings
    servers: list[Server]
    people: Talkers
    room_ids: list[str]
    bare_rooms: list[str]

    def contest(self, database: str, rooms: int, messages: int) -> Contest:
        name = f"{database}, {f'{rooms} rooms' if rooms > 1 else 'one room'} of {MEMBERS}"
        bare = bare_of(self.settings.database_url, self.settings.data_dir / "bongsu.db")
        _found.budgets[name] = RATE_BUDGETS[rooms]

        async def ours() -> float:
            seconds = await _in_thread(lambda: self.people.pour(messages, writers=MEMBERS if rooms == 1 else 2))
            _found.rates.setdefault(name, []).append(messages / seconds)
            _count(self.people)
            return seconds

        async def theirs() -> float:
            return await bare.store(self.bare_rooms, BARE)

        return Contest(
            name, "the rows alone, one transaction a message", "message", Measure.SPEED, theirs, ours,
            units_a_turn=messages, baseline_units_a_turn=BARE,
        )  # fmt: skip


def _count(people: Talkers) -> None:
    _found.messages += people.counts.messages
    _found.inversions += people.counts.inversions


@contextlib.asynccontextmanager
async def _chat(ground: Ground, database: str, rooms: int, members: int = MEMBERS) -> AsyncIterator[Chat]:
    is_embedded = database.startswith("SQLite")
    async with contextlib.AsyncExitStack() as stack:
        changes: dict[str, str | int] = {"chat_rate": RATE_LIMIT}
        if is_embedded:
            settings = await ground.sqlite()
        else:
            settings, redis = await ground.postgres(), start_redis()
            stack.callback(redis.stop)
            changes["redis_url"] = redis.url
        settings = settings.model_copy(update=changes)
        room_ids, bare_rooms = new_room_ids(rooms), new_room_ids(rooms)
        await _create(settings, room_ids, members)
        await _create(settings, bare_rooms, 0)
        servers = [await stack.enter_async_context(serving(settings, role=ROLES)) for _ in range(1 if is_embedded else 2)]
        people = stack.enter_context(talkers())
        await _in_thread(lambda: _enter(settings, servers, people, room_ids, members))
        yield Chat(settings, servers, people, room_ids, bare_rooms)


async def _create(settings: Settings, room_ids: list[str], members: int) -> None:
    store = Store.open(settings)
    try:
        for place, room_id in enumerate(room_ids):
            async with store.transaction() as tx:
                await create_room(tx, UUID(room_id), "room", [_member(place, number) for number in range(members)])
    finally:
        await store.close()


def _member(room: int, number: int) -> str:
    return f"member-{room:03d}-{number:04d}"


def _enter(settings: Settings, servers: list[Server], people: Talkers, room_ids: list[str], members: int) -> None:
    keys = Keys.load(settings)
    for place, room_id in enumerate(room_ids):
        for number in range(members):
            token = keys.member_token(_member(place, number), timedelta(hours=1))
            request = _asking(f"Authorization: Bearer {token}\r\n", PATH)
            people.open(servers[number % len(servers)].port, room_id, [request])


def _asking(head: str, path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: bench\r\n{head}{UPGRADE}\r\n".encode()


_T = TypeVar("_T")


async def _in_thread(work: Callable[[], _T]) -> _T:
    return await asyncio.to_thread(work)


# --- a crowded room -----------------------------------------------------------------------------------------------------


async def _crowds(ground: Ground) -> AsyncGenerator[Contest, None]:
    """All servers stay up with all their listeners. Ours stores each message before it is sent; theirs store nothing."""
    with cores.clients():
        async with _our_crowd(ground) as ours:
            for against, module, budget in (
                ("a Starlette loop", "bench.rivals.starlette_ws_app", STARLETTE_BUDGET),
                ("`websockets.broadcast`", "bench.rivals.websockets_app", BROADCAST_BUDGET),
            ):
                async with _their_crowd(ground, module) as theirs:
                    yield Contest(
                        f"one room with {LISTENERS:,} listeners, {BURST} messages", against, "delivery", Measure.SPEED,
                        theirs.send, ours.send, turns=TURNS, units_a_turn=BURST * LISTENERS, budget=budget,
                    )  # fmt: skip
                    yield Contest(
                        f"one room with {LISTENERS:,} listeners, one message", against, "delivery", Measure.SPEED,
                        theirs.send_one, ours.send_one, turns=BURST, units_a_turn=LISTENERS,
                    )  # fmt: skip


@dataclass
class OurCrowd:
    """One instance, on PostgreSQL and Redis. The messages of one member are sent without waiting for answers."""

    server: Server
    people: Talkers

    async def send_one(self) -> float:
        """It waits for the commit, alone."""
        return await self.send(1)

    async def send(self, messages: int = BURST) -> float:
        def send() -> float:
            with cores.clients():
                return self.people.pour(messages, writers=1)

        seconds = await _in_thread(send)
        _count(self.people)
        return seconds


@dataclass
class TheirCrowd:
    """A server that writes to everybody what it is asked to, one after the other."""

    server: Server
    people: Talkers

    async def send_one(self) -> float:
        return await self.send(1)

    async def send(self, messages: int = BURST) -> float:
        (members,) = self.people.rooms.values()
        requests = [self._request(number) for number in range(members[0].seq + 1, members[0].seq + 1 + messages)]
        clients = [await Client.connect(self.server.port) for _ in requests]

        def wait() -> float:
            with cores.clients():
                return self.people.until_all_have(messages)

        waiting = asyncio.create_task(_in_thread(wait))
        await asyncio.sleep(0)
        began = time.perf_counter()
        for client, request in zip(clients, requests, strict=True):
            await client.send(request)
        seconds = await waiting - began
        for client in clients:
            client.close()
        return seconds

    def _request(self, number: int) -> bytes:
        frame = {
            "op": "message", "roomId": "0190a000-0000-7000-8000-000000000000", "seq": number, "senderId": _member(0, 0),
            "message": f"{number} {TEXT}", "clientMessageId": str(number), "sentAt": "2026-01-01T00:00:00.000000Z",
        }  # fmt: skip
        return f"GET /say?{quote(orjson.dumps(frame))} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()


@contextlib.asynccontextmanager
async def _our_crowd(ground: Ground, profile: Path | None = None) -> AsyncIterator[OurCrowd]:
    settings, redis = await ground.postgres(), start_redis()
    # No pings while messages are timed: the others do not ping either.
    changes = {"chat_rate": RATE_LIMIT, "redis_url": redis.url, "sse_ping_seconds": 3_600.0}
    settings, room_ids = settings.model_copy(update=changes), new_room_ids(1)
    cores.keep_databases_away()
    try:
        await _create(settings, room_ids, LISTENERS)
        async with contextlib.AsyncExitStack() as stack:
            with cores.servers():
                server = await stack.enter_async_context(serving(settings, profile, role=ROLES))
            people = stack.enter_context(talkers())
            await _in_thread(lambda: _enter(settings, [server], people, room_ids, LISTENERS))
            yield OurCrowd(server, people)
    finally:
        redis.stop()


@contextlib.asynccontextmanager
async def _their_crowd(ground: Ground, module: str) -> AsyncIterator[TheirCrowd]:
    folder = (await ground.sqlite()).data_dir
    async with contextlib.AsyncExitStack() as stack:
        with cores.servers():
            server = await stack.enter_async_context(listening(["-m", module], folder))
        people = stack.enter_context(talkers())
        await _in_thread(lambda: people.open(server.port, "theirs", [_asking("", "/stream")] * LISTENERS))
        yield TheirCrowd(server, people)


async def _shares(ground: Ground) -> str:
    lines = ["| | processor time of the server |", "|---|--:|"]
    with cores.clients():
        audiences: list[tuple[str, contextlib.AbstractAsyncContextManager[OurCrowd | TheirCrowd]]] = [
            ("ours, which also stores it", _our_crowd(ground)),
            ("a Starlette loop", _their_crowd(ground, "bench.rivals.starlette_ws_app")),
            ("`websockets.broadcast`", _their_crowd(ground, "bench.rivals.websockets_app")),
        ]
        for name, audience in audiences:
            async with audience as crowd:
                await crowd.send()
                process = psutil.Process(crowd.server.pid)
                before = process.cpu_times()
                for _ in range(PROFILED // BURST):
                    await crowd.send()
                after = process.cpu_times()
            used = after.user + after.system - before.user - before.system
            lines.append(f"| {name} | {used / PROFILED / LISTENERS * 1e6:.1f} µs a listener |")
    return "\n".join(lines)


async def _profile(ground: Ground) -> str:
    file = (await ground.sqlite()).data_dir / "chat.prof"
    with cores.clients():
        async with _our_crowd(ground, file) as crowd:
            for _ in range(PROFILED // BURST):
                await crowd.send()
    return busiest(file)


# --- how soon -----------------------------------------------------------------------------------------------------------


async def _delays(ground: Ground) -> str:
    rounds, seconds = (QUICK_PACE_ROUNDS, QUICK_PACE_SECONDS) if ground.is_quick else (PACE_ROUNDS, PACE_SECONDS)
    lines = [
        f"{PACE} messages a second by the clock for {seconds} s, {rounds} times: from the moment a message is due to the "
        f"bytes at each of the {MEMBERS} members of its room. Median and spread of the rounds (budget: "
        f"{DELAY_BUDGET_SECONDS * 1000:.0f} ms); while the host took nothing, of all rounds together.",
        "",
        "| | median | 99 of 100 | spread | | while the host took nothing | of all |",
        "|---|--:|--:|--:|---|--:|--:|",
    ]
    for database in ("PostgreSQL, two instances and Redis", "SQLite, embedded"):
        for rooms in (ROOMS, 1):
            async with _chat(ground, database, rooms) as chat:
                found = [await _deliveries(chat.people, seconds) for _ in range(rounds)]
            lasts = [_99_of_100([delay for delay, _ in one]) for one in found]
            undisturbed = [delay for one in found for delay, is_disturbed in one if not is_disturbed]
            cells = (
                f"{database}, {f'{rooms} rooms' if rooms > 1 else 'one room'} of {MEMBERS}",
                _millis(statistics.median(delay for one in found for delay, _ in one)),
                _millis(statistics.median(lasts)),
                f"{min(lasts) * 1000:.1f}-{_millis(max(lasts))}",
                "met" if statistics.median(lasts) <= DELAY_BUDGET_SECONDS else "missed",
                _millis(_99_of_100(undisturbed)) if undisturbed else "-",
                f"{len(undisturbed) / sum(map(len, found)):.0%}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


async def _deliveries(people: Talkers, seconds: int) -> list[tuple[float, bool]]:
    """The seconds of each delivery, and whether the host was busy with others meanwhile."""
    taken = Taken()
    async with taken.watched():
        counts = await _in_thread(lambda: people.pace(PACE, seconds))
    _count(people)
    return [(came - due, taken.was(due, came)) for due, came in counts.deliveries]


def _99_of_100(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


def _millis(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
