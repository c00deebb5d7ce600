"""A user's own SELECT: its parameters by name, and whose fault an error is."""

from __future__ import annotations

import pytest

from bongsu.errors import BadAudience
from bongsu.model import Selected
from bongsu.store import Statement, Store
from bongsu.store.core.query import same
from bongsu.store.decisions.audience_snapshots import select_portions
from bongsu.store.decisions.user_select import bind
from tests.support.decisions import add_members


def test_names_become_positions_and_casts_and_escapes_do_not() -> None:
    query = bind(same(r"SELECT a::text, '\:x' FROM t WHERE b = :b AND c IN (:a, :b)"), {"a": 1, "b": 2, "unused": 3})
    text = "SELECT a::text, ':x' FROM t WHERE b = $1 AND c IN ($2, $1)"
    assert query == Statement(text, text)(2, 1)


def test_a_name_without_a_value_is_reported() -> None:
    with pytest.raises(BadAudience, match=":whom"):
        bind(same("SELECT a FROM t WHERE b = :whom"), {"who": 1})


async def test_a_select_may_end_in_a_comment_and_use_any_table_name(store: Store) -> None:
    await add_members(store, "a", "b", "c:d")
    async with store.transaction() as tx:
        await tx.execute(
            same("CREATE TABLE audience (id text)")(), same("INSERT INTO audience SELECT member_id FROM bongsu_members")()
        )
        sql = r"SELECT id FROM audience WHERE id <> :other AND (id > :least OR id = 'c\:d') -- it's everyone"
        found = await select_portions(tx, Selected(sql, {"least": "a", "other": "x"}), "", 10, 30)
    assert [portion.member_ids for portion in found] == [["b", "c:d"]]


BROKEN = ("SELECT x FROM nowhere", "SELECT nothing FROM bongsu_members", "SELEKT 1", "SELECT x FROM bongsu_nowhere")


@pytest.mark.parametrize("sql", BROKEN)
async def test_a_select_that_cannot_run_is_no_fault_of_the_store(store: Store, sql: str) -> None:
    with pytest.raises(BadAudience):
        async with store.read_within(30) as tx:
            await select_portions(tx, Selected(sql), "", 10, 30)
