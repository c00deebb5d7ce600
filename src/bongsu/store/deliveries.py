"""The deliveries' statements: claim, record, renew.

A delivery is READY and due, or SENDING until its lease ends (its due time is the end of the lease), or finished. So new,
retrying and abandoned ones are found by one predicate over one index. A claim makes SENDING of what can go, and is committed
before any of it goes on the wire: whoever finds a SENDING one whose lease has ended knows that it may have been sent. Every
claim raises the epoch, nothing lowers it, and only the newest claim can record: a dispatcher that was thought dead finishes
nothing (docs/decisions/0015-claim-is-intent.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Channel, Guarantee, read_payload
from bongsu.store.databases import dialect_named
from bongsu.store.decisions import USABLE
from bongsu.store.dialect import Binder, Dialect

# A delivery that has been claimed so often without any outcome ends whoever takes it.
MOST_CLAIMS = 6
# A provider that asks for more than a day is not worth waiting for longer.
LONGEST_WAIT = 86_400.0
SAID_LIMIT = 500


class DeliveryStatus(StrEnum):
    """READY until it is claimed to be sent; SENDING while nobody knows; then one of three ends."""

    READY = "READY"
    SENDING = "SENDING"
    SUCCESS = "SUCCESS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


class Claimed(NamedTuple):
    """A delivery in a dispatcher's hands until its lease ends, and where it goes as things stand now."""

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
    # None without consent or valid token.
    address: str | None
    platform: str | None
    is_expired: bool
    # Whether it is SENDING by this claim. If not, somebody has to say why.
    can_go: bool


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


class Success(NamedTuple):
    """A try that was taken on, with nothing more to say: nearly all of them."""

    delivery_id: int
    epoch: int
    # When it began, in seconds since 1970, and how long it took.
    at: float
    millis: int
    reference: str | None = None
    is_simulated: bool = False


@dataclass(slots=True)
class Verdict:
    """What else became of a try. READY means: again, after that many seconds."""

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
    # When it began, in seconds since 1970, and how long it took; None when nothing was sent.
    at: float | None = None
    millis: int = 0
    # The device that is gone, and by which token: a token refreshed meanwhile is another.
    gone: tuple[str, str, str] | None = None

    def __post_init__(self) -> None:
        self.code, self.detail, self.reference = storable(self.code), storable(self.detail), storable(self.reference)
        # What is not more than nothing, be it not even a number, is nothing.
        self.after_seconds = min(self.after_seconds, LONGEST_WAIT) if self.after_seconds > 0 else 0.0


def storable(said: str | None) -> str | None:
    """What a provider said, cut to what every store takes: one odd answer must not keep others from being stored."""
    if not said or (len(said) <= SAID_LIMIT and said.isascii() and "\x00" not in said):
        return said
    return said.replace("\x00", "").encode(errors="replace").decode()[:SAID_LIMIT]


_KEPT = ("delivery_id", "status", "attempts", "series", "notification_id", "member_id", "message_id", "device_id")


@cache
def due_statement(dialect: Dialect, channel: Channel, lanes: tuple[int, ...]) -> str:
    """Due deliveries, those of an earlier lane first, as they are once claimed; what another is claiming is passed over.

    Its parameters are the limit for each lane, and then that for all of them.
    """
    by_lane = " UNION ALL ".join(
        f"""
        SELECT * FROM (
            SELECT {dialect.address} AS place, {", ".join(_KEPT)}, epoch + 1 AS epoch, claims + 1 AS claims
            FROM bongsu_deliveries {dialect.by_index("bongsu_deliveries_due")}
            WHERE status IN ('READY', 'SENDING') AND channel = '{channel.value}' AND lane = {lane} AND due <= {dialect.now}
            ORDER BY due LIMIT {dialect.placeholder(place)} {dialect.skip_locked}) AS lane_{lane}"""
        for place, lane in enumerate(lanes)
    )
    if channel is Channel.PUSH:
        columns = ("token", "platform", "status", "has_consent")
        place = dialect.look_up("bongsu_devices", "d", "due", ("member_id", "device_id"), columns)
        address, platform = f"CASE WHEN {USABLE} THEN d.token END", "d.platform"
    else:
        column = "email" if channel is Channel.EMAIL else "phone"
        place = dialect.look_up("bongsu_members", "d", "due", ("member_id",), (column,))
        address, platform = f"d.{column}", "NULL"
    message = dialect.look_up("bongsu_messages", "m", "due", ("message_id",), ("message_id", "expires_at", "guarantee"))
    is_expired = f"coalesce(m.expires_at <= {dialect.now}, false)"
    is_held = "due.status = 'SENDING' AND m.guarantee = 'at_most_once'"
    return f"""
        WITH due AS {dialect.at_once} ({by_lane} LIMIT {dialect.placeholder(len(lanes))})
        SELECT due.*, {address} AS address, {platform} AS platform, {is_expired} AS is_expired,
               m.message_id IS NOT NULL AND {address} IS NOT NULL AND NOT {is_expired} AND claims <= {MOST_CLAIMS}
               AND NOT ({is_held}) AS can_go
        FROM due {place} {message}"""


@cache
def claim_statement(dialect: Dialect, channel: Channel, lanes: tuple[int, ...]) -> str:
    """Claim what is due in one statement. Two more parameters: for how many seconds, and who."""
    lease, worker = dialect.placeholder(len(lanes) + 1), dialect.placeholder(len(lanes) + 2)
    columns = ", ".join(f"due.{column}" for column in Claimed._fields)
    return f"""
        WITH due AS MATERIALIZED ({due_statement(dialect, channel, lanes)})
        UPDATE bongsu_deliveries SET {_taken(dialect, "due", lease, worker)}
        FROM due WHERE bongsu_deliveries.{dialect.address} = due.place RETURNING {columns}"""


def _taken(dialect: Dialect, given: str, lease: str, worker: str) -> str:
    return f"""
        epoch = {given}.epoch, claims = {given}.claims, due = {dialect.after(lease)}, leased_by = {worker},
        status = CASE WHEN {given}.can_go THEN 'SENDING' ELSE bongsu_deliveries.status END"""


_TAKEN = {"delivery_id": "bigint", "epoch": "integer", "claims": "integer", "can_go": "boolean"}


async def claim(
    tx: AsyncConnection, channel: Channel, lanes: tuple[int, ...], limit: int, lease_seconds: float, worker: str
) -> list[Claimed]:
    """Due deliveries of these lanes, those of an earlier lane first. What can go is SENDING, and may go once committed."""
    dialect = dialect_named(tx.dialect.name)
    limits = (limit,) * (len(lanes) + 1)
    if dialect.returns_joined:
        statement = claim_statement(dialect, channel, lanes)
        return [Claimed(*row) for row in await dialect.rows(tx, statement, (*limits, float(lease_seconds), worker))]
    columns = ", ".join(Claimed._fields)
    statement = f"SELECT {columns} FROM ({due_statement(dialect, channel, lanes)})"
    claimed = [Claimed(*row) for row in await dialect.rows(tx, statement, limits)]
    if claimed:
        binder = Binder(dialect)
        taken = _taken(dialect, "given", binder.value(float(lease_seconds)), binder.value(worker))
        given = binder.table(_TAKEN, [(one.delivery_id, one.epoch, one.claims, one.can_go) for one in claimed])
        statement = f"UPDATE bongsu_deliveries SET {taken} FROM {given} WHERE {_SAME}"
        await dialect.run(tx, statement, tuple(binder.parameters))
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


_CLAIM = {"delivery_id": "bigint", "epoch": "integer"}
_SAME = "bongsu_deliveries.delivery_id = given.delivery_id"


def _ours(dialect: Dialect, given: str) -> str:
    """Behind an UPDATE: those that are claimed as given."""
    claimed = dialect.of_claims("bongsu_deliveries", given, "delivery_id")
    return f"{claimed} AND bongsu_deliveries.status IN ('READY', 'SENDING')"


async def renew(tx: AsyncConnection, claims: Sequence[tuple[int, int]], lease_seconds: float) -> None:
    """Lengthen the leases on what is under way."""
    dialect = dialect_named(tx.dialect.name)
    binder = Binder(dialect)
    given = binder.table(_CLAIM, sorted(claims))
    statement = f"UPDATE bongsu_deliveries SET due = {dialect.after(str(float(lease_seconds)))} {_ours(dialect, given)}"
    await dialect.run(tx, statement, tuple(binder.parameters))


_SUCCESS = {
    "delivery_id": "bigint",
    "epoch": "integer",
    "at": "double precision",
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
_ATTEMPT = {"delivery_id": "bigint", "epoch": "integer", "at": "double precision", "millis": "integer", "code": "text"}
_GONE = {"member_id": "text", "device_id": "text", "token": "text"}


async def record(tx: AsyncConnection, verdicts: Sequence[Verdict | Success]) -> set[int]:
    """Store what became of tries, each try itself, and which devices are gone. Answers which were still ours to judge."""
    dialect = dialect_named(tx.dialect.name)
    # In one order, whoever records: nobody waits for a row of somebody who waits for one of his.
    ordered = sorted(verdicts, key=attrgetter("delivery_id"))
    successes = [one for one in ordered if isinstance(one, Success)]
    others = [one for one in ordered if isinstance(one, Verdict)]
    ours: set[int] = set()
    # Nearly always all of them at once. What is missing is another's, or was changed while it was looked for.
    for _ in range(2):
        if missed := [one for one in successes if one.delivery_id not in ours]:
            ours |= await _succeed(tx, dialect, missed)
        if unjudged := [one for one in others if one.delivery_id not in ours]:
            ours |= await _judge(tx, dialect, unjudged)
    # Also those of a dispatcher that came too late to judge: it was sent all the same.
    tried = [(v.delivery_id, v.epoch, v.at, v.millis, v.code or v.status.value) for v in others if v.at is not None]
    tried += [(v.delivery_id, v.epoch, v.at, v.millis, "SUCCESS") for v in successes if v.delivery_id not in ours]
    await _add_attempts(tx, dialect, tried)
    await _invalidate(tx, dialect, [v.gone for v in others if v.gone is not None])
    return ours


async def _succeed(tx: AsyncConnection, dialect: Dialect, successes: Sequence[Success]) -> set[int]:
    """Nearly all, and nothing happens to them afterwards: the try that succeeded needs no row of its own."""
    binder = Binder(dialect)
    touched = await dialect.run(
        tx,
        f"""
        UPDATE bongsu_deliveries
        SET status = 'SUCCESS', code = NULL, detail = NULL, reference = given.reference, is_retryable = false,
            is_simulated = given.is_simulated, attempts = bongsu_deliveries.attempts + 1, claims = 0, leased_by = NULL,
            finished_at = {dialect.now}, sent_at = {dialect.at("given.at")}, millis = given.millis
        {_ours(dialect, binder.table(_SUCCESS, successes))}""",
        tuple(binder.parameters),
    )
    if touched == len(successes):
        return {v.delivery_id for v in successes}
    # Of another's claim there is another epoch.
    binder = Binder(dialect)
    given = binder.table(_CLAIM, [(v.delivery_id, v.epoch) for v in successes])
    statement = f"""
        SELECT given.delivery_id FROM {given} CROSS JOIN bongsu_deliveries
        WHERE {_SAME} AND bongsu_deliveries.epoch = given.epoch AND bongsu_deliveries.status = 'SUCCESS'"""
    return {row[0] for row in await _rows(tx, statement, binder)}


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
        {_ours(dialect, binder.table(_VERDICT, rows))} RETURNING bongsu_deliveries.delivery_id""",
        binder,
    )
    return {row[0] for row in found}


async def _add_attempts(tx: AsyncConnection, dialect: Dialect, tried: Sequence[tuple[Any, ...]]) -> None:
    if not tried:
        return
    binder = Binder(dialect)
    await tx.exec_driver_sql(
        f"INSERT INTO bongsu_attempts ({', '.join(_ATTEMPT)}) "
        f"SELECT delivery_id, epoch, {dialect.at('at')}, millis, code FROM {binder.table(_ATTEMPT, tried)} WHERE true "
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
