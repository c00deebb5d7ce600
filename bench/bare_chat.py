"""What a chat message costs the database at least, as most write it: one transaction for each, and no fan-out."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg

from bench.talkers import TEXT

# As many as wait for the disk together.
CONNECTIONS = 16
_NEXT = "UPDATE bongsu_chat_rooms SET last_seq = last_seq + 1 WHERE room_id = {} RETURNING last_seq"
_INSERT = (
    "INSERT INTO bongsu_chat_messages (room_id, seq, sender_id, client_message_id, message, sent_at) "
    "VALUES ({}, {}, {}, {}, {}, {now})"
)
_numbers = count()


class BarePostgres:
    """One statement after the other on each of some connections."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._insert = _INSERT.format("$1", "$2", "$3", "$4", "$5", now="clock_timestamp()")

    async def store(self, room_ids: list[str], messages: int) -> float:
        pool = await asyncpg.create_pool(self._url, min_size=CONNECTIONS, max_size=CONNECTIONS)
        due = islice(cycle(room_ids), messages)

        async def write() -> None:
            async with pool.acquire() as connection:
                for room_id in due:
                    await self._store_one(connection, room_id)

        began = time.perf_counter()
        await asyncio.gather(*(write() for _ in range(CONNECTIONS)))
        seconds = time.perf_counter() - began
        await pool.close()
        return seconds

    async def _store_one(self, connection: Any, room_id: str) -> None:
        number = next(_numbers)
        async with connection.transaction():
            seq = await connection.fetchval(_NEXT.format("$1"), room_id)
            await connection.execute(self._insert, room_id, seq, "bare", str(number), f"{number} {TEXT}")


class BareSqlite:
    """With the same pragmas as ours."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def store(self, room_ids: list[str], messages: int) -> float:
        return await asyncio.to_thread(self._store, room_ids, messages)

    def _store(self, room_ids: list[str], messages: int) -> float:
        connection = sqlite3.connect(self._file, isolation_level=None, timeout=30)
        connection.execute("PRAGMA synchronous = NORMAL")
        insert, moment = _INSERT.format(*"?????", now="?"), int(time.time() * 1_000_000)
        began = time.perf_counter()
        for room_id in islice(cycle(room_ids), messages):
            number = next(_numbers)
            connection.execute("BEGIN IMMEDIATE")
            ((seq,),) = connection.execute(_NEXT.format("?"), (room_id,)).fetchall()
            connection.execute(insert, (room_id, seq, "bare", str(number), f"{number} {TEXT}", moment))
            connection.execute("COMMIT")
        seconds = time.perf_counter() - began
        connection.close()
        return seconds


def bare_of(database_url: str, file: Path) -> BarePostgres | BareSqlite:
    return BarePostgres(database_url) if database_url else BareSqlite(file)


def new_room_ids(how_many: int) -> list[str]:
    return [str(uuid4()) for _ in range(how_many)]
