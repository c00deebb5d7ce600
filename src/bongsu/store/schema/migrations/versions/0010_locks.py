"""An index of what is being sent: few rows, which lie among all that waits."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.execute("CREATE INDEX bongsu_deliveries_sending ON bongsu_deliveries (due) WHERE status = 'SENDING'")
