"""The deliveries' statements: claim, intend, record, renew, give back.

A delivery is READY and due, or leased (its due time is the end of the lease), or finished. So new, retrying and abandoned
ones are found by one predicate over one index. What is about to go on the wire is SENDING, committed, before it goes:
whoever finds a SENDING one whose lease has ended knows that it may have been sent. Every claim raises the epoch, nothing
lowers it, and only the newest claim can intend or record: a dispatcher that was thought dead finishes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Channel, Guarantee, Platform, read_payload
from bongsu.store.decisions import USABLE
from bongsu.store.dialect import Binder, Dialect, dialect_named

# A provider that asks for more than a day is not worth waiting for longer.
LONGEST_WAIT = 86_400.0
SAID_LIMIT = 500


class DeliveryStatus(StrEnum):
    """READY until it goes on the wire; SENDING while nobody knows; then one of three ends."""

    READY = "READY"
    SENDING = "SENDING"
    SUCCESS = "SUCCESS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


class Claimed(NamedTuple):
    """A delivery in a dispatcher's hands until its lease ends."""

    delivery_id: int
    epoch: int
    # Under which the last dispatcher left it: SENDING means that it may have been sent.
    status: str
    attempts: int
    claims: int
    series: int
    notification_id: int
    member_id: str
    message_id: int
    device_id: str | None


@dataclass(frozen=True)
class Words:
    """What all deliveries of a message have in common. It never changes."""

    event_id: str
    type: str
    title: str
    body: str
    ref_id: str | None
    data: dict[str, Any]
    guarantee: Guarantee
    locale: str
    lane: int
    expires_at: datetime | None


class Address(NamedTuple):
    """Where a delivery goes, as of now. Without consent or valid token there is none."""

    text: str
    platform: Platform | None = None


@dataclass(slots=True)
class Verdict:
    """What became of a try. READY means: again, after that many seconds."""

    delivery_id: int
    epoch: int
    status: DeliveryStatus
    code: str | None = None
    detail: str | None = None
    after_seconds: float = 0.0
    # Whether it counts as a try. What was held back before it reached the provider does not.
    is_try: bool = True
    is_retryable: bool = False
    is_simulated: bool = False
    reference: str | None = None
    # When it began and how long it took; None when nothing was sent.
    at: datetime | None = None
    millis: int = 0
    # The device that is gone, and by which token: a token refreshed meanwhile is another.
    gone: tuple[str, str, str] | None = None

    @property
    def is_success(self) -> bool:
        """Tried and taken on, with nothing more to say."""
        is_plain = self.code is None and self.detail is None and self.is_try and not self.is_retryable
        return self.status is DeliveryStatus.SUCCESS and self.at is not None and is_plain

    def __post_init__(self) -> None:
        """What a provider said is cut to what every store takes: one odd answer must not keep others from being stored."""
        self.code, self.detail, self.reference = (_storable(one) for one in (self.code, self.detail, self.reference))
        self.after_seconds = min(max(0.0, self.after_seconds), LONGEST_WAIT) if self.after_seconds > 0 else 0.0


def _storable(said: str | None) -> str | None:
    if not said or (len(said) <= SAID_LIMIT and said.isascii() and "\x00" not in said):
        return said
    return said.replace("\x00", "").encode(errors="replace").decode()[:SAID_LIMIT]


_CLAIMED = ", ".join(Claimed._fields)


@cache
def claim_statement(dialect: Dialect) -> str:
    """Lease due deliveries of one channel and lane, oldest first; rows that another is claiming now are passed over."""
    columns = ", ".join(f"bongsu_deliveries.{column}" for column in Claimed._fields)
    return f"""
        WITH due AS MATERIALIZED (
            SELECT delivery_id FROM bongsu_deliveries {dialect.by_index("bongsu_deliveries_due")}
            WHERE status IN ('READY', 'SENDING') AND channel = :channel AND lane = :lane AND due <= {dialect.now}
            ORDER BY due LIMIT :limit {dialect.skip_locked})
        UPDATE bongsu_deliveries
        SET epoch = epoch + 1, claims = claims + 1, due = {dialect.after(":lease")}, leased_by = :worker
        FROM due WHERE bongsu_deliveries.delivery_id = due.delivery_id
        RETURNING {columns}"""


async def claim(
    tx: AsyncConnection, channel: Channel, lanes: Sequence[int], limit: int, lease_seconds: float, worker: str
) -> list[Claimed]:
    """Due deliveries of these lanes, those of an earlier lane first."""
    dialect = dialect_named(tx.dialect.name)
    claimed: list[Claimed] = []
    for lane in lanes:
        room = limit - len(claimed)
        if room <= 0:
            break
        values = {"channel": channel.value, "lane": lane, "limit": room, "lease": lease_seconds, "worker": worker}
        claimed += map(Claimed._make, await dialect.rows(tx, claim_statement(dialect), values))
    return claimed


async def find_words(connection: AsyncConnection, message_ids: Sequence[int]) -> dict[int, Words]:
    dialect = dialect_named(connection.dialect.name)
    binder = Binder(dialect)
    given = binder.table({"message_id": "bigint"}, [(one,) for one in message_ids])
    found = await _rows(
        connection,
        f"""
        SELECT m.message_id, m.event_id, m.type, m.title, m.body, m.ref_id, m.data, m.guarantee, m.locale, m.lane,
               m.expires_at
        FROM {given} CROSS JOIN bongsu_messages m WHERE m.message_id = given.message_id""",
        binder,
    )
    return {row[0]: _words(dialect, row) for row in found}


def _words(dialect: Dialect, row: Sequence[Any]) -> Words:
    _, event_id, kind, title, body, ref_id, data, guarantee, locale, lane, expires_at = row
    until = None if expires_at is None else dialect.moment(expires_at)
    return Words(
        str(event_id), kind, title, body, ref_id, dict(read_payload(data)), Guarantee(guarantee), locale, lane, until
    )


_PLATFORMS = {one.value: one for one in Platform}


async def find_addresses(connection: AsyncConnection, channel: Channel, claimed: Sequence[Claimed]) -> dict[int, Address]:
    """Where these deliveries go, as things stand now. Those that can no longer go anywhere are left out."""
    binder = Binder(dialect_named(connection.dialect.name))
    if channel is Channel.PUSH:
        columns = {"delivery_id": "bigint", "member_id": "text", "device_id": "text"}
        given = binder.table(columns, [(one.delivery_id, one.member_id, one.device_id) for one in claimed])
        statement = f"""
            SELECT given.delivery_id, d.token, d.platform FROM {given} CROSS JOIN bongsu_devices d
            WHERE d.member_id = given.member_id AND d.device_id = given.device_id AND {USABLE}"""
        return {row[0]: Address(row[1], _PLATFORMS[row[2]]) for row in await _rows(connection, statement, binder)}
    column = "email" if channel is Channel.EMAIL else "phone"
    columns = {"delivery_id": "bigint", "member_id": "text"}
    given = binder.table(columns, [(one.delivery_id, one.member_id) for one in claimed])
    statement = f"""
        SELECT given.delivery_id, m.{column} FROM {given} CROSS JOIN bongsu_members m
        WHERE m.member_id = given.member_id AND m.{column} IS NOT NULL"""
    return {row[0]: Address(row[1]) for row in await _rows(connection, statement, binder)}


_CLAIM = {"delivery_id": "bigint", "epoch": "integer"}
_OURS = """bongsu_deliveries.delivery_id = given.delivery_id AND bongsu_deliveries.epoch = given.epoch
          AND bongsu_deliveries.status IN ('READY', 'SENDING')"""


async def intend(tx: AsyncConnection, claims: Sequence[tuple[int, int]], lease_seconds: float) -> set[int]:
    """Say, before anything is sent, that it will be. Answers which of them are still ours to send."""
    return await _keep(tx, claims, lease_seconds, "status = 'SENDING',")


async def renew(tx: AsyncConnection, claims: Sequence[tuple[int, int]], lease_seconds: float) -> set[int]:
    """Lengthen the leases on what is under way."""
    return await _keep(tx, claims, lease_seconds, "")


async def _keep(tx: AsyncConnection, claims: Sequence[tuple[int, int]], lease_seconds: float, change: str) -> set[int]:
    dialect = dialect_named(tx.dialect.name)
    binder = Binder(dialect)
    given = binder.table(_CLAIM, sorted(claims))
    ours = await _rows(
        tx,
        f"""
        UPDATE bongsu_deliveries SET {change} due = {dialect.after(str(float(lease_seconds)))}
        FROM {given} WHERE {_OURS} RETURNING bongsu_deliveries.delivery_id""",
        binder,
    )
    return {row[0] for row in ours}


_SUCCESS = {
    "delivery_id": "bigint",
    "epoch": "integer",
    "at": "timestamptz",
    "millis": "integer",
    "reference": "text",
    "is_simulated": "boolean",
}
_VERDICT = {
    "delivery_id": "bigint",
    "epoch": "integer",
    "status": "text",
    "code": "text",
    "detail": "text",
    "seconds": "double precision",
    "tries": "integer",
    "is_retryable": "boolean",
    "is_simulated": "boolean",
    "reference": "text",
}
_ATTEMPT = {"delivery_id": "bigint", "epoch": "integer", "at": "timestamptz", "millis": "integer", "code": "text"}
_GONE = {"member_id": "text", "device_id": "text", "token": "text"}


async def record(tx: AsyncConnection, verdicts: Sequence[Verdict]) -> set[int]:
    """Store what became of tries, each try itself, and which devices are gone. Answers which were still ours to judge."""
    dialect = dialect_named(tx.dialect.name)
    in_order = sorted(verdicts, key=lambda v: v.delivery_id)
    successes = [v for v in in_order if v.is_success]
    others = [v for v in in_order if not v.is_success]
    ours = await _succeed(tx, dialect, successes) if successes else set()
    if others:
        ours |= await _judge(tx, dialect, others)
    # Also those of a dispatcher that came too late to judge: it was sent all the same.
    too_late = [v for v in successes if v.delivery_id not in ours]
    await _add_attempts(tx, dialect, [v for v in others if v.at is not None] + too_late)
    await _invalidate(tx, dialect, [v.gone for v in others if v.gone is not None])
    return ours


async def _succeed(tx: AsyncConnection, dialect: Dialect, successes: Sequence[Verdict]) -> set[int]:
    """Nearly all, and nothing happens to them afterwards: the try that succeeded needs no row of its own."""
    binder = Binder(dialect)
    rows = [(v.delivery_id, v.epoch, v.at, v.millis, v.reference, v.is_simulated) for v in successes]
    found = await _rows(
        tx,
        f"""
        UPDATE bongsu_deliveries
        SET status = 'SUCCESS', code = NULL, detail = NULL, reference = given.reference, is_retryable = false,
            is_simulated = given.is_simulated, attempts = bongsu_deliveries.attempts + 1, claims = 0, leased_by = NULL,
            finished_at = {dialect.now}, sent_at = given.at, millis = given.millis
        FROM {binder.table(_SUCCESS, rows)} WHERE {_OURS} RETURNING bongsu_deliveries.delivery_id""",
        binder,
    )
    return {row[0] for row in found}


async def _judge(tx: AsyncConnection, dialect: Dialect, verdicts: Sequence[Verdict]) -> set[int]:
    binder = Binder(dialect)
    rows = [
        (v.delivery_id, v.epoch, v.status.value, v.code, v.detail, float(v.after_seconds), int(v.is_try), v.is_retryable,
         v.is_simulated, v.reference)
        for v in verdicts
    ]  # fmt: skip
    found = await _rows(
        tx,
        f"""
        UPDATE bongsu_deliveries
        SET status = given.status, code = given.code, detail = given.detail, reference = given.reference,
            is_retryable = given.is_retryable, is_simulated = given.is_simulated,
            attempts = bongsu_deliveries.attempts + given.tries, claims = 0, leased_by = NULL,
            due = CASE WHEN given.status = 'READY' THEN {dialect.after("given.seconds")} ELSE bongsu_deliveries.due END,
            finished_at = CASE WHEN given.status = 'READY' THEN NULL ELSE {dialect.now} END
        FROM {binder.table(_VERDICT, rows)} WHERE {_OURS} RETURNING bongsu_deliveries.delivery_id""",
        binder,
    )
    return {row[0] for row in found}


async def _add_attempts(tx: AsyncConnection, dialect: Dialect, tried: Sequence[Verdict]) -> None:
    if not tried:
        return
    binder = Binder(dialect)
    rows = [(v.delivery_id, v.epoch, v.at, v.millis, v.code or v.status.value) for v in tried]
    names = ", ".join(_ATTEMPT)
    await tx.exec_driver_sql(
        f"INSERT INTO bongsu_attempts ({names}) SELECT {names} FROM {binder.table(_ATTEMPT, rows)} WHERE true "
        "ON CONFLICT (delivery_id, epoch) DO NOTHING",
        tuple(binder.parameters),
    )


async def _invalidate(tx: AsyncConnection, dialect: Dialect, gone: Sequence[tuple[str, str, str]]) -> None:
    if not gone:
        return
    binder = Binder(dialect)
    given = binder.table(_GONE, sorted(set(gone)))
    await tx.exec_driver_sql(
        f"""
        UPDATE bongsu_devices SET status = 'INVALID', updated_at = {dialect.now} FROM {given}
        WHERE bongsu_devices.member_id = given.member_id AND bongsu_devices.device_id = given.device_id
          AND bongsu_devices.token = given.token AND bongsu_devices.status = 'ACTIVE'""",
        tuple(binder.parameters),
    )


async def _rows(connection: AsyncConnection, statement: str, binder: Binder) -> Sequence[Sequence[Any]]:
    return await binder.dialect.rows(connection, statement, tuple(binder.parameters))
