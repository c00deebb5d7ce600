"""A digest beyond deciding: what is pushed, shown, streamed, explained, kept and erased, on both databases."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from bongsu.cli.why_view import row_sentences
from bongsu.decide.worker import EventWorker
from bongsu.desk.cancel import Cancellations
from bongsu.desk.erase import Erasures
from bongsu.desk.why import find_view
from bongsu.errors import StoreUnreachable
from bongsu.live.announce import Announcer
from bongsu.model import new_id, utc_now
from bongsu.rules import catalogue
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store, Transaction, inbox, outbox, retention
from bongsu.store.decisions.digests import apply_digests
from bongsu.store.desk import event_progress, history
from bongsu.store.desk.history import Filters, Status
from bongsu.store.inbox import Act, PageKind
from bongsu.store.messages.content import MessageCache
from tests.decide.test_digest import LAST, decide_likes, english, like, read_all
from tests.live.harness import live_on
from tests.support.decisions import Clock, ClockedDecider, results_by_member, rows, run_worker
from tests.support.replays import replay
from tests.support.rows import add_device, set_columns
from tests.support.runs import LEASE_SECONDS
from tests.support.senders import dispatch_due


@pytest.fixture
async def now(store: Store) -> Clock:
    """The owner reads English and has a phone; likes come from now on."""
    await english(store, "owner")
    async with store.transaction() as tx:
        await add_device(tx, "owner")
    return Clock(utc_now())


async def window_ends(store: Store) -> None:
    await set_columns(store, "deliveries", due=timedelta(hours=-1))
    await set_columns(store, "digests", ends_at=timedelta(hours=-1))


async def test_one_push_at_the_end_of_the_window_has_the_text_as_it_is_then(
    store: Store, settings: Settings, now: Clock
) -> None:
    """Whatever died inside the window: all there is of it is in the store."""
    await decide_likes(store, settings, now, like("ann"))
    assert await dispatch_due(store, settings) == []
    await decide_likes(store, settings, now, like("bob"))
    await decide_likes(store, settings, now, like("cho"))
    await window_ends(store)
    (push,) = await dispatch_due(store, settings)
    assert (push.title, push.body) == ("New likes", "Cho and 2 others liked your post.")
    assert push.data["count"] == 3
    assert await dispatch_due(store, settings) == []
    # The next one has a window and a push of its own.
    await decide_likes(store, settings, now, like("dan"))
    await window_ends(store)
    assert [push.body for push in await dispatch_due(store, settings)] == ["Dan liked your post."]


async def act(store: Store, act: Act, member_id: str = "owner") -> None:
    """On the member's newest notification."""
    ((newest,),) = await rows(store, "SELECT max(notification_id) FROM bongsu_notifications WHERE member_id = $1", member_id)
    async with store.transaction() as tx:
        await inbox.apply_act(tx, member_id, newest, act)


@pytest.mark.parametrize(
    ("done", "code", "means"),
    [
        (Act.READ, "READ", "the member read it before the push was sent"),
        (Act.ARCHIVE, "READ", "the member read it before the push was sent"),
        (Act.DELETE, "DELETED", "it was deleted before the push was sent"),
    ],
)
async def test_what_the_member_has_read_or_deleted_in_the_inbox_is_not_pushed(
    store: Store, settings: Settings, now: Clock, done: Act, code: str, means: str
) -> None:
    await decide_likes(store, settings, now, like("ann"), like("bob"))
    await act(store, done)
    await window_ends(store)
    assert await dispatch_due(store, settings) == []
    found = await rows(store, "SELECT status, code, attempts FROM bongsu_deliveries")
    assert [tuple(row) for row in found] == [("CANCELLED", code, 0)]
    # The member got it all the same, in the inbox.
    for filters in (Filters(member_id="owner"), Filters(status=Status.SENT), Filters(status=Status.SENT, member_id="owner")):
        async with store.read() as tx:
            page, _ = await history.find_page(tx, filters)
        assert page[-1].status is Status.SENT
    view = await find_view(store, settings, "owner", None, 10)
    assert list(row_sentences(view, view.rows[-1]))[1] == f"PUSH to phone: not sent: {means}"


async def test_a_like_after_the_digest_was_read_is_pushed_once_and_alone(
    store: Store, settings: Settings, now: Clock
) -> None:
    """Whether the first window ends before the second or with it."""
    await decide_likes(store, settings, now, like("ann"), like("bob"))
    await read_all(store)
    await decide_likes(store, settings, now, like("cho"))
    ((first, second),) = await rows(store, "SELECT min(delivery_id), max(delivery_id) FROM bongsu_deliveries")
    await set_columns(store, "deliveries", {"delivery_id": first}, due=timedelta(hours=-1))
    assert await dispatch_due(store, settings) == []
    await decide_likes(store, settings, now, like("dan"))
    await set_columns(store, "deliveries", {"delivery_id": second}, due=timedelta(hours=-1))
    assert [push.body for push in await dispatch_due(store, settings)] == ["Dan and Cho liked your post."]
    assert await dispatch_due(store, settings) == []
    found = await rows(store, "SELECT status, code FROM bongsu_deliveries ORDER BY delivery_id")
    assert [tuple(row) for row in found] == [("CANCELLED", "READ"), ("SUCCESS", None)]


async def test_what_is_unread_again_when_the_window_ends_is_pushed(store: Store, settings: Settings, now: Clock) -> None:
    await decide_likes(store, settings, now, like("ann"))
    for done in (Act.READ, Act.UNREAD):
        await act(store, done)
    await window_ends(store)
    assert [push.body for push in await dispatch_due(store, settings)] == ["Ann liked your post."]


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_failed_push_that_is_replayed_says_what_the_digest_says_now(
    store: Store, settings: Settings, now: Clock, is_read: bool
) -> None:
    await decide_likes(store, settings, now, like("ann"), like("bob"))
    await window_ends(store)
    await set_columns(store, "deliveries", status="FAIL", code="INTERNAL", finished_at=timedelta())
    await Erasures(store, LocalSignals(), LEASE_SECONDS).erase("bob", "cli:mina")
    if is_read:
        await act(store, Act.READ)
    assert await replay(store, {"channel": "PUSH"}) == (1, 1)
    assert [push.body for push in await dispatch_due(store, settings)] == ["Someone and 1 other liked your post."] * (
        not is_read
    )


async def test_a_failed_like_that_is_replayed_is_merged_once(store: Store, settings: Settings, now: Clock) -> None:
    failed = like("bob")
    await decide_likes(store, settings, now, like("ann"))
    async with store.transaction() as tx:
        await outbox.add(tx, [failed])
    await set_columns(store, "events", {"event_id": failed.event_id}, status="FAILED", finished_at=timedelta())
    assert await replay(store, {"eventId": failed.event_id}) == (1, 1)
    worker = EventWorker(store, catalogue(settings), settings, ClockedDecider(store, settings, now))
    await run_worker(worker)
    assert await replay(store, {"eventId": failed.event_id}) == (0, 0)
    assert await results_by_member(store) == {"owner": {"NOTIFIED": 1, "MERGED": 1}}


async def test_withdrawn_after_it_was_read_it_is_cancelled_in_the_history(
    store: Store, settings: Settings, now: Clock
) -> None:
    event = like("ann")
    await decide_likes(store, settings, now, event)
    await act(store, Act.READ)
    await window_ends(store)
    assert await dispatch_due(store, settings) == []
    done = await Cancellations(store, LocalSignals()).cancel(event.event_id, "cli:mina", withdraw=True)
    assert (done.cancelled, done.withdrawn) == (1, 1)
    async with store.read() as tx:
        (row,), _ = await history.find_page(tx, Filters(member_id="owner"))
    assert row.status is Status.CANCELLED


async def test_what_may_have_been_pushed_before_it_was_read_stays_unknown(
    store: Store, settings: Settings, now: Clock
) -> None:
    await decide_likes(store, settings, now, like("ann"))
    await act(store, Act.READ)
    await set_columns(store, "messages", guarantee="at_least_once")
    await set_columns(store, "deliveries", status="SENDING", leased_by=None, due=timedelta(hours=-1))
    assert await dispatch_due(store, settings) == []
    ((status, code),) = await rows(store, "SELECT status, code FROM bongsu_deliveries")
    assert (status, code) == ("UNKNOWN", "ABANDONED")


async def test_an_empty_digest_is_not_pushed_although_its_delivery_waits(
    store: Store, settings: Settings, now: Clock
) -> None:
    await decide_likes(store, settings, now, like("ann"))
    await window_ends(store)
    await set_columns(store, "digests", size=0)
    assert await dispatch_due(store, settings) == []
    ((status,),) = await rows(store, "SELECT status FROM bongsu_deliveries")
    assert status == "CANCELLED"


async def test_a_digest_that_has_expired_is_not_pushed(store: Store, settings: Settings, now: Clock) -> None:
    await decide_likes(store, settings, now, like("ann"), like("bob"))
    await window_ends(store)
    await set_columns(store, "messages", expires_at=timedelta(seconds=-1))
    assert await dispatch_due(store, settings) == []


async def test_a_page_of_the_inbox_has_the_text_of_the_digest(store: Store, settings: Settings, now: Clock) -> None:
    await decide_likes(store, settings, now, like("ann"))
    await decide_likes(store, settings, now, like("bob"))
    for kind in (PageKind.INBOX, PageKind.UNREAD):
        async with store.read() as tx:
            (row,), unread = await inbox.find_page(tx, "owner", LAST, 10, kind)
        assert (row.body, row.data["count"], row.updated_at, unread) == ("Bob and Ann liked your post.", 2, now.now, 1)


async def test_open_pages_and_those_that_come_back_are_sent_the_digest_as_it_is(
    store: Store, settings: Settings, now: Clock
) -> None:
    settings = settings.model_copy(update={"sse_ping_seconds": 600})
    async with live_on(store, settings) as live, running(Announcer(store, live.signals, MessageCache())) as announcer:
        decider = ClockedDecider(store, settings, now)

        async def likes(*actors: str) -> None:
            async with store.transaction() as tx:
                await outbox.add(tx, [like(actor) for actor in actors])
            await run_worker(EventWorker(store, catalogue(settings), settings, decider, announcer.decided))

        async with live.open("owner") as page:
            await page.until_live()
            await likes("ann")
            await page.until(lambda page: page.seen("notification") != [])
            await likes("bob")
            await page.until(lambda page: page.seen("updated") != [])
            (new,), (updated,) = page.seen("notification"), page.seen("updated")
        assert (new["message"], updated["message"]) == ("Ann liked your post.", "Bob and Ann liked your post.")
        assert updated["id"] == new["id"]
        async with live.open("owner") as page:
            await page.until(lambda page: page.seen("notification") != [])
            assert page.seen("notification")[0]["message"] == "Bob and Ann liked your post."


async def test_the_history_names_the_notification_it_was_merged_into(store: Store, settings: Settings, now: Clock) -> None:
    first, second = like("ann"), like("bob")
    await decide_likes(store, settings, now, first, second)
    async with store.read() as tx:
        (merged, opened), _ = await history.find_page(tx, Filters(member_id="owner"))
        (found,), _ = await history.find_page(tx, Filters(status=Status.MERGED))
        (of_event,), _ = await history.find_page(tx, Filters(event_id=second.event_id))
        progress = await event_progress.find_progress(tx, second.event_id)
    assert found == of_event == merged
    assert (merged.status, merged.merged_into, merged.body) == (
        Status.MERGED,
        opened.notification_id,
        "Bob liked your post.",
    )
    assert (opened.status, opened.merged_into, opened.body) == (Status.PENDING, None, "Bob and Ann liked your post.")
    assert progress is not None
    assert (progress.counts.decided, progress.counts.merged, progress.counts.suppressed) == (1, 1, {})
    view = await find_view(store, settings, "owner", None, 10)
    assert list(row_sentences(view, merged)) == [f"merged into notification {opened.notification_id}, a digest"]


async def test_a_merged_like_whose_event_is_cancelled_is_explained(store: Store, settings: Settings, now: Clock) -> None:
    first, second = like("ann"), like("bob")
    await decide_likes(store, settings, now, first, second)
    await Cancellations(store, LocalSignals()).cancel(second.event_id, "cli:mina")
    view = await find_view(store, settings, "owner", None, 10)
    merged, opened = view.rows
    assert (merged.status, merged.merged_into) == (Status.MERGED, opened.notification_id)
    into, out = row_sentences(view, merged)
    assert into == f"merged into notification {opened.notification_id}, a digest"
    assert out.startswith("taken out of it ")
    assert out.endswith(": its event was cancelled")


async def test_what_a_digest_has_gathered_goes_with_it(store: Store, settings: Settings, now: Clock) -> None:
    await decide_likes(store, settings, now, like("ann"), like("bob"), like("ann", "p2"))
    await set_columns(store, "deliveries", status="SUCCESS", finished_at=timedelta())
    old = await rows(store, "SELECT min(notification_id) FROM bongsu_notifications")
    await set_columns(store, "notifications", {"notification_id": old[0][0]}, created_at=timedelta(days=-40))
    async with store.transaction() as tx:
        await retention.delete_notifications(tx, None, utc_now() - timedelta(days=30), 100)
    assert len(await rows(store, "SELECT 1 FROM bongsu_digests")) == 1
    assert len(await rows(store, "SELECT 1 FROM bongsu_digest_entries")) == 1


async def test_an_erased_member_has_no_digests_and_is_an_actor_of_none(store: Store, settings: Settings, now: Clock) -> None:
    await english(store, "ann", "owner2")
    await decide_likes(store, settings, now, like("ann"), like("bob"), like("bob", owner="ann"), like("ann", owner="owner2"))
    await Erasures(store, LocalSignals(), LEASE_SECONDS).erase("ann", "cli:mina")
    entries = await rows(store, "SELECT member_id, actor_id FROM bongsu_digest_entries ORDER BY message_id")
    assert sorted((row[0], row[1] or "") for row in entries) == [("owner", ""), ("owner", "bob"), ("owner2", "")]
    await nobody_is_named(store, "owner2")
    # What is merged next does not name the one who was erased.
    await decide_likes(store, settings, now, like("cho", owner="owner2"))
    ((body,),) = await rows(store, "SELECT body FROM bongsu_digests WHERE member_id = 'owner2'")
    assert body == "Cho and 1 other liked your post."


async def nobody_is_named(store: Store, member_id: str) -> None:
    """In the member's only digest."""
    ((body, data),) = await rows(store, "SELECT body, data FROM bongsu_digests WHERE member_id = $1", member_id)
    assert body == "Someone liked your post."
    assert "ann" not in data.lower()


async def test_a_digest_with_an_erased_actor_has_another_text_wherever_it_is_shown(
    store: Store, settings: Settings, now: Clock
) -> None:
    """At once: in the inbox, on open pages, and in the push that is still to come."""
    settings = settings.model_copy(update={"sse_ping_seconds": 600})
    await decide_likes(store, settings, now, like("bob"), like("cho"), like("ann"))
    async with live_on(store, settings) as live, live.open("owner") as page:
        await page.until_live()
        await Erasures(store, live.signals, LEASE_SECONDS).erase("ann", "cli:mina")
        await page.until(lambda page: page.seen("updated") != [])
        (updated,) = page.seen("updated")
    assert updated["message"] == "Someone and 2 others liked your post."
    assert updated["data"] == {"count": 3, "actorIds": ["cho", "bob"]}
    await window_ends(store)
    (push,) = await dispatch_due(store, settings)
    assert (push.body, push.data) == (updated["message"], updated["data"])


async def test_an_erased_actor_whom_a_digest_does_not_name_changes_nothing_of_it(
    store: Store, settings: Settings, now: Clock
) -> None:
    await decide_likes(store, settings, now, like("ann"), *(like(f"a{number}") for number in range(5)))
    before = await rows(store, "SELECT title, body, data FROM bongsu_digests")
    ((change_id,),) = await rows(store, "SELECT changed_id FROM bongsu_members WHERE member_id = 'owner'")
    await Erasures(store, LocalSignals(), LEASE_SECONDS).erase("ann", "cli:mina")
    assert await rows(store, "SELECT 1 FROM bongsu_digest_entries WHERE actor_id = 'ann'") == []
    assert await rows(store, "SELECT title, body, data FROM bongsu_digests") == before
    assert [row[0] for row in await rows(store, "SELECT changed_id FROM bongsu_members")] == [change_id]


@pytest.mark.parametrize("has_event", [True, False])
async def test_a_like_that_is_cancelled_after_an_erasure_brings_no_name_back(
    store: Store, settings: Settings, now: Clock, has_event: bool
) -> None:
    """Neither from the event, nor from the message when retention has deleted the event."""
    named, gone = like("ann"), like("bob")
    await decide_likes(store, settings, now, named, gone)
    if not has_event:
        await set_columns(store, "messages", {"event_id": named.event_id}, event_id=new_id())
    await Erasures(store, LocalSignals(), LEASE_SECONDS).erase("ann", "cli:mina")
    await Cancellations(store, LocalSignals()).cancel(gone.event_id, "cli:mina")
    await nobody_is_named(store, "owner")


async def test_the_digests_of_many_are_rewritten_in_parts(store: Store, settings: Settings, now: Clock) -> None:
    owners = [f"o{number}" for number in range(7)]
    await english(store, *owners)
    await decide_likes(store, settings, now, *(like("ann", owner=owner) for owner in owners))
    await Erasures(store, LocalSignals(), LEASE_SECONDS, batch=3).erase("ann", "cli:mina")
    for owner in owners:
        await nobody_is_named(store, owner)


async def test_a_step_that_fails_before_its_commit_counts_nothing(
    store: Store, settings: Settings, now: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await decide_likes(store, settings, now, like("ann"))
    apply, calls = apply_digests, 0

    async def failing(tx: Transaction, *given: Any) -> None:
        nonlocal calls
        await apply(tx, *given)
        calls += 1
        if calls == 1:
            raise StoreUnreachable("the connection was lost before the commit")

    monkeypatch.setattr("bongsu.decide.step.apply_digests", failing)
    async with store.transaction() as tx:
        await outbox.add(tx, [like("bob"), like("cho")])
    quick = settings.model_copy(update={"retry_base_seconds": 0.01})
    worker = EventWorker(store, catalogue(quick), quick, ClockedDecider(store, quick, now))
    with pytest.raises(StoreUnreachable):
        await worker.tick()
    await worker.stop()
    assert await results_by_member(store) == {"owner": {"NOTIFIED": 1}}
    await set_columns(store, "events", {"status": "PENDING"}, due=timedelta(hours=-1))
    await run_worker(EventWorker(store, catalogue(quick), quick, ClockedDecider(store, quick, now)))
    assert await results_by_member(store) == {"owner": {"NOTIFIED": 1, "MERGED": 2}}
    ((size,),) = await rows(store, "SELECT size FROM bongsu_digests")
    assert size == 3


async def test_unread_again_it_grows_again(store: Store, settings: Settings, now: Clock) -> None:
    await decide_likes(store, settings, now, like("ann"))
    await read_all(store)
    await set_columns(store, "notifications", read_at=None)
    await set_columns(store, "members", {"member_id": "owner"}, unread=1)
    await decide_likes(store, settings, now, like("bob"))
    assert await results_by_member(store) == {"owner": {"NOTIFIED": 1, "MERGED": 1}}
