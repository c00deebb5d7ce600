"""Decide for a step's recipients. Their members' rows stay locked until the transaction ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import orjson

from bongsu.model.channels import Channel
from bongsu.store.core.locks import lock_members
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import (
    MESSAGE_ID,
    PRODUCT_ID,
    Query,
    Statement,
    Table,
    Transaction,
    in_both,
    only_postgres,
    same,
)
from bongsu.store.decisions import postgres, sqlite
from bongsu.store.decisions.rows import (
    ACTIVE_TIME,
    CONTENT,
    DEDUP_KEY,
    DIGEST_NOTICE,
    NOTICE,
    PACED_NOTICE,
    PROFILE,
    Candidate,
    DecisionCount,
    DecisionInputs,
    DecisionRows,
    Profile,
    Recipients,
    candidate_of,
)
from bongsu.store.members.channel_bits import BITS

_IN_APP = BITS[Channel.IN_APP]

# Below this, PostgreSQL takes longer to fill and empty the temporary table than to send the rows to us and back.
FEW_RECIPIENTS = 200

DECIDE = only_postgres(postgres.DECIDE)
DECIDE_DIGESTS = Statement(postgres.DECIDE_DIGESTS, sqlite.DECIDE_DIGESTS)
DECIDE_ONE_NOTICE_INTO_TABLE = Statement(postgres.DECIDE_ONE_NOTICE_INTO_TABLE, sqlite.DECIDE_ONE_NOTICE_INTO_TABLE)
DECIDE_INTO_TABLE = Statement(postgres.DECIDE_INTO_TABLE, sqlite.DECIDE_INTO_TABLE)
CREATE_DECIDED = Statement(postgres.CREATE_DECIDED, sqlite.CREATE_DECIDED)
PREPARE_DECIDED = Statement(postgres.PREPARE_DECIDED, sqlite.PREPARE_DECIDED)
FIND_MISSING_MEMBERS = Statement(postgres.FIND_MISSING_MEMBERS, sqlite.FIND_MISSING_MEMBERS)
FIND_PROFILES = Statement(postgres.FIND_PROFILES, sqlite.FIND_PROFILES)

# Spreads the due times of paced notices ($1), into times that are not quiet ($2), in bongsu_decided.
SPREAD_DUE = Statement(postgres.SPREAD_DUE, sqlite.SPREAD_DUE)

# How many recipients of which notice have which message and reason, and how many of them have it in the inbox.
COUNT_DECIDED = same(f"""
    SELECT notice_index, message_id, reason, count(*) AS recipients,
           sum(CASE WHEN reason IS NULL AND channels & {_IN_APP} <> 0 THEN 1 ELSE 0 END) AS in_inbox
    FROM bongsu_decided GROUP BY notice_index, message_id, reason""")


# The names of those products that are known.
FIND_PRODUCT_NAMES = in_both(
    lambda d: (
        f"""
    SELECT p.product_id, p.name FROM {d.table("given", PRODUCT_ID, 1)}
    CROSS JOIN bongsu_products AS p WHERE p.product_id = given.product_id"""
    )
)


async def decide_members(tx: Transaction, recipients: Recipients, inputs: DecisionInputs) -> DecisionRows:
    """Decide for each recipient: a notification, or the first reason against it.

    A member may be a recipient of several notices; the earlier one counts first towards the daily cap. The caller holds the
    locks of the events and of the dedup keys.
    """
    # SQLite empties its table for next to nothing, so there every step takes the path of many; and so does one that counts
    # or spreads its deliveries, which the path of few does not.
    is_many = (
        tx.dialect is not POSTGRES or sum(map(len, recipients.values())) >= FEW_RECIPIENTS or inputs.bulk or inputs.paced
    )
    return await (_decide_many if is_many else _decide_few)(tx, recipients, inputs)


async def find_candidates(tx: Transaction, recipients: Recipients, inputs: DecisionInputs) -> list[Candidate]:
    """For each recipient of notices with digests: what is against it, and what it can be merged into. In the order of
    members and notices. The caller holds the locks of the events and of the dedup keys."""
    members = {member_id for member_ids in recipients.values() for member_id in member_ids}
    await tx.fetch(lock_members(members))
    parameters = _parameters(recipients, inputs)
    rows = await tx.fetch(DECIDE_DIGESTS(*parameters, Table(DIGEST_NOTICE, inputs.digests)))
    return [candidate_of(tx.dialect, row) for row in rows]


async def _decide_few(tx: Transaction, recipients: Recipients, inputs: DecisionInputs) -> DecisionRows:
    rows = await tx.fetch(_query(DECIDE, recipients, inputs))
    counts = Counter((row["notice_index"], row["message_id"], row["reason"]) for row in rows)
    # Of a step of few nothing is counted but its recipients.
    return DecisionRows([DecisionCount(*one, count, in_inbox=0) for one, count in counts.items()], recipients, inputs, rows)


async def _decide_many(tx: Transaction, recipients: Recipients, inputs: DecisionInputs) -> DecisionRows:
    decide = DECIDE_ONE_NOTICE_INTO_TABLE if len(inputs.notices) == 1 else DECIDE_INTO_TABLE
    spread = [SPREAD_DUE(Table(PACED_NOTICE, inputs.paced), Table(ACTIVE_TIME, inputs.active))] if inputs.paced else []
    queries = [CREATE_DECIDED(), PREPARE_DECIDED(), _query(decide, recipients, inputs), *spread]
    counts = [DecisionCount(**dict(row)) for row in await tx.fetch(*queries, COUNT_DECIDED())]
    return DecisionRows(counts, recipients, inputs)


def _query(decide: Statement, recipients: Recipients, inputs: DecisionInputs) -> Query:
    return decide(*_parameters(recipients, inputs), inputs.daily_limit)


def _parameters(recipients: Recipients, inputs: DecisionInputs) -> tuple[Any, ...]:
    """Those that every decision has."""
    return (
        _as_json(recipients),
        Table(NOTICE, inputs.notices),
        Table(PROFILE, inputs.profiles),
        Table(CONTENT, inputs.contents),
        Table(DEDUP_KEY, inputs.keys),
        Table.of(MESSAGE_ID, inputs.own_messages),
        inputs.now,
    )


async def find_missing_members(tx: Transaction, recipients: Recipients) -> list[str]:
    return [row["member_id"] for row in await tx.fetch(FIND_MISSING_MEMBERS(_as_json(recipients)))]


async def find_profiles(tx: Transaction, recipients: Recipients) -> list[Profile]:
    """All profiles of these recipients."""
    return [Profile(**dict(row)) for row in await tx.fetch(FIND_PROFILES(_as_json(recipients)))]


async def find_product_names(tx: Transaction, product_ids: Sequence[str]) -> dict[str, str]:
    rows = await tx.fetch(FIND_PRODUCT_NAMES(Table.of(PRODUCT_ID, product_ids)))
    return {row["product_id"]: row["name"] for row in rows}


def _as_json(recipients: Recipients) -> str:
    return orjson.dumps({str(notice_index): member_ids for notice_index, member_ids in recipients.items()}).decode()
