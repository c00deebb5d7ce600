"""The calls of members and about members while the store fails: 503, as a problem, with when to try again; never 500."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from bongsu.store import Share, Store, Transaction
from bongsu.store.core import postgres, shares, sqlite
from bongsu.store.core.query import same
from bongsu.store.core.shares import Limits
from bongsu.store.desk import history
from tests.store.core.limits import limit

DEVICE = {"token": "token-a", "platform": "ANDROID", "pushConsent": True}
SERVER_CALLS: list[tuple[str, str, Any]] = [
    ("PUT", "/api/members/m-1", {}),
    ("GET", "/api/members/m-1", None),
    ("PUT", "/api/members/m-1/preferences", {"types": {"X": {"enabled": False}}}),
    ("GET", "/api/members/m-1/preferences", None),
    ("PUT", "/api/members/m-1/devices/d", DEVICE),
    ("GET", "/api/members/m-1/devices", None),
    ("DELETE", "/api/members/m-1/devices/d", None),
    ("PUT", "/api/products/p", {"name": "x"}),
    ("GET", "/api/products/p", None),
    ("POST", "/api/behaviors", [{"userId": "m-1", "productId": "p", "action": "VIEW"}]),
]
MEMBER_CALLS: list[tuple[str, str, Any]] = [
    ("PUT", "/api/preferences", {}),
    ("GET", "/api/preferences", None),
    ("PUT", "/api/devices/d", DEVICE),
    ("DELETE", "/api/devices/d", None),
    ("GET", "/api/notifications", None),
    ("GET", "/api/notifications?unread", None),
    ("GET", "/api/notifications/unread-count", None),
    ("POST", "/api/notifications/1/read", None),
    ("POST", "/api/notifications/read-all", None),
    ("POST", "/api/notifications/seen", None),
    ("DELETE", "/api/notifications/1", None),
]


# What only an operator is to see of the store: where it is.
LOCATIONS = ("SQLite at", "bongsu.db", "PostgreSQL at", "127.0.0.1", "localhost", "5432")


async def call_all(api: httpx.AsyncClient, member_token: str) -> list[httpx.Response]:
    as_member = {"Authorization": f"Bearer {member_token}"}
    server = [api.request(method, path, json=body) for method, path, body in SERVER_CALLS]
    member = [api.request(method, path, json=body, headers=as_member) for method, path, body in MEMBER_CALLS]
    return await asyncio.gather(*server, *member)


def assert_unavailable(answers: Sequence[httpx.Response], kind: str) -> None:
    for answer in answers:
        where = f"{answer.request.method} {answer.request.url.path}: {answer.text}"
        assert answer.status_code == 503, where
        assert answer.headers["content-type"] == "application/problem+json", where
        assert int(answer.headers["retry-after"]) >= 1, where
        assert answer.json()["type"] == f"urn:bongsu:{kind}", where
        assert not any(location in answer.text for location in LOCATIONS), where


def _full_disk() -> sqlite3.Error:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


async def test_a_full_disk_is_answered_as_unavailable(
    api: httpx.AsyncClient, store: Store, member_token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store.dialect.name == "sqlite":

        def fail(*_: object) -> Any:
            raise _full_disk()

        monkeypatch.setattr(sqlite, "_fetch", fail)
        monkeypatch.setattr(sqlite, "_execute", fail)
        assert_unavailable(await call_all(api, member_token), "store-full")
        return

    async def refuse(*_: object, **__: object) -> None:
        raise asyncpg.DiskFullError("could not extend file")

    monkeypatch.setattr(postgres._PooledConnection, "fetch", refuse)
    monkeypatch.setattr(postgres._PooledConnection, "execute", refuse)
    assert_unavailable(await call_all(api, member_token), "store-full")


TABLES = ("members", "preferences", "devices", "products", "behaviors", "notifications", "messages")


@pytest.mark.parametrize("settings", ["postgresql"], indirect=True)
async def test_while_tables_are_locked_calls_are_answered_as_busy(
    api: httpx.AsyncClient, store: Store, member_token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as limited:
        for share in (Share.MEMBERS, Share.INGEST):
            limited.setitem(shares.SHARES, share, Limits(connections=30, wait_seconds=1, lock_seconds=0.2))
        async with store.transaction() as tx:
            await tx.execute(same(f"LOCK TABLE {', '.join(f'bongsu_{one}' for one in TABLES)} IN ACCESS EXCLUSIVE MODE")())
            # The tables stay locked until all are answered.
            assert_unavailable(await call_all(api, member_token), "store-busy")
    for answer in await call_all(api, member_token):
        assert answer.status_code < 500, answer.text


@pytest.mark.parametrize("settings", ["postgresql"], indirect=True)
async def test_when_all_connections_are_in_use_the_next_call_is_answered_as_busy(
    api: httpx.AsyncClient, store: Store, member_token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shares.SHARES, Share.MEMBERS, Limits(connections=1, wait_seconds=0.2, lock_seconds=2))
    async with store.share(Share.MEMBERS).transaction() as tx:
        await tx.fetch(same("SELECT 1")())
        answer = await api.get("/api/notifications", headers={"Authorization": f"Bearer {member_token}"})
    assert_unavailable([answer], "store-busy")


@pytest.mark.parametrize("settings", ["postgresql"], indirect=True)
async def test_a_call_that_is_the_victim_of_a_deadlock_is_answered_as_if_it_had_not_been(
    api: httpx.AsyncClient, member_token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = postgres._PooledConnection.execute
    rolled_back: set[str] = set()
    path = ""

    async def commit(connection: Any, text: str, *arguments: Any) -> Any:
        if text == "COMMIT" and path not in rolled_back:
            rolled_back.add(path)
            raise asyncpg.DeadlockDetectedError("deadlock detected")
        return await execute(connection, text, *arguments)

    monkeypatch.setattr(postgres._PooledConnection, "execute", commit)
    body: Any
    for method, path, body in (
        ("PUT", "/api/members/m-1", {}),
        ("PUT", "/api/members/m-1/preferences", {"types": {"X": {"enabled": False}}}),
        ("PUT", "/api/members/m-1/devices/d", DEVICE),
        ("POST", "/api/behaviors", [{"userId": "m-1", "productId": "p", "action": "VIEW"}]),
        ("POST", "/api/admin/dead/replay", {"filter": {"code": "X"}}),
        ("POST", f"/api/admin/events/{(await _publish(api))}/cancel", {}),
    ):
        answer = await api.request(method, path, json=body)
        assert answer.status_code in (200, 202), answer.text
        assert path in rolled_back


async def _publish(api: httpx.AsyncClient) -> str:
    answer = await api.post("/api/notifications", json={"type": "X", "userIds": ["m-1"], "title": "t", "body": "b"})
    return str(answer.json()["eventId"])


OPERATORS_CALLS = ("history", "history?status=FAILED", "events", f"events/{UUID(int=7)}", "dead", "jobs", "stats")


async def test_operators_calls_do_not_use_up_what_members_need(
    api: httpx.AsyncClient, store: Store, member_token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, Share.OPERATORS, connections=sqlite.OPERATORS_READERS, wait_seconds=0.05)
    operators = store.share(Share.OPERATORS)
    async with operators.read() as first, operators.read() as second:
        for tx in (first, second):
            await tx.fetch(same("SELECT 1")())
        for path in OPERATORS_CALLS:
            assert_unavailable([await api.get(f"/api/admin/{path}")], "store-busy")
        for path in ("", "/unread-count"):
            answer = await api.get(f"/api/notifications{path}", headers={"Authorization": f"Bearer {member_token}"})
            assert answer.status_code == 200, answer.text
        assert (await api.post("/api/events", json={"eventType": "product.updated"})).status_code == 202
    for path in OPERATORS_CALLS:
        assert (await api.get(f"/api/admin/{path}")).status_code in (200, 404), path


async def test_an_operators_page_that_takes_too_long_is_stopped_and_answered(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, Share.OPERATORS, connections=1, statement_seconds=1)
    endless = same("""
        SELECT max(number) AS most FROM (
            WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 0 FROM numbers)
            SELECT number FROM numbers) AS n""")

    async def find_page(tx: Transaction, *_: object) -> None:
        await tx.fetch(endless())

    with monkeypatch.context() as patched:
        patched.setattr(history, "find_page", find_page)
        assert_unavailable([await api.get("/api/admin/history")], "store-too-slow")
    assert (await api.get("/api/admin/history")).status_code == 200
