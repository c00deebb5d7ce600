"""When a message was last told, audiences under way, shared quotas, the dead by message, and the try that succeeded."""

from alembic import op

revision = "0005"
down_revision = "0004"

TABLES = """
ALTER TABLE bongsu_messages ADD COLUMN told_at {time};
UPDATE bongsu_messages SET told_at = (
    SELECT max(n.created_at) FROM bongsu_notifications n WHERE n.message_id = bongsu_messages.message_id) WHERE is_told;
DROP INDEX bongsu_messages_recent;
CREATE INDEX bongsu_messages_recent ON bongsu_messages (type, subject, told_at) WHERE told_at IS NOT NULL;
ALTER TABLE bongsu_messages DROP COLUMN is_told;
CREATE INDEX bongsu_deliveries_dead_by_message ON bongsu_deliveries (message_id, member_id)
    WHERE status IN ('FAIL', 'UNKNOWN');
ALTER TABLE bongsu_deliveries ADD COLUMN sent_at {time};
ALTER TABLE bongsu_deliveries ADD COLUMN millis integer;
CREATE TABLE bongsu_portions (
    event_id     {uuid}   NOT NULL REFERENCES bongsu_events ON DELETE CASCADE,
    notice       integer  NOT NULL,
    last         text{bytes} NOT NULL,
    member_ids   text     NOT NULL,
    PRIMARY KEY (event_id, notice, last)
);
CREATE TABLE bongsu_quotas (
    name         text     NOT NULL PRIMARY KEY,
    tokens       double precision NOT NULL,
    granted      double precision NOT NULL,
    at           {time}   NOT NULL
)
"""

ON_POSTGRES = {"uuid": "uuid", "time": "timestamptz", "bytes": ' COLLATE "C"'}
ON_SQLITE = {"uuid": "text", "time": "integer", "bytes": ""}
# A fan-out writes to all members of a page in one transaction, which cannot reuse what it has just left: with half of each
# page free their new rows stay on it, and the index need not be told.
POSTGRES_LAST = ("ALTER TABLE bongsu_members SET (fillfactor = 50)",)


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    tables = TABLES.format(**(ON_POSTGRES if is_postgres else ON_SQLITE)).split(";\n")
    for statement in (*tables, *(POSTGRES_LAST if is_postgres else ())):
        op.get_bind().exec_driver_sql(statement)
