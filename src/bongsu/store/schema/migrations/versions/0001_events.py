"""Events: the outbox."""

from alembic import op

revision = "0001"
down_revision = None

# Defaults serve writers of plain SQL in other languages: they name what they know and the rest is right.
POSTGRES = """
CREATE TABLE bongsu_events (
    event_id    uuid        NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    event_type  text        NOT NULL CHECK (event_type <> ''),
    -- A year of four digits: more is a clock gone wrong, and more than most languages can read back.
    occurred_at timestamptz NOT NULL DEFAULT now() CHECK (occurred_at >= '1970-01-01Z' AND occurred_at < '10000-01-01Z'),
    actor_id    text,
    target_id   text,
    ref_id      text,
    payload     jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(payload) = 'object'),
    status      text        NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'DONE', 'FAILED')),
    due         timestamptz NOT NULL DEFAULT now() CHECK (due >= '1970-01-01Z' AND due < '10000-01-01Z'),
    attempts    integer     NOT NULL DEFAULT 0,
    claims      integer     NOT NULL DEFAULT 0,
    epoch       integer     NOT NULL DEFAULT 0,
    leased_by   text,
    fanout_cursor text,
    error       text,
    created_at  timestamptz NOT NULL DEFAULT now() CHECK (created_at >= '1970-01-01Z' AND created_at < '10000-01-01Z'),
    finished_at timestamptz
) WITH (
    -- Every event is updated twice and then never again: vacuum often and at once, so that the index of due events
    -- stays as small as the backlog, whatever lies finished in the table.
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX bongsu_events_due ON bongsu_events (due) WHERE status = 'PENDING';
CREATE INDEX bongsu_events_suspect ON bongsu_events (due) WHERE status = 'PENDING' AND claims >= 3;
CREATE INDEX bongsu_events_failed ON bongsu_events (finished_at) WHERE status = 'FAILED';
"""

NOW = "(CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))"
# The last microsecond of the year 9999.
LAST = 253402300799999999
HEX = "[0-9a-f]"
UUID_PATTERN = "-".join(HEX * length for length in (8, 4, 4, 4, 12))
RANDOM_UUID = (
    "(lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-8' || "
    "substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))))"
)

SQLITE = f"""
CREATE TABLE bongsu_events (
    event_id    TEXT    NOT NULL DEFAULT {RANDOM_UUID} PRIMARY KEY CHECK (event_id GLOB '{UUID_PATTERN}'),
    event_type  TEXT    NOT NULL CHECK (typeof(event_type) = 'text' AND event_type <> ''),
    occurred_at INTEGER NOT NULL DEFAULT {NOW}
        CHECK (typeof(occurred_at) = 'integer' AND occurred_at BETWEEN 0 AND {LAST}),
    actor_id    TEXT    CHECK (actor_id IS NULL OR typeof(actor_id) = 'text'),
    target_id   TEXT    CHECK (target_id IS NULL OR typeof(target_id) = 'text'),
    ref_id      TEXT    CHECK (ref_id IS NULL OR typeof(ref_id) = 'text'),
    payload     TEXT    NOT NULL DEFAULT '{{}}' CHECK (json_valid(payload) AND json_type(payload) = 'object'),
    status      TEXT    NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'DONE', 'FAILED')),
    due         INTEGER NOT NULL DEFAULT {NOW} CHECK (typeof(due) = 'integer' AND due BETWEEN 0 AND {LAST}),
    attempts    INTEGER NOT NULL DEFAULT 0,
    claims      INTEGER NOT NULL DEFAULT 0,
    epoch       INTEGER NOT NULL DEFAULT 0,
    leased_by   TEXT,
    fanout_cursor TEXT,
    error       TEXT,
    created_at  INTEGER NOT NULL DEFAULT {NOW}
        CHECK (typeof(created_at) = 'integer' AND created_at BETWEEN 0 AND {LAST}),
    finished_at INTEGER CHECK (finished_at IS NULL OR typeof(finished_at) = 'integer')
);
CREATE INDEX bongsu_events_due ON bongsu_events (due) WHERE status = 'PENDING';
CREATE INDEX bongsu_events_suspect ON bongsu_events (due) WHERE status = 'PENDING' AND claims >= 3;
CREATE INDEX bongsu_events_failed ON bongsu_events (finished_at) WHERE status = 'FAILED';
"""


def upgrade() -> None:
    script = POSTGRES if op.get_bind().dialect.name == "postgresql" else SQLITE
    for statement in script.split(";\n"):
        if statement.strip():
            op.get_bind().exec_driver_sql(statement)
