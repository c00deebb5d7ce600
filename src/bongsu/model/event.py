"""Event: a fact from the business, and the states of its row in the outbox.

An `Event` is checked when it is built: one that exists can be stored on either database and read back unchanged.
"""

from __future__ import annotations

import os
import time
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, Field

from bongsu.model.base import Id, Name, PastTime, Wire, utc_now
from bongsu.model.payload import Payload, no_payload, storable


class EventStatus(StrEnum):
    """PENDING until a worker has finished with it. Then DONE; or FAILED, with its error kept; or UNHANDLED, because no rule
    handles its type; or CANCELLED."""

    PENDING = "PENDING"
    DONE = "DONE"
    FAILED = "FAILED"
    UNHANDLED = "UNHANDLED"
    CANCELLED = "CANCELLED"


def new_id() -> UUID:
    """A version-7 UUID: time first, so that rows written together lie together in the index."""
    millis, fraction = divmod(time.time_ns(), 1_000_000)
    tail = int.from_bytes(os.urandom(8), "big")
    sub_millis = fraction * 4096 // 1_000_000
    return UUID(int=millis << 80 | 0x7 << 76 | sub_millis << 64 | 0x2 << 62 | tail >> 2)


class Event(Wire):
    """A fact from the business: something happened. Its row is the outbox."""

    event_type: Name
    # Not strict, so that Python callers may pass a UUID as text; JSON has only text.
    event_id: Annotated[UUID, Field(strict=False)] = Field(default_factory=new_id)
    occurred_at: PastTime = Field(default_factory=utc_now)
    actor_id: Id | None = None
    target_id: Id | None = None
    ref_id: Id | None = None
    payload: Annotated[dict[str, Any], AfterValidator(storable)] = Field(default_factory=no_payload)

    @property
    def payload_text(self) -> str:
        assert isinstance(self.payload, Payload)
        return self.payload.text
