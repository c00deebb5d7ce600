"""The dispatcher, on both databases: sent once, retried, fenced, explained."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from bongsu.deliver import leases
from bongsu.deliver.claimer import SHARE
from bongsu.errors import StoreTooSlow, StoreUnreachable
from bongsu.model import Channel, Listed, NoticeType, Priority
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Outgoing, Refused, Retry, Unknown
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.core.query import Transaction, same
from bongsu.store.deliveries import ClaimedDelivery, DeliveryResult, DeliveryStatus, Success
from bongsu.store.desk.delivery_history import find_attempts
from bongsu.store.messages import content
from bongsu.store.ranks import RANKS, SHARED_TURNS
from tests.support.decisions import add_members, decide, rows, rules_notifying, trigger_event
from tests.support.deliveries import LONG_AGO, add_delivery_in_state, add_guaranteed_message
from tests.support.dispatching import LEAST_ONCE, MOST_ONCE, dispatch_all, dispatching, one_delivery, states
from tests.support.rows import Sql, set_columns
from tests.support.senders import AnsweringSender
from tests.support.waiting import until_waiting


@pytest.fixture
def quick(settings: Settings) -> Settings:
    return settings.model_copy(update={"retry_base_seconds": 0.01})


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others have abandoned is claimed at once. tests/deliver/test_outage.py is about the wait."""
    monkeypatch.setattr(leases, "GRACE_SECONDS", 0.0)


async def run(store: Store, statement: str) -> None:
    async with store.single() as tx:
        await tx.execute(same(statement)())


async def claim(
    store: Store, ranks: Sequence[int] = RANKS, limit: int = 10, lease: float = 60, worker: str = "w"
) -> list[ClaimedDelivery]:
    return await statements.claim(store, Channel.PUSH, ranks, limit, lease, worker)


async def attempts(store: Store) -> list[str]:
    """The codes of all attempts, delivery by delivery, in the order they were made."""
    ids = [row[0] for row in await states(store, "delivery_id")]
    async with store.read() as tx:
        found = await find_attempts(tx, ids)
    return [one.code for delivery_id in ids for one in found.get(delivery_id, ())]


async def test_what_is_due_is_sent_once_and_recorded(store: Store, settings: Settings) -> None:
    await one_delivery(store, settings, MOST_ONCE, "a", "b", "c")
    sender = AnsweringSender()
    await dispatch_all(store, sender, settings)
    assert sorted(one.address for one in sender.sent) == ["token-a", "token-b", "token-c"]
    assert await states(store, "status, code, reference, attempts") == [("SUCCESS", None, "ref", 1)] * 3
    assert await attempts(store) == ["SUCCESS"] * 3


@pytest.mark.parametrize("kind", [MOST_ONCE, LEAST_ONCE])
async def test_a_retry_is_tried_three_times_more_with_the_same_collapse_id(
    store: Store, quick: Settings, kind: NoticeType
) -> None:
    await one_delivery(store, quick, kind)
    sender = AnsweringSender(Retry("UNAVAILABLE"))
    await dispatch_all(store, sender, quick)
    assert [one.attempt for one in sender.sent] == [1, 2, 3, 4]
    assert len({one.collapse_id for one in sender.sent}) == 1
    assert len(sender.sent[0].collapse_id) == 32
    assert await states(store, "status, code, attempts, epoch") == [("FAIL", "UNAVAILABLE", 4, 4)]


async def test_a_retry_that_succeeds_is_a_success(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick)
    answers: list[Outcome] = [Accepted("at last"), Retry("UNAVAILABLE"), Retry("INTERNAL")]
    await dispatch_all(store, AnsweringSender(lambda _outgoing: answers.pop()), quick)
    assert await states(store, "status, code, attempts") == [("SUCCESS", None, 3)]
    assert await attempts(store) == ["INTERNAL", "UNAVAILABLE", "SUCCESS"]


async def test_a_providers_wait_wins_over_ours(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick)
    dispatcher = dispatching(store, AnsweringSender(Retry("QUOTA_EXCEEDED", 36_000)), quick)
    await dispatcher.tick()
    await dispatcher.tick()
    await dispatcher.stop()
    dialect = store.dialect
    ((due, now),) = await rows(store, f"SELECT due, {dialect.now} FROM bongsu_deliveries WHERE status = 'READY'")
    assert timedelta(hours=9) < dialect.time(due) - dialect.time(now) < timedelta(hours=11.5)


@pytest.mark.parametrize("outcome", [Unknown("TIMEOUT"), Retry("HTTP_503", may_have_arrived=True)])
async def test_what_may_have_arrived_is_sent_again_only_where_that_was_chosen(
    store: Store, quick: Settings, outcome: Outcome
) -> None:
    await one_delivery(store, quick, MOST_ONCE)
    await one_delivery(store, quick, LEAST_ONCE)
    sender = AnsweringSender(outcome)
    await dispatch_all(store, sender, quick)
    assert Counter(one.type for one in sender.sent) == {"ONCE": 1, "AGAIN": 4}
    code = outcome.code  # type: ignore[union-attr]
    # Where it was sent again, the last try is in doubt as well: it did not fail, and its rule says that it may be repeated.
    assert await states(store, "status, code, is_retryable") == [("UNKNOWN", code, False), ("UNKNOWN", code, True)]


async def test_a_held_one_waits_without_counting(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick)
    answers: list[Outcome] = [Accepted(), *[Retry("CIRCUIT_OPEN", is_held=True)] * 9]
    await dispatch_all(store, AnsweringSender(lambda _outgoing: answers.pop()), quick)
    assert await states(store, "status, attempts") == [("SUCCESS", 1)]
    assert await attempts(store) == ["SUCCESS"]


async def test_a_token_that_is_gone_is_not_sent_to_again(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick, MOST_ONCE, "a", "b")
    sender = AnsweringSender(lambda outgoing: Gone("UNREGISTERED") if outgoing.member_id == "a" else Accepted())
    await dispatch_all(store, sender, quick)
    assert await states(store) == [("FAIL", "UNREGISTERED"), ("SUCCESS", None)]
    devices = await rows(store, "SELECT member_id, status FROM bongsu_devices ORDER BY member_id")
    assert [tuple(row) for row in devices] == [("a", "INVALID"), ("b", "ACTIVE")]


async def test_a_token_refreshed_while_the_old_one_was_refused_stays(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick)

    class Refreshing(AnsweringSender):
        async def send(self, outgoing: Outgoing) -> Outcome:
            await set_columns(store, "devices", token="fresh")
            return Gone("UNREGISTERED")

    await dispatch_all(store, Refreshing(), quick)
    assert [tuple(row) for row in await rows(store, "SELECT token, status FROM bongsu_devices")] == [("fresh", "ACTIVE")]


@pytest.mark.parametrize(
    ("outcome", "is_retryable"),
    [(Refused("INVALID_ARGUMENT", "no"), False), (Misconfigured("THIRD_PARTY_AUTH_ERROR"), True)],
)
async def test_a_refusal_ends_it_and_keeps_the_address(
    store: Store, quick: Settings, outcome: Outcome, is_retryable: bool
) -> None:
    await one_delivery(store, quick)
    sender = AnsweringSender(outcome)
    await dispatch_all(store, sender, quick)
    assert len(sender.sent) == 1
    assert await states(store, "status, is_retryable") == [("FAIL", is_retryable)]
    assert [row["status"] for row in await rows(store, "SELECT status FROM bongsu_devices")] == ["ACTIVE"]


@pytest.mark.parametrize("change", [{"has_consent": False}, {"status": "INVALID"}], ids=["no consent", "invalid"])
async def test_a_device_that_withdrew_consent_after_the_fan_out_gets_nothing(
    store: Store, quick: Settings, change: dict[str, Any]
) -> None:
    await one_delivery(store, quick)
    await set_columns(store, "devices", **change)
    sender = AnsweringSender()
    await dispatch_all(store, sender, quick)
    assert sender.sent == []
    assert await states(store) == [("FAIL", "NO_ADDRESS")]


async def test_what_has_expired_is_not_sent(store: Store, quick: Settings) -> None:
    # Said at a noon long gone, and good for an hour.
    await one_delivery(store, quick, NoticeType("BRIEF", (Channel.PUSH, Channel.IN_APP), expires_hours=1))
    sender = AnsweringSender()
    await dispatch_all(store, sender, quick)
    assert sender.sent == []
    assert await states(store) == [("FAIL", "EXPIRED")]


async def test_a_channel_that_raises_is_not_trusted_to_have_done_nothing(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick, MOST_ONCE, "a", "b")

    def answer(outgoing: Outgoing) -> Outcome:
        if outgoing.member_id == "a":
            raise KeyError("bug")
        return Accepted()

    await dispatch_all(store, AnsweringSender(answer), quick)
    assert await states(store) == [("UNKNOWN", "CRASHED"), ("SUCCESS", None)]


async def left_behind(store: Store) -> None:
    """By a dispatcher that died with what it had claimed."""
    assert await claim(store, lease=-1, worker="dead")


async def test_what_was_being_claimed_when_its_dispatcher_died_is_sent(
    store: Store, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_delivery(store, quick, MOST_ONCE)
    transaction = store.transaction

    @contextlib.asynccontextmanager
    async def dying() -> AsyncIterator[Transaction]:
        async with transaction() as tx:
            yield tx
            raise KeyError("before the commit")

    with monkeypatch.context() as patch, pytest.raises(KeyError, match="before the commit"):
        patch.setattr(store, "transaction", dying)
        patch.setattr(store, "single", dying)
        await claim(store, worker="dead")
    sender = AnsweringSender()
    await dispatch_all(store, sender, quick)
    assert len(sender.sent) == 1
    assert await states(store) == [("SUCCESS", None)]


async def test_what_cannot_be_sent_is_not_left_sending_by_a_dispatcher_that_is_killed(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick, MOST_ONCE)
    await set_columns(store, "devices", has_consent=False)
    await left_behind(store)
    assert await states(store) == [("READY", None)]
    await dispatch_all(store, AnsweringSender(), quick)
    assert await states(store) == [("FAIL", "NO_ADDRESS")]


async def test_what_was_being_sent_when_its_dispatcher_died_is_the_types_choice(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick, MOST_ONCE)
    await one_delivery(store, quick, LEAST_ONCE)
    await left_behind(store)
    sender = AnsweringSender()
    await dispatch_all(store, sender, quick)
    assert [one.type for one in sender.sent] == ["AGAIN"]
    assert await states(store) == [("UNKNOWN", "ABANDONED"), ("SUCCESS", None)]


async def test_a_stale_claim_records_nothing(store: Store, settings: Settings) -> None:
    await one_delivery(store, settings)
    (old,) = await claim(store, lease=-1, worker="stale")
    (new,) = await claim(store, worker="living")
    late = DeliveryResult(old.delivery_id, old.epoch, DeliveryStatus.FAIL, "X", began=time.monotonic())
    assert await statements.record(store, "PUSH", [late]) == set()
    assert await statements.record(store, "PUSH", [Success(old.delivery_id, old.epoch, time.monotonic(), 1)]) == set()
    assert new.epoch == 2
    assert await states(store, "status, epoch, attempts") == [("SENDING", 2, 0)]
    # But something was sent.
    assert await attempts(store) == ["X"]


@pytest.mark.parametrize("status", [DeliveryStatus.SUCCESS, DeliveryStatus.FAIL, DeliveryStatus.READY])
async def test_a_result_that_is_recorded_twice_counts_once(store: Store, settings: Settings, status: DeliveryStatus) -> None:
    """As by a dispatcher whose connection was lost before the answer came."""
    await one_delivery(store, settings)
    (claimed,) = await claim(store)
    one, epoch, began = claimed.delivery_id, claimed.epoch, time.monotonic()
    result: DeliveryResult | Success = Success(one, epoch, began, 1)
    if status is not DeliveryStatus.SUCCESS:
        result = DeliveryResult(one, epoch, status, status.value, began=began)
    assert await statements.record(store, "PUSH", [result]) == {one}
    assert await statements.record(store, "PUSH", [result]) == set()
    assert await states(store, "status, attempts, leased_by") == [(status, 1, None)]
    assert await attempts(store) == [status]


async def test_an_attempt_is_dated_by_the_stores_clock(store: Store, settings: Settings) -> None:
    await one_delivery(store, settings, MOST_ONCE, "a", "b")
    accepted, refused = await claim(store)
    began = time.monotonic() - 3600
    await statements.record(
        store,
        "PUSH",
        [
            Success(accepted.delivery_id, accepted.epoch, began, 1),
            DeliveryResult(refused.delivery_id, refused.epoch, DeliveryStatus.FAIL, "X", began=began),
        ],
    )
    async with store.read() as tx:
        found = await find_attempts(tx, [accepted.delivery_id, refused.delivery_id])
    finished = await rows(store, "SELECT finished_at FROM bongsu_deliveries")
    moments = [store.dialect.time(row["finished_at"]) for row in finished]
    for (one,) in found.values():
        # Recording itself takes a moment.
        assert timedelta(minutes=59) < min(moments) - one.at <= timedelta(minutes=61)


@pytest.mark.parametrize("is_success", [True, False])
async def test_a_claim_that_is_renewed_at_this_moment_can_be_recorded(
    store: Store, settings: Settings, is_success: bool
) -> None:
    """As by a connection that was lost, whose last statement the server has received all the same."""
    await one_delivery(store, settings)
    (claimed,) = await claim(store)
    one, epoch = claimed.delivery_id, claimed.epoch
    result: DeliveryResult | Success = Success(one, epoch, 0.0, 1, "x", False)
    if not is_success:
        result = DeliveryResult(one, epoch, DeliveryStatus.FAIL, "X")
    async with store.transaction() as tx:
        await statements.renew(tx, [(one, epoch)], 60)
        recorded = asyncio.create_task(statements.record(store, "PUSH", [result]))
        await until_waiting(store)
        assert not recorded.done()
    assert await recorded == {one}
    assert await states(store, "status") == [("SUCCESS" if is_success else "FAIL",)]


async def test_a_delivery_that_ends_every_dispatcher_is_given_up(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick, LEAST_ONCE)
    for _ in range(6):
        await left_behind(store)
    sender = AnsweringSender()
    await dispatch_all(store, sender, quick)
    assert sender.sent == []
    assert await states(store) == [("UNKNOWN", "POISONED")]


async def test_high_goes_first_and_low_is_not_starved(store: Store, settings: Settings) -> None:
    for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
        kind = NoticeType(priority.value, (Channel.PUSH, Channel.IN_APP), priority=priority)
        who = [f"{priority.value}{number:03}" for number in range(40)]
        await add_members(store, *who, device=True)
        await decide(store, settings, rules_notifying(Listed(tuple(who)), kind), trigger_event())
    sender = AnsweringSender()
    # Claimed two at a time.
    await dispatch_all(store, sender, settings, concurrency=2 * SHARE)
    order = [one.type for one in sender.sent]
    assert order[:10] == ["HIGH"] * 10
    assert "LOW" in order[: 4 * len(SHARED_TURNS)]
    assert order.index("NORMAL") < order.index("LOW")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1,)])
async def test_a_claim_goes_by_ranks_and_then_by_due_times(store: Store, order: tuple[int, ...]) -> None:
    async with store.transaction() as tx:
        message_id = await add_guaranteed_message(tx)
        places = [(rank, age) for age in (1, 3, 2) for rank in (0, 1, 2)]
        ids = {
            (rank, age): await add_delivery_in_state(
                tx, message_id, "READY", f"m-{rank}-{age}", rank=rank, due=timedelta(hours=-age)
            )
            for rank, age in places
        }
    oldest_first = [ids[rank, age] for rank in order for age in (3, 2, 1)]
    for _ in range(2):
        claimed = await claim(store, order, limit=2)
        assert [one.delivery_id for one in claimed] == oldest_first[:2]
        del oldest_first[:2]


ADDRESSES = {Channel.PUSH: "token-a", Channel.SMS: "+821012345678", Channel.EMAIL: "a@example.com"}


@pytest.mark.parametrize("channel", ADDRESSES)
async def test_each_channel_has_its_address(store: Store, channel: Channel) -> None:
    await add_members(store, "a", device=True)
    await set_columns(store, "members", {"member_id": "a"}, phone="+821012345678", email="a@example.com")
    async with store.transaction() as tx:
        for one, device in ((Channel.PUSH, "phone"), (Channel.SMS, None), (Channel.EMAIL, None)):
            message_id = await add_guaranteed_message(tx)
            for member in ("a", "nowhere"):
                await add_delivery_in_state(
                    tx, message_id, "READY", member, due=LONG_AGO, channel=one.value, device_id=device
                )
    claimed = await statements.claim(store, channel, RANKS, 10, 60, "w")
    found = {one.member_id: (one.address, one.platform, one.can_go) for one in claimed}
    platform = "ANDROID" if channel is Channel.PUSH else None
    assert found == {"a": (ADDRESSES[channel], platform, True), "nowhere": (None, None, False)}


async def test_a_part_of_the_slots_is_claimed_at_a_time(store: Store, settings: Settings) -> None:
    """So that the first are on the wire while the next are claimed."""
    await one_delivery(store, settings, MOST_ONCE, *(f"m{number}" for number in range(9)))
    dispatcher = dispatching(store, AnsweringSender(), settings, concurrency=2 * SHARE)
    await dispatcher.tick()
    assert [row[0] for row in await states(store, "status")].count("READY") == 9 - 2
    await dispatcher.stop()


def lose_the_store_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a claim and the first send."""
    find, failures = content.find_content, [ConnectionError("gone")]

    async def shaky(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await find(*arguments)

    monkeypatch.setattr(content, "find_content", shaky)


async def test_a_store_that_goes_away_before_anything_is_sent_counts_nothing(
    store: Store, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_delivery(store, quick)
    lose_the_store_once(monkeypatch)
    sender = AnsweringSender()
    dispatcher = dispatching(store, sender, quick)
    with pytest.raises(Exception, match="gone"):
        await dispatcher.tick()
    assert sender.sent == []
    async with asyncio.timeout(30):
        while (await states(store))[0][0] != "SUCCESS":
            await dispatcher.tick()
    await dispatcher.stop()
    assert await states(store, "status, attempts, claim_count") == [("SUCCESS", 1, 0)]


async def test_what_was_claimed_too_long_ago_is_given_back_and_not_sent(
    store: Store, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_delivery(store, quick)
    sender = AnsweringSender()
    dispatcher = dispatching(store, sender, quick)
    find, lease = content.find_content, dispatcher._lease.seconds

    async def slow(*arguments: Any) -> Any:
        dispatcher._lease.seconds = 0.0  # any time at all is more than half of it
        return await find(*arguments)

    monkeypatch.setattr(content, "find_content", slow)
    with pytest.raises(StoreTooSlow, match="1 deliveries were claimed"):
        await dispatcher.tick()
    assert sender.sent == []
    dispatcher._lease.seconds = lease
    async with asyncio.timeout(30):
        while (await states(store))[0][0] != "SUCCESS":
            await dispatcher.tick()
    await dispatcher.stop()
    assert await states(store, "status, attempts, claim_count") == [("SUCCESS", 1, 0)]


async def test_no_more_are_in_hand_than_there_are_slots(
    store: Store, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent but not recorded is in doubt after a crash like what is on the wire."""
    await one_delivery(store, quick, MOST_ONCE, *(f"m{number}" for number in range(20)))

    async def away(*_arguments: Any) -> set[int]:
        raise StoreUnreachable("gone")

    monkeypatch.setattr(statements, "record", away)
    dispatcher = dispatching(store, AnsweringSender(), quick, concurrency=8)
    for _ in range(10):
        with contextlib.suppress(StoreUnreachable):
            await dispatcher.tick()
        assert Counter(await states(store, "status"))[("SENDING",)] <= 8
    monkeypatch.undo()
    await dispatcher.stop()


async def test_what_another_left_sending_is_not_made_ready_by_a_short_outage(
    store: Store, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_delivery(store, quick, MOST_ONCE)
    await left_behind(store)
    lose_the_store_once(monkeypatch)
    sender = AnsweringSender()
    dispatcher = dispatching(store, sender, quick)
    with pytest.raises(Exception, match="gone"):
        await dispatcher.tick()
    await dispatcher.stop()
    await set_columns(store, "deliveries", due=Sql("created_at"))  # the lease ends
    await dispatch_all(store, sender, quick)
    assert sender.sent == []
    assert await states(store) == [("UNKNOWN", "ABANDONED")]


async def test_a_channel_that_gives_no_outcome_is_not_trusted(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick)
    await dispatch_all(store, AnsweringSender(lambda _outgoing: None), quick)  # type: ignore[arg-type,return-value]
    assert await states(store) == [("UNKNOWN", "BAD_OUTCOME")]


async def test_a_channel_that_never_comes_back_gives_its_slot_free(store: Store, quick: Settings) -> None:
    class Hanging(AnsweringSender):
        async def send(self, outgoing: Outgoing) -> Outcome:
            self.sent.append(outgoing)
            await asyncio.Event().wait()
            raise AssertionError

    await one_delivery(store, quick)
    hurried = quick.model_copy(update={"send_timeout_seconds": 0.05})
    await dispatch_all(store, Hanging(), hurried, concurrency=1)
    assert await states(store) == [("UNKNOWN", "TIMEOUT")]


async def test_without_its_message_a_delivery_ends_and_lets_others_pass(store: Store, quick: Settings) -> None:
    await one_delivery(store, quick, MOST_ONCE)
    await run(store, "DELETE FROM bongsu_messages")
    await one_delivery(store, quick, LEAST_ONCE)
    await dispatch_all(store, AnsweringSender(), quick)
    assert await states(store) == [("FAIL", "NO_MESSAGE"), ("SUCCESS", None)]
