"""`python -m bench.rivals.handwritten --port N --database URL --fcm URL [--redis URL]`: what a team writes by hand.

FastAPI takes an event and commits it. A worker polls the table, takes one event at a time with SKIP LOCKED, checks
preferences, dedup window and daily cap with upserts, writes inbox row and delivery in one transaction, sends with aiohttp,
records the answer and announces it over Redis. The same durable steps as ours, one event at a time, on PostgreSQL or SQLite.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import aiohttp
import aiosqlite
import asyncpg
import redis.asyncio
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

# How often the table is looked at when it was empty the last time.
POLL_SECONDS = 0.02
# Sends under way at once.
SENDERS = 64

TABLES = """
CREATE TABLE events (event_id text PRIMARY KEY, type text, target text, ref text, payload text, status text, due {time});
CREATE INDEX events_due ON events (due) WHERE status = 'PENDING';
CREATE TABLE members (member_id text PRIMARY KEY, enabled integer, token text);
CREATE TABLE dedup (member_id text, type text, subject text, until {time}, PRIMARY KEY (member_id, type, subject));
CREATE TABLE caps (member_id text, day integer, count integer, PRIMARY KEY (member_id, day));
CREATE TABLE inbox (id {serial}, member_id text, type text, title text, body text, created_at {time});
CREATE INDEX inbox_member ON inbox (member_id, id);
CREATE TABLE deliveries (id {serial}, inbox_id bigint, member_id text, status text, due {time}, reference text)
"""


class Event(BaseModel):
    eventId: uuid.UUID | None = None
    eventType: str
    actorId: str | None = None
    targetId: str
    refId: str
    payload: dict[str, Any] = {}


class Device(BaseModel):
    token: str


class Postgres:
    """One statement after the other on a pooled connection."""

    words: ClassVar = {"time": "timestamptz", "serial": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"}
    now, later, tomorrow = "now()", "now() + interval '1 hour'", "extract(doy FROM now())::int"
    skip_locked = "FOR UPDATE SKIP LOCKED"

    def __init__(self, url: str) -> None:
        self._url = url

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self._url, min_size=2, max_size=10)
        async with self._pool.acquire() as connection:
            await connection.execute(TABLES.format(**self.words))

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._pool.acquire() as connection, connection.transaction():
            yield connection

    @staticmethod
    async def row(connection: Any, text: str, *values: Any) -> Any:
        return await connection.fetchrow(text, *values)


class Sqlite:
    """The same through aiosqlite, with one writer."""

    words: ClassVar = {"time": "integer", "serial": "integer PRIMARY KEY AUTOINCREMENT"}
    now, later, tomorrow = "unixepoch()", "unixepoch() + 3600", "unixepoch() / 86400"
    skip_locked = ""

    def __init__(self, path: str) -> None:
        self._path = path
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        self._connection = await aiosqlite.connect(self._path, isolation_level=None)
        await self._connection.execute("PRAGMA journal_mode = WAL")
        await self._connection.execute("PRAGMA synchronous = FULL")
        await self._connection.executescript(TABLES.format(**self.words))

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._turn:
            await self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                await self._connection.execute("COMMIT")
            except BaseException:
                await self._connection.execute("ROLLBACK")
                raise

    @staticmethod
    async def row(connection: Any, text: str, *values: Any) -> Any:
        async with connection.execute(text, {str(place): value for place, value in enumerate(values, 1)}) as cursor:
            return await cursor.fetchone()


class Service:
    def __init__(self, database: Postgres | Sqlite, fcm: str, redis_url: str) -> None:
        self._database = database
        self._url = f"{fcm}/v1/projects/bench/messages:send"
        self._redis = redis.asyncio.Redis.from_url(redis_url) if redis_url else None
        self._slots = asyncio.Semaphore(SENDERS)
        self._sending: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._database.open()
        self._client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=SENDERS))
        self._worker = asyncio.create_task(self._work())

    async def accept(self, event: Event) -> str:
        event_id = str(event.eventId or uuid.uuid4())
        async with self._database.transaction() as tx:
            await self._database.row(
                tx,
                f"""INSERT INTO events VALUES ($1, $2, $3, $4, $5, 'PENDING', {self._database.now})
                    ON CONFLICT DO NOTHING""",
                event_id, event.eventType, event.targetId, event.refId, json.dumps(event.payload),
            )  # fmt: skip
        return event_id

    async def register(self, member_id: str, device: Device) -> None:
        async with self._database.transaction() as tx:
            await self._database.row(
                tx,
                "INSERT INTO members VALUES ($1, 1, $2) ON CONFLICT (member_id) DO UPDATE SET token = excluded.token",
                member_id, device.token,
            )  # fmt: skip

    async def _work(self) -> None:
        while True:
            await self._slots.acquire()
            claimed = await self._decide_one()
            if claimed is None:
                self._slots.release()
                await asyncio.sleep(POLL_SECONDS)
                continue
            task = asyncio.create_task(self._send(*claimed))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _decide_one(self) -> tuple[int, int, str, str, str, str] | None:
        """Take one event, decide, and commit the intent to send: delivery id, inbox id, member, token, title, body."""
        base, row = self._database, self._database.row
        async with base.transaction() as tx:
            event = await row(
                tx,
                f"""SELECT event_id, type, target, ref, payload FROM events WHERE status = 'PENDING' AND due <= {base.now}
                    ORDER BY due LIMIT 1 {base.skip_locked}""",
            )
            if event is None:
                return None
            event_id, kind, member_id, ref, payload = event
            await row(tx, "UPDATE events SET status = 'DONE' WHERE event_id = $1", event_id)
            member = await row(tx, "SELECT enabled, token FROM members WHERE member_id = $1", member_id)
            if member is None or not member[0]:
                return None
            fresh = await row(
                tx,
                f"""INSERT INTO dedup VALUES ($1, $2, $3, {base.later}) ON CONFLICT (member_id, type, subject) DO UPDATE
                    SET until = excluded.until WHERE dedup.until < {base.now} RETURNING 1""",
                member_id, kind, ref,
            )  # fmt: skip
            if fresh is None:
                return None
            capped = await row(
                tx,
                f"""INSERT INTO caps VALUES ($1, {base.tomorrow}, 1) ON CONFLICT (member_id, day) DO UPDATE
                    SET count = caps.count + 1 RETURNING count""",
                member_id,
            )
            if capped[0] > 1_000_000:
                return None
            title, body = "새 좋아요", f"{json.loads(payload).get('actorName', '누군가')}님이 좋아합니다"
            inbox = await row(
                tx,
                f"""INSERT INTO inbox (member_id, type, title, body, created_at) VALUES ($1, $2, $3, $4, {base.now})
                    RETURNING id""",
                member_id, kind, title, body,
            )  # fmt: skip
            delivery = await row(
                tx,
                f"""INSERT INTO deliveries (inbox_id, member_id, status, due) VALUES ($1, $2, 'SENDING', {base.later})
                    RETURNING id""",
                inbox[0], member_id,
            )  # fmt: skip
            return delivery[0], inbox[0], member_id, member[1], title, body

    async def _send(self, delivery_id: int, inbox_id: int, member_id: str, token: str, title: str, body: str) -> None:
        shown = {"title": title, "body": body}
        message = {"message": {"token": token, "notification": shown, "data": {"id": str(inbox_id)}}}
        try:
            async with self._client.post(self._url, json=message) as answer:
                answered = await answer.json()
            status = "SUCCESS" if answer.status == 200 else "FAIL"
            async with self._database.transaction() as tx:
                await self._database.row(
                    tx,
                    "UPDATE deliveries SET status = $2, reference = $3 WHERE id = $1 AND status = 'SENDING'",
                    delivery_id, status, answered.get("name"),
                )  # fmt: skip
            if self._redis is not None:
                await self._redis.publish(f"member:{member_id}", json.dumps({"id": inbox_id, **shown}))
        finally:
            self._slots.release()


def build(service: Service) -> FastAPI:
    app = FastAPI()

    @app.get("/readyz")
    async def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/api/events", status_code=202)
    async def events(event: Event) -> dict[str, Any]:
        return {"accepted": 1, "events": [{"eventId": await service.accept(event), "status": "ACCEPTED"}]}

    @app.put("/api/members/{member_id}/devices/{device_id}")
    async def devices(member_id: str, device_id: str, device: Device) -> dict[str, str]:
        await service.register(member_id, device)
        return {"deviceId": device_id}

    return app


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--fcm", required=True)
    parser.add_argument("--redis", default="")
    given = parser.parse_args()
    database = Postgres(given.database) if given.database.startswith("postgres") else Sqlite(given.database)
    service = Service(database, given.fcm, given.redis)
    await service.start()
    config = uvicorn.Config(
        build(service), port=given.port, loop="uvloop", http="httptools", lifespan="off", access_log=False,
        log_level="warning",
    )  # fmt: skip
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
