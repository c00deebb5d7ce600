"""The store: schema, migrations, statements, and one Transaction over asyncpg and sqlite3."""

from bongsu.store.migrate import check, migrate
from bongsu.store.query import Query, Row, Statement, Table, Transaction
from bongsu.store.shares import AUDIENCE_READERS, Share
from bongsu.store.store import Store

__all__ = ["AUDIENCE_READERS", "Query", "Row", "Share", "Statement", "Store", "Table", "Transaction", "check", "migrate"]
