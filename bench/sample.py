"""The events every benchmark stores: an ordinary price change, in the shapes the ways in take."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from bongsu.model import new_id

COLUMNS = ("event_id", "event_type", "occurred_at", "actor_id", "target_id", "ref_id", "payload")
TYPE = "product.price_changed"
ACTOR = "seller-20817"
REF = "sku-4711-navy-m"
PAYLOAD = {"productName": "겨울 외투 (남색, M)", "previousPrice": 129000, "currentPrice": 99000, "currency": "KRW"}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Row = tuple[UUID, str, datetime, str | None, str | None, str | None, str]


def new_row() -> Row:
    """What a careful user binds to an INSERT of the same row: a fresh id, the moment, the payload as JSON."""
    return new_id(), TYPE, datetime.now(UTC), ACTOR, None, REF, json.dumps(PAYLOAD, ensure_ascii=False)


@dataclass(frozen=True)
class Sample:
    """Events that were never stored before, as rows and as JSON of the same content."""

    rows: list[Row]

    @classmethod
    def of(cls, count: int) -> Sample:
        return cls([new_row() for _ in range(count)])

    @property
    def sqlite_rows(self) -> list[tuple[Any, ...]]:
        return [(str(row[0]), row[1], (row[2] - _EPOCH) // _MICROSECOND, *row[3:]) for row in self.rows]

    @property
    def documents(self) -> list[bytes]:
        return [_document(row).encode() for row in self.rows]


def _document(row: Row) -> str:
    """Written by hand around the payload's text, because a round of 50,000 is prepared for each measurement."""
    return (
        f'{{"eventId":"{row[0]}","eventType":"{row[1]}","occurredAt":"{row[2].isoformat()}",'
        f'"actorId":"{row[3]}","refId":"{row[5]}","payload":{row[6]}}}'
    )
