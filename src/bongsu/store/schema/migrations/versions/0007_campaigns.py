"""Campaigns: the order of sending, counts of large events, cancelled events; and the processes that run.

A delivery's lane becomes its rank (store/ranks.py has the order), a message keeps the priority. The counts of a message with
a large audience are kept in bongsu_message_counts: to count a million deliveries for each look would take seconds.
"""

from alembic import op

revision = "0007"
down_revision = "0006"

TABLES = """
ALTER TABLE bongsu_messages RENAME COLUMN lane TO priority;
ALTER TABLE bongsu_messages ADD COLUMN is_bulk boolean NOT NULL DEFAULT false;
ALTER TABLE bongsu_messages ADD COLUMN cancelled_at {time};
ALTER TABLE bongsu_deliveries RENAME COLUMN lane TO rank;
UPDATE bongsu_deliveries SET rank = CASE
    WHEN (SELECT m.is_critical FROM bongsu_messages AS m WHERE m.message_id = bongsu_deliveries.message_id) THEN 0
    ELSE rank + 2 END
WHERE status <> 'SUCCESS';
CREATE TABLE bongsu_message_counts (
    message_id   bigint   NOT NULL,
    -- A channel for deliveries, empty for recipients.
    channel      text     NOT NULL,
    -- MADE, SUCCESS, FAIL, UNKNOWN, CANCELLED for deliveries; NOTIFIED, IN_INBOX and the reasons for recipients.
    what         text     NOT NULL,
    count        bigint   NOT NULL,
    PRIMARY KEY (message_id, channel, what)
);
CREATE TABLE bongsu_cancellations (
    event_id     {uuid}   NOT NULL PRIMARY KEY,
    requested_at {time}   NOT NULL,
    requested_by text     NOT NULL,
    withdraw     boolean  NOT NULL,
    -- What the answer said, and says again when it is asked again.
    cancelled    bigint   NOT NULL,
    sent         bigint   NOT NULL,
    withdrawn    bigint   NOT NULL,
    -- How far its rows are changed: the message and the last member of it.
    message_id   bigint   NOT NULL DEFAULT 0,
    member_id    text{bytes} NOT NULL DEFAULT '',
    finished_at  {time}
);
CREATE INDEX bongsu_cancellations_open ON bongsu_cancellations (requested_at) WHERE finished_at IS NULL;
CREATE INDEX bongsu_events_created ON bongsu_events (created_at, event_id);
UPDATE bongsu_events SET status = 'CANCELLED', error = NULL WHERE status = 'DONE' AND error = 'CANCELLED';
CREATE TABLE bongsu_processes (
    name         text     NOT NULL PRIMARY KEY,
    roles        text     NOT NULL,
    -- By how much its clock is ahead of the store's.
    skew_seconds double precision NOT NULL,
    seen_at      {time}   NOT NULL
)
"""

ON_POSTGRES = {"uuid": "uuid", "time": "timestamptz", "bytes": ' COLLATE "C"'}
ON_SQLITE = {"uuid": "text", "time": "integer", "bytes": ""}
# Every recorded batch changes the same few rows: room for their versions on the same page.
POSTGRES_LAST = ("ALTER TABLE bongsu_message_counts SET (fillfactor = 50)",)


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    tables = TABLES.format(**(ON_POSTGRES if is_postgres else ON_SQLITE)).split(";\n")
    for statement in (*tables, *(POSTGRES_LAST if is_postgres else ())):
        op.get_bind().exec_driver_sql(statement)
