"""Digests and their entries are found by their keys, however many there are."""

from __future__ import annotations

import re
from datetime import timedelta

from bongsu.store import Store
from bongsu.store.core.query import same
from bongsu.store.decisions import decide, digests
from bongsu.store.desk import digest_cancel, digest_remainders
from bongsu.store.members import erased_actors
from bongsu.store.messages import digests as texts
from tests.support.plans import generic_plan
from tests.support.rows import Sql, add_many

MANY = 5_000
WHOLE = re.compile(r"Seq Scan on bongsu_(digest|notif|deliver|messages)|^SCAN (x|e|g|n|d|bongsu_\w+)$", re.MULTILINE)
OPEN_DIGESTS = re.compile(r"bongsu_digests_key (\(.*ends_at>\?\)|on bongsu_digests x.*\n *Index Cond: .*ends_at > )")


async def test_digests_are_found_by_their_keys(store: Store) -> None:
    ids = {"notification_id": Sql("number"), "message_id": Sql("number"), "member_id": Sql("'m' || number")}
    async with store.transaction() as tx:
        await add_many(tx, "members", MANY, member_id=ids["member_id"])
        await add_many(tx, "messages", MANY, event_id="00000000-0000-7000-8000-000000000000", notice_index=Sql("number"))
        for table in ("notifications", "deliveries"):
            await add_many(tx, table, MANY, **ids)
        await add_many(tx, "digests", MANY, notification_id=Sql("number"), member_id=ids["member_id"])
        await add_many(tx, "digest_entries", MANY, actor_id=Sql("'a' || number"), **ids)
    async with store.transaction() as tx:
        await tx.execute(same("ANALYZE")())
    for statement in (
        decide.DECIDE_DIGESTS,
        digests.FIND_ACTORS,
        digests.SET_TEXTS,
        digests.SET_CHANGED,
        digest_cancel.NEXT_MEMBERS,
        digest_cancel.FIND_ENTRIES,
        digest_cancel.LEAVE,
        digest_cancel.LOWER_SIZES,
        digest_remainders.FIND_REMAINDERS,
        digest_cancel.CANCEL_DELIVERIES,
        digest_cancel.FIND_SKIPPED,
        digest_cancel.WITHDRAW,
        digest_cancel.LOWER_UNREAD,
        erased_actors.FIND_ACTED,
        erased_actors.FORGET_ACTOR,
        texts.FIND_STATES,
        texts.FIND_TEXTS,
    ):
        steps = await generic_plan(store, statement)
        assert not WHOLE.search(steps), (statement, steps)
    assert "bongsu_digests_key" in await generic_plan(store, decide.DECIDE_DIGESTS)


async def test_digests_whose_windows_have_ended_are_not_read(store: Store) -> None:
    """A post that is liked for weeks has thousands of them, also where statistics say that most digests are of that post."""
    ids = {"notification_id": Sql("number"), "member_id": "owner"}
    async with store.transaction() as tx:
        await add_many(tx, "members", 1, member_id="owner")
        await add_many(tx, "notifications", MANY, message_id=Sql("number"), **ids)
        await add_many(tx, "digests", MANY, ends_at=timedelta(days=-1), **ids)
    async with store.transaction() as tx:
        await tx.execute(same("ANALYZE")())
    assert OPEN_DIGESTS.search(await generic_plan(store, decide.DECIDE_DIGESTS))
