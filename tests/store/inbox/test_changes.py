"""Change ids come from the sequence of the notification ids."""

from __future__ import annotations

from bongsu.store import Store
from bongsu.store.core.query import same
from bongsu.store.inbox import changes
from tests.support.rows import add_member, add_message, add_notification


async def test_change_ids_lie_between_the_notifications_before_and_after(store: Store) -> None:
    async with store.transaction() as tx:
        message = await add_message(tx)
        before = await add_notification(tx, "a", message)
        first, second, third = await changes.draw(tx, 3)
        after = await add_notification(tx, "b", message)
        (fourth,) = await changes.draw(tx)
    assert before < first < second < third < after < fourth


async def test_a_store_without_notifications_has_change_ids_too(store: Store) -> None:
    async with store.transaction() as tx:
        first, second = await changes.draw(tx, 2)
        notification = await add_notification(tx, "a", await add_message(tx))
    assert 0 < first < second < notification


async def test_the_newest_change_id_of_each_member_is_on_their_row(store: Store) -> None:
    async with store.transaction() as tx:
        for member_id in ("a", "b", "c"):
            await add_member(tx, member_id)
        await changes.set_changed(tx, [("a", 7), ("b", 9)])
        rows = await tx.fetch(same("SELECT member_id, changed_id FROM bongsu_members ORDER BY member_id")())
    assert [tuple(row) for row in rows] == [("a", 7), ("b", 9), ("c", None)]
