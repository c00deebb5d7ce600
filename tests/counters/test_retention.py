"""Retention of what counters leave behind, and that it makes no count wrong."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bongsu.clock.jobs.retain import retain_job
from tests.support.counters import Counting, comment_created, comment_deleted
from tests.support.decisions import rows
from tests.support.rows import set_columns
from tests.support.runs import run_by_hand

OLD = timedelta(days=-31)


async def age(counts: Counting) -> None:
    """Everything is a month older than it was."""
    for table, column in (("events", "finished_at"), ("events", "created_at"), ("count_batches", "processed_to")):
        await set_columns(counts.store, table, None, **{column: OLD})
    await set_columns(counts.store, "counted_items", "deleted_at IS NOT NULL", deleted_at=OLD)


async def retain(counts: Counting, batch: int = 500) -> None:
    await run_by_hand(counts.store, retain_job(counts.settings, batch))


async def test_a_comment_is_deleted_however_late_and_a_late_resend_does_not_count_again(counts: Counting) -> None:
    created = comment_created(comment_id="c-1")
    await counts.publish(created, comment_created(comment_id="c-2"))
    await counts.flush()
    await age(counts)
    await retain(counts)
    assert await rows(counts.store, "SELECT 1 FROM bongsu_events") == []
    await counts.publish(created)
    assert await counts.value("p-1") == 2
    await counts.publish(comment_deleted(comment_id="c-1"), comment_deleted(created=created))
    assert await counts.value("p-1") == 1


@pytest.mark.parametrize("batch", [1, 500])
async def test_comments_deleted_long_ago_are_forgotten_under_all_their_names_and_others_stay(
    counts: Counting, batch: int
) -> None:
    gone, kept = comment_created(comment_id="gone"), comment_created(comment_id="kept")
    await counts.publish(gone, kept, comment_deleted(comment_id="gone"), comment_deleted(comment_id="tombstone"))
    await age(counts)
    await counts.publish(comment_deleted(comment_id="fresh"))
    await retain(counts, batch)
    found = {row["name"] for row in await rows(counts.store, "SELECT name FROM bongsu_counted_items")}
    assert found == {f"event:{kept.event_id}", "comment:kept", "comment:fresh"}
    assert await counts.value("p-1") == 1


@pytest.mark.parametrize("batch", [1, 500])
async def test_old_batches_go_but_the_last_one_stays(counts: Counting, batch: int) -> None:
    for _ in range(3):
        await counts.call("p-1", 1)
        await counts.flush()
    last = (await counts.batches())[-1]["batch_id"]
    await age(counts)
    await retain(counts, batch)
    assert [row["batch_id"] for row in await counts.batches()] == [last]
    await counts.call("p-1", 1)
    await counts.flush()
    first, second = await counts.batches()
    assert second["processed_from"] == first["processed_to"]
    await retain(counts, batch)
    assert await counts.value("p-1") == 4
