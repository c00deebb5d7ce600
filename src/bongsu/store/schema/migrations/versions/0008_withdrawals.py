"""An index of withdrawals by their end: gateways ask for the latest every second."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.execute("CREATE INDEX bongsu_cancellations_withdrawn ON bongsu_cancellations (finished_at) WHERE withdraw")
