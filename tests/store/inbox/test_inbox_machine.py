"""The inbox against a model: notifications of two members are written, read, moved and withdrawn in any order, some of it at
the same time, while readers follow by cursor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, rule

from bongsu.api import inbox as the_inbox
from bongsu.api.inbox import Inbox, InboxPage, PageQuery, ReadAll, UnreadCount
from bongsu.api.problems import ProblemError
from bongsu.store import Store
from bongsu.store.core.query import Row, as_uuid, same
from bongsu.store.desk import cancel_steps
from bongsu.store.inbox import Act
from tests.conftest import SettingsMaker
from tests.support.inbox import add_unread, unread_rows
from tests.support.machines import StoreMachine, opened, run_machine
from tests.support.rows import add_cancellation

MEMBERS = ("a", "b")
members = st.sampled_from(MEMBERS)
picks = st.integers(0, 30)

FIND_EVENT = same("""
    SELECT w.event_id FROM bongsu_notifications n JOIN bongsu_messages w ON w.message_id = n.message_id
    WHERE n.notification_id = $1""")
FIND_CANCELLATION = same("SELECT 1 AS one FROM bongsu_cancellations WHERE event_id = $1")
FIND_ROWS = same("SELECT * FROM bongsu_notifications WHERE member_id = $1 ORDER BY notification_id")
# What a page that follows by cursor is sent, of one snapshot.
FIND_NEWS = same("""
    SELECT m.changed_id, m.read_up_to, m.read_change_id, m.seen_up_to, m.seen_change_id, n.*
    FROM bongsu_members m
    LEFT JOIN bongsu_notifications n
        ON n.member_id = m.member_id AND (n.notification_id > $2 OR coalesce(n.change_id, 0) > $2)
    WHERE m.member_id = $1""")


@dataclass(frozen=True)
class One:
    """A notification in the model."""

    place: str = "inbox"
    is_read: bool = False
    is_seen: bool = False

    @property
    def is_unread(self) -> bool:
        return self.place == "inbox" and not self.is_read


def as_one(row: Row) -> One:
    """A notification as it is stored."""
    if row["channels"]:
        place = "inbox"
    elif row["archived_at"]:
        place = "archive"
    else:
        place = "deleted" if row["deleted_at"] else "withdrawn"
    return One(place, row["read_at"] is not None, row["seen_at"] is not None)


@dataclass
class Walk:
    """A reader that pages through the whole inbox, with other steps between two pages."""

    member: str
    there: list[int]
    cursor: str | None = None
    seen: list[int] = field(default_factory=list)
    is_over: bool = False


@dataclass
class Follower:
    """A page that is sent what is new or has changed since its cursor, in the order of ids and change ids."""

    member: str
    cursor: int = 0
    shown: dict[int, One] = field(default_factory=dict)

    async def catch_up(self, store: Store) -> None:
        async with store.read() as tx:
            rows = await tx.fetch(FIND_NEWS(self.member, self.cursor))
        if not rows:
            return
        news = sorted(((key, what, row) for key, what, row in self.news(rows)), key=lambda one: one[0])
        keys = [key for key, _, _ in news]
        assert len(set(keys)) == len(keys), "two changes of a member have the same key"
        for key, what, row in news:
            self.apply(what, row)
            self.cursor = key
        # Gateways look for changes only if this is above the cursor.
        assert self.cursor >= (rows[0]["changed_id"] or 0) >= max((row["change_id"] or 0) for row in rows)

    def news(self, rows: Any) -> Iterator[tuple[int, str, Row]]:
        for row in rows:
            if (row["notification_id"] or 0) > self.cursor and row["channels"]:
                yield row["notification_id"], "one", row
            if (row["change_id"] or 0) > self.cursor:
                yield row["change_id"], "one", row
        for mark in ("read", "seen"):
            if (rows[0][f"{mark}_change_id"] or 0) > self.cursor:
                yield rows[0][f"{mark}_change_id"], mark, rows[0]

    def apply(self, what: str, row: Row) -> None:
        if what == "one":
            self.shown.pop(row["notification_id"], None)
            if row["channels"]:
                self.shown[row["notification_id"]] = as_one(row)
            return
        for one in [one for one in self.shown if one <= row[f"{what}_up_to"]]:
            shown = self.shown[one]
            self.shown[one] = replace(
                shown, is_read=shown.is_read or what == "read", is_seen=shown.is_seen or what == "seen"
            )


class InboxMachine(StoreMachine):
    tables = ("notifications", "messages", "members", "cancellations")

    walks = Bundle("walks")
    followers = Bundle("followers")

    def __init__(self) -> None:
        super().__init__()
        self.inbox = Inbox(self.store, self.on_change)
        self.reported: list[str] = []
        self.requests = asyncio.Lock()
        # By id; ids come in rising order.
        self.model: dict[str, dict[int, One]] = {member: {} for member in MEMBERS}
        # All ids and change ids of a member that were ever seen.
        self.keys: dict[str, set[int]] = {member: set() for member in MEMBERS}

    def on_change(self, member: str) -> None:
        self.reported.append(member)

    def unread(self, member: str) -> int:
        return sum(one.is_unread for one in self.model[member].values())

    def in_inbox(self, member: str) -> dict[int, One]:
        return {key: one for key, one in self.model[member].items() if one.place == "inbox"}

    def picked(self, pick: int) -> int:
        """The member's own, wherever it is; another member's; or an id that does not exist."""
        known = sorted({*self.model["a"], *self.model["b"]})
        return known[pick] if pick < len(known) else 10**9

    def was_reported(self, member: str, is_changed: bool) -> None:
        assert self.reported == [member] * is_changed
        self.reported.clear()

    # --- what happens ---------------------------------------------------------------------------------------------------

    async def notify(self, member: str, count: int) -> list[int]:
        async with self.store.transaction() as tx:
            return await add_unread(tx, member, count)

    @rule(member=members, count=st.integers(1, 5))
    def notifications_arrive(self, member: str, count: int) -> None:
        new = self.run(self.notify(member, count))
        assert min(new) > max(self.model[member], default=0)
        self.model[member] |= dict.fromkeys(new, One())

    @rule(member=members, pick=picks)
    def one_is_read(self, member: str, pick: int) -> None:
        picked = self.picked(pick)
        before = self.model[member].get(picked, One("unknown"))
        answer = self.run(self.inbox.read(member, picked))
        if before.place not in ("inbox", "archive"):
            assert answer is None
            return
        self.model[member][picked] = replace(before, is_read=True)
        assert answer is not None
        assert (answer.id, answer.unread) == (str(picked), self.unread(member))
        self.was_reported(member, before.is_unread)

    @rule(member=members, pick=picks, act=st.sampled_from([act for act in Act if act is not Act.READ]))
    def one_is_changed(self, member: str, pick: int, act: Act) -> None:
        picked = self.picked(pick)
        before = self.model[member].get(picked, One("unknown"))
        after = self.expected(act, before)
        if before.place == "archive" and act is Act.UNREAD:
            with pytest.raises(ProblemError) as refused:
                self.run(self.inbox.act(member, picked, act))
            assert refused.value.status == 409
            return
        answer = self.run(self.inbox.act(member, picked, act))
        assert (answer is None) == (after is None)
        if after is not None:
            self.model[member][picked] = after
            assert answer is not None
            assert answer.unread == self.unread(member)
        self.was_reported(member, after not in (None, before))

    def expected(self, act: Act, before: One) -> One | None:
        """None: not found."""
        if act is Act.DELETE and before.place in ("inbox", "archive", "deleted"):
            return replace(before, place="deleted")
        if before.place not in ("inbox", "archive"):
            return None
        match act:
            case Act.UNREAD:
                return replace(before, is_read=False)
            case Act.ARCHIVE:
                return One("archive", is_read=True, is_seen=True)
        return replace(before, place="inbox")

    @rule(member=members)
    def all_are_read(self, member: str) -> None:
        unread = self.unread(member)
        assert self.run(self.inbox.read_all(member)) == ReadAll(read=unread, unread=0)
        self.model[member] |= {key: replace(one, is_read=True) for key, one in self.in_inbox(member).items()}
        self.was_reported(member, unread > 0)

    @rule(member=members)
    def the_list_is_seen(self, member: str) -> None:
        unseen = [one for one in self.in_inbox(member).values() if not one.is_seen]
        self.run(self.inbox.seen(member))
        self.model[member] |= {key: replace(one, is_seen=True) for key, one in self.in_inbox(member).items()}
        self.was_reported(member, bool(unseen))

    @rule(pick=picks)
    def an_event_is_withdrawn(self, pick: int) -> None:
        """With all notifications that it has led to, archived ones too."""
        picked = self.picked(pick)
        if picked == 10**9:
            return
        for key in self.run(self.withdraw(picked)):
            for model in self.model.values():
                if key in model and model[key].place in ("inbox", "archive"):
                    model[key] = replace(model[key], place="withdrawn")

    async def withdraw(self, notification_id: int) -> list[int]:
        """The ids of all notifications of the same event."""
        async with self.requests, self.store.transaction() as tx:
            [row] = await tx.fetch(FIND_EVENT(notification_id))
            event_id: UUID = as_uuid(row["event_id"])
            if not await tx.fetch(FIND_CANCELLATION(event_id)):
                await add_cancellation(tx, event_id, withdraw=True, cancelled=0, sent=0, withdrawn=0)
        while await cancel_steps.step(self.store, 3, event_id) is not None:
            pass
        async with self.store.read() as tx:
            of_event = same("""
                SELECT n.notification_id FROM bongsu_notifications n JOIN bongsu_messages w ON w.message_id = n.message_id
                WHERE w.event_id = $1""")
            return [row["notification_id"] for row in await tx.fetch(of_event(event_id))]

    @rule(
        member=members,
        following=followers,
        work=st.lists(
            st.tuples(st.sampled_from(["arrive", "read-all", "seen", "withdraw", *Act]), picks), min_size=2, max_size=6
        ),
    )
    def much_happens_at_once(self, member: str, following: Follower, work: list[tuple[Any, int]]) -> None:
        """In whatever order; a page follows meanwhile. The rows, the count and the marks agree afterwards."""

        async def do(what: Any, pick: int) -> None:
            picked = self.picked(pick)
            match what:
                case "arrive":
                    await self.notify(member, 1 + pick % 3)
                case "read-all":
                    await self.inbox.read_all(member)
                case "seen":
                    await self.inbox.seen(member)
                case "withdraw" if picked != 10**9:
                    await self.withdraw(picked)
                case Act():
                    try:
                        await self.inbox.act(member, picked, what)
                    except ProblemError as error:
                        assert error.status == 409

        async def follow() -> None:
            for _ in range(3):
                await following.catch_up(self.store)

        async def happen() -> None:
            ended = await asyncio.gather(follow(), *(do(what, pick) for what, pick in work), return_exceptions=True)
            for error in filter(None, ended):
                raise error
            for each in MEMBERS:
                async with self.store.read() as tx:
                    rows = await tx.fetch(FIND_ROWS(each))
                self.model[each] = {row["notification_id"]: as_one(row) for row in rows}

        self.run(happen())
        self.reported.clear()

    # --- what is looked at ----------------------------------------------------------------------------------------------

    @rule(target=followers, member=members)
    def a_page_is_opened(self, member: str) -> Follower:
        return Follower(member)

    @rule(following=followers)
    def a_page_catches_up(self, following: Follower) -> None:
        """Whatever has happened since it was last told, it shows what the inbox has."""
        self.run(following.catch_up(self.store))
        assert following.shown == self.in_inbox(following.member)

    @rule(target=walks, member=members)
    def a_walk_begins(self, member: str) -> Walk:
        return Walk(member, [])

    @rule(walk=walks, limit=st.integers(1, 4))
    def a_walk_goes_on(self, walk: Walk, limit: int) -> None:
        """Whatever arrives and is read in between, a walk meets what was there at its first page and still is, each once."""
        if walk.is_over:
            return
        if walk.cursor is None:
            walk.there = sorted(self.in_inbox(walk.member), reverse=True)
        page = self.looked_at(walk.member, "", limit, walk.cursor)
        walk.seen += [int(item.id) for item in page.items]
        walk.cursor = page.next
        walk.is_over = walk.cursor is None
        assert walk.seen == sorted(set(walk.seen), reverse=True)
        if walk.is_over:
            assert set(walk.there) & set(self.in_inbox(walk.member)) <= set(walk.seen)

    @rule(
        member=members, only=st.sampled_from(["", "unread", "archived"]), limit=st.integers(1, 6), cursor=st.none() | picks
    )
    def a_page_is_looked_at(self, member: str, only: str, limit: int, cursor: int | None) -> None:
        known = sorted({*self.model["a"], *self.model["b"]})
        start = None if cursor is None or cursor >= len(known) else str(known[cursor])
        self.looked_at(member, only, limit, start)

    def looked_at(self, member: str, only: str, limit: int, cursor: str | None) -> InboxPage:
        query = {"limit": limit, **({only: "true"} if only else {}), **({"cursor": cursor} if cursor else {})}
        page = self.run(self.inbox.page(member, PageQuery.model_validate(query)))
        model = self.model[member]
        below = [one for one in sorted(model, reverse=True) if cursor is None or one < int(cursor)]
        fits = {"": lambda one: one.place == "inbox", "unread": lambda one: one.is_unread}
        matching = [key for key in below if fits.get(only, lambda one: one.place == "archive")(model[key])]
        assert [int(item.id) for item in page.items] == matching[:limit]
        shown = [
            One("archive" if item.archived_at else "inbox", item.read_at is not None, item.seen_at is not None)
            for item in page.items
        ]
        assert shown == [model[key] for key in matching[:limit]]
        assert page.next == (str(matching[limit - 1]) if len(matching) > limit else None)
        assert page.unread == self.unread(member)
        return page

    @invariant()
    def keys_grow(self) -> None:
        """New ids and change ids of a member are above all before, and the member's row has the newest change id."""

        async def look() -> None:
            for member in MEMBERS:
                async with self.store.read() as tx:
                    rows = await tx.fetch(FIND_NEWS(member, 0))
                if not rows:
                    continue
                marks = [rows[0]["read_change_id"], rows[0]["seen_change_id"]]
                changed = {key for key in [*marks, *(row["change_id"] for row in rows)] if key}
                assert rows[0]["changed_id"] == max(changed, default=None)
                keys = changed | {row["notification_id"] for row in rows if row["notification_id"]}
                assert all(key > max(self.keys[member], default=0) for key in keys - self.keys[member])
                self.keys[member] |= keys

        self.run(look())

    @invariant()
    def the_count_is_the_number_of_unread_rows(self) -> None:
        async def look() -> None:
            async with self.store.read() as tx:
                for member in MEMBERS:
                    assert await unread_rows(tx, member) == self.unread(member)
                    assert await self.inbox.unread_count(member) == UnreadCount(unread=self.unread(member))

        self.run(look())


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_inbox_behaves_like_its_model(
    database: str, migrated_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that reading all takes several transactions here too.
    monkeypatch.setattr(the_inbox, "MARK_CHUNK", 4)
    with opened(InboxMachine, migrated_settings(database)):
        run_machine(InboxMachine, few=8, steps=30)
