"""Channels of users' own: any name may stand in a delivery, each has a bit, members have addresses for them. New statuses.

And what has no channel IN_APP (bit 8) is no longer in the inbox, so it no longer counts as unread.
"""

from alembic import op
from sqlalchemy import Connection, text

revision = "0006"
down_revision = "0005"

TABLES = """
CREATE TABLE bongsu_channels (
    name         text     NOT NULL PRIMARY KEY,
    bit          integer  NOT NULL UNIQUE
);
CREATE TABLE bongsu_addresses (
    member_id    text{bytes} NOT NULL REFERENCES bongsu_members ON DELETE CASCADE,
    channel      text     NOT NULL,
    address      text     NOT NULL,
    PRIMARY KEY (member_id, channel)
);
DROP INDEX bongsu_events_failed;
CREATE INDEX bongsu_events_dead ON bongsu_events (finished_at) WHERE status IN ('FAILED', 'UNHANDLED');
UPDATE bongsu_members SET unread = unread - (
    SELECT count(*) FROM bongsu_notifications AS n
    WHERE n.member_id = bongsu_members.member_id AND n.read_at IS NULL AND n.channels & 8 = 0)
WHERE member_id IN (SELECT n.member_id FROM bongsu_notifications AS n WHERE n.read_at IS NULL AND n.channels & 8 = 0)
"""
# Constraints to change: of which table, as SQLite has it in its schema, and what takes its place there.
CHANGED_CHECKS = (
    (
        "bongsu_events",
        "CHECK (status IN ('PENDING', 'DONE', 'FAILED'))",
        "CHECK (status IN ('PENDING', 'DONE', 'FAILED', 'UNHANDLED', 'CANCELLED'))",
    ),
    (
        "bongsu_deliveries",
        "CHECK (status IN ('READY', 'SENDING', 'SUCCESS', 'FAIL', 'UNKNOWN'))",
        "CHECK (status IN ('READY', 'SENDING', 'SUCCESS', 'FAIL', 'UNKNOWN', 'CANCELLED'))",
    ),
    ("bongsu_deliveries", "CHECK (channel IN ('PUSH', 'SMS', 'EMAIL'))", "CHECK (channel <> '')"),
)
ON_POSTGRES = (
    "ALTER TABLE bongsu_events DROP CONSTRAINT bongsu_events_status_check, ADD CONSTRAINT bongsu_events_status_check "
    "CHECK (status IN ('PENDING', 'DONE', 'FAILED', 'UNHANDLED', 'CANCELLED'))",
    "ALTER TABLE bongsu_deliveries DROP CONSTRAINT bongsu_deliveries_channel_check, "
    "DROP CONSTRAINT bongsu_deliveries_status_check, ADD CONSTRAINT bongsu_deliveries_status_check "
    "CHECK (status IN ('READY', 'SENDING', 'SUCCESS', 'FAIL', 'UNKNOWN', 'CANCELLED'))",
)


def upgrade() -> None:
    connection = op.get_bind()
    is_postgres = connection.dialect.name == "postgresql"
    for statement in TABLES.format(bytes=' COLLATE "C"' if is_postgres else "").split(";\n"):
        connection.exec_driver_sql(statement)
    if is_postgres:
        for statement in ON_POSTGRES:
            connection.exec_driver_sql(statement)
    else:
        _change_checks(connection)


def _change_checks(connection: Connection) -> None:
    """SQLite's documented way to change a CHECK without rewriting the table: it is only text in the schema."""
    [version] = connection.exec_driver_sql("PRAGMA schema_version").one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    for table, before, after in CHANGED_CHECKS:
        changed = connection.execute(
            text(
                "UPDATE sqlite_master SET sql = replace(sql, :before, :after) "
                "WHERE name = :table AND instr(sql, :before) > 0"
            ),
            {"table": table, "before": before, "after": after},
        )
        assert changed.rowcount == 1, f"{table} has no {before}"
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
