"""Events that a digest has gathered are cancelled: they leave it, and it goes on with the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bongsu.desk.cancel import Cancellations, CancelWorker
from bongsu.errors import NothingToCancel
from bongsu.model import Digest, Event, Listed, NoticeType
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.desk.cancellations import Cancellation
from tests.decide.test_digest import decide_likes, english, like, texts
from tests.support.decisions import IN_APP, Clock, decide, rows, rules_notifying, trigger_event, unread_is_exact
from tests.support.rows import add_device, set_columns


async def cancel(store: Store, event: Event, *, withdraw: bool = False) -> Cancellation:
    return await Cancellations(store, LocalSignals()).cancel(event.event_id, "cli:mina", withdraw=withdraw)


async def state(store: Store) -> dict[str, Any]:
    """Of the one digest there is: how many it has, what it says, its push, and whether it is in the inbox."""
    ((size, body, data, channels, unread),) = await rows(
        store,
        """SELECT g.size, g.body, g.data, n.channels, m.unread FROM bongsu_digests g
           JOIN bongsu_notifications n ON n.notification_id = g.notification_id
           JOIN bongsu_members m ON m.member_id = g.member_id""",
    )
    ((status,),) = await rows(store, "SELECT status FROM bongsu_deliveries")
    count = json.loads(data)["count"]
    return {"size": size, "body": body, "count": count, "inbox": bool(channels & 8), "unread": unread, "push": status}


@pytest.fixture
async def likes(store: Store, settings: Settings) -> list[Event]:
    """Of three members, in one digest: the first opened it."""
    await english(store, "owner")
    async with store.transaction() as tx:
        await add_device(tx, "owner")
    events = [like(actor) for actor in ("ann", "bob", "cho")]
    await decide_likes(store, settings, Clock(), *events)
    return events


@pytest.mark.parametrize("withdraw", [True, False])
@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_cancelled_like_leaves_the_digest(store: Store, likes: list[Event], number: int, withdraw: bool) -> None:
    """The one that opened it too."""
    done = await cancel(store, likes[number], withdraw=withdraw)
    assert (done.cancelled, done.sent, done.withdrawn) == (0, 0, int(withdraw))
    newer, older = [
        event.actor_id.capitalize() for event in reversed(likes) if event.actor_id and event is not likes[number]
    ]
    assert await state(store) == {
        "size": 2, "body": f"{newer} and {older} liked your post.", "count": 2, "inbox": True, "unread": 1, "push": "READY",
    }  # fmt: skip
    joined = "bongsu_notifications n JOIN bongsu_members m ON m.member_id = n.member_id"
    ((change_id, changed_id),) = await rows(store, f"SELECT n.change_id, m.changed_id FROM {joined}")
    assert change_id == changed_id


async def test_an_empty_digest_is_withdrawn_and_not_pushed(store: Store, likes: list[Event], settings: Settings) -> None:
    for event in likes:
        done = await cancel(store, event, withdraw=True)
    assert (done.cancelled, done.withdrawn) == (1, 1)
    found = await state(store)
    assert (found["size"], found["inbox"], found["unread"], found["push"]) == (0, False, 0, "CANCELLED")
    assert await unread_is_exact(store)
    # And nothing is merged into it any more.
    await decide_likes(store, settings, Clock(), like("dan"))
    assert len(await texts(store)) == 2


async def test_without_withdrawing_an_empty_digest_stays_in_the_inbox(store: Store, likes: list[Event]) -> None:
    for event in likes:
        done = await cancel(store, event)
    assert done.cancelled == 1
    found = await state(store)
    assert (found["inbox"], found["unread"], found["push"]) == (True, 1, "CANCELLED")
    # Asked for later, it is.
    assert (await cancel(store, likes[2], withdraw=True)).withdrawn == 1
    found = await state(store)
    assert (found["inbox"], found["unread"]) == (False, 0)


async def test_asked_again_it_leaves_once(store: Store, likes: list[Event]) -> None:
    figures = [(done.cancelled, done.sent, done.withdrawn) for _ in range(2) if (done := await cancel(store, likes[1]))]
    assert figures == [(0, 0, 0)] * 2
    assert (await state(store))["size"] == 2


async def test_what_was_pushed_cannot_be_cancelled_but_withdrawn(store: Store, likes: list[Event]) -> None:
    await set_columns(store, "deliveries", status="SUCCESS")
    with pytest.raises(NothingToCancel):
        await cancel(store, likes[1])
    done = await cancel(store, likes[1], withdraw=True)
    assert (done.cancelled, done.sent, done.withdrawn) == (0, 1, 1)
    assert (await state(store))["body"] == "Cho and Ann liked your post."


@pytest.mark.parametrize("number", [0, 1])
async def test_a_like_in_a_push_that_may_be_retried_can_be_cancelled(store: Store, likes: list[Event], number: int) -> None:
    """The push has failed, and recovery may send it again: without that like."""
    await set_columns(store, "deliveries", status="FAIL", is_retryable=True, finished_at=Clock().now)
    done = await cancel(store, likes[number])
    assert (done.cancelled, done.sent) == (0, 0)
    assert (await state(store))["size"] == 2
    await cancel(store, likes[2])
    await cancel(store, likes[1 - number])
    ((is_retryable,),) = await rows(store, "SELECT is_retryable FROM bongsu_deliveries")
    assert not is_retryable


async def test_a_read_digest_changes_without_becoming_unread(store: Store, likes: list[Event]) -> None:
    await set_columns(store, "notifications", read_at=Clock().now)
    await set_columns(store, "members", unread=0)
    await cancel(store, likes[2], withdraw=True)
    assert (await state(store))["body"] == "Bob and Ann liked your post."
    await cancel(store, likes[0], withdraw=True)
    await cancel(store, likes[1], withdraw=True)
    assert await unread_is_exact(store)


async def test_an_event_of_many_leaves_the_digests_of_all_in_steps(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bongsu.desk.cancel.MEMBERS", 3)
    monkeypatch.setattr("bongsu.desk.cancel.PATIENCE_SECONDS", 0)
    kind = NoticeType("SPOKEN", IN_APP, digest=Digest(600))
    members = tuple(f"m{number}" for number in range(8))
    rules, first, second = rules_notifying(Listed(members), kind, ref_id="room"), trigger_event(), trigger_event()
    await decide(store, settings, rules, first, second, clock=Clock(), chunk=5)
    done = await cancel(store, first, withdraw=True)
    assert done.withdrawn == 8
    worker = CancelWorker(store, LocalSignals(), settings)
    while await worker.tick():
        pass
    found = await rows(store, "SELECT size, count(*) FROM bongsu_digests GROUP BY size")
    assert [tuple(row) for row in found] == [(1, 8)]
    await cancel(store, second, withdraw=True)
    while await worker.tick():
        pass
    ((unread,),) = await rows(store, "SELECT sum(unread) FROM bongsu_members")
    assert unread == 0
    assert await unread_is_exact(store)
