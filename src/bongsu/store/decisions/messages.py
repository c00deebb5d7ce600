"""Messages of a step: new ones are inserted, and known ones marked as used again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from bongsu.store.core.query import MESSAGE_ID, Dialect, Query, Table, in_both
from bongsu.store.decisions.rows import MESSAGE, Message


def add_messages(d: Dialect, table: int) -> str:
    """Inserts new messages, with ids drawn before. `table` is the number of the parameter with them."""
    return f"""
    INSERT INTO bongsu_messages ({", ".join(MESSAGE)})
    SELECT {", ".join(MESSAGE)} FROM {d.table("given", MESSAGE, table)}"""


def mark_used_again(d: Dialect, table: int, now: str) -> str:
    """Sets when a member was last notified of these messages: the dedup window is measured from it. Never goes back. Locks
    those rows. `table` is the number of the parameter with their ids."""
    return f"""
    UPDATE bongsu_messages SET last_notified_at = {now}
    FROM {d.table("given", MESSAGE_ID, table)}
    WHERE bongsu_messages.message_id = given.message_id
      AND (bongsu_messages.last_notified_at IS NULL OR bongsu_messages.last_notified_at < {now})"""


# See add_messages and mark_used_again.
ADD_MESSAGES = in_both(lambda d: add_messages(d, 1))
MARK_USED_AGAIN = in_both(lambda d: mark_used_again(d, 1, "$2"))


def add_messages_query(messages: Sequence[Message]) -> Query:
    return ADD_MESSAGES(Table(MESSAGE, messages))


def mark_used_again_query(message_ids: Sequence[int], now: datetime) -> Query:
    return MARK_USED_AGAIN(Table.of(MESSAGE_ID, message_ids), now)
