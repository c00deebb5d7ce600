"""An index of events that are not DONE by the member they are about: `bongsu why` shows what waits or has failed."""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.execute(
        "CREATE INDEX bongsu_events_target ON bongsu_events (target_id, created_at) "
        "WHERE status <> 'DONE' AND target_id IS NOT NULL"
    )
