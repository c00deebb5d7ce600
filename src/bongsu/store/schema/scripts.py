"""The SQL of migrations: each has one script per database beside it, NNNN_name.postgres.sql and NNNN_name.sqlite.sql."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

VERSIONS = Path(__file__).parent / "migrations" / "versions"


def run_scripts(name: str) -> None:
    """Run the migration's script for the database that is being migrated."""
    # Imported here because only a migration needs Alembic.
    from alembic import op  # noqa: PLC0415

    connection = op.get_bind()
    database = "postgres" if connection.dialect.name == "postgresql" else "sqlite"
    for statement in statements(VERSIONS / f"{name}.{database}.sql"):
        connection.exec_driver_sql(statement)


def statements(script: Path) -> Iterator[str]:
    """The statements of a script. Each ends with a semicolon at the end of a line."""
    for statement in script.read_text(encoding="utf-8").split(";\n"):
        if statement.strip():
            yield statement
