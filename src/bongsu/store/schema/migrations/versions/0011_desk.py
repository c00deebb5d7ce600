"""Indexes for operators: events that are not DONE by the member they are about, and dead deliveries with their status.

`bongsu why` shows by the first what waits or has failed; by the second the dead are counted without a look at each row.
"""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.execute(
        "CREATE INDEX bongsu_events_target ON bongsu_events (target_id, created_at) "
        "WHERE status <> 'DONE' AND target_id IS NOT NULL"
    )
    op.execute("DROP INDEX bongsu_deliveries_dead")
    op.execute(
        "CREATE INDEX bongsu_deliveries_dead ON bongsu_deliveries (delivery_id, status) WHERE status IN ('FAIL', 'UNKNOWN')"
    )
