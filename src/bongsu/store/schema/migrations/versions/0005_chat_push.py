"""Pushes about chat: which rooms have messages that no push was decided about. All columns have constant defaults, so it
takes no longer in a large table."""

from bongsu.store.schema.scripts import run_scripts

revision = "r0005"
down_revision = "r0004"


def upgrade() -> None:
    run_scripts("0005_chat_push")
