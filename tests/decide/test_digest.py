"""Likes on one post become one notification: deciding, on both databases."""

from __future__ import annotations

import asyncio
import json
import random
import string
from datetime import datetime, timedelta
from typing import Any

import pytest

from bongsu.decide.worker import EventWorker
from bongsu.model import Channel, Digest, Event, Listed, Notice, NoticeType
from bongsu.rules import Rules, catalogue
from bongsu.settings import Settings
from bongsu.store import Store, inbox, outbox
from tests.support.decisions import (
    IN_APP,
    Clock,
    ClockedDecider,
    add_members,
    decide,
    results_by_member,
    rows,
    rules_notifying,
    run_worker,
    set_preferences,
    trigger_event,
    unread_is_exact,
)
from tests.support.rows import set_columns

LAST = 2**60
PUSHED = (Channel.IN_APP, Channel.PUSH)


def like(actor: str | None, post: str = "p1", owner: str = "owner", **payload: Any) -> Event:
    named = {"actorName": actor.capitalize()} if actor else {}
    return Event(event_type="post.liked", actor_id=actor, target_id=owner, ref_id=post, payload=named | payload)


async def decide_likes(store: Store, settings: Settings, clock: Clock, *events: Event) -> None:
    await decide(store, settings, catalogue(settings), *events, clock=clock)


async def texts(store: Store, member_id: str = "owner") -> list[str]:
    """What the member's digests say, oldest first."""
    found = await rows(store, "SELECT body FROM bongsu_digests WHERE member_id = $1 ORDER BY notification_id", member_id)
    return [row["body"] for row in found]


async def read_all(store: Store, member_id: str = "owner") -> None:
    async with store.transaction() as tx:
        await inbox.mark_read(tx, member_id, LAST, 1_000)


async def english(store: Store, *member_ids: str) -> None:
    await add_members(store, *member_ids)
    await set_columns(store, "members", {"member_id": list(member_ids)}, locale="en")


@pytest.mark.parametrize("is_together", [True, False])
async def test_likes_of_one_post_are_one_notification(store: Store, settings: Settings, is_together: bool) -> None:
    await english(store, "owner")
    likes, clock = [like("ann"), like("bob"), like("cho")], Clock()
    for part in [likes] if is_together else [[one] for one in likes]:
        await decide_likes(store, settings, clock, *part)
    assert await texts(store) == ["Cho and 2 others liked your post."]
    ((data,),) = await rows(store, "SELECT data FROM bongsu_digests")
    assert json.loads(data) == {"actorId": "cho", "actorName": "Cho", "count": 3, "actorIds": ["cho", "bob", "ann"]}
    assert await results_by_member(store) == {"owner": {"NOTIFIED": 1, "MERGED": 2}}
    assert await unread_is_exact(store)
    ((capped, unread),) = await rows(store, "SELECT capped_count, unread FROM bongsu_members")
    assert (capped, unread) == (1, 1)


async def test_a_merge_has_a_change_id_above_all_others_of_the_member(store: Store, settings: Settings) -> None:
    clock = Clock()
    await decide_likes(store, settings, clock, like("ann"))
    await decide_likes(store, settings, clock, like("ann", "p2"))
    clock.forward(seconds=10)
    await decide_likes(store, settings, clock, like("bob"), like("bob", "p2"))
    changed = await rows(store, "SELECT notification_id, change_id, updated_at FROM bongsu_notifications")
    ((newest,),) = await rows(store, "SELECT changed_id FROM bongsu_members")
    ids = [row["notification_id"] for row in changed]
    change_ids = [row["change_id"] for row in changed]
    assert len({*ids, *change_ids}) == 4
    assert min(change_ids) > max(ids)
    assert newest == max(change_ids)
    assert all(row["updated_at"] is not None for row in changed)
    # What opens has none, and what comes next is above them.
    await decide_likes(store, settings, clock, like("ann", "p3"))
    (row,) = await rows(store, "SELECT * FROM bongsu_notifications WHERE change_id IS NULL")
    assert row["notification_id"] > newest


@pytest.mark.parametrize(
    ("actors", "english_text", "korean"),
    [
        (["ann"], "Ann liked your post.", "Ann님이 회원님의 게시글을 좋아해요."),
        (["ann", "bob"], "Bob and Ann liked your post.", "Bob님과 Ann님이 회원님의 게시글을 좋아해요."),
        (["ann", "bob", "cho"], "Cho and 2 others liked your post.", "Cho님 외 2명이 회원님의 게시글을 좋아해요."),
    ],
)
async def test_one_two_and_many_have_their_own_forms(
    store: Store, settings: Settings, actors: list[str], english_text: str, korean: str
) -> None:
    await english(store, "e")
    await add_members(store, "k")
    await decide_likes(store, settings, Clock(), *(like(actor, owner=owner) for owner in "ek" for actor in actors))
    assert await texts(store, "e") == [english_text]
    assert await texts(store, "k") == [korean]


async def test_without_names_it_says_someone(store: Store, settings: Settings) -> None:
    await english(store, "owner")
    await decide_likes(store, settings, Clock(), *(like(actor, actorName=None) for actor in ("ann", "bob")))
    assert await texts(store) == ["Someone and 1 other liked your post."]


async def test_the_same_actor_and_ones_own_like_do_not_count(store: Store, settings: Settings) -> None:
    clock = Clock()
    await decide_likes(store, settings, clock, like("ann"), like("ann"), like("owner"))
    await decide_likes(store, settings, clock, like("ann"), like("bob"), like("bob"))
    await decide_likes(store, settings, clock, like("bob"))
    assert (await results_by_member(store))["owner"] == {"NOTIFIED": 1, "MERGED": 1, "DUPLICATE": 4}
    ((size,),) = await rows(store, "SELECT size FROM bongsu_digests")
    assert size == 2


async def test_an_actor_counts_once_also_without_a_dedup_window(store: Store, settings: Settings) -> None:
    kind, clock = NoticeType("LIKED", IN_APP, duplicate_hours=0, digest=Digest(600)), Clock()
    rules = rules_notifying(Listed(("m",)), kind, ref_id="p1")
    await decide(store, settings, rules, trigger_event(actor_id="a"), trigger_event(actor_id="a"), clock=clock)
    await decide(store, settings, rules, trigger_event(actor_id="a"), trigger_event(), trigger_event(), clock=clock)
    assert await results_by_member(store) == {"m": {"NOTIFIED": 1, "MERGED": 2, "DUPLICATE": 2}}


async def test_a_resent_event_counts_once(store: Store, settings: Settings) -> None:
    clock, event = Clock(), like("ann")
    await decide_likes(store, settings, clock, event)
    await decide_likes(store, settings, clock, event, like("bob"))
    await decide_likes(store, settings, clock, event)
    assert await results_by_member(store) == {"owner": {"NOTIFIED": 1, "MERGED": 1}}


async def test_the_next_like_opens_another_digest_once_it_is_read(store: Store, settings: Settings) -> None:
    clock = Clock()
    await english(store, "owner")
    await decide_likes(store, settings, clock, like("ann"), like("bob"))
    await read_all(store)
    await decide_likes(store, settings, clock, like("cho"))
    await decide_likes(store, settings, clock, like("dan"))
    assert await texts(store) == ["Bob and Ann liked your post.", "Dan and Cho liked your post."]
    assert await unread_is_exact(store)


@pytest.mark.parametrize(("seconds", "digests"), [(299, 1), (300, 2)])
async def test_the_window_ends(store: Store, settings: Settings, seconds: int, digests: int) -> None:
    clock = Clock()
    await decide_likes(store, settings, clock, like("ann"))
    clock.forward(seconds=seconds)
    await decide_likes(store, settings, clock, like("bob"))
    assert len(await texts(store)) == digests


@pytest.mark.parametrize("column", ["archived_at", "deleted_at"])
async def test_what_was_archived_or_deleted_grows_no_more(store: Store, settings: Settings, column: str) -> None:
    clock = Clock()
    await decide_likes(store, settings, clock, like("ann"))
    await set_columns(store, "notifications", None, **{column: clock.now}, channels=0)
    await decide_likes(store, settings, clock, like("bob"))
    assert len(await texts(store)) == 2


async def test_other_posts_types_and_members_have_digests_of_their_own(store: Store, settings: Settings) -> None:
    await decide_likes(
        store,
        settings,
        Clock(),
        like("ann"),
        like("bob"),
        like("ann", "p2"),
        like("ann", owner="o2"),
        like("bob", owner="o2"),
    )
    found = await rows(store, "SELECT member_id, key, size FROM bongsu_digests ORDER BY member_id, key")
    assert [tuple(row) for row in found] == [("o2", "p1", 2), ("owner", "p1", 2), ("owner", "p2", 1)]


async def test_a_merge_needs_no_room_under_the_cap(store: Store, settings: Settings) -> None:
    limited, clock = settings.model_copy(update={"daily_limit": 1}), Clock()
    await decide_likes(store, limited, clock, like("ann"), like("ann", "p2"), like("bob"))
    await decide_likes(store, limited, clock, like("cho"), like("ann", "p3"), like("bob", "p2"))
    assert await results_by_member(store) == {"owner": {"NOTIFIED": 1, "MERGED": 2, "RATE_LIMITED": 3}}


async def test_a_member_who_opted_out_has_nothing_merged(store: Store, settings: Settings) -> None:
    clock = Clock()
    await decide_likes(store, settings, clock, like("ann"))
    await set_preferences(store, "owner", types={"POST_LIKE": {"enabled": False}})
    await decide_likes(store, settings, clock, like("bob"))
    assert await results_by_member(store) == {"owner": {"NOTIFIED": 1, "USER_OPTED_OUT": 1}}


async def test_the_push_is_due_when_the_window_ends(store: Store, settings: Settings) -> None:
    clock = Clock()
    await add_members(store, "owner", device=True)
    await decide_likes(store, settings, clock, like("ann"))
    began = clock.now
    clock.forward(seconds=100)
    await decide_likes(store, settings, clock, like("bob"))
    assert await _due(store) == [began + timedelta(seconds=300)]


async def test_likes_in_quiet_hours_gather_until_the_morning(store: Store, settings: Settings) -> None:
    """The window of 11:58 in Seoul ends in quiet hours, which begin at noon."""
    clock = Clock()
    clock.forward(minutes=-2)
    await add_members(store, "owner", device=True)
    await set_preferences(store, "owner", quietHours={"start": "12:00", "end": "20:00"})
    await decide_likes(store, settings, clock, like("ann"))
    clock.forward(hours=7)
    await decide_likes(store, settings, clock, like("bob"))
    assert await _due(store) == [Clock().now + timedelta(hours=8)]
    ((size,),) = await rows(store, "SELECT size FROM bongsu_digests")
    assert size == 2


async def test_a_member_who_wants_push_alone_has_one_push(store: Store, settings: Settings) -> None:
    clock = Clock()
    await add_members(store, "owner", device=True)
    await set_preferences(store, "owner", types={"POST_LIKE": {"enabled": True, "channels": ["PUSH"]}})
    await decide_likes(store, settings, clock, like("ann"))
    await decide_likes(store, settings, clock, like("bob"))
    assert len(await _due(store)) == 1
    ((change_id,),) = await rows(store, "SELECT change_id FROM bongsu_notifications")
    assert change_id is None, "a page that never had it is told nothing"
    ((size, unread),) = await rows(store, "SELECT size, unread FROM bongsu_digests CROSS JOIN bongsu_members")
    assert (size, unread) == (2, 0)


async def test_an_audience_of_many_has_a_digest_for_each_member(store: Store, settings: Settings) -> None:
    """Also in several steps, and each as far as they have read it."""
    kind, clock = NoticeType("SPOKEN", IN_APP, digest=Digest(600)), Clock()
    members = [f"m{number}" for number in range(7)]
    rules = rules_notifying(Listed(tuple(members)), kind, ref_id="room")
    await decide(store, settings, rules, trigger_event(), trigger_event(), chunk=3, clock=clock)
    await read_all(store, "m3")
    await decide(store, settings, rules, trigger_event(), chunk=3, clock=clock)
    found = await rows(store, "SELECT member_id, size FROM bongsu_digests ORDER BY member_id, notification_id")
    expected = [(member, 3) for member in members if member != "m3"] + [("m3", 2), ("m3", 1)]
    assert sorted(tuple(row) for row in found) == sorted(expected)
    assert await unread_is_exact(store)


async def test_a_digest_of_no_seconds_is_none(store: Store, settings: Settings) -> None:
    await decide_likes(store, settings.model_copy(update={"digest_seconds": 0}), Clock(), like("ann"), like("bob"))
    assert await results_by_member(store) == {"owner": {"NOTIFIED": 2}}
    found = await rows(store, "SELECT body FROM bongsu_messages ORDER BY message_id")
    assert [row["body"] for row in found] == [f"{one}님이 회원님의 게시글을 좋아해요." for one in ("Ann", "Bob")]


async def test_types_with_and_without_digests_share_a_batch(store: Store, settings: Settings) -> None:
    follow = Event(event_type="follow.created", actor_id="ann", target_id="owner")
    comment = Event(event_type="comment.created", actor_id="ann", target_id="owner", ref_id="p1")
    await decide_likes(store, settings, Clock(), like("ann"), follow, like("bob"), comment)
    assert await results_by_member(store) == {"owner": {"NOTIFIED": 3, "MERGED": 1}}


async def test_a_rule_chooses_the_key(store: Store, settings: Settings) -> None:
    rules = Rules()
    kind = rules.type("VISITED", channels=IN_APP, digest=Digest(60))

    @rules.rule("said")
    def visited(event: Event) -> Notice:
        return Notice(kind, Listed(("m",)), ref_id=event.ref_id, digest_key="visits", title="t", body="b")

    await decide(store, settings, rules, trigger_event("a"), trigger_event("b"), clock=Clock())
    assert await results_by_member(store) == {"m": {"NOTIFIED": 1, "MERGED": 1}}


async def test_a_key_of_any_length_gathers_what_has_the_same(store: Store, settings: Settings) -> None:
    """Random, because a database may compress it."""
    long = "".join(random.Random(36).choices(string.ascii_letters + "가나다라마바사", k=20_000))
    rules = Rules()
    kind = rules.type("VISITED", channels=IN_APP, digest=Digest(60))

    @rules.rule("said")
    def visited(event: Event) -> Notice:
        return Notice(kind, Listed(("m",)), digest_key=long + (event.ref_id or ""), title="t", body="b")

    events = [trigger_event(), trigger_event(), trigger_event("other")]
    await decide(store, settings, rules, *events, clock=Clock())
    assert await results_by_member(store) == {"m": {"NOTIFIED": 2, "MERGED": 1}}


async def test_without_a_key_it_is_a_notification_of_its_own(store: Store, settings: Settings) -> None:
    await decide_likes(store, settings, Clock(), like("ann", post=None), like("bob", post=None))  # type: ignore[arg-type]
    assert await results_by_member(store) == {"owner": {"NOTIFIED": 2}}


async def test_two_workers_count_each_like_once(store: Store, settings: Settings) -> None:
    """They decide at the same time; the member's lock puts one behind the other."""
    clock = Clock()
    async with store.transaction() as tx:
        await outbox.add(tx, [like(f"a{number}") for number in range(60)])
    deciders = [ClockedDecider(store, settings, clock, chunk=7) for _ in range(3)]
    await asyncio.gather(*(run_worker(EventWorker(store, catalogue(settings), settings, one)) for one in deciders))
    assert await results_by_member(store) == {"owner": {"NOTIFIED": 1, "MERGED": 59}}
    ((size,),) = await rows(store, "SELECT size FROM bongsu_digests")
    assert size == 60


async def _due(store: Store) -> list[datetime]:
    async with store.read() as tx:
        time = tx.dialect.time
    return [time(row["due"]) for row in await rows(store, "SELECT due FROM bongsu_deliveries ORDER BY delivery_id")]
