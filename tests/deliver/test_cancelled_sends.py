"""Dispatchers whose event is cancelled: what was on the wire ends as it ends, what waited for its turn is dropped, and the
provider's ledger has nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.channels.email.sender import Email
from bongsu.deliver.channels.email.smtp import CONNECTIONS
from bongsu.deliver.channels.limits.priority_semaphore import PrioritySemaphore
from bongsu.deliver.channels.push.sender import Push
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.desk.cancel import Cancellations
from bongsu.errors import StoreUnreachable
from bongsu.model import Channel, Digest, Everyone, Guarantee, Listed, NoticeType
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store, inbox
from bongsu.store import deliveries as statements
from bongsu.store.desk.cancellations import Cancellation
from bongsu.store.ranks import RANKS
from tests.simulator.running import Simulator
from tests.support.cancellations import SALE, add_members_with_devices, counts_are_exact, decide_campaign, statuses
from tests.support.decisions import decide, rows, rules_notifying, trigger_event
from tests.support.rows import Sql, set_columns
from tests.support.senders import HeldSender, until_all_ended
from tests.support.waiting import until

AGAIN = NoticeType("AGAIN", SALE.channels, guarantee=Guarantee.AT_LEAST_ONCE, duplicate_hours=0)
MAIL = NoticeType("MAIL", (Channel.EMAIL, Channel.IN_APP), duplicate_hours=0)
SLOTS = 16
# Few enough that the circuit breaker stays closed.
FAULTS = {"unavailable": 0.06, "reset": 0.04, "acceptedReset": 0.05, "acceptedUnavailable": 0.04, "deviceQuota": 0.08}
# Slots for so many that one claim takes all deliveries of a small campaign.
ROOM = 64


async def cancel(store: Store, settings: Settings, event_id: UUID, *, withdraw: bool = False) -> Cancellation:
    return await Cancellations(store, LocalSignals()).cancel(event_id, "cli:mina", withdraw=withdraw)


async def until_so_many(store: Store, status: str, count: int) -> None:
    """Until so many deliveries have the status."""

    async def are_there() -> bool:
        return (await statuses(store))[status] >= count

    await until(are_there)


# --- sends that wait for their turn ---------------------------------------------------------------------------------------


# With a minute between two looks at the store, as long as signals come.
@pytest.mark.parametrize("poll_seconds", [0.05, 60])
async def test_what_waits_for_a_connection_is_dropped_and_what_has_one_is_not(
    store: Store, settings: Settings, poll_seconds: float
) -> None:
    settings = settings.model_copy(update={"poll_seconds": poll_seconds})
    event_id = await decide_campaign(store, settings, 5, chunk=2)
    sender = HeldSender()
    dispatcher = Dispatcher(store, GuardedSender(sender, semaphore=PrioritySemaphore(1)), settings, ROOM)
    async with running(dispatcher):
        await sender.has_begun.wait()
        done = await cancel(store, settings, event_id)
        # All were claimed, and one of them is on the wire.
        assert (done.cancelled, done.sent) == (0, 5)
        await until_so_many(store, "CANCELLED", 4)
        sender.may_answer.set()
        await until_all_ended(store, dispatcher)
    assert len(sender.sent) == 1
    assert await statuses(store) == {"CANCELLED": 4, "SUCCESS": 1}
    found = await rows(store, "SELECT code, attempts, leased_by FROM bongsu_deliveries WHERE status = 'CANCELLED'")
    assert [tuple(row) for row in found] == [("CANCELLED", 0, None)] * 4
    assert await counts_are_exact(store)


async def test_what_waits_of_other_events_is_sent(store: Store, settings: Settings) -> None:
    event_id = await decide_campaign(store, settings, 3)
    await decide(store, settings, rules_notifying(Everyone(), AGAIN), trigger_event())
    sender = HeldSender()
    dispatcher = Dispatcher(store, GuardedSender(sender, semaphore=PrioritySemaphore(1)), settings, ROOM)
    async with running(dispatcher):
        await sender.has_begun.wait()
        await cancel(store, settings, event_id)
        await until_so_many(store, "CANCELLED", 2)
        sender.may_answer.set()
        await until_all_ended(store, dispatcher)
    assert sorted(one.type for one in sender.sent) == ["AGAIN"] * 3 + ["SALE"]
    assert await statuses(store) == {"CANCELLED": 2, "SUCCESS": 4}


async def test_a_digest_that_waits_is_dropped_once_nothing_of_it_is_left(store: Store, settings: Settings) -> None:
    """Its message is not cancelled, because it may have gathered others; one that has is sent."""
    # None is given back because it waits for too long.
    settings = settings.model_copy(update={"send_timeout_seconds": 40, "lease_seconds": 120})
    member_id, *_ = await add_members_with_devices(store, 4)
    gathered = NoticeType("VISIT", SALE.channels, digest=Digest(600))
    first, second = trigger_event(), trigger_event()
    for event, audience in ((first, Everyone()), (second, Listed((member_id,)))):
        await decide(store, settings, rules_notifying(audience, gathered, ref_id="page"), event)
    await set_columns(store, "deliveries", due=timedelta(seconds=-1))
    await decide(store, settings, rules_notifying(Everyone(), AGAIN), trigger_event())
    await set_columns(store, "deliveries", {"message_id": await newest_message(store)}, due=timedelta(seconds=-60))
    sender = HeldSender()
    dispatcher = Dispatcher(store, GuardedSender(sender, semaphore=PrioritySemaphore(1)), settings, ROOM)
    async with running(dispatcher):
        await sender.has_begun.wait()
        assert await statuses(store) == {"SENDING": 8}
        await cancel(store, settings, first.event_id)
        await until_so_many(store, "CANCELLED", 3)
        sender.may_answer.set()
        await until_all_ended(store, dispatcher)
    assert [one.member_id for one in sender.sent if one.type == "VISIT"] == [member_id]
    assert await statuses(store) == {"CANCELLED": 3, "SUCCESS": 5}


async def test_a_digest_that_waits_is_dropped_once_it_is_read(store: Store, settings: Settings) -> None:
    settings = settings.model_copy(update={"send_timeout_seconds": 40, "lease_seconds": 120})
    reader, other = await add_members_with_devices(store, 2)
    gathered = NoticeType("VISIT", SALE.channels, digest=Digest(600))
    await decide(store, settings, rules_notifying(Everyone(), gathered, ref_id="page"), trigger_event())
    await set_columns(store, "deliveries", due=timedelta(seconds=-1))
    await decide(store, settings, rules_notifying(Listed((other,)), AGAIN), trigger_event())
    await set_columns(store, "deliveries", {"message_id": await newest_message(store)}, due=timedelta(seconds=-60))
    sender = HeldSender()
    dispatcher = Dispatcher(store, GuardedSender(sender, semaphore=PrioritySemaphore(1)), settings, ROOM)
    async with running(dispatcher):
        await sender.has_begun.wait()
        assert await statuses(store) == {"SENDING": 3}
        async with store.transaction() as tx:
            await inbox.mark_read(tx, reader, 2**60, 10)
        await until_so_many(store, "CANCELLED", 1)
        sender.may_answer.set()
        await until_all_ended(store, dispatcher)
    assert [one.member_id for one in sender.sent] == [other, other]
    ((code,),) = await rows(store, "SELECT code FROM bongsu_deliveries WHERE status = 'CANCELLED'")
    assert code == "READ"


async def newest_message(store: Store) -> int:
    ((message_id,),) = await rows(store, "SELECT max(message_id) FROM bongsu_messages")
    return int(message_id)


async def test_what_a_stop_gives_back_of_a_cancelled_event_is_cancelled(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The dispatcher does not look for cancelled events before it stops.
    monkeypatch.setattr("bongsu.deliver.dispatcher.CANCELLED_SECONDS", 3600)
    event_id = await decide_campaign(store, settings, 5, chunk=2)
    sender = HeldSender()
    dispatcher = Dispatcher(store, GuardedSender(sender, semaphore=PrioritySemaphore(1)), settings, ROOM)
    await dispatcher.start()
    await sender.has_begun.wait()
    await cancel(store, settings, event_id)
    stopping = asyncio.create_task(dispatcher.stop())
    await until_so_many(store, "CANCELLED", 4)
    sender.may_answer.set()
    await stopping
    assert len(sender.sent) == 1
    assert await statuses(store) == {"CANCELLED": 4, "SUCCESS": 1}
    assert await counts_are_exact(store)


async def test_one_that_an_earlier_claim_may_have_sent_is_unknown_when_it_is_dropped(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bongsu.deliver.leases.GRACE_SECONDS", 0.0)
    event_id = await decide_campaign(store, settings, 3, chunk=2, kind=AGAIN)
    assert len(await statements.claim(store, Channel.PUSH, RANKS, 10, -1, "dead")) == 3
    sender = HeldSender()
    dispatcher = Dispatcher(store, GuardedSender(sender, semaphore=PrioritySemaphore(1)), settings, ROOM)
    async with running(dispatcher):
        await sender.has_begun.wait()
        await cancel(store, settings, event_id)
        await until_so_many(store, "UNKNOWN", 2)
        sender.may_answer.set()
        await until_all_ended(store, dispatcher)
    assert await statuses(store) == {"UNKNOWN": 2, "SUCCESS": 1}
    assert {row[0] for row in await rows(store, "SELECT code FROM bongsu_deliveries WHERE status = 'UNKNOWN'")} == {
        "ABANDONED"
    }
    assert await counts_are_exact(store)


@contextlib.asynccontextmanager
async def mute_mail_server() -> AsyncIterator[tuple[str, asyncio.Semaphore]]:
    """It takes connections and says nothing. Its address, and what is released for each connection."""
    callers = asyncio.Semaphore(0)
    over = asyncio.Event()

    async def take(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.release()
        await over.wait()
        writer.transport.abort()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"smtp://127.0.0.1:{port}", callers
        over.set()


async def test_mails_that_wait_for_one_of_few_connections_are_dropped(store: Store, settings: Settings) -> None:
    async with mute_mail_server() as (address, callers):
        changes = {"smtp_url": address, "email_from": "hi@shop.example", "send_timeout_seconds": 3}
        settings = settings.model_copy(update=changes)
        await add_members_with_devices(store, 30)
        await set_columns(store, "members", email=Sql("member_id || '@example.org'"))
        event = trigger_event()
        await decide(store, settings, rules_notifying(Everyone(), MAIL), event)
        email = Email(settings)
        dispatcher = Dispatcher(store, GuardedSender(email, semaphore=email.semaphore), settings, 32)
        async with running(dispatcher):
            # One connection is left to critical mail.
            for _ in range(CONNECTIONS - 1):
                await callers.acquire()
            done = await cancel(store, settings, event.event_id)
            assert done.cancelled + done.sent == 30
            await until_so_many(store, "CANCELLED", 30 - (CONNECTIONS - 1))
            # Those that have a connection are not sent either, because no mail server says hello: no retry follows.
            await until_all_ended(store, dispatcher)
        await email.close()
        assert callers.locked()
    assert await statuses(store) == {"CANCELLED": 30}
    tried = await rows(store, "SELECT attempts, count(*) FROM bongsu_deliveries GROUP BY attempts ORDER BY attempts")
    assert [tuple(row) for row in tried] == [(0, 30 - (CONNECTIONS - 1)), (1, CONNECTIONS - 1)]


# --- against a provider with a ledger -------------------------------------------------------------------------------------


class Signalling(Push):
    """Says when it has posted so many."""

    def __init__(self, settings: Settings, after: int, **more: Any) -> None:
        super().__init__(settings, **more)
        self._after = after
        self.posted = asyncio.Event()

    def _post(self, call: Any, token: str) -> None:
        super()._post(call, token)
        self._after -= 1
        if self._after <= 0:
            self.posted.set()


def pushing(settings: Settings, simulator: Simulator, **changes: Any) -> Settings:
    return settings.model_copy(update={"fcm_url": simulator.address, "fcm_project": "p", **changes})


async def sent_to(simulator: Simulator) -> dict[str, int]:
    """How often the provider accepted what was sent, by token."""
    ledger = await asyncio.to_thread(simulator.ledger)
    return {entry["token"]: entry["accepted"] for entry in ledger["messages"]}


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_nothing_goes_out_after_the_answer_but_what_was_on_the_wire(
    store: Store, settings: Settings, simulator: Simulator, seed: int
) -> None:
    dice = random.Random(seed)
    simulator.configure(latency={"medianMs": 20})
    settings = pushing(settings, simulator)
    count = 200
    event_id = await decide_campaign(store, settings, count, chunk=70)
    push = Signalling(settings, dice.randint(1, count * 3 // 4))
    dispatcher = Dispatcher(store, push, settings, SLOTS)
    async with running(dispatcher):
        await push.posted.wait()
        done = await cancel(store, settings, event_id, withdraw=True)
        await until_all_ended(store, dispatcher)
    await push.close()
    # What the answer said is what the table says in the end, and what the provider says.
    assert done.cancelled + done.sent == count
    assert await statuses(store) == {"SUCCESS": done.sent, "CANCELLED": done.cancelled}
    accepted = await sent_to(simulator)
    assert set(accepted.values()) == {1}
    successes = await rows(store, "SELECT member_id FROM bongsu_deliveries WHERE status = 'SUCCESS'")
    assert set(accepted) == {f"token-{row[0]}" for row in successes}
    assert 0 < done.cancelled < count
    assert done.withdrawn == count
    assert await counts_are_exact(store)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", [SALE, AGAIN])
async def test_with_a_provider_that_fails_every_delivery_ends_and_is_accounted_for(
    store: Store, settings: Settings, simulator: Simulator, kind: NoticeType, seed: int
) -> None:
    dice = random.Random(seed)
    retry_after = {"form": "seconds", "seconds": 1}
    simulator.configure(seed=seed, faults=FAULTS, retryAfter=retry_after, latency={"medianMs": 10})
    settings = pushing(settings, simulator, retry_base_seconds=0.05, send_timeout_seconds=2)
    count = 150
    event_id = await decide_campaign(store, settings, count, chunk=40, kind=kind)
    push = Signalling(settings, dice.randint(10, count))
    dispatcher = Dispatcher(store, push, settings, SLOTS)
    async with running(dispatcher):
        await push.posted.wait()
        done = await cancel(store, settings, event_id)
        at_the_answer = {row[0] for row in await rows(store, "SELECT member_id FROM bongsu_deliveries WHERE epoch > 0")}
        await until_all_ended(store, dispatcher)
    await push.close()
    ended = await statuses(store)
    assert ended.keys() <= {"SUCCESS", "FAIL", "UNKNOWN", "CANCELLED"}
    assert ended.total() == count
    failed_before = count - done.cancelled - done.sent
    assert ended["FAIL"] >= failed_before
    # More are CANCELLED than the answer said, because retries of what was on the wire are cancelled too.
    assert done.cancelled <= ended["CANCELLED"] <= done.cancelled + done.sent
    # Nothing was ever sent that had not been claimed when the answer came.
    tried = await sent_to(simulator)
    assert {f"token-{one}" for one in at_the_answer} >= tried.keys()
    if kind is SALE:
        assert max(tried.values()) == 1
    successes = {
        f"token-{row[0]}" for row in await rows(store, "SELECT member_id FROM bongsu_deliveries WHERE status = 'SUCCESS'")
    }
    assert all(tried[one] >= 1 for one in successes)
    assert await counts_are_exact(store)


async def test_sends_that_wait_for_the_quota_are_dropped(store: Store, settings: Settings, simulator: Simulator) -> None:
    """Of six hundred a minute six go at once, and ten a second after that: the others have slots and wait."""
    settings = pushing(settings, simulator)
    event_id = await decide_campaign(store, settings, 60)
    push = Signalling(settings, 6, store=store, per_minute=600)
    dispatcher = Dispatcher(store, push, settings, 64)
    async with running(dispatcher):
        await push.posted.wait()
        done = await cancel(store, settings, event_id)
        await until_all_ended(store, dispatcher)
    await push.close()
    ended = await statuses(store)
    assert done.cancelled + done.sent == 60
    accepted = await sent_to(simulator)
    assert ended == {"SUCCESS": len(accepted), "CANCELLED": 60 - len(accepted)}
    # Ten a second for the two seconds that it may take, and as many again on a busy machine.
    assert 6 <= len(accepted) <= 6 + 40
    assert ended["CANCELLED"] > done.cancelled


# --- what is given back ---------------------------------------------------------------------------------------------------


async def test_what_is_given_back_after_a_failed_claim_is_counted_if_its_campaign_was_cancelled(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    event_id = await decide_campaign(store, settings, 5, chunk=2)
    dispatcher = Dispatcher(store, GuardedSender(HeldSender(), semaphore=PrioritySemaphore(1)), settings, ROOM)

    async def fail(_claimed: object) -> None:
        raise StoreUnreachable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(dispatcher, "_load_contents", fail)
        with pytest.raises(StoreUnreachable):
            await dispatcher.tick()
    await cancel(store, settings, event_id)
    await dispatcher.stop()
    assert await statuses(store) == {"CANCELLED": 5}
    assert await counts_are_exact(store)
