"""Events that count: comments, deltas of a user's rules, and what becomes of them when their event does not end DONE."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from typing import Any
from uuid import uuid4

import pytest

from bongsu import App, Delta, Notice
from bongsu.decide.step import Decider
from bongsu.desk.cancel import Cancellations
from bongsu.desk.dead_filter import DeadFilter
from bongsu.model import Event, Everyone, NoticeType
from bongsu.runtime.signals import LocalSignals
from bongsu.store import outbox
from tests.support.counters import Counting, comment_created, comment_deleted
from tests.support.decisions import add_members, rows
from tests.support.replays import dead_letters

LARGEST = 2**63 - 1


async def statuses(counts: Counting) -> dict[str, str]:
    return {row["event_type"]: row["status"] for row in await rows(counts.store, "SELECT * FROM bongsu_events")}


async def test_a_comment_is_counted_when_its_event_is_done_and_its_author_is_notified(counts: Counting) -> None:
    await counts.publish(
        comment_created(target_id="author", actor_id="a"), comment_created(target_id="author", actor_id="b")
    )
    assert await counts.value("p-1") == 2
    assert len(await rows(counts.store, "SELECT 1 FROM bongsu_notifications")) == 2
    assert await counts.value("p-2") == 0


async def test_many_comments_of_a_step_are_one_row_of_the_log(counts: Counting) -> None:
    await counts.publish(*(comment_created() for _ in range(50)))
    assert await counts.value("p-1") == 50
    assert await counts.count_logged() == 1


async def test_a_comment_that_is_sent_again_is_counted_once(counts: Counting) -> None:
    event = comment_created()
    for _ in range(3):
        await counts.publish(event)
    assert await counts.value("p-1") == 1


@pytest.mark.parametrize("by_event", [True, False])
async def test_a_deleted_comment_is_taken_back_by_either_name(counts: Counting, by_event: bool) -> None:
    created = comment_created(comment_id="c-1")
    await counts.publish(created, comment_created(comment_id="c-2"))
    await counts.publish(comment_deleted(created=created) if by_event else comment_deleted(comment_id="c-1"))
    assert await counts.value("p-1") == 1


async def test_in_whatever_order_a_creation_and_its_deletions_come_they_come_to_nothing(counts: Counting) -> None:
    for number, order in enumerate(permutations(range(4))):
        post = f"p-{number}"
        created = comment_created(post, comment_id=7)
        events = [
            created,
            comment_deleted(post, created=created),
            comment_deleted(post, comment_id="7"),
            comment_deleted(post, created=created, comment_id=7),
        ]
        for index in order:
            await counts.publish(events[index])
        assert await counts.value(post) == 0, order
    # And in one step.
    created = comment_created("together", comment_id="x")
    await counts.publish(comment_deleted("together", comment_id="x"), created, comment_deleted("together", created=created))
    assert await counts.value("together") == 0


async def test_a_deletion_of_what_was_never_counted_does_not_make_a_count_negative(counts: Counting) -> None:
    await counts.publish(comment_deleted(created=uuid4()), comment_deleted(comment_id="unknown"), comment_deleted())
    assert await counts.value("p-1") == 0
    await counts.publish(comment_created(comment_id="known"))
    assert await counts.value("p-1") == 1


async def test_the_same_comment_published_with_two_event_ids_is_counted_once(counts: Counting) -> None:
    first, second = comment_created(comment_id="c-1"), comment_created(comment_id="c-1")
    await counts.publish(first)
    await counts.publish(second)
    assert await counts.value("p-1") == 1
    await counts.publish(comment_deleted(created=second))
    assert await counts.value("p-1") == 0


async def test_comment_ids_are_those_of_their_post(counts: Counting) -> None:
    await counts.publish(comment_created("p-1", comment_id="1"), comment_created("p-2", comment_id="1"))
    await counts.publish(comment_deleted("p-1", comment_id="1"))
    assert (await counts.value("p-1"), await counts.value("p-2")) == (0, 1)


@pytest.mark.parametrize(
    "payload", [{"createdEventId": "no uuid"}, {"createdEventId": 7}, {"commentId": True}, {"commentId": ""}]
)
async def test_a_deletion_that_cannot_be_read_is_a_dead_letter(counts: Counting, payload: dict[str, Any]) -> None:
    settings = counts.settings.model_copy(update={"max_retries": 0})
    await Counting(counts.store, settings, counts.rules, counts.calls, counts.flusher).publish(
        Event(event_type="comment.deleted", ref_id="p-1", payload=payload)
    )
    assert await statuses(counts) == {"comment.deleted": "FAILED"}


# --- rules of a user --------------------------------------------------------------------------------------------------

BIG = NoticeType("BIG", ("IN_APP",))


@pytest.fixture
def app() -> App:
    app = App()

    @app.rule("post.loved")
    def loved(event: Event) -> Delta:
        return Delta("likes", str(event.ref_id), event.payload.get("delta", 1))

    @app.rule("post.announced")
    def announced(event: Event) -> Iterable[Notice | Delta]:
        yield Notice(BIG, Everyone(), title="t", body="b")
        yield Delta("announcements", "all")
        yield Delta("likes", "p-1", 10)

    return app


async def test_an_event_whose_rule_gives_only_a_delta_ends_done(counts: Counting) -> None:
    await counts.publish(Event(event_type="post.loved", ref_id="p-1"), Event(event_type="post.loved", ref_id="p-1"))
    assert await counts.value("p-1", "likes") == 2
    assert await statuses(counts) == {"post.loved": "DONE"}


async def test_an_event_with_a_large_audience_counts_once_and_with_its_last_step(counts: Counting) -> None:
    await add_members(counts.store, *(f"m-{number}" for number in range(7)))
    decided: list[tuple[int, int]] = []

    class Watched(Decider):
        async def decide_step(self, events: Any) -> Any:
            decision = await super().decide_step(events)
            decided.append((len(decision.finished), await counts.count_logged()))
            return decision

    from bongsu.decide.worker import EventWorker
    from bongsu.render.templates import Templates
    from tests.support.decisions import run_worker

    await outbox.add_many(counts.store, [Event(event_type="post.announced")])
    decider = Watched(counts.store, Templates.load(), counts.settings, chunk=2)
    await run_worker(EventWorker(counts.store, counts.rules, counts.settings, decider))
    assert len(decided) > 2
    assert [logged for finished, logged in decided if not finished] == [0] * (len(decided) - 1)
    assert (await counts.value("all", "announcements"), await counts.value("p-1", "likes")) == (1, 10)
    assert len(await rows(counts.store, "SELECT 1 FROM bongsu_notifications")) == 7


async def test_a_sum_beyond_64_bits_fails_its_event_alone(counts: Counting) -> None:
    counts.settings = counts.settings.model_copy(update={"max_retries": 0})
    await counts.publish(Event(event_type="post.loved", ref_id="p-1", payload={"delta": LARGEST}))
    await counts.publish(
        Event(event_type="post.loved", ref_id="p-2"), Event(event_type="post.loved", ref_id="p-1", payload={"delta": 1})
    )
    assert (await counts.value("p-1", "likes"), await counts.value("p-2", "likes")) == (LARGEST, 1)
    found = await rows(counts.store, "SELECT status, error FROM bongsu_events ORDER BY created_at, event_id")
    assert sorted(row["status"] for row in found) == ["DONE", "DONE", "FAILED"]
    assert "likes of 'p-1' would be 9223372036854775808" in next(row["error"] for row in found if row["error"])


# --- events that are cancelled, replayed ------------------------------------------------------------------------------


async def test_a_cancelled_event_does_not_count_and_one_that_is_withdrawn_later_stays_counted(counts: Counting) -> None:
    waiting, done = comment_created(target_id="author"), comment_created(target_id="author")
    await counts.publish(done)
    await outbox.add_many(counts.store, [waiting])
    cancellations = Cancellations(counts.store, LocalSignals())
    await cancellations.cancel(waiting.event_id, "test")
    await cancellations.cancel(done.event_id, "test", withdraw=True)
    await counts.decide()
    assert await counts.value("p-1") == 1
    assert {row["status"] for row in await rows(counts.store, "SELECT status FROM bongsu_events")} == {"CANCELLED"}


async def test_a_dead_letter_counts_when_it_is_replayed_and_once(counts: Counting) -> None:
    event = Event(event_type="post.loved", ref_id="p-1")
    known, counts.rules = counts.rules, App()
    await counts.publish(event)
    assert await statuses(counts) == {"post.loved": "UNHANDLED"}
    counts.rules = known
    dead = dead_letters(counts.store, LocalSignals(), 60)
    for _ in range(2):
        await dead.replay(DeadFilter(type="post.loved"), "test")
        await counts.decide()
    assert await counts.value("p-1", "likes") == 1


async def test_a_step_that_is_rolled_back_counts_nothing_and_its_next_attempt_counts(counts: Counting) -> None:
    from bongsu.decide.worker import EventWorker
    from bongsu.errors import StoreBusy
    from bongsu.render.templates import Templates

    class Failing(Decider):
        async def _decide(self, events: Any) -> Any:
            async with self._store.transaction() as tx:
                from bongsu.store.counters.events import count_deltas

                await count_deltas(tx, [delta for event in events for delta in event.deltas])
                raise StoreBusy("the test")

    await outbox.add_many(counts.store, [comment_created(comment_id="c")])
    worker = EventWorker(
        counts.store, counts.rules, counts.settings, Failing(counts.store, Templates.load(), counts.settings)
    )
    with pytest.raises(StoreBusy):
        await worker.tick()
    assert (await counts.value("p-1"), await counts.count_logged()) == (0, 0)
    await worker.stop()
    from tests.support.rows import NOW, set_columns

    await set_columns(counts.store, "events", due=NOW)
    await counts.decide()
    assert await counts.value("p-1") == 1
