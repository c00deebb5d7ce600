"""The tries of deliveries: each time one was on the wire. The one that succeeded stands with its delivery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.store.databases import dialect_named


@dataclass(frozen=True)
class Try:
    """Once on the wire: when, how long until the answer, and its code."""

    at: datetime
    millis: int
    code: str


async def find_tries(connection: AsyncConnection, delivery_ids: Sequence[int]) -> Mapping[int, list[Try]]:
    """Every try of these deliveries, in the order they were made."""
    if not delivery_ids:
        return {}
    dialect = dialect_named(connection.dialect.name)
    columns = {"delivery_id": "bigint"}
    found = await dialect.rows(
        connection,
        f"""
        WITH given AS MATERIALIZED (SELECT * FROM {dialect.table(columns)})
        SELECT a.delivery_id, a.at, a.millis, a.code, a.epoch
        FROM given CROSS JOIN bongsu_attempts a WHERE a.delivery_id = given.delivery_id
        UNION ALL
        SELECT d.delivery_id, d.sent_at, d.millis, 'SUCCESS', d.epoch
        FROM given CROSS JOIN bongsu_deliveries d WHERE d.delivery_id = given.delivery_id AND d.sent_at IS NOT NULL
        ORDER BY 1, 5""",
        tuple(dialect.parameters(columns, [(one,) for one in delivery_ids])),
    )
    tries: dict[int, list[Try]] = {}
    for row in found:
        tries.setdefault(row[0], []).append(Try(dialect.moment(row[1]), row[2], row[3]))
    return tries
