"""Counters: values, deltas not yet applied, batches, and the items that are counted once."""

from bongsu.store.schema.scripts import run_scripts

revision = "r0006"
down_revision = "r0005"


def upgrade() -> None:
    run_scripts("0006_counters")
