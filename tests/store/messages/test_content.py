"""The content of messages: what is read is what was written, and one cache serves all who need it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from bongsu.model import Guarantee, new_id, utc_now
from bongsu.store import Store, Transaction
from bongsu.store.core.clock import find_now
from bongsu.store.decisions import Message, add_messages_query
from bongsu.store.messages import content
from bongsu.store.messages.content import MessageCache, find_content

DATA = '{"big":12345678901234567890123,"text":"사과"}'


def message(message_id: int, now: datetime) -> Message:
    return Message(
        message_id, new_id(), 0, "ko", "PRICE_DROP", "s", "title", "body", "ref", DATA, 3, 2, "at_least_once", True, now,
        now + timedelta(hours=1), is_bulk=True,
    )  # fmt: skip


class Finds:
    """Notes which messages are read from the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.message_ids: list[int] = []
        self._find = content.find_content
        monkeypatch.setattr(content, "find_content", self.find)

    async def find(self, tx: Transaction, message_ids: list[int]) -> dict[int, content.MessageContent]:
        self.message_ids += message_ids
        return await self._find(tx, message_ids)


async def stored(store: Store, *message_ids: int) -> list[Message]:
    async with store.transaction() as tx:
        now = await find_now(tx)
        messages = [message(message_id, now) for message_id in message_ids]
        await tx.execute(add_messages_query(messages))
    return messages


async def test_every_field_is_read_and_what_is_deleted_is_left_out(store: Store) -> None:
    (written,) = await stored(store, 7)
    async with store.read() as tx:
        found = await find_content(tx, [7, 8])
    assert list(found) == [7]
    assert found[7] == content.MessageContent(
        7, str(written.event_id), "PRICE_DROP", "title", "body", "ref", DATA, Guarantee.AT_LEAST_ONCE, "ko", 2,
        found[7].expires_at, is_critical=True, is_bulk=True,
    )  # fmt: skip
    assert found[7].expires_at is not None
    assert utc_now() < found[7].expires_at <= utc_now() + timedelta(hours=1)
    assert found[7].data == {"big": 12345678901234567890123, "text": "사과"}


async def test_what_was_just_stored_is_as_if_read_and_is_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = MessageCache()
    cache.add(await stored(store, 7))
    async with store.read() as tx:
        read = (await find_content(tx, [7]))[7]
        finds = Finds(monkeypatch)
        cached = (await cache.load(tx, {7}))[7]
    assert finds.message_ids == []
    assert replace(cached, expires_at=None) == replace(read, expires_at=None)


async def test_only_what_is_not_cached_is_read_and_then_it_is_cached(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, finds = MessageCache(), Finds(monkeypatch)
    cache.add((await stored(store, 1, 2, 3))[:1])
    async with store.read() as tx:
        assert (await cache.load(tx, {1, 3, 4})).keys() == {1, 3}
        assert finds.message_ids == [3, 4]
        assert (await cache.load(tx, {1, 3})).keys() == {1, 3}
    assert finds.message_ids == [3, 4]
    assert cache.cached([1, 2, 3]).keys() == {1, 3}


def test_the_least_recently_used_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "CACHED_MESSAGES", 2)
    cache = MessageCache()
    cache.add([message(1, utc_now()), message(2, utc_now())])
    held = cache.cached([1])
    cache.add([message(3, utc_now())])
    assert cache.cached([1, 2, 3]).keys() == {1, 3}
    cache.add([message(4, utc_now()), message(5, utc_now())])
    assert cache.cached([1, 3]) == {}
    assert held.keys() == {1}
