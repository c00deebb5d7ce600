-- The tables on SQLite. 0001_schema.postgres.sql has the same tables and columns, and describes them.
--
-- A time is a whole number of microseconds since 1970 (UTC); a UUID is text in small letters. SQLite takes any type in any
-- column: the columns of bongsu_events that callers write check theirs.

CREATE TABLE bongsu_events (
    event_id      text    NOT NULL DEFAULT (lower(
        hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-8' ||
        substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))))
        PRIMARY KEY CHECK (event_id GLOB '[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]'),
    event_type    text    NOT NULL CHECK (typeof(event_type) = 'text' AND event_type <> ''),
    -- From 1970 up to the last microsecond of the year 9999.
    occurred_at   integer NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS integer))
        CHECK (typeof(occurred_at) = 'integer' AND occurred_at BETWEEN 0 AND 253402300799999999),
    actor_id      text    CHECK (actor_id IS NULL OR typeof(actor_id) = 'text'),
    target_id     text    CHECK (target_id IS NULL OR typeof(target_id) = 'text'),
    ref_id        text    CHECK (ref_id IS NULL OR typeof(ref_id) = 'text'),
    payload       text    NOT NULL DEFAULT '{}' CHECK (json_valid(payload) AND json_type(payload) = 'object'),
    status        text    NOT NULL DEFAULT 'PENDING'
        CHECK (status IN ('PENDING', 'DONE', 'FAILED', 'UNHANDLED', 'CANCELLED')),
    due           integer NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS integer))
        CHECK (typeof(due) = 'integer' AND due BETWEEN 0 AND 253402300799999999),
    attempts      integer NOT NULL DEFAULT 0,
    claim_count   integer NOT NULL DEFAULT 0,
    epoch         integer NOT NULL DEFAULT 0,
    leased_by     text,
    fanout_cursor text,
    error         text,
    created_at    integer NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS integer))
        CHECK (typeof(created_at) = 'integer' AND created_at BETWEEN 0 AND 253402300799999999),
    finished_at   integer CHECK (finished_at IS NULL OR typeof(finished_at) = 'integer'),
    is_large      boolean NOT NULL GENERATED ALWAYS AS (length(payload) > 65536) VIRTUAL
);
CREATE INDEX bongsu_events_due ON bongsu_events (due, is_large) WHERE status = 'PENDING';
CREATE INDEX bongsu_events_by_type ON bongsu_events (event_type, due) WHERE status = 'PENDING' AND NOT is_large;
CREATE INDEX bongsu_events_large ON bongsu_events (due) WHERE status = 'PENDING' AND is_large;
CREATE INDEX bongsu_events_suspect ON bongsu_events (due) WHERE status = 'PENDING' AND claim_count >= 3;
CREATE INDEX bongsu_events_dead ON bongsu_events (finished_at) WHERE status IN ('FAILED', 'UNHANDLED');
CREATE INDEX bongsu_events_created ON bongsu_events (created_at, event_id);
CREATE INDEX bongsu_events_target ON bongsu_events (target_id, created_at)
    WHERE status <> 'DONE' AND target_id IS NOT NULL;

CREATE TABLE bongsu_audience_snapshots (
    event_id       text    NOT NULL REFERENCES bongsu_events ON DELETE CASCADE,
    notice_index   integer NOT NULL,
    last_member_id text    NOT NULL,
    member_ids     text    NOT NULL,
    PRIMARY KEY (event_id, notice_index, last_member_id)
);

CREATE TABLE bongsu_members (
    member_id    text    NOT NULL PRIMARY KEY CHECK (member_id <> ''),
    locale       text,
    timezone     text,
    email        text,
    phone        text,
    is_enabled   boolean NOT NULL DEFAULT true,
    quiet_start  integer CHECK (quiet_start BETWEEN 0 AND 1439),
    quiet_end    integer CHECK (quiet_end BETWEEN 0 AND 1439),
    created_at   integer NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS integer)),
    capped_day   integer NOT NULL DEFAULT 0,
    capped_count integer NOT NULL DEFAULT 0,
    unread       integer NOT NULL DEFAULT 0,
    CHECK ((quiet_start IS NULL) = (quiet_end IS NULL))
);

CREATE TABLE bongsu_preferences (
    member_id  text    NOT NULL REFERENCES bongsu_members ON DELETE CASCADE,
    type       text    NOT NULL,
    is_enabled boolean NOT NULL,
    channels   integer,
    PRIMARY KEY (member_id, type)
);

CREATE TABLE bongsu_devices (
    member_id   text    NOT NULL REFERENCES bongsu_members ON DELETE CASCADE,
    device_id   text    NOT NULL,
    token       text    NOT NULL UNIQUE,
    platform    text    NOT NULL CHECK (platform IN ('ANDROID', 'IOS', 'WEB')),
    has_consent boolean NOT NULL,
    status      text    NOT NULL DEFAULT 'ACTIVE' CHECK (status IN ('ACTIVE', 'INVALID')),
    updated_at  integer NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS integer)),
    PRIMARY KEY (member_id, device_id)
);

CREATE TABLE bongsu_channels (
    name text    NOT NULL PRIMARY KEY,
    bit  integer NOT NULL UNIQUE
);

CREATE TABLE bongsu_addresses (
    member_id text NOT NULL REFERENCES bongsu_members ON DELETE CASCADE,
    channel   text NOT NULL,
    address   text NOT NULL,
    PRIMARY KEY (member_id, channel)
);

CREATE TABLE bongsu_products (
    product_id text    NOT NULL PRIMARY KEY CHECK (product_id <> ''),
    name       text    NOT NULL,
    price      double precision,
    stock      integer,
    updated_at integer NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS integer))
);

CREATE TABLE bongsu_behaviors (
    product_id text    NOT NULL,
    member_id  text    NOT NULL,
    action     text    NOT NULL CHECK (action IN ('VIEW', 'CLICK', 'ADD_TO_CART', 'PURCHASE')),
    acted_at   integer NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS integer)),
    PRIMARY KEY (product_id, member_id, action)
);
CREATE INDEX bongsu_behaviors_member ON bongsu_behaviors (member_id, acted_at);

CREATE TABLE bongsu_messages (
    message_id       integer NOT NULL PRIMARY KEY AUTOINCREMENT,
    event_id         text    NOT NULL,
    notice_index     integer NOT NULL,
    locale           text    NOT NULL,
    type             text    NOT NULL,
    subject          text    NOT NULL,
    title            text    NOT NULL,
    body             text    NOT NULL,
    ref_id           text,
    data             text    NOT NULL,
    channels         integer NOT NULL,
    priority         integer NOT NULL,
    guarantee        text    NOT NULL CHECK (guarantee IN ('at_least_once', 'at_most_once')),
    is_critical      boolean NOT NULL,
    is_bulk          boolean NOT NULL DEFAULT false,
    expires_at       integer,
    created_at       integer NOT NULL,
    last_notified_at integer,
    cancelled_at     integer,
    UNIQUE (event_id, notice_index, locale)
);
CREATE INDEX bongsu_messages_recent ON bongsu_messages (type, subject, last_notified_at)
    WHERE last_notified_at IS NOT NULL;

CREATE TABLE bongsu_message_counts (
    message_id integer NOT NULL,
    channel    text    NOT NULL,
    category   text    NOT NULL,
    count      integer NOT NULL,
    PRIMARY KEY (message_id, channel, category)
);

CREATE TABLE bongsu_notifications (
    -- AUTOINCREMENT: an id is never given twice, not even after the newest notification was deleted.
    notification_id integer NOT NULL PRIMARY KEY AUTOINCREMENT,
    member_id       text    NOT NULL,
    message_id      integer NOT NULL,
    channels        integer NOT NULL,
    created_at      integer NOT NULL,
    read_at         integer,
    UNIQUE (message_id, member_id)
);
CREATE INDEX bongsu_notifications_inbox ON bongsu_notifications (member_id, notification_id);
CREATE INDEX bongsu_notifications_unread ON bongsu_notifications (member_id, notification_id) WHERE read_at IS NULL;

CREATE TABLE bongsu_suppressions (
    message_id integer NOT NULL,
    member_id  text    NOT NULL,
    reason     text    NOT NULL CHECK (reason IN ('RATE_LIMITED', 'DUPLICATE', 'USER_OPTED_OUT', 'NO_ADDRESS')),
    created_at integer NOT NULL,
    PRIMARY KEY (message_id, member_id)
);
CREATE INDEX bongsu_suppressions_member ON bongsu_suppressions (member_id, message_id);

CREATE TABLE bongsu_deliveries (
    delivery_id     integer NOT NULL PRIMARY KEY AUTOINCREMENT,
    notification_id integer NOT NULL,
    member_id       text    NOT NULL,
    message_id      integer NOT NULL,
    channel         text    NOT NULL CHECK (channel <> ''),
    device_id       text,
    status          text    NOT NULL DEFAULT 'READY'
        CHECK (status IN ('READY', 'SENDING', 'SUCCESS', 'FAIL', 'UNKNOWN', 'CANCELLED')),
    rank            integer NOT NULL,
    due             integer NOT NULL,
    attempts        integer NOT NULL DEFAULT 0,
    recovery_rounds integer NOT NULL DEFAULT 0,
    claim_count     integer NOT NULL DEFAULT 0,
    epoch           integer NOT NULL DEFAULT 0,
    collapse_series integer NOT NULL DEFAULT 0,
    leased_by       text,
    code            text,
    detail          text,
    reference       text,
    is_simulated    boolean NOT NULL DEFAULT false,
    created_at      integer NOT NULL,
    finished_at     integer,
    is_retryable    boolean NOT NULL DEFAULT false,
    sent_at         integer,
    millis          integer
);
CREATE INDEX bongsu_deliveries_due ON bongsu_deliveries (channel, rank, due) WHERE status IN ('READY', 'SENDING');
CREATE INDEX bongsu_deliveries_sending ON bongsu_deliveries (due) WHERE status = 'SENDING';
CREATE INDEX bongsu_deliveries_notification ON bongsu_deliveries (notification_id);
CREATE INDEX bongsu_deliveries_dead ON bongsu_deliveries (delivery_id, status) WHERE status IN ('FAIL', 'UNKNOWN');
CREATE INDEX bongsu_deliveries_dead_by_message ON bongsu_deliveries (message_id, member_id)
    WHERE status IN ('FAIL', 'UNKNOWN');
CREATE INDEX bongsu_deliveries_retryable ON bongsu_deliveries (delivery_id)
    WHERE is_retryable AND recovery_rounds < 3 AND status IN ('FAIL', 'UNKNOWN');

CREATE TABLE bongsu_attempts (
    delivery_id integer NOT NULL,
    epoch       integer NOT NULL,
    began_at    integer NOT NULL,
    millis      integer NOT NULL,
    code        text    NOT NULL,
    PRIMARY KEY (delivery_id, epoch)
);

CREATE TABLE bongsu_quotas (
    name     text             NOT NULL PRIMARY KEY,
    tokens   double precision NOT NULL,
    granted  double precision NOT NULL,
    drawn_at integer          NOT NULL
);

CREATE TABLE bongsu_cancellations (
    event_id          text    NOT NULL PRIMARY KEY,
    requested_at      integer NOT NULL,
    requested_by      text    NOT NULL,
    withdraw          boolean NOT NULL,
    cancelled         integer NOT NULL,
    sent              integer NOT NULL,
    withdrawn         integer NOT NULL,
    cursor_message_id integer NOT NULL DEFAULT 0,
    cursor_member_id  text    NOT NULL DEFAULT '',
    finished_at       integer
);
CREATE INDEX bongsu_cancellations_open ON bongsu_cancellations (requested_at) WHERE finished_at IS NULL;
CREATE INDEX bongsu_cancellations_withdrawn ON bongsu_cancellations (finished_at) WHERE withdraw;

CREATE TABLE bongsu_runs (
    run_id       integer NOT NULL PRIMARY KEY AUTOINCREMENT,
    job          text    NOT NULL,
    subject      text    NOT NULL DEFAULT '',
    slot         integer,
    requested_by text    NOT NULL,
    input        text    NOT NULL DEFAULT 'null',
    epoch        integer NOT NULL DEFAULT 1,
    leased_by    text    NOT NULL,
    due          integer NOT NULL,
    claim_count  integer NOT NULL DEFAULT 1,
    cursor       text,
    counts       text    NOT NULL DEFAULT '{}',
    done         integer NOT NULL DEFAULT 0,
    total        integer,
    is_made_up   boolean NOT NULL DEFAULT false,
    skipped      integer NOT NULL DEFAULT 0,
    started_at   integer NOT NULL,
    finished_at  integer,
    result       text,
    error        text
);
CREATE UNIQUE INDEX bongsu_runs_open ON bongsu_runs (job, subject) WHERE finished_at IS NULL;
CREATE UNIQUE INDEX bongsu_runs_slot ON bongsu_runs (job, slot) WHERE slot IS NOT NULL;
CREATE INDEX bongsu_runs_by_job ON bongsu_runs (job, run_id);

CREATE TABLE bongsu_processes (
    name         text             NOT NULL PRIMARY KEY,
    roles        text             NOT NULL,
    skew_seconds double precision NOT NULL,
    seen_at      integer          NOT NULL
);
