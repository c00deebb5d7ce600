"""Statements of the recovery job: another round for what may yet go, an end for what has come too late or been abandoned.

Each changes so many rows at most and passes over those that somebody else holds. None of them touches what was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Channel
from bongsu.store.databases import dialect_named
from bongsu.store.dialect import Dialect, as_text

# A round is four tries. After so many more, what still fails wants an operator. The index of the retryable ones says it too.
MOST_ROUNDS = 3
# READY for so long after its time: nobody carries its channel, or they are far behind.
STALE_SECONDS = 600
LANES = (0, 1, 2)
CHANNELS = (Channel.PUSH, Channel.SMS, Channel.EMAIL)

# Scalar selects: each is one look by the primary key, for rows of the batch only, and locks nothing.
_GUARANTEE = "(SELECT m.guarantee FROM bongsu_messages m WHERE m.message_id = d.message_id)"
_EXPIRES = "(SELECT m.expires_at FROM bongsu_messages m WHERE m.message_id = d.message_id)"
_EXPIRED_WORDS = "it was due after the moment until which it is worth anything"
_ABANDONED_WORDS = "the dispatcher died while sending: it may have arrived"


@dataclass(frozen=True)
class Rounds:
    """How many were given another round, for how many it is too late, and the last id looked at."""

    given: int
    too_late: int
    last_id: int | None


@cache
def round_statement(dialect: Dialect) -> str:
    """Of the retryable ones behind that id: READY again, with all their tries before them, or no longer retryable.

    The epoch stays. What nobody knows the fate of goes again only where a second one does no harm.
    """
    return f"""
        WITH retryable AS MATERIALIZED (
            SELECT d.delivery_id, coalesce({_EXPIRES} <= {dialect.now}, false)
                   OR (d.status = 'UNKNOWN' AND {_GUARANTEE} = 'at_most_once') AS stays
            FROM bongsu_deliveries d {dialect.by_index("bongsu_deliveries_retryable")}
            WHERE d.is_retryable AND d.rounds < {MOST_ROUNDS} AND d.status IN ('FAIL', 'UNKNOWN') AND d.delivery_id > :behind
            ORDER BY d.delivery_id LIMIT :limit {dialect.skip_locked})
        UPDATE bongsu_deliveries
        SET is_retryable = false,
            status = CASE WHEN retryable.stays THEN status ELSE 'READY' END,
            attempts = CASE WHEN retryable.stays THEN attempts ELSE 0 END,
            rounds = CASE WHEN retryable.stays THEN rounds ELSE rounds + 1 END,
            due = CASE WHEN retryable.stays THEN due ELSE {dialect.now} END,
            finished_at = CASE WHEN retryable.stays THEN finished_at END
        FROM retryable WHERE bongsu_deliveries.delivery_id = retryable.delivery_id
        RETURNING bongsu_deliveries.delivery_id, status"""


async def give_rounds(tx: AsyncConnection, behind: int, limit: int) -> Rounds:
    dialect = dialect_named(tx.dialect.name)
    rows = await dialect.rows(tx, round_statement(dialect), {"behind": behind, "limit": limit})
    given = sum(status == "READY" for _, status in rows)
    return Rounds(given, len(rows) - given, max((row[0] for row in rows), default=None))


@cache
def expire_statement(dialect: Dialect) -> str:
    """End what waits although it is worth nothing any more. Begins at a due time, so that the next batch need not look at
    those again that may still go."""
    return f"""
        WITH stale AS MATERIALIZED (
            SELECT d.delivery_id, d.due FROM bongsu_deliveries d {dialect.by_index("bongsu_deliveries_due")}
            WHERE d.status IN ('READY', 'SENDING') AND d.status = 'READY' AND d.channel = :channel AND d.lane = :lane
              AND d.due >= :begin AND d.due < {dialect.after(str(-STALE_SECONDS))} AND {_EXPIRES} <= {dialect.now}
            ORDER BY d.due LIMIT :limit {dialect.skip_locked})
        UPDATE bongsu_deliveries
        SET status = 'FAIL', code = 'EXPIRED', detail = '{_EXPIRED_WORDS}', is_retryable = false, claims = 0,
            leased_by = NULL, finished_at = {dialect.now}
        FROM stale WHERE bongsu_deliveries.delivery_id = stale.delivery_id
        RETURNING bongsu_deliveries.due"""


async def expire_stale(
    tx: AsyncConnection, channel: Channel, lane: int, begin: datetime, limit: int
) -> tuple[int, datetime | None]:
    """How many have ended, and the latest due time among them."""
    dialect = dialect_named(tx.dialect.name)
    values = {"channel": channel.value, "lane": lane, "begin": dialect.stored(begin), "limit": limit}
    rows = await dialect.rows(tx, expire_statement(dialect), values)
    return len(rows), max((dialect.moment(row[0]) for row in rows), default=None)


@cache
def stale_statement(dialect: Dialect) -> str:
    return f"""
        SELECT 1 FROM bongsu_deliveries d {dialect.by_index("bongsu_deliveries_due")}
        WHERE d.status IN ('READY', 'SENDING') AND d.status = 'READY' AND d.channel = :channel AND d.lane = :lane
          AND d.due < {dialect.after(str(-STALE_SECONDS))} LIMIT 1"""


async def is_any_stale(connection: AsyncConnection, channel: Channel, lane: int) -> bool:
    """Whether something waits that should have gone long ago."""
    dialect = dialect_named(connection.dialect.name)
    found = await connection.execute(as_text(stale_statement(dialect)), {"channel": channel.value, "lane": lane})
    return found.one_or_none() is not None


@cache
def judge_statement(dialect: Dialect) -> str:
    """SENDING with its lease ended, which a dispatcher that takes it would judge in the same way: it may have been sent.

    Judging is claiming, so it raises the epoch: who was thought dead and is not can no longer say otherwise.
    """
    is_held = "abandoned.guarantee = 'at_most_once'"
    return f"""
        WITH abandoned AS MATERIALIZED (
            SELECT d.delivery_id, {_GUARANTEE} AS guarantee
            FROM bongsu_deliveries d {dialect.by_index("bongsu_deliveries_due")}
            WHERE d.status IN ('READY', 'SENDING') AND d.status = 'SENDING' AND d.channel = :channel AND d.lane = :lane
              AND d.due <= {dialect.now}
            ORDER BY d.due LIMIT :limit {dialect.skip_locked})
        UPDATE bongsu_deliveries
        SET epoch = epoch + 1, leased_by = NULL,
            status = CASE WHEN {is_held} THEN 'UNKNOWN' ELSE 'READY' END,
            code = CASE WHEN {is_held} THEN 'ABANDONED' ELSE code END,
            detail = CASE WHEN {is_held} THEN '{_ABANDONED_WORDS}' ELSE detail END,
            claims = CASE WHEN {is_held} THEN 0 ELSE claims END,
            finished_at = CASE WHEN {is_held} THEN {dialect.now} END
        FROM abandoned WHERE bongsu_deliveries.delivery_id = abandoned.delivery_id
        RETURNING status"""


async def judge_abandoned(tx: AsyncConnection, channel: Channel, lane: int, limit: int) -> tuple[int, int]:
    """How many nobody knows the fate of, and how many will be sent again."""
    dialect = dialect_named(tx.dialect.name)
    values = {"channel": channel.value, "lane": lane, "limit": limit}
    statuses: Sequence[Any] = [row[0] for row in await dialect.rows(tx, judge_statement(dialect), values)]
    return statuses.count("UNKNOWN"), statuses.count("READY")
