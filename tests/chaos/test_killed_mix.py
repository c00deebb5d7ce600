"""Chat, counters and the outbox of another service together on two processes with PostgreSQL and Redis, one of them killed
again and again: every message has its place once, every change is counted once, every committed row arrives once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from tests.chaos.shop import until
from tests.support.long_runs import TIMES
from tests.support.processes import KEY, Served, bongsu, serving
from tests.support.servers import PostgresServer, RedisServer

pytestmark = [pytest.mark.timeout(600), pytest.mark.parametrize("settings", ["postgresql"], indirect=True)]

POST = "post-1"
ROOMS = 3
MEMBERS = [f"m{number}" for number in range(10)]
# Of each caller: messages, changes of a counter, rows of the outbox.
CALLS = 150 if TIMES == 1 else 1_000
KILLS = 2 if TIMES == 1 else 6
ADD_EVENT = "INSERT INTO bongsu_outbox (event_type, ref_id, payload) VALUES ('comment.created', %s, %s)"
# Rows that one transaction of the other service writes. Every fifth transaction is rolled back.
ROWS = 3


class Callers:
    """Each kind of call has a thread. What a killed process did not answer is repeated, as it was, wherever one lives."""

    def __init__(self, processes: list[Served], settings: Settings, outbox_url: str, rooms: list[str]) -> None:
        self.processes = processes
        self.done = 0
        self.committed = 0
        self._keys = Keys.load(settings)
        self._outbox_url = outbox_url
        self._rooms = rooms
        self._failed: list[BaseException] = []
        calls: tuple[Callable[[int, random.Random], None], ...] = (self._chat, self._count, self._commit)
        self._threads = [threading.Thread(target=self._call_all, args=(one,), daemon=True) for one in calls]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        assert not self._failed, self._failed

    def _call_all(self, call: Callable[[int, random.Random], None]) -> None:
        chance = random.Random(call.__name__)
        try:
            for number in range(CALLS):
                call(number, chance)
                self.done += 1
        except BaseException as error:
            self._failed.append(error)

    def _chat(self, number: int, chance: random.Random) -> None:
        token = self._keys.member_token(chance.choice(MEMBERS), timedelta(hours=1))
        body = {"clientMessageId": f"c-{number}", "message": f"text {number}"}
        path = f"/api/chat/rooms/{self._rooms[number % ROOMS]}/messages"
        self._repeat(chance, path, body, {"Authorization": f"Bearer {token}"})

    def _count(self, number: int, chance: random.Random) -> None:
        del number
        self._repeat(chance, f"/api/counters/comments/{POST}", {"delta": 1, "eventId": str(uuid4())}, KEY)

    def _commit(self, number: int, chance: random.Random) -> None:
        """As a service writes it that knows nothing of Bongsu but the table."""
        del chance
        with psycopg.connect(self._outbox_url) as connection:
            for _ in range(ROWS):
                comment = f'{{"commentId": "{uuid4()}"}}'
                connection.execute(
                    "INSERT INTO bongsu_outbox (event_type, ref_id, payload) VALUES ('comment.created', %s, %s)",
                    (POST, comment),
                )
            if number % 5 == 4:
                connection.rollback()
            else:
                connection.commit()
                self.committed += ROWS

    def _repeat(self, chance: random.Random, path: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        def is_answered() -> bool:
            address = chance.choice(self.processes).address
            try:
                answer = httpx.post(f"{address}{path}", json=body, headers=headers, timeout=10)
            except httpx.HTTPError:
                return False
            assert answer.is_success or answer.status_code == 503, answer.text
            return answer.is_success

        until(is_answered, f"answered: {path}")


def test_killed_processes_lose_and_double_nothing_of_chat_counters_and_outboxes(
    migrated: dict[str, str], settings: Settings, postgres: PostgresServer, redis_server: RedisServer
) -> None:
    with other_service(postgres) as outbox_url, ExitStack() as stack:
        environment = {
            **migrated, "BONGSU_REDIS_URL": redis_server.url, "BONGSU_OUTBOX_URLS": f"shop={outbox_url}",
            "BONGSU_SEND_TIMEOUT_SECONDS": "2", "BONGSU_LEASE_SECONDS": "5", "BONGSU_CHAT_RATE": "1000",
            "BONGSU_COUNTER_FLUSH_SECONDS": "0.05",
        }  # fmt: skip
        processes = [stack.enter_context(serving(environment)) for _ in range(2)]
        with processes[0].client(**KEY) as client:
            created = [client.post("/api/chat/rooms", json={"name": "r", "memberIds": MEMBERS}) for _ in range(ROOMS)]
            rooms = [answer.json()["roomId"] for answer in created]
        callers = Callers(processes, settings, outbox_url, rooms)
        for number in range(KILLS):
            so_far = 3 * CALLS * (number + 1) // (KILLS + 1)
            until(partial(lambda so_far: callers.done >= so_far, so_far), f"{so_far} calls")
            killed = processes[number % 2]
            killed.process.kill()
            killed.process.wait(30)
            processes[number % 2] = stack.enter_context(serving(environment))
        callers.join()
        with processes[0].client(**KEY) as client:
            expected = CALLS + callers.committed
            until(lambda: client.get(f"/api/counters/comments/{POST}").json()["value"] >= expected, "everything counted")
            until(lambda: is_empty(outbox_url), "the outbox empty")
            until(lambda: client.get("/api/admin/stats").json()["events"]["pending"] == 0, "everything decided")
            assert client.get(f"/api/counters/comments/{POST}").json()["value"] == expected
            assert client.get("/api/admin/stats").json()["events"] == {"pending": 0, "failed": 0, "unhandled": 0}
            for place, room in enumerate(rooms):
                found = list(history(client, room))
                texts = [f"text {number}" for number in range(place, CALLS, ROOMS)]
                assert [one["message"] for one in found] == texts
                assert [one["seq"] for one in found] == list(range(1, len(texts) + 1))


def history(client: httpx.Client, room: str) -> Iterator[dict[str, Any]]:
    seq = 0
    while found := client.get(f"/api/chat/rooms/{room}/messages", params={"afterSeq": seq, "limit": 100}).json()["items"]:
        yield from found
        seq = found[-1]["seq"]


@contextmanager
def other_service(postgres: PostgresServer) -> Iterator[str]:
    """The database of another service, with the outbox table."""
    url = postgres.create_database()
    made = bongsu("migrate", "--outbox", url, environment={})
    assert made.returncode == 0, made.stderr
    yield url
    postgres.drop_database(url)


def is_empty(outbox_url: str) -> bool:
    with psycopg.connect(outbox_url) as connection:
        (found,) = connection.execute("SELECT count(*) FROM bongsu_outbox").fetchone() or (0,)
    return bool(found == 0)
