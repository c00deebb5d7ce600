"""The first schema. Migrations after it only add: a column with a default, a table, an index."""

from bongsu.store.schema.scripts import run_scripts

revision = "r0001"
down_revision = None


def upgrade() -> None:
    run_scripts("0001_schema")
