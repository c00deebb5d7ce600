"""Statements about a member's inbox: pages of it, the unread count, and what the member does with a notification.

Only notifications with the channel IN_APP are in the inbox. The others are rows of the same table, which the history shows:
those that never were in an inbox, and those that have left it. One that is archived has `archived_at`, one that the member
deleted has `deleted_at`, one that an operator withdrew has neither. What is archived is read and seen.

The unread count is a column of the member's row, so reading it costs one row however many are unread. Every transaction
that changes which notifications are unread locks that row first, so the count is exact in every snapshot. New
notifications get their ids, and changed ones their change ids (changes.py), under the same lock: a member's ids are in
commit order, and a notification that commits later is above every page and bound read so far.
"""

from bongsu.store.inbox.marks import MarkedRead, mark_read, mark_seen
from bongsu.store.inbox.reading import InboxRow, PageKind, count_unread, find_newest_unread, find_newest_unseen, find_page
from bongsu.store.inbox.states import Act, Changed, Place, Position, State, apply_act, find_state, moved

__all__ = [
    "Act",
    "Changed",
    "InboxRow",
    "MarkedRead",
    "PageKind",
    "Place",
    "Position",
    "State",
    "apply_act",
    "count_unread",
    "find_newest_unread",
    "find_newest_unseen",
    "find_page",
    "find_state",
    "mark_read",
    "mark_seen",
    "moved",
]
