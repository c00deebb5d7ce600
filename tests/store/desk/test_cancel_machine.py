"""Events are decided, read, sent, recovered, replayed, cancelled and withdrawn in any order: every count stays exact, and
nothing of a cancelled event is sent."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, invariant, multiple, rule

from bongsu.api.inbox import Inbox
from bongsu.decide.worker import EventWorker
from bongsu.model import Channel, Event, Everyone, Guarantee, Listed, Notice, NoticeType
from bongsu.rules import Rules
from bongsu.store import deliveries as statements
from bongsu.store import outbox
from bongsu.store.core.query import as_uuid
from bongsu.store.deliveries import ClaimedDelivery, DeliveryResult, DeliveryStatus, Success, recovery
from bongsu.store.desk import cancel_steps, cancellations
from bongsu.store.desk.cancellations import Cancellation, NothingLeft
from bongsu.store.ranks import RANKS
from tests.conftest import SettingsMaker
from tests.support.cancellations import add_members_with_devices, expected_counts, kept_counts
from tests.support.decisions import Clock, ClockedDecider, rows, unread_is_exact
from tests.support.machines import StoreMachine, opened, run_machine
from tests.support.replays import replay
from tests.support.rows import set_columns

MEMBERS = 5
CHUNK = 2
KINDS = {
    "both": NoticeType("BOTH", (Channel.PUSH, Channel.IN_APP), duplicate_hours=0),
    "again": NoticeType("AGAIN", (Channel.PUSH, Channel.IN_APP), guarantee=Guarantee.AT_LEAST_ONCE, duplicate_hours=0),
    "push": NoticeType("PUSHED", (Channel.PUSH,), duplicate_hours=0),
    "inbox": NoticeType("NOTE", (Channel.IN_APP,), duplicate_hours=0),
}
_WAITING = "SELECT 1 FROM bongsu_deliveries WHERE status IN ('READY', 'SENDING') LIMIT 1"
_OF_EVENT = """
    SELECT d.status, count(*) AS count FROM bongsu_deliveries d JOIN bongsu_messages m ON m.message_id = d.message_id
    WHERE m.event_id = $1 GROUP BY d.status"""
_IN_INBOXES = """
    SELECT count(*) AS count FROM bongsu_notifications n JOIN bongsu_messages m ON m.message_id = n.message_id
    WHERE m.event_id = $1 AND n.channels & 8 <> 0"""

rules = Rules()


@rules.rule("any")
def notices_of(event: Event) -> Iterable[Notice]:
    """To everybody, in steps; or to some, in one step with other events."""
    for number, (kind, few) in enumerate(event.payload["notices"]):
        audience = Listed(tuple(few)) if few else Everyone()
        yield Notice(KINDS[kind], audience, subject=f"{event.event_id}-{number}", title="t", body="b")


@dataclass
class Cancelled:
    """What the model knows of a cancelled event."""

    # Cancelled, sent and withdrawn, as the first request was answered.
    figures: tuple[int, int, int]
    withdraw: bool
    # Whether a replay has begun to send its dead letters again.
    is_lifted: bool = False


class CancelMachine(StoreMachine):
    tables = (
        "events", "messages", "message_counts", "notifications", "suppressions", "deliveries", "attempts", "cancellations",
        "audience_snapshots", "runs",
    )  # fmt: skip

    events = Bundle("events")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.cancelled: dict[UUID, Cancelled] = {}
        self.worker = EventWorker(
            self.store, rules, self.settings, ClockedDecider(self.store, self.settings, Clock(), CHUNK)
        )
        self.inbox = Inbox(self.store)

    async def empty(self) -> None:
        await super().empty()
        await set_columns(self.store, "members", unread=0, capped_count=0)

    # --- events -------------------------------------------------------------------------------------------------------

    @rule(
        target=events,
        notices=st.lists(
            st.tuples(st.sampled_from(sorted(KINDS)), st.sampled_from([[], ["m00001"], ["m00000", "m00003", "m00004"]])),
            min_size=1,
            max_size=3,
        ),
    )
    def publish(self, notices: list[tuple[str, list[str]]]) -> UUID:
        event = Event(event_type="any", payload={"notices": notices})

        async def add() -> None:
            async with self.store.transaction() as tx:
                await outbox.add(tx, [event])

        self.run(add())
        return event.event_id

    @rule()
    def decide(self) -> None:
        self.run(self.worker.tick())

    @rule(number=st.integers(0, MEMBERS - 1), pick=st.integers(0, 10), all_of_them=st.booleans())
    def read(self, number: int, pick: int, all_of_them: bool) -> None:
        member = f"m{number:05}"
        if all_of_them:
            self.run(self.inbox.read_all(member))
            return
        ids = self.run(rows(self.store, "SELECT notification_id FROM bongsu_notifications WHERE member_id = $1", member))
        if ids:
            self.run(self.inbox.read(member, ids[pick % len(ids)][0]))

    # --- sending ------------------------------------------------------------------------------------------------------

    @rule(target=claims, limit=st.integers(1, 6))
    def claim(self, limit: int) -> Any:
        claimed = self.run(statements.claim(self.store, "PUSH", RANKS, limit, 3600, "w"))
        stopped = {one for one, how in self.cancelled.items() if not how.is_lifted}
        for one in claimed:
            event_id = self.event_of(one.message_id)
            assert not (one.can_go and event_id in stopped), "sent after the answer"
            assert one.is_cancelled == (event_id in stopped) or event_id in self.cancelled
        return multiple(*claimed)

    def event_of(self, message_id: int) -> UUID:
        ((event_id,),) = self.run(rows(self.store, "SELECT event_id FROM bongsu_messages WHERE message_id = $1", message_id))
        return as_uuid(event_id)

    @rule(
        claim=consumes(claims), status=st.sampled_from(["SUCCESS", "FAIL", "UNKNOWN", "READY"]), is_retryable=st.booleans()
    )
    def record(self, claim: ClaimedDelivery, status: str, is_retryable: bool) -> None:
        self.run(self.recorded(claim, status, is_retryable))

    async def recorded(self, one: ClaimedDelivery, status: str, is_retryable: bool = False) -> None:
        key = one.delivery_id, one.epoch
        if not one.can_go:
            status = "UNKNOWN" if one.status == "SENDING" else "CANCELLED" if one.is_cancelled else "FAIL"
        result: DeliveryResult | Success = DeliveryResult(
            *key, DeliveryStatus(status), "X", bulk_message=one.message_id, is_retryable=is_retryable and status == "FAIL"
        )
        if status == "SUCCESS":
            result = Success(*key, time.monotonic(), 1, bulk_message=one.message_id)
        await statements.record(self.store, "PUSH", [result])

    @rule()
    def leases_and_waits_end(self) -> None:
        async def end() -> None:
            async with self.store.transaction() as tx:
                await set_columns(tx, "deliveries", {"status": ["READY", "SENDING"]}, due=timedelta(seconds=-1))

        self.run(end())

    @rule()
    def recover(self) -> None:
        async def run() -> None:
            async with self.store.transaction() as tx:
                await recovery.give_rounds(tx, 0, 3)
                await recovery.settle_abandoned(tx, 2)

        self.run(run())

    @rule(event_id=events)
    def replay_by_name(self, event_id: UUID) -> None:
        _, replayed = self.run(replay(self.store, {"eventId": event_id}))
        if event_id in self.cancelled and replayed and self.run(self.is_finished(event_id)):
            self.cancelled[event_id].is_lifted = True

    async def is_finished(self, event_id: UUID) -> bool:
        found = await rows(self.store, "SELECT finished_at FROM bongsu_cancellations WHERE event_id = $1", event_id)
        return found[0][0] is not None

    @rule()
    def replay_all_others(self) -> None:
        before = {one: self.run(self.states(one)) for one in self.cancelled}
        self.run(replay(self.store, {"channel": "PUSH"}))
        assert before == {one: self.run(self.states(one)) for one in self.cancelled}

    async def states(self, event_id: UUID) -> Counter[str]:
        return Counter({row["status"]: row["count"] for row in await rows(self.store, _OF_EVENT, event_id)})

    # --- cancelling ---------------------------------------------------------------------------------------------------

    @rule(event_id=events, withdraw=st.booleans())
    def cancel(self, event_id: UUID, withdraw: bool) -> None:
        before = self.cancelled.get(event_id)
        states = self.run(self.states(event_id))
        ((in_inbox,),) = self.run(rows(self.store, _IN_INBOXES, event_id))
        done = self.run(self.begin(event_id, withdraw))
        if not isinstance(done, Cancellation):
            assert isinstance(done, NothingLeft)
            assert before is None
            assert not withdraw
            assert states["READY"] == states["SENDING"] == 0
            return
        if before is None or before.is_lifted:
            sent = states["SENDING"] + states["SUCCESS"] + states["UNKNOWN"]
            assert (done.cancelled, done.sent) == (states["READY"] + states["CANCELLED"], sent)
        else:
            assert (done.cancelled, done.sent) == before.figures[:2]
        assert done.withdraw == (withdraw or (before is not None and before.withdraw))
        if before is not None and before.withdraw:
            assert done.withdrawn == before.figures[2]
        else:
            assert done.withdrawn == (in_inbox if withdraw else 0)
        self.cancelled[event_id] = Cancelled((done.cancelled, done.sent, done.withdrawn), done.withdraw)

    async def begin(self, event_id: UUID, withdraw: bool) -> Cancellation | NothingLeft | None:
        async with self.store.transaction() as tx:
            return await cancellations.begin(tx, event_id, "w", withdraw=withdraw)

    @rule(limit=st.integers(1, 4))
    def step(self, limit: int) -> None:
        async def take() -> None:
            await cancel_steps.step(self.store, limit)

        self.run(take())

    # --- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def counts_are_exact(self) -> None:
        assert self.run(unread_is_exact(self.store))
        assert self.run(kept_counts(self.store)) == self.run(expected_counts(self.store))

    def teardown(self) -> None:
        self.run(self.finish())
        self.counts_are_exact()

    async def finish(self) -> None:
        """Until everything is idle: then nothing waits, and what was withdrawn is in no inbox."""
        while await self.worker.tick():
            pass
        await self.worker.stop()
        dice = random.Random(1)
        is_open = True
        while is_open:
            is_open = await cancel_steps.step(self.store, 3) is not None
        while await rows(self.store, _WAITING):
            async with self.store.transaction() as tx:
                await set_columns(tx, "deliveries", {"status": ["READY", "SENDING"]}, due=timedelta(seconds=-1))
            for one in await statements.claim(self.store, "PUSH", RANKS, 10, 3600, "w"):
                await self.recorded(one, dice.choice(["SUCCESS", "FAIL", "READY"]))
        for event_id, how in self.cancelled.items():
            assert (await self.states(event_id)).keys() <= {"SUCCESS", "FAIL", "UNKNOWN", "CANCELLED"}
            ((in_inbox,),) = await rows(self.store, _IN_INBOXES, event_id)
            assert not (how.withdraw and in_inbox)
            ((status,),) = await rows(self.store, "SELECT status FROM bongsu_events WHERE event_id = $1", event_id)
            assert status == "CANCELLED"


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_whatever_the_order_counts_are_exact_and_nothing_cancelled_is_sent(
    database: str, migrated_settings: SettingsMaker
) -> None:
    with opened(CancelMachine, migrated_settings(database, daily_limit=10_000)):
        CancelMachine.run(add_members_with_devices(CancelMachine.store, MEMBERS))
        run_machine(CancelMachine, few=10, steps=30)
