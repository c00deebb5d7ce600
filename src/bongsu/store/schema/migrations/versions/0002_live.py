"""Change ids and inbox states: what was updated, archived, deleted or withdrawn has a position in the member's cursor."""

from bongsu.store.schema.scripts import run_scripts

revision = "r0002"
down_revision = "r0001"


def upgrade() -> None:
    run_scripts("0002_live")
