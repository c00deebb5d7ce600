"""docs/SCHEMA.md: generated from the migrations' scripts, and true of both databases."""

from __future__ import annotations

from pathlib import Path

from bongsu.store import Store
from bongsu.store.core.query import Statement
from bongsu.store.schema.document import document, read_tables

PAGE = Path(__file__).parents[3] / "docs" / "SCHEMA.md"

_COLUMNS = Statement(
    postgres="""
        SELECT table_name AS "table", column_name AS name, is_nullable = 'YES' AS is_nullable
        FROM information_schema.columns WHERE table_schema = 'public'""",
    sqlite="""
        SELECT t.name AS "table", c.name, c."notnull" = 0 AS is_nullable
        FROM sqlite_master AS t CROSS JOIN pragma_table_xinfo(t.name) AS c
        WHERE t.type = 'table' AND t.name LIKE 'bongsu%'""",
)
_INDEXES = Statement(
    postgres="""
        SELECT c.relname AS name FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
        WHERE c.relnamespace = 'public'::regnamespace
          AND NOT EXISTS (SELECT 1 FROM pg_constraint AS k WHERE k.conindid = c.oid)""",
    sqlite="SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), "run `make docs`"


def test_every_table_is_described() -> None:
    assert [table.name for table in read_tables("postgres").values() if not table.description] == []


async def test_a_migrated_store_has_the_columns_and_indexes_of_the_page(store: Store) -> None:
    tables = read_tables("postgres" if store.dialect.name == "postgresql" else "sqlite")
    async with store.read() as tx:
        columns = {(row["table"], row["name"], bool(row["is_nullable"])) for row in await tx.fetch(_COLUMNS())}
        indexes = {row["name"] for row in await tx.fetch(_INDEXES())}
    documented = {(table.name, one.name, one.is_nullable) for table in tables.values() for one in table.columns}
    assert {column for column in columns if column[0] != "bongsu_version"} == documented
    assert indexes == {index.name for table in tables.values() for index in table.indexes}


def test_both_databases_have_the_same_tables_and_columns() -> None:
    on_postgres, on_sqlite = (
        {table.name: [(one.name, one.is_nullable) for one in table.columns] for table in read_tables(database).values()}
        for database in ("postgres", "sqlite")
    )
    assert on_postgres == on_sqlite
