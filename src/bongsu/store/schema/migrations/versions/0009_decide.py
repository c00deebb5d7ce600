"""Events by type, so that those which can be critical are claimed first; and large ones, which are claimed one at a time."""

from alembic import op

revision = "0009"
down_revision = "0008"

# A large payload takes memory and time to decode: 64 KB are about 4,000 member ids. PostgreSQL computes the column when the
# payload is written, not when the row is claimed.
LARGE_BYTES = 65_536

INDEXES = (
    "CREATE INDEX bongsu_events_by_type ON bongsu_events (event_type, due) WHERE status = 'PENDING' AND NOT is_large",
    "CREATE INDEX bongsu_events_large ON bongsu_events (due) WHERE status = 'PENDING' AND is_large",
    "DROP INDEX bongsu_events_due",
    # With is_large, so that a claim passes over large ones without reading their rows.
    "CREATE INDEX bongsu_events_due ON bongsu_events (due, is_large) WHERE status = 'PENDING'",
)


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    length, kind = ("octet_length(CAST(payload AS text))", "STORED") if is_postgres else ("length(payload)", "VIRTUAL")
    column = f"is_large boolean NOT NULL GENERATED ALWAYS AS ({length} > {LARGE_BYTES}) {kind}"
    for statement in (f"ALTER TABLE bongsu_events ADD COLUMN {column}", *INDEXES):
        op.get_bind().exec_driver_sql(statement)
