"""Chat: rooms, who is in them, and their messages."""

from bongsu.store.schema.scripts import run_scripts

revision = "r0004"
down_revision = "r0003"


def upgrade() -> None:
    run_scripts("0004_chat")
