"""Deciding: which recipients of a notice get a notification, and storing everything that follows from it.

`decide_members` locks the members and decides for each; `apply_decision` stores notifications, deliveries, suppressions,
messages and the progress of the events. Both are set-based. On PostgreSQL that is two statements: few decided rows travel
through Python between them, many stay in the temporary table bongsu_decided. On SQLite they always stay there.

Of notices with digests `find_candidates` finds what there is to know of each recipient, decide/digest.py decides, and
`apply_digests` stores the digests beside what `apply_decision` stores.
"""

from bongsu.store.decisions.apply import StepChanges, StepEffect, apply_decision, apply_effects
from bongsu.store.decisions.decide import (
    decide_members,
    find_candidates,
    find_missing_members,
    find_product_names,
    find_profiles,
)
from bongsu.store.decisions.messages import add_messages_query
from bongsu.store.decisions.rows import (
    ActiveTime,
    Candidate,
    DecisionCount,
    DecisionInputs,
    DecisionRows,
    DedupKey,
    DigestNotice,
    Message,
    NoticeRow,
    PacedNotice,
    Profile,
    ProfileRow,
)

__all__ = [
    "ActiveTime",
    "Candidate",
    "DecisionCount",
    "DecisionInputs",
    "DecisionRows",
    "DedupKey",
    "DigestNotice",
    "Message",
    "NoticeRow",
    "PacedNotice",
    "Profile",
    "ProfileRow",
    "StepChanges",
    "StepEffect",
    "add_messages_query",
    "apply_decision",
    "apply_effects",
    "decide_members",
    "find_candidates",
    "find_missing_members",
    "find_product_names",
    "find_profiles",
]
