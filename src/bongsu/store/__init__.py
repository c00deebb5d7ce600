"""The store: schema, migrations, statements, and one Transaction over asyncpg and sqlite3."""

from bongsu.store.core.query import Query, Row, Statement, Table, Transaction
from bongsu.store.core.shares import AUDIENCE_READERS, Share
from bongsu.store.core.store import Store
from bongsu.store.schema.migrate import check, migrate

__all__ = ["AUDIENCE_READERS", "Query", "Row", "Share", "Statement", "Store", "Table", "Transaction", "check", "migrate"]
