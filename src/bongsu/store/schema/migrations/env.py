"""Alembic's entry. The caller hands over a connection with a transaction open, and commits it."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], target_metadata=None, version_table="bongsu_version")
with context.begin_transaction():
    context.run_migrations()
