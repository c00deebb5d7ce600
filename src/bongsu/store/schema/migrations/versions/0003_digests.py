"""Digests: several notices of one key become one notification, which is updated in place while its window is open."""

from bongsu.store.schema.scripts import run_scripts

revision = "r0003"
down_revision = "r0002"


def upgrade() -> None:
    run_scripts("0003_digests")
