"""Portions: the rest of an audience that a SELECT of the user's own found, kept in the order of ids until its turn comes.

A SELECT is asked once, however many steps its audience takes. What does not fit into the first step is written down with it,
in rows of as many members as a step takes, and each row goes with the step that takes the last of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.store.databases import dialect_named
from bongsu.store.decisions import run
from bongsu.store.dialect import Binder, as_text


class Whose(NamedTuple):
    """Whose audience it is: which notice of which event."""

    event_id: UUID
    notice: int


@dataclass(frozen=True)
class Portion:
    """The next members behind the one reached, sorted, and whether this is the last of the portions."""

    member_ids: list[str]
    is_last: bool


async def keep(
    tx: AsyncConnection, whose: Whose, audience: str, parameters: Mapping[str, Any], after: str, size: int
) -> bool:
    """Write down the members behind that one, of a SELECT of `member_id`; False when there are none.

    In the transaction of the step before them: they are there if it was taken, and not if it was not.
    """
    member_ids = dialect_named(tx.dialect.name).listed("member_id")
    kept = await tx.execute(
        text(f"""
            INSERT INTO bongsu_portions (event_id, notice, last, member_ids)
            WITH rest AS ({audience}),
            numbered AS (
                SELECT member_id, (row_number() OVER (ORDER BY member_id) - 1) / {size} AS number
                FROM rest WHERE member_id > :bongsu_after)
            SELECT {_event_id(tx)}, CAST(:bongsu_notice AS integer), max(member_id), {member_ids}
            FROM numbered GROUP BY number"""),
        {**parameters, "bongsu_after": after, **_asked(tx, whose)},
    )
    return bool(kept.rowcount)


async def find(tx: AsyncConnection, whose: Whose, after: str) -> Portion | None:
    """None when nothing was written down of it: its SELECT has not been asked yet, or all of it fits into a step."""
    found = await tx.execute(
        as_text(f"""
            SELECT p.member_ids, NOT EXISTS (
                SELECT 1 FROM bongsu_portions q WHERE q.event_id = p.event_id AND q.notice = p.notice AND q.last > p.last)
            FROM bongsu_portions p
            WHERE p.event_id = {_event_id(tx)} AND p.notice = :bongsu_notice AND p.last > :after
            ORDER BY p.last LIMIT 1"""),
        {**_asked(tx, whose), "after": after},
    )
    row = found.one_or_none()
    if row is None:
        return None
    return Portion(sorted(one for one in json.loads(row[0]) if one > after), bool(row[1]))


async def drop(tx: AsyncConnection, whose: Whose, until: str) -> None:
    """Those that end with this member or an earlier one have been taken."""
    await tx.execute(
        as_text(f"""
            DELETE FROM bongsu_portions
            WHERE event_id = {_event_id(tx)} AND notice = :bongsu_notice AND last <= :until"""),
        {**_asked(tx, whose), "until": until},
    )


async def forget(tx: AsyncConnection, event_ids: Sequence[UUID]) -> None:
    """Of events that have failed: a replay, with the rule corrected perhaps, asks anew for those not reached yet."""
    binder = Binder(dialect_named(tx.dialect.name))
    given = binder.table({"event_id": "uuid"}, [(one,) for one in event_ids])
    await run(tx, f"DELETE FROM bongsu_portions WHERE event_id IN (SELECT event_id FROM {given})", binder)


def _event_id(tx: AsyncConnection) -> str:
    return "CAST(:bongsu_event_id AS uuid)" if tx.dialect.name == "postgresql" else ":bongsu_event_id"


def _asked(tx: AsyncConnection, whose: Whose) -> dict[str, Any]:
    plain = dialect_named(tx.dialect.name).plain({"event_id": "uuid"}, [(whose.event_id,)])
    return {"bongsu_event_id": plain[0][0], "bongsu_notice": whose.notice}
