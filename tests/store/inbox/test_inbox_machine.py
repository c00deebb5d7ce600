"""The inbox against a model: notifications of two members are written, marked and read in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from bongsu.api import inbox as the_inbox
from bongsu.api.inbox import Inbox, InboxPage, PageQuery, ReadAll, UnreadCount
from bongsu.settings import Settings
from bongsu.store import Store, migrate
from bongsu.store.core.query import same
from tests.support.inbox import add_unread, unread_rows
from tests.support.long_runs import examples

_T = TypeVar("_T")
MEMBERS = ("a", "b")
members = st.sampled_from(MEMBERS)


@dataclass
class Walk:
    """A reader that pages through the whole inbox, with other steps between two pages."""

    member: str
    there: list[int]
    cursor: str | None = None
    seen: list[int] = field(default_factory=list)
    is_over: bool = False


class InboxMachine(RuleBasedStateMachine):
    """Runs against one store, emptied for each example."""

    store: Store
    loop: asyncio.AbstractEventLoop

    walks = Bundle("walks")

    def __init__(self) -> None:
        super().__init__()
        self.inbox = Inbox(self.store, self.on_change)
        self.reported: list[str] = []
        # Whether each is read, by id; ids come in rising order.
        self.model: dict[str, dict[int, bool]] = {member: {} for member in MEMBERS}
        self.run(self.empty())

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self.loop.run_until_complete(work)

    async def empty(self) -> None:
        async with self.store.transaction() as tx:
            for table in ("notifications", "messages", "members"):
                await tx.execute(same(f"DELETE FROM bongsu_{table}")())

    async def on_change(self, member: str) -> None:
        self.reported.append(member)

    def unread(self, member: str) -> int:
        return sum(not is_read for is_read in self.model[member].values())

    async def notify(self, member: str, count: int) -> list[int]:
        async with self.store.transaction() as tx:
            return await add_unread(tx, member, count)

    @rule(member=members, count=st.integers(1, 5))
    def notifications_arrive(self, member: str, count: int) -> None:
        new = self.run(self.notify(member, count))
        assert min(new) > max(self.model[member], default=0)
        self.model[member] |= dict.fromkeys(new, False)

    @rule(member=members, pick=st.integers(0, 30))
    def one_is_read(self, member: str, pick: int) -> None:
        """The member's own, unread or read; another member's; or an id that does not exist."""
        known = sorted({*self.model["a"], *self.model["b"]})
        one = known[pick] if pick < len(known) else 10**9
        was_read = self.model[member].get(one)
        answer = self.run(self.inbox.read(member, one))
        if was_read is None:
            assert answer is None
            return
        self.model[member][one] = True
        assert answer is not None
        assert (answer.id, answer.unread) == (str(one), self.unread(member))
        self.was_reported(None if was_read else member)

    @rule(member=members)
    def all_are_read(self, member: str) -> None:
        unread = self.unread(member)
        assert self.run(self.inbox.read_all(member)) == ReadAll(read=unread, unread=0)
        self.model[member] = dict.fromkeys(self.model[member], True)
        self.was_reported(member if unread else None)

    def was_reported(self, last: str | None) -> None:
        assert (self.reported[-1] if self.reported else None) == last
        self.reported.clear()

    @rule(target=walks, member=members)
    def a_walk_begins(self, member: str) -> Walk:
        return Walk(member, sorted(self.model[member], reverse=True))

    @rule(walk=walks, limit=st.integers(1, 4))
    def a_walk_goes_on(self, walk: Walk, limit: int) -> None:
        """Whatever arrives and is read in between, a walk meets what was there at its first page, each once."""
        if walk.is_over:
            return
        if walk.cursor is None:
            walk.there = sorted(self.model[walk.member], reverse=True)
        page = self.looked_at(walk.member, False, limit, walk.cursor)
        walk.seen += [int(item.id) for item in page.items]
        walk.cursor = page.next
        walk.is_over = walk.cursor is None
        assert walk.seen == (walk.there if walk.is_over else walk.there[: len(walk.seen)])

    @rule(member=members, only_unread=st.booleans(), limit=st.integers(1, 6), cursor=st.none() | st.integers(0, 30))
    def a_page_is_looked_at(self, member: str, only_unread: bool, limit: int, cursor: int | None) -> None:
        known = sorted({*self.model["a"], *self.model["b"]})
        start = None if cursor is None or cursor >= len(known) else str(known[cursor])
        self.looked_at(member, only_unread, limit, start)

    def looked_at(self, member: str, only_unread: bool, limit: int, cursor: str | None) -> InboxPage:
        query = {"unread": str(only_unread), "limit": limit, **({"cursor": cursor} if cursor else {})}
        page = self.run(self.inbox.page(member, PageQuery.model_validate(query)))
        model = self.model[member]
        below = [one for one in sorted(model, reverse=True) if cursor is None or one < int(cursor)]
        matching = [one for one in below if not (only_unread and model[one])]
        assert [int(item.id) for item in page.items] == matching[:limit]
        assert [item.read_at is not None for item in page.items] == [model[one] for one in matching[:limit]]
        assert page.next == (str(matching[limit - 1]) if len(matching) > limit else None)
        assert page.unread == self.unread(member)
        return page

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
    database: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that reading all takes several transactions here too.
    monkeypatch.setattr(the_inbox, "MARK_CHUNK", 4)
    url = request.getfixturevalue("migrated_postgres_url") if database == "postgresql" else ""
    loop = asyncio.new_event_loop()
    store = Store.open(Settings(data_dir=Path(mkdtemp()), database_url=url))
    loop.run_until_complete(migrate(store))
    InboxMachine.store, InboxMachine.loop = store, loop
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    try:
        run_state_machine_as_test(
            InboxMachine,
            settings=settings(max_examples=examples(8), stateful_step_count=25, deadline=None, suppress_health_check=checks),
        )
    finally:
        loop.run_until_complete(store.close())
        loop.close()
