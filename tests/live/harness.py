"""A gateway in this process, and notifications rung through it."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bongsu.api.app import build_api
from bongsu.api.http_protocol import HttpLimits
from bongsu.api.server import serving
from bongsu.chat.fanout import Fanout
from bongsu.chat.order import ChatOrder
from bongsu.ingress.intake import Intake
from bongsu.live.announce import Announcer, announce_change
from bongsu.live.gateway import Gateway
from bongsu.live.presence import presence
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.runtime.redis_signals import RedisSignals
from bongsu.runtime.signals import LocalSignals, Signals
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.query import in_both, same
from bongsu.store.inbox import changes
from bongsu.store.members import ensure_members
from bongsu.store.messages.content import MessageCache
from tests.live.client import EventSource
from tests.live.socket_client import SocketReader
from tests.support.inbox import add_unread, count_unread
from tests.support.rows import Sql, add_for_each, set_columns

FIND_MESSAGES = same("SELECT message_id FROM bongsu_notifications WHERE member_id = $1 AND notification_id >= $2")

# Of the server.
LIMITS = HttpLimits()
# What a test may read streams with, by wire.
READERS: dict[str, type[EventSource]] = {"sse": EventSource, "ws": SocketReader}

LOCK_MEMBER = in_both(lambda d: f"SELECT member_id FROM bongsu_members WHERE member_id = $1 {d.lock_row}")

FIND_IN_INBOXES = same("""
    SELECT member_id, notification_id, read_at FROM bongsu_notifications
    WHERE message_id = $1 AND member_id >= $2 AND member_id <= $3 AND channels & 8 <> 0""")


async def write(store: Store, member_id: str, count: int = 1, **words: Any) -> tuple[list[int], list[int]]:
    """Notifications as a fan-out commits them, and the messages they are of. They are not announced."""
    async with store.transaction() as tx:
        ids = await add_unread(tx, member_id, count, **words)
        rows = await tx.fetch(FIND_MESSAGES(member_id, ids[0]))
        return ids, [row["message_id"] for row in rows]


async def write_to_all(store: Store, member_ids: Sequence[str]) -> int:
    """One message for all of them, unread and not announced."""
    [first, *others] = member_ids
    [notification_id], [message_id] = await write(store, first)
    async with store.transaction() as tx:
        await ensure_members(tx, others)
        copied = {name: Sql(name) for name in ("message_id", "channels", "created_at")}
        for member_id in others:
            source = f"notifications WHERE notification_id = {notification_id}"
            await add_for_each(tx, "notifications", source, member_id=member_id, **copied)
            await count_unread(tx, member_id, 1)
    return message_id


async def withdraw(store: Store, message_id: int, first: str = "", last: str = "~") -> list[tuple[str, int]]:
    """Take a message out of the inboxes of the members between these two. Not announced."""
    async with store.transaction() as tx:
        rows = await tx.fetch(FIND_IN_INBOXES(message_id, first, last))
        (change_id,) = await changes.draw(tx)
        for row in rows:
            withdrawn = {"member_id": row["member_id"], "notification_id": row["notification_id"]}
            await set_columns(tx, "notifications", withdrawn, channels=Sql("channels - 8"), change_id=change_id)
            if row["read_at"] is None:
                await count_unread(tx, row["member_id"], -1)
        await changes.set_changed(tx, [(row["member_id"], change_id) for row in rows])
    return [(row["member_id"], row["notification_id"]) for row in rows]


async def change(store: Store, member_id: str, notification_id: int, **columns: Any) -> int:
    """Change a notification of the member so that pages should know; the change id. Not announced, and what is unread is
    not counted."""
    async with store.transaction() as tx:
        await tx.fetch(LOCK_MEMBER(member_id))
        (change_id,) = await changes.draw(tx)
        await set_columns(tx, "notifications", {"notification_id": notification_id}, change_id=change_id, **columns)
        await changes.set_changed(tx, [(member_id, change_id)])
    return change_id


async def mark_all(store: Store, member_id: str, up_to: int, kind: str = "read") -> int:
    """Set the member's read or seen mark; its change id. Not announced, and the rows stay as they are."""
    async with store.transaction() as tx:
        await tx.fetch(LOCK_MEMBER(member_id))
        (change_id,) = await changes.draw(tx)
        marks = {f"{kind}_up_to": up_to, f"{kind}_change_id": change_id, "changed_id": change_id}
        await set_columns(tx, "members", {"member_id": member_id}, **marks)
    return change_id


def signals_for(settings: Settings) -> Signals:
    return RedisSignals(settings.redis_url) if settings.redis_url else LocalSignals()


def token(settings: Settings, member_id: str, **lifetime: float) -> str:
    return Keys.load(settings).member_token(member_id, timedelta(**(lifetime or {"hours": 1})))


def bearer(settings: Settings, member_id: str, **lifetime: float) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(settings, member_id, **lifetime)}"}


@dataclass
class Ringer:
    """The worker's half: what is written is announced."""

    store: Store
    announcer: Announcer

    async def ring(self, member_id: str, count: int = 1, **words: Any) -> list[int]:
        ids, messages = await write(self.store, member_id, count, **words)
        self.announcer.announce(messages)
        return ids


@contextlib.asynccontextmanager
async def ringing(store: Store, signals: Signals) -> AsyncIterator[Ringer]:
    async with running(Announcer(store, signals, MessageCache())) as announcer:
        yield Ringer(store, announcer)


@dataclass
class Live:
    """One process with everything."""

    settings: Settings
    store: Store
    signals: Signals
    gateway: Gateway
    ringer: Ringer
    address: str
    wire: str = "sse"

    def open(self, member_id: str = "m-1", headers: dict[str, str] | None = None, **options: Any) -> EventSource:
        reader = READERS[self.wire]
        return reader([self.address], bearer(self.settings, member_id) if headers is None else headers, **options)

    async def ring(self, member_id: str = "m-1", count: int = 1, **words: Any) -> list[int]:
        return await self.ringer.ring(member_id, count, **words)


@contextlib.asynccontextmanager
async def live_on(store: Store, settings: Settings, wire: str = "sse") -> AsyncIterator[Live]:
    """`wire`: what its readers speak."""
    signals = signals_for(settings)
    keys = Keys.load(settings)
    gateway = Gateway(store, signals, settings)
    listener = socket.create_server(("127.0.0.1", 0))
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running(signals))
        intake = await stack.enter_async_context(running(Intake(store, signals, "http")))
        order = await stack.enter_async_context(running(ChatOrder(store, Fanout(signals), settings)))
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        app = build_api(
            store,
            intake,
            keys,
            settings,
            lambda: False,
            signals,
            gateway=gateway,
            chat_order=order,
            presence=presence(settings, gateway.open_streams),
            on_change=functools.partial(announce_change, signals),
        )
        address = await stack.enter_async_context(serving(app, listener, gateway.drain, LIMITS))
        ringer = await stack.enter_async_context(ringing(store, signals))
        yield Live(settings, store, signals, gateway, ringer, address, wire)


def increasing(ids: Iterable[int]) -> bool:
    listed = list(ids)
    return listed == sorted(set(listed))
