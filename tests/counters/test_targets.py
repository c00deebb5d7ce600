"""Targets: a flush changes a table of the team's own in its transaction, and a target that fails keeps no other waiting."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from bongsu.errors import BadCounterTarget, BadSettings
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.counters.user_targets import read_target
from tests.support.counters import Counting, comment_created, counting
from tests.support.decisions import rows, run_sql

PLAIN = "UPDATE posts SET comment_count = comment_count + :delta WHERE id = :key"
# Not one plain UPDATE: it is run for each key.
OTHER = """
    INSERT INTO posts (id, comment_count) VALUES (:key, :delta)
    ON CONFLICT (id) DO UPDATE SET comment_count = posts.comment_count + :delta"""


def with_targets(settings: Settings, **targets: str) -> Settings:
    return settings.model_copy(update={"counter_targets": json.dumps(targets)})


@pytest.fixture(params=["integer", "text"])
async def posts(request: pytest.FixtureRequest, store: Store) -> str:
    """A table of posts 1 to 5, whose key is a number or a text."""
    await run_sql(
        store,
        f"CREATE TABLE posts (id {request.param} PRIMARY KEY, comment_count integer NOT NULL CHECK (comment_count < 1000))",
        *(f"INSERT INTO posts VALUES ('{number}', 0)" for number in range(1, 6)),
    )
    return str(request.param)


@pytest.fixture(params=[PLAIN, OTHER], ids=["update", "upsert"])
async def counts(request: pytest.FixtureRequest, store: Store, settings: Settings, posts: str) -> AsyncIterator[Counting]:
    async with counting(store, with_targets(settings, comments=request.param)) as counts:
        yield counts


async def of_posts(counts: Counting) -> dict[str, int]:
    found = await rows(counts.store, "SELECT id, comment_count FROM posts WHERE comment_count <> 0")
    return {str(row["id"]): row["comment_count"] for row in found}


async def test_a_flush_changes_the_posts_in_its_own_transaction(counts: Counting) -> None:
    await counts.publish(*(comment_created(str(1 + number % 2)) for number in range(5)))
    await counts.call("3", -4)
    await counts.flush()
    assert await of_posts(counts) == {"1": 3, "2": 2, "3": -4}
    assert {key: value for (_, key), value in (await counts.stored()).items()} == await of_posts(counts)
    await counts.call("1", 1)
    assert (await of_posts(counts))["1"] == 3
    await counts.flush()
    assert (await of_posts(counts))["1"] == 4


async def test_a_key_that_the_target_refuses_stays_pending_and_the_others_go_on(counts: Counting) -> None:
    for key in ("1", "2", "3"):
        await counts.call(key, 5)
    await counts.call("2", 5_000)
    with capture_logs() as logs:
        await counts.flush()
    assert await of_posts(counts) == {"1": 5, "3": 5}
    assert await counts.value("2") == 5_005
    assert [line["key"] for line in logs if line["event"] == "counter target refused a key"] == ["2"]
    # Its next deltas wait with it, and it is taken up again when they fit.
    await counts.call("2", -5_000)
    await counts.call("1", 1)
    for hold in counts.flusher._held_keys.values():
        hold.until = 0
    await counts.flush()
    assert await of_posts(counts) == {"1": 6, "2": 5, "3": 5}
    assert await counts.count_logged() == 0


async def test_a_target_that_is_wrong_keeps_its_deltas_and_no_other_counter_waits(
    store: Store, settings: Settings, posts: str
) -> None:
    wrong = "UPDATE no_such_table SET n = n + :delta WHERE id = :key"
    async with counting(store, with_targets(settings, comments=wrong, likes=PLAIN)) as counts:
        await counts.call("1", 5)
        await counts.call("1", 7, counter="likes")
        with capture_logs() as logs:
            for _ in range(2):
                await counts.flush()
        assert (await counts.value("1"), await counts.value("1", "likes")) == (5, 7)
        assert await counts.stored() == {("likes", "1"): 7}
        assert await of_posts(counts) == {"1": 7}
        (failed,) = [line for line in logs if line["event"] == "counter target failed"]
        assert "no_such_table" in failed["error"]
        assert "Correct BONGSU_COUNTER_TARGETS" in failed["error"]
        await run_sql(store, "CREATE TABLE no_such_table (id text, n integer)", "INSERT INTO no_such_table VALUES ('1', 0)")
        for hold in counts.flusher._held.values():
            hold.until = 0
        await counts.flush()
        assert [tuple(row) for row in await rows(store, "SELECT n FROM no_such_table")] == [(5,)]
        assert await counts.count_logged() == 0


async def test_a_target_that_fails_at_the_commit_has_changed_nothing(counts: Counting) -> None:
    await counts.call("1", 999)
    await counts.call("1", 1)
    await counts.flush()
    assert (await of_posts(counts), await counts.stored(), await counts.batches()) == ({}, {}, [])
    assert await counts.value("1") == 1000


@pytest.mark.parametrize(
    "text",
    ["UPDATE no_such_table SET n = :delta WHERE id = :key", "UPDATE posts SET no_such = :delta WHERE id = :key",
     "UPDATE posts SET comment_count = :delta WHERE id = :key AND"],
)  # fmt: skip
async def test_a_statement_that_the_database_does_not_take_is_one_line(store: Store, posts: str, text: str) -> None:
    with pytest.raises(BadCounterTarget) as refused:
        await read_target(store, "comments", text)
    assert str(refused.value).startswith("The statement for comments: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("no json", "must be a JSON object"),
        ("[]", "must be a JSON object"),
        ('{"comments": 1}', "must be a JSON object"),
        ('{"comment": "UPDATE a SET b = :delta WHERE c = :key"}', "cannot be a counter"),
        ('{"comments": "SELECT :key, :delta"}', "takes one UPDATE or INSERT"),
        ('{"comments": "UPDATE a SET b = :delta WHERE c = :key; DROP TABLE a"}', "takes one UPDATE or INSERT"),
        ('{"comments": "UPDATE a SET b = 1 WHERE c = :key"}', "has no :delta"),
    ],
)
def test_a_setting_that_cannot_be_a_target_stops_the_start_with_one_line(value: str, problem: str) -> None:
    with pytest.raises(BadSettings, match=problem) as refused:
        Settings.load({"BONGSU_COUNTER_TARGETS": value})
    assert "BONGSU_COUNTER_TARGETS" in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_plain_update_is_run_once_for_all_keys(store: Store, posts: str) -> None:
    for text, is_for_all in ((PLAIN, True), (f" {PLAIN.lower()} AND 1 = 1 ", True), (OTHER, False)):
        assert (await read_target(store, "comments", text)).is_for_all is is_for_all
