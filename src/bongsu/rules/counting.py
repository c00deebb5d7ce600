"""The rule for `counter.changed`: a change of a counter that comes as an event. `POST /api/counters` stores the same event,
and counts it at once."""

from __future__ import annotations

from bongsu.model import Delta, Event
from bongsu.rules import fields
from bongsu.rules.engine import Rules

counting = Rules()


@counting.rule("counter.changed", critical=False)
def changed(event: Event) -> Delta:
    if event.ref_id is None:
        raise ValueError("refId is missing: give the counter's key")
    return Delta(fields.required_text(event.payload, "counter"), event.ref_id, event.payload.get("delta", 1))
