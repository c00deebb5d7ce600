"""Members whose inboxes are written to in every way, and what a page shows that applies each event it gets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from bongsu.live.announce import announce_change, announce_changes
from bongsu.runtime.signals import Signals
from bongsu.store import Store, Transaction
from bongsu.store.core.query import same
from bongsu.store.inbox import changes
from tests.live.client import Frame
from tests.live.harness import LOCK_MEMBER, Ringer, write
from tests.support.rows import NOW, Sql, set_columns

FIND_INBOX = same("""
    SELECT notification_id, read_at IS NOT NULL AS is_read FROM bongsu_notifications
    WHERE member_id = $1 AND channels & 8 <> 0 ORDER BY notification_id""")

FIND_COUNT = same("SELECT unread, coalesce(changed_id, 0) AS changed FROM bongsu_members WHERE member_id = $1")

COUNT_ROWS = Sql("""(SELECT count(*) FROM bongsu_notifications AS n
    WHERE n.member_id = bongsu_members.member_id AND n.read_at IS NULL AND n.channels & 8 <> 0)""")


# --- what a page shows ------------------------------------------------------------------------------------------------


class Shown:
    """A page that began with an empty list and applies what it gets: each notification, and whether it is read."""

    def __init__(self) -> None:
        self.items: dict[int, bool] = {}
        self.unread: int | None = None
        self.keys: list[int] = []
        self._told: set[int] = set()

    def apply(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            match frame.event:
                case "notification":
                    number = int(frame.data["id"])
                    assert number == int(frame.id)
                    assert number not in self._told, "told twice"
                    self._told.add(number)
                    self.items[number] = False
                case "updated":
                    self.items[int(frame.data["id"])] = frame.data["readAt"] is not None
                case "withdrawn":
                    self.items.pop(int(frame.data["id"]), None)
                case "read":
                    up_to = int(frame.data["upTo"])
                    self.items.update(dict.fromkeys((one for one in self.items if one <= up_to), True))
                case "badge":
                    self.unread = frame.data["unread"]
                    continue
                case "ping" | "bye" | "unavailable":
                    continue
                case other:
                    raise AssertionError(f"unexpected: {other}")
            assert not self.keys or int(frame.id) > self.keys[-1], "out of order, or again"
            self.keys.append(int(frame.id))


async def find_inbox(store: Store, member_id: str) -> tuple[dict[int, bool], int, int]:
    """What the inbox has, the unread count, and the last key."""
    async with store.read() as tx:
        rows = await tx.fetch(FIND_INBOX(member_id))
        [count] = await tx.fetch(FIND_COUNT(member_id))
    items = {row["notification_id"]: bool(row["is_read"]) for row in rows}
    return items, count["unread"], max([count["changed"], *items])


# --- what is written --------------------------------------------------------------------------------------------------


class Writer:
    """Writes to the inboxes of some members. What it announces arrives late, twice, in the wrong order, or not at all."""

    def __init__(self, ringer: Ringer, signals: Signals, members: Sequence[str], seed: float) -> None:
        self._ringer = ringer
        self._store = ringer.store
        self._signals = signals
        self._members = members
        self._dice = random.Random(seed)
        self._held: list[Any] = []

    async def write(self, times: int) -> None:
        for _ in range(times):
            member_id = self._dice.choice(self._members)
            kind = self._dice.choice(("new", "new", "new", "new", "read", "unread", "withdraw", "read all"))
            if kind == "new":
                _, messages = await write(self._store, member_id, self._dice.choice((1, 1, 2)))
                self._held += messages
            else:
                await self._change(member_id, kind)
                self._held.append(member_id)
            if self._dice.random() < 0.6:
                self._announce()

    async def _change(self, member_id: str, kind: str) -> None:
        async with self._store.transaction() as tx:
            await tx.fetch(LOCK_MEMBER(member_id))
            inbox = {row["notification_id"]: bool(row["is_read"]) for row in await tx.fetch(FIND_INBOX(member_id))}
            if not inbox:
                return
            (change_id,) = await changes.draw(tx)
            marks: dict[str, Any] = {}
            if kind == "read all":
                where = {"member_id": member_id, "notification_id": [one for one, is_read in inbox.items() if not is_read]}
                marks = {"read_up_to": max(inbox), "read_change_id": change_id}
                if where["notification_id"]:
                    await set_columns(tx, "notifications", where, read_at=NOW)
            else:
                await self._change_one(tx, self._dice.choice(list(inbox)), kind, change_id)
            await set_columns(tx, "members", {"member_id": member_id}, unread=COUNT_ROWS, changed_id=change_id, **marks)

    async def _change_one(self, tx: Transaction, notification_id: int, kind: str, change_id: int) -> None:
        columns: dict[str, dict[str, Any]] = {
            "read": {"read_at": NOW},
            "unread": {"read_at": None},
            "withdraw": {"channels": Sql("channels - 8")},
        }
        row = {"notification_id": notification_id}
        await set_columns(tx, "notifications", row, change_id=change_id, **columns[kind])

    def _announce(self) -> None:
        self._dice.shuffle(self._held)
        for one in self._held[: self._dice.randint(1, len(self._held))]:
            if isinstance(one, int):
                self._ringer.announcer.announce([one])
            elif self._dice.random() < 0.5:
                announce_change(self._signals, one)
            else:
                announce_changes(self._signals, [one])
        self._held = self._held if self._dice.random() < 0.3 else []
