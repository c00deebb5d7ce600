"""Rows of our tables: one builder per table, so that a new column is one edit here and not one in every test.

A test names the columns it is about; the others have the defaults of the builder or of the table. A value is

- any value of Python's: bound as a parameter,
- a timedelta: the store's time plus that,
- `Sql("…")`: an expression, where one row differs from the next or the database computes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from bongsu.model import new_id
from bongsu.store import Query, Store, Transaction
from bongsu.store.core.query import Dialect, same

NOW = timedelta()
IN_APP_BIT = 8


class Sql(str):
    """An SQL expression in words that both databases understand. In `add_many` it may use `number`: 1, 2, …"""


# Values of the columns that have no default in the table.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "members": {},
    "devices": {"device_id": "phone", "platform": "ANDROID", "has_consent": True, "status": "ACTIVE", "updated_at": NOW},
    "events": {"event_type": "x"},
    "messages": {
        "notice_index": 0, "locale": "ko", "type": "POST_LIKE", "subject": "s", "title": "t", "body": "b", "data": "{}",
        "channels": IN_APP_BIT, "priority": 1, "guarantee": "at_most_once", "is_critical": False, "created_at": NOW,
    },
    "notifications": {"channels": IN_APP_BIT, "created_at": NOW},
    "suppressions": {"reason": "DUPLICATE", "created_at": NOW},
    "digests": {"type": "POST_LIKE", "key": "p1", "ends_at": NOW, "size": 1, "title": "t", "body": "b", "data": "{}"},
    "digest_entries": {"created_at": NOW},
    "deliveries": {"channel": "PUSH", "status": "READY", "rank": 1, "due": NOW, "created_at": NOW},
    "attempts": {"epoch": 1, "began_at": NOW, "millis": 120},
    "behaviors": {"action": "VIEW"},
    "message_counts": {"channel": ""},
    "runs": {"requested_by": "clock", "leased_by": "dead:1", "due": NOW, "started_at": NOW},
    "cancellations": {"requested_at": NOW, "requested_by": "key:…abcd", "withdraw": False},
}  # fmt: skip


# --- one row ----------------------------------------------------------------------------------------------------------


async def add_member(tx: Transaction, member_id: str, **columns: Any) -> None:
    await add_row(tx, "members", member_id=member_id, **columns)


async def add_device(tx: Transaction, member_id: str, **columns: Any) -> None:
    await add_row(tx, "devices", **{"member_id": member_id, "token": f"token-{member_id}", **columns})


async def add_event(tx: Transaction, **columns: Any) -> UUID:
    event_id: UUID = columns.setdefault("event_id", new_id())
    await add_row(tx, "events", **columns)
    return event_id


async def add_message(tx: Transaction, **columns: Any) -> int:
    columns.setdefault("event_id", new_id())
    return await add_row(tx, "messages", returning="message_id", **columns)


async def add_notification(tx: Transaction, member_id: str, message_id: int, **columns: Any) -> int:
    """The row alone: neither the member's nor their unread count."""
    row = {"member_id": member_id, "message_id": message_id, **columns}
    return await add_row(tx, "notifications", returning="notification_id", **row)


async def add_suppression(tx: Transaction, message_id: int, member_id: str, **columns: Any) -> None:
    await add_row(tx, "suppressions", message_id=message_id, member_id=member_id, **columns)


async def add_delivery(tx: Transaction, notification_id: int, member_id: str, message_id: int, **columns: Any) -> int:
    row = {"notification_id": notification_id, "member_id": member_id, "message_id": message_id, **columns}
    return await add_row(tx, "deliveries", returning="delivery_id", **row)


async def add_attempt(tx: Transaction, delivery_id: int, **columns: Any) -> None:
    await add_row(tx, "attempts", delivery_id=delivery_id, **columns)


async def add_message_count(tx: Transaction, message_id: int, **columns: Any) -> None:
    await add_row(tx, "message_counts", message_id=message_id, **columns)


async def add_cancellation(tx: Transaction, event_id: UUID, **columns: Any) -> None:
    await add_row(tx, "cancellations", event_id=event_id, **columns)


async def add_row(tx: Transaction, table: str, returning: str = "", **columns: Any) -> int:
    """A row of that table; the value of the column `returning`, if there is one."""
    values, parameters = _expressions(tx.dialect, {**DEFAULTS[table], **columns})
    insert = f"INSERT INTO bongsu_{table} ({', '.join(values)}) VALUES ({', '.join(values.values())})"
    if not returning:
        await tx.execute(_query(insert, parameters))
        return 0
    (row,) = await tx.fetch(_query(f"{insert} RETURNING {returning}", parameters))
    return int(row[returning])


# --- many rows, in one statement --------------------------------------------------------------------------------------


async def add_many(tx: Transaction, table: str, count: int, **columns: Any) -> None:
    """So many rows; an `Sql` may use their `number`, from 1."""
    numbered = f"""
        WITH RECURSIVE numbered (number) AS (
            SELECT 1 UNION ALL SELECT number + 1 FROM numbered WHERE number < {count})"""
    await _insert_selected(tx, table, columns, "numbered ORDER BY number", numbered)


async def add_for_each(tx: Transaction, table: str, source: str, **columns: Any) -> None:
    """A row for each row of another table, perhaps with a WHERE and an ORDER BY; an `Sql` may use that row's columns."""
    await _insert_selected(tx, table, columns, f"bongsu_{source}")


async def add_device_for_each(tx: Transaction, members: str, **columns: Any) -> None:
    """A device for each member: `members`, perhaps with a WHERE."""
    own = {"member_id": Sql("member_id"), "token": Sql("'token-' || member_id")}
    await add_for_each(tx, "devices", members, **{**own, **columns})


async def add_delivery_for_each(tx: Transaction, notifications: str, **columns: Any) -> None:
    """A delivery for each notification: `notifications`, perhaps with a WHERE."""
    ids = {name: Sql(name) for name in ("notification_id", "member_id", "message_id")}
    await add_for_each(tx, "deliveries", notifications, **ids, **columns)


async def _insert_selected(tx: Transaction, table: str, columns: Mapping[str, Any], source: str, common: str = "") -> None:
    values, parameters = _expressions(tx.dialect, {**DEFAULTS[table], **columns})
    selected = ", ".join(values.values())
    insert = f"INSERT INTO bongsu_{table} ({', '.join(values)}) {common} SELECT {selected} FROM {source}"
    await tx.execute(_query(insert, parameters))


# --- rows that are there ----------------------------------------------------------------------------------------------


async def set_columns(
    target: Store | Transaction, table: str, where: Mapping[str, Any] | str | None = None, **columns: Any
) -> int:
    """Change rows of that table: those with these values (a list: one of them), those of a condition, or all. How many."""
    if isinstance(target, Store):
        async with target.transaction() as tx:
            return await set_columns(tx, table, where, **columns)
    values, parameters = _expressions(target.dialect, columns)
    changes = ", ".join(f"{name} = {value}" for name, value in values.items())
    condition = where if isinstance(where, str) else _condition(target.dialect, where or {}, parameters)
    update = f"UPDATE bongsu_{table} SET {changes}" + (f" WHERE {condition}" if condition else "")
    (changed,) = await target.execute(_query(update, parameters))
    return changed


def _condition(dialect: Dialect, wanted: Mapping[str, Any], parameters: list[Any]) -> str:
    parts = []
    for name, value in wanted.items():
        if value is None:
            parts.append(f"{name} IS NULL")
            continue
        several = list(value) if isinstance(value, list | tuple | set) else [value]
        marks = [_expression(dialect, each, parameters) for each in several]
        parts.append(f"{name} IN ({', '.join(marks)})")
    return " AND ".join(parts)


def _expressions(dialect: Dialect, columns: Mapping[str, Any]) -> tuple[dict[str, str], list[Any]]:
    parameters: list[Any] = []
    return {name: _expression(dialect, value, parameters) for name, value in columns.items()}, parameters


def _expression(dialect: Dialect, value: Any, parameters: list[Any]) -> str:
    match value:
        case Sql():
            return str(value)
        case timedelta():
            return dialect.after(str(value.total_seconds())) if value else dialect.now
        case _:
            parameters.append(value)
            return f"${len(parameters)}"


def _query(text: str, parameters: Iterable[Any]) -> Query:
    return same(text)(*parameters)
