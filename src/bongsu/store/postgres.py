"""The words for PostgreSQL, and the shortest way to it: asyncpg itself, on connections that SQLAlchemy has opened."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import asyncpg
import orjson
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.store.dialect import Binder, Dialect, Parameters, Statement, as_text


class Postgres(Dialect):
    name = "postgresql"
    # Not clock_timestamp(): that one is volatile and would keep the planner from the index. Transactions here are short.
    now = "now()"
    skip_locked = "FOR UPDATE SKIP LOCKED"
    # Byte by byte, as our columns compare: lists of ids would be put in the order of the database's own language.
    in_lock_order = 'ORDER BY member_id COLLATE "C"'
    at_once = "MATERIALIZED"
    address = "ctid"
    next_notification = "nextval('bongsu_notifications_notification_id_seq')"
    next_message = "nextval('bongsu_messages_message_id_seq')"
    returns_joined = True
    writes_within = True
    least, greatest = "least", "greatest"

    def at(self, seconds: str) -> str:
        return f"to_timestamp({seconds})"

    def after(self, seconds: str) -> str:
        return f"now() + make_interval(secs => {seconds})"

    def seconds_since(self, moment: str) -> str:
        return f"CAST(extract(epoch FROM now() - {moment}) AS double precision)"

    def locked(self, alias: str) -> str:
        # NO KEY: registering a device, which refers to the member, need not wait for it.
        return f"FOR NO KEY UPDATE OF {alias}"

    def by_index(self, name: str) -> str:
        return ""

    def typed(self, kind: str, placeholder: str) -> str:
        # JSON goes as text, because a connection may have been taught to encode JSON itself and would do it twice.
        return f"CAST(CAST({placeholder} AS text) AS jsonb)" if kind == "jsonb" else placeholder

    def plain(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        return rows

    def placeholder(self, place: int) -> str:
        return f"${place + 1}"

    def table(self, columns: Mapping[str, str], name: str = "given", first: int = 0) -> str:
        arrays = (f"CAST({self.placeholder(place)} AS {kind}[])" for place, kind in enumerate(columns.values(), first))
        return f"unnest({', '.join(arrays)}) AS {name}({', '.join(columns)})"

    def look_up(
        self, table: str, alias: str, outer: str, on: Sequence[str], columns: Sequence[str], *, locked: bool = False
    ) -> str:
        # OFFSET 0, like a lock, keeps the planner from making an ordinary join of it.
        fence = "FOR NO KEY UPDATE" if locked else "OFFSET 0"
        names = ", ".join(f"x.{column}" for column in columns)
        where = " AND ".join(f"x.{key} = {outer}.{key}" for key in on)
        return f"LEFT JOIN LATERAL (SELECT {names} FROM {table} AS x WHERE {where} {fence}) AS {alias} ON true"

    def join_each(self, table: str, alias: str, outer: str, on: Sequence[str], *, locked: bool = False) -> str:
        fence = "FOR NO KEY UPDATE" if locked else "OFFSET 0"
        where = " AND ".join(f"x.{key} = {outer}.{key}" for key in on)
        return f"CROSS JOIN LATERAL (SELECT * FROM {table} AS x WHERE {where} {fence}) AS {alias}"

    def at_address(self, select: str) -> str:
        return f"FROM ({select}) AS there WHERE m.ctid = there.address"

    def of_claims(self, table: str, given: str, key: str) -> str:
        # Two fences, the epoch compared between them: so the planner expects one row, and goes to it by its address. A row
        # that was changed meanwhile is not there any more; servers before the end of 2025 follow it, and compare the epoch.
        return f"""
            FROM (SELECT given.*, there.address
                  FROM {given} CROSS JOIN LATERAL (
                      SELECT x.ctid AS address, x.epoch FROM {table} AS x WHERE x.{key} = given.{key} OFFSET 0) AS there
                  WHERE there.epoch = given.epoch OFFSET 0) AS given
            WHERE {table}.ctid = given.address AND {table}.epoch = given.epoch"""

    def pairs(self, placeholder: str, key: str, value: str, kind: str) -> str:
        each = f"json_each_text(CAST({placeholder} AS json)) WITH ORDINALITY AS pair(key, value, place)"
        return f"(SELECT key AS {key}, CAST(value AS {kind}) AS {value}, place - 1 AS place FROM {each}) AS given"

    def written(self, pairs: Mapping[str, int]) -> str:
        return orjson.dumps(pairs).decode()

    def newer(self, outer: str, columns: Sequence[str]) -> str:
        # A limit of its own keeps the planner from reading the whole table; nobody is that far behind.
        names = ", ".join(f"x.{column}" for column in columns)
        return f"""CROSS JOIN LATERAL (
            SELECT {names} FROM bongsu_notifications AS x
            WHERE x.member_id = {outer}.member_id AND x.notification_id > {outer}.cursor
            ORDER BY x.notification_id LIMIT 10000) AS n"""

    def read_bytewise(self, expression: str) -> str:
        return f'CAST({expression} AS text) COLLATE "C"'

    def listed(self, expression: str) -> str:
        return f"CAST(json_agg({expression}) AS text)"

    def parameters(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in columns]

    async def load(
        self, connection: AsyncConnection, table: str, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]
    ) -> bool:
        try:
            await self.driver(connection).copy_records_to_table(table, columns=list(columns), records=rows)
        except asyncpg.UniqueViolationError:
            return False
        return True

    async def rows(
        self, tx: AsyncConnection, statement: str, parameters: Parameters, *, after: Sequence[Statement] = ()
    ) -> Sequence[Sequence[Any]]:
        await self.run_all(tx, after)
        if isinstance(parameters, Mapping):
            return (await tx.execute(as_text(statement), parameters)).all()
        rows: list[Sequence[Any]] = await self.driver(tx).fetch(statement, *parameters)
        return rows

    async def run_all(self, tx: AsyncConnection, statements: Sequence[Statement]) -> list[int]:
        return [await self._run(tx, statement, parameters) for statement, parameters in statements]

    async def run_together(
        self, tx: AsyncConnection, statements: Sequence[Statement], reading: Statement | None = None
    ) -> list[int]:
        """As parts of one statement: to write down that each row was touched costs less than a round trip, if few were."""
        if len(statements) <= 1 and not reading:
            return await self.run_all(tx, statements)
        parts, parameters = ([reading[0]], list(reading[1])) if reading else ([], [])
        for place, (statement, its_own) in enumerate(statements):
            parts.append(f"part_{place} AS ({_renumbered(statement, len(parameters))} RETURNING 1)")
            parameters += its_own
        counts = ", ".join(f"(SELECT count(*) FROM part_{place})" for place in range(len(statements)))
        (touched,) = await self.driver(tx).fetch(f"WITH {', '.join(parts)} SELECT {counts}", *parameters)
        return list(touched)

    async def _run(self, tx: AsyncConnection, statement: str, parameters: tuple[Any, ...]) -> int:
        # It answers "UPDATE 3", "INSERT 0 3", or only what it was.
        count = str(await self.driver(tx).execute(statement, *parameters)).rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    @staticmethod
    def driver(tx: AsyncConnection) -> asyncpg.Connection:
        """The driver itself: SQLAlchemy's layer takes four times as long, and begins nothing on connections of ours."""
        connection = tx.sync_connection
        assert connection is not None
        driver = connection.connection.driver_connection
        assert isinstance(driver, asyncpg.Connection)
        return driver

    def is_sound(self, connection: AsyncConnection) -> bool:
        driver = self.driver(connection)
        return not (driver.is_closed() or driver.is_in_transaction())

    def hang_up(self, connection: AsyncConnection) -> None:
        if not connection.invalidated:
            self.driver(connection).terminate()

    def locking(self, binder: Binder, names: Iterable[str]) -> str:
        # All in one order, so that two who want the same ones wait for each other instead of locking up.
        numbers = sorted({int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True) for name in names})
        given = binder.table({"number": "bigint"}, [(number,) for number in numbers], "lock")
        return f"(SELECT count(pg_advisory_xact_lock(lock.number)) FROM {given})"

    def moment(self, stored: Any) -> datetime:
        assert isinstance(stored, datetime)
        return stored

    def stored(self, moment: datetime) -> Any:
        return moment


@lru_cache(maxsize=256)
def _renumbered(statement: str, before: int) -> str:
    """With its parameters behind so many others."""
    return re.sub(r"\$(\d+)", lambda found: f"${int(found[1]) + before}", statement) if before else statement


POSTGRES = Postgres()
