"""The outbox, bongsu_events: add, claim, record, look up.

An event is PENDING and due, or PENDING and leased (its due time is the end of the lease), or finished. So new, retrying and
abandoned events are found by one predicate over one index. Fencing: every claim raises the epoch, and only the claim with
the newest epoch can record a result, so a worker whose lease has expired changes nothing.
"""

from bongsu.store.outbox.claims import claim, claim_critical, claim_suspect, give_back, record, record_query, renew
from bongsu.store.outbox.insert import STATEMENT_EVENTS, add, add_ended, add_many, match_new
from bongsu.store.outbox.lookup import count_unfinished, find
from bongsu.store.outbox.progress import Begun, LockedClaims, find_begun, lock_claims, save_cursors_query
from bongsu.store.outbox.rows import (
    CRASHES_ALONE,
    SUSPECT_AFTER,
    ClaimedEvent,
    EndedEvent,
    EventResult,
    EventRow,
    NewEvent,
    StoredEvent,
    scheduled,
)

__all__ = [
    "CRASHES_ALONE",
    "STATEMENT_EVENTS",
    "SUSPECT_AFTER",
    "Begun",
    "ClaimedEvent",
    "EndedEvent",
    "EventResult",
    "EventRow",
    "LockedClaims",
    "NewEvent",
    "StoredEvent",
    "add",
    "add_ended",
    "add_many",
    "claim",
    "claim_critical",
    "claim_suspect",
    "count_unfinished",
    "find",
    "find_begun",
    "give_back",
    "lock_claims",
    "match_new",
    "record",
    "record_query",
    "renew",
    "save_cursors_query",
    "scheduled",
]
