"""Deciding: which recipients of a notice get a notification, and storing everything that follows from it.

`decide_members` locks the members and decides for each; `apply_decision` stores notifications, deliveries, suppressions,
messages and the progress of the events. Both are set-based. Few rows travel through Python between the two, which on
PostgreSQL makes two statements; many stay in the temporary table bongsu_decided.
"""

from bongsu.store.decisions.apply import StepChanges, add_messages_query, apply_decision
from bongsu.store.decisions.decide import decide_members, find_missing_members, find_product_names, find_profiles
from bongsu.store.decisions.rows import (
    ActiveTime,
    DecisionCount,
    DecisionInputs,
    DecisionRows,
    DedupKey,
    Message,
    NoticeRow,
    PacedNotice,
    Profile,
    ProfileRow,
)

__all__ = [
    "ActiveTime",
    "DecisionCount",
    "DecisionInputs",
    "DecisionRows",
    "DedupKey",
    "Message",
    "NoticeRow",
    "PacedNotice",
    "Profile",
    "ProfileRow",
    "StepChanges",
    "add_messages_query",
    "apply_decision",
    "decide_members",
    "find_missing_members",
    "find_product_names",
    "find_profiles",
]
