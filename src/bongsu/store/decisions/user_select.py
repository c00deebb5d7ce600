"""A user's own SELECT of member ids as a statement of ours. The text is put together once for each SELECT, then cached.

SQLAlchemy turns its `:name` parameters into positions: it knows what looks like one and is none, such as a cast (`::text`)
or an escaped colon. It is imported only when such a SELECT is used.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import asyncpg

from bongsu.errors import BadAudience, StoreError, StoreTooSlow
from bongsu.model import Selected
from bongsu.store.core.failures import first_line
from bongsu.store.core.query import Query, Statement

# Rules have few SELECTs, and use them for every event.
_CACHED = 256


def portions_query(selected: Selected, after: str, size: int) -> Query:
    """Returns all members behind one, in rows of so many each."""
    values = {**selected.parameters, "bongsu_after": after, "bongsu_size": size}
    return bind(_portions_statement(selected.sql), values)


def bind(statement: Statement, values: Mapping[str, Any]) -> Query:
    """The query of a statement with `:name` parameters. Values it has no name for are ignored."""
    numbered, names = _numbered(statement)
    missing = [name for name in names if name not in values]
    if missing:
        raise BadAudience(f"its SELECT names :{missing[0]}, and there is no such parameter")
    return numbered(*(values[name] for name in names))


# Whatever its column is called and of whatever type it is, it is read as text, in the order in which member ids compare.
# Names begin with bongsu_, because SQLite lets the user's SELECT see names that are defined after it.
@lru_cache(_CACHED)
def _portions_statement(sql: str) -> Statement:
    audience = sql.strip().rstrip(";")
    return Statement(
        postgres=f"""
            WITH bongsu_audience(member_id) AS (
            {audience}
            ), bongsu_selected AS (
                SELECT DISTINCT CAST(member_id AS text) COLLATE "C" AS member_id
                FROM bongsu_audience WHERE member_id IS NOT NULL),
            bongsu_numbered AS (
                SELECT member_id, (row_number() OVER (ORDER BY member_id) - 1) / CAST(:bongsu_size AS integer) AS number
                FROM bongsu_selected WHERE member_id > :bongsu_after)
            SELECT max(member_id) AS last, CAST(json_agg(member_id) AS text) AS member_ids
            FROM bongsu_numbered GROUP BY number""",
        sqlite=f"""
            WITH bongsu_audience(member_id) AS (
            {audience}
            ), bongsu_selected AS (
                SELECT DISTINCT CAST(member_id AS text) AS member_id
                FROM bongsu_audience WHERE member_id IS NOT NULL),
            bongsu_numbered AS (
                SELECT member_id, (row_number() OVER (ORDER BY member_id) - 1) / :bongsu_size AS number
                FROM bongsu_selected WHERE member_id > :bongsu_after)
            SELECT max(member_id) AS last, json_group_array(member_id) AS member_ids
            FROM bongsu_numbered GROUP BY number""",
    )


@lru_cache(_CACHED)
def _numbered(statement: Statement) -> tuple[Statement, tuple[str, ...]]:
    from sqlalchemy import text  # noqa: PLC0415
    from sqlalchemy.dialects import sqlite  # noqa: PLC0415
    from sqlalchemy.dialects.postgresql import asyncpg as postgres  # noqa: PLC0415

    on_postgres = text(statement.postgres).compile(dialect=postgres.dialect())  # type: ignore[no-untyped-call]
    on_sqlite = text(statement.sqlite).compile(dialect=sqlite.dialect(paramstyle="numeric_dollar"))
    names = tuple(on_postgres.positiontup or ())
    assert names == tuple(on_sqlite.positiontup or ()), "both texts have the same names in the same order"
    return Statement(str(on_postgres), str(on_sqlite)), names


@contextlib.contextmanager
def blamed_on_the_select(seconds: float) -> Iterator[None]:
    """Errors that are about the statement, not about the store, become BadAudience. So does its taking longer than that:
    how long it takes is up to its author, while our own statements are bounded."""
    try:
        yield
    except StoreTooSlow as error:
        raise BadAudience(f"It took longer than BONGSU_AUDIENCE_TIMEOUT_SECONDS ({seconds:g} s) and was stopped") from error
    except (StoreError, asyncpg.PostgresError, sqlite3.Error) as error:
        # A missing table or right looks like a fault of the store; its cause is the driver's own error.
        cause = error.__cause__ if isinstance(error, StoreError) else error
        if cause is not None and _is_about_a_statement(cause):
            raise BadAudience(first_line(cause)) from error
        raise


def _is_about_a_statement(error: BaseException) -> bool:
    match error:
        case asyncpg.PostgresError():
            # Class 42: syntax error, no such table or column, no right to read it. 25006: it would write.
            return str(error.sqlstate or "").startswith(("42", "25006"))
        case sqlite3.OperationalError():
            return error.sqlite_errorcode in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY)
    return False
