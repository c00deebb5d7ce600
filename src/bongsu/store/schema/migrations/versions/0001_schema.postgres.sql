-- The tables on PostgreSQL. 0001_schema.sqlite.sql has the same tables and columns for SQLite; a test compares the two.
--
-- A comment above a table or a column describes it in docs/SCHEMA.md, which is generated from this file.

-- Events: facts from the business. The table is the outbox: callers insert in their own transaction, workers claim.
-- A default serves callers that write plain SQL: they name what they know.
CREATE TABLE bongsu_events (
    event_id      uuid        NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    event_type    text        NOT NULL CHECK (event_type <> ''),
    -- When it happened, by the caller's clock. A year of four digits: more is a wrong clock, and few languages can read it.
    occurred_at   timestamptz NOT NULL DEFAULT now() CHECK (occurred_at >= '1970-01-01Z' AND occurred_at < '10000-01-01Z'),
    -- Who did it.
    actor_id      text,
    -- To whom it was done.
    target_id     text,
    -- What it is about, such as a product or a post.
    ref_id        text,
    -- Fields of the event type, as a JSON object.
    payload       jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(payload) = 'object'),
    status        text        NOT NULL DEFAULT 'PENDING'
        CHECK (status IN ('PENDING', 'DONE', 'FAILED', 'UNHANDLED', 'CANCELLED')),
    -- When it may be claimed. While it is claimed: when the lease ends.
    due           timestamptz NOT NULL DEFAULT now() CHECK (due >= '1970-01-01Z' AND due < '10000-01-01Z'),
    -- How often a rule or a step has failed with an error.
    attempts      integer     NOT NULL DEFAULT 0,
    -- Claims since the last progress. An event that was claimed often without progress may crash its workers.
    claim_count   integer     NOT NULL DEFAULT 0,
    -- Fencing token: grows with each claim. A worker writes only while the row has the epoch of its claim.
    epoch         integer     NOT NULL DEFAULT 0,
    -- The process that holds the claim.
    leased_by     text,
    -- How far the fan-out has come: a JSON array of the notice's index and the last decided member id.
    -- NULL before the first step, and when it is DONE.
    fanout_cursor text,
    -- Why it is FAILED or is tried again.
    error         text,
    created_at    timestamptz NOT NULL DEFAULT now() CHECK (created_at >= '1970-01-01Z' AND created_at < '10000-01-01Z'),
    finished_at   timestamptz,
    -- Whether the payload has more than 64 KB, about 4,000 member ids. Such events are claimed one at a time: they take memory
    -- and time to decode.
    is_large      boolean     NOT NULL GENERATED ALWAYS AS (octet_length(CAST(payload AS text)) > 65536) STORED
) WITH (
    -- Every event is updated twice and then never again: vacuum often and at once, so that the index of due events
    -- stays as small as the backlog, however many finished events the table has.
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);
-- With is_large, so that a claim passes over large events without reading their rows.
CREATE INDEX bongsu_events_due ON bongsu_events (due, is_large) WHERE status = 'PENDING';
-- Claims events that can be critical first.
CREATE INDEX bongsu_events_by_type ON bongsu_events (event_type, due) WHERE status = 'PENDING' AND NOT is_large;
CREATE INDEX bongsu_events_large ON bongsu_events (due) WHERE status = 'PENDING' AND is_large;
CREATE INDEX bongsu_events_suspect ON bongsu_events (due) WHERE status = 'PENDING' AND claim_count >= 3;
CREATE INDEX bongsu_events_dead ON bongsu_events (finished_at) WHERE status IN ('FAILED', 'UNHANDLED');
CREATE INDEX bongsu_events_created ON bongsu_events (created_at, event_id);
-- `bongsu why` lists by it what waits or has failed for a member.
CREATE INDEX bongsu_events_target ON bongsu_events (target_id, created_at)
    WHERE status <> 'DONE' AND target_id IS NOT NULL;

-- Snapshots of audiences: the members that a user's own SELECT found, in id order, as many in a row as one step takes.
-- The step that decides the last of them deletes the row.
CREATE TABLE bongsu_audience_snapshots (
    event_id       uuid             NOT NULL REFERENCES bongsu_events ON DELETE CASCADE,
    -- Which notice of the event.
    notice_index   integer          NOT NULL,
    -- The last member id of the row.
    last_member_id text COLLATE "C" NOT NULL,
    -- A JSON array.
    member_ids     text             NOT NULL,
    PRIMARY KEY (event_id, notice_index, last_member_id)
);

-- Members: people who can be notified. A decision locks the member's row first, so that per member notifications have
-- ids in commit order.
CREATE TABLE bongsu_members (
    -- Compared byte by byte: faster than any language's alphabet, and the order in which Python sorts.
    member_id    text COLLATE "C" NOT NULL PRIMARY KEY CHECK (member_id <> ''),
    locale       text,
    timezone     text,
    email        text,
    phone        text,
    -- Whether the member wants any notification that is not critical.
    is_enabled   boolean          NOT NULL DEFAULT true,
    -- Quiet hours in the member's timezone, as minutes of the day.
    quiet_start  integer          CHECK (quiet_start BETWEEN 0 AND 1439),
    quiet_end    integer          CHECK (quiet_end BETWEEN 0 AND 1439),
    created_at   timestamptz      NOT NULL DEFAULT now(),
    -- The day that capped_count is of, in the member's timezone, as Python's date.toordinal().
    capped_day   integer          NOT NULL DEFAULT 0,
    -- How many notifications of that day count towards the daily cap.
    capped_count integer          NOT NULL DEFAULT 0,
    -- How many notifications in the inbox are not read.
    unread       integer          NOT NULL DEFAULT 0,
    CHECK ((quiet_start IS NULL) = (quiet_end IS NULL))
) WITH (
    -- A fan-out updates all members of a page in one transaction, which cannot reuse the space of their old versions: with
    -- half of each page free the new versions stay on it and the index is not touched.
    fillfactor = 50
);

-- What a member wants of one notice type.
CREATE TABLE bongsu_preferences (
    member_id  text COLLATE "C" NOT NULL REFERENCES bongsu_members ON DELETE CASCADE,
    -- The name of a notice type.
    type       text             NOT NULL,
    is_enabled boolean          NOT NULL,
    -- Bits of bongsu_channels. NULL: the channels of the type.
    channels   integer,
    PRIMARY KEY (member_id, type)
);

-- Devices that receive push.
CREATE TABLE bongsu_devices (
    member_id   text COLLATE "C" NOT NULL REFERENCES bongsu_members ON DELETE CASCADE,
    device_id   text             NOT NULL,
    -- FCM's registration token. One that is registered again moves to the new device.
    token       text             NOT NULL UNIQUE,
    platform    text             NOT NULL CHECK (platform IN ('ANDROID', 'IOS', 'WEB')),
    has_consent boolean          NOT NULL,
    -- INVALID: FCM has reported that the token no longer exists.
    status      text             NOT NULL DEFAULT 'ACTIVE' CHECK (status IN ('ACTIVE', 'INVALID')),
    updated_at  timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (member_id, device_id)
);

-- Channels and the bit that each has in the `channels` columns.
CREATE TABLE bongsu_channels (
    name text    NOT NULL PRIMARY KEY,
    bit  integer NOT NULL UNIQUE
);

-- Addresses of members on channels of the user's own.
CREATE TABLE bongsu_addresses (
    member_id text COLLATE "C" NOT NULL REFERENCES bongsu_members ON DELETE CASCADE,
    channel   text             NOT NULL,
    address   text             NOT NULL,
    PRIMARY KEY (member_id, channel)
);

-- Products, for the texts of notifications about them.
CREATE TABLE bongsu_products (
    product_id text        NOT NULL PRIMARY KEY CHECK (product_id <> ''),
    name       text        NOT NULL,
    price      double precision,
    stock      bigint,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- What members did with products: the audience of a price drop. The key has the members of a product in id order.
CREATE TABLE bongsu_behaviors (
    product_id text             NOT NULL,
    member_id  text COLLATE "C" NOT NULL,
    action     text             NOT NULL CHECK (action IN ('VIEW', 'CLICK', 'ADD_TO_CART', 'PURCHASE')),
    -- The last time.
    acted_at   timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (product_id, member_id, action)
);
-- Whether a member was active lately, and what a member did last.
CREATE INDEX bongsu_behaviors_member ON bongsu_behaviors (member_id, acted_at);

-- Messages: the content of one notice in one locale. It is stored once, and the notifications of all its recipients point
-- to it. From here on there are no foreign keys: each would be one lookup and one lock per row, and both ends are written in
-- one transaction.
CREATE TABLE bongsu_messages (
    message_id       bigint      NOT NULL GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    event_id         uuid        NOT NULL,
    -- Which notice of the event.
    notice_index     integer     NOT NULL,
    locale           text        NOT NULL,
    -- The name of a notice type.
    type             text        NOT NULL,
    -- What it is about. The dedup window is per type and subject.
    subject          text        NOT NULL,
    title            text        NOT NULL,
    body             text        NOT NULL,
    ref_id           text,
    -- Fields for the client, as a JSON object.
    data             text        NOT NULL,
    -- Bits of bongsu_channels.
    channels         integer     NOT NULL,
    -- 0 HIGH, 1 NORMAL, 2 LOW.
    priority         integer     NOT NULL,
    guarantee        text        NOT NULL CHECK (guarantee IN ('at_least_once', 'at_most_once')),
    is_critical      boolean     NOT NULL,
    -- Whether the audience did not fit into one step. The counts of such a message are kept in bongsu_message_counts.
    is_bulk          boolean     NOT NULL DEFAULT false,
    -- When it is no longer worth sending.
    expires_at       timestamptz,
    created_at       timestamptz NOT NULL,
    -- When a member was last notified of it; NULL while none was. The dedup window looks here.
    last_notified_at timestamptz,
    -- Since when nothing of it is claimed to be sent.
    cancelled_at     timestamptz,
    UNIQUE (event_id, notice_index, locale)
);
CREATE INDEX bongsu_messages_recent ON bongsu_messages (type, subject, last_notified_at)
    WHERE last_notified_at IS NOT NULL;

-- Counts of bulk messages: counting a million deliveries for each request would take seconds.
CREATE TABLE bongsu_message_counts (
    message_id bigint NOT NULL,
    -- A channel for deliveries, empty for recipients.
    channel    text   NOT NULL,
    -- What is counted. Of deliveries: MADE, SUCCESS, FAIL, UNKNOWN, CANCELLED. Of recipients: NOTIFIED, IN_INBOX and the
    -- reasons of suppressions.
    category   text   NOT NULL,
    count      bigint NOT NULL,
    PRIMARY KEY (message_id, channel, category)
) WITH (
    -- Every recorded batch updates the same few rows: space for their versions on the same page.
    fillfactor = 50
);

-- Notifications: one message for one member. Those with the channel IN_APP are the inbox.
CREATE TABLE bongsu_notifications (
    notification_id bigint           NOT NULL GENERATED BY DEFAULT AS IDENTITY,
    member_id       text COLLATE "C" NOT NULL,
    message_id      bigint           NOT NULL,
    -- Bits of bongsu_channels: those it goes out on.
    channels        integer          NOT NULL,
    created_at      timestamptz      NOT NULL,
    read_at         timestamptz,
    -- Every lookup knows the member, so one key serves the inbox and the single notification.
    PRIMARY KEY (member_id, notification_id),
    UNIQUE (message_id, member_id)
);
CREATE INDEX bongsu_notifications_unread ON bongsu_notifications (member_id, notification_id) WHERE read_at IS NULL;

-- Suppressions: why a member of the audience did not get a notification.
CREATE TABLE bongsu_suppressions (
    message_id bigint           NOT NULL,
    member_id  text COLLATE "C" NOT NULL,
    reason     text             NOT NULL CHECK (reason IN ('RATE_LIMITED', 'DUPLICATE', 'USER_OPTED_OUT', 'NO_ADDRESS')),
    created_at timestamptz      NOT NULL,
    PRIMARY KEY (message_id, member_id)
);
CREATE INDEX bongsu_suppressions_member ON bongsu_suppressions (member_id, message_id);

-- Deliveries: one notification on one channel to one address. A claim commits SENDING before the network call.
CREATE TABLE bongsu_deliveries (
    delivery_id     bigint           NOT NULL GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    notification_id bigint           NOT NULL,
    member_id       text COLLATE "C" NOT NULL,
    message_id      bigint           NOT NULL,
    channel         text             NOT NULL CHECK (channel <> ''),
    -- For PUSH.
    device_id       text,
    status          text             NOT NULL DEFAULT 'READY'
        CHECK (status IN ('READY', 'SENDING', 'SUCCESS', 'FAIL', 'UNKNOWN', 'CANCELLED')),
    -- The order of sending in a channel (store/ranks.py): lower goes first.
    rank            integer          NOT NULL,
    -- When it may be claimed. While it is claimed: when the lease ends.
    due             timestamptz      NOT NULL,
    -- Attempts of the current round.
    attempts        integer          NOT NULL DEFAULT 0,
    -- How often the recovery job has given it another round of attempts.
    recovery_rounds integer          NOT NULL DEFAULT 0,
    -- Claims in a row without an outcome. A delivery that was claimed often without one may crash its dispatchers.
    claim_count     integer          NOT NULL DEFAULT 0,
    -- Fencing token: grows with each claim. A dispatcher records only while the row has the epoch of its claim.
    epoch           integer          NOT NULL DEFAULT 0,
    -- Part of the collapse id. A replay that must show a second time raises it.
    collapse_series integer          NOT NULL DEFAULT 0,
    -- The process that holds the claim.
    leased_by       text,
    -- The last outcome's code, such as UNREGISTERED (deliver/codes.py).
    code            text,
    -- The provider's own message.
    detail          text,
    -- The provider's id of what it accepted.
    reference       text,
    -- Sent by the simulated channel: nothing left the process.
    is_simulated    boolean          NOT NULL DEFAULT false,
    created_at      timestamptz      NOT NULL,
    finished_at     timestamptz,
    -- Whether the recovery job may give it another round.
    is_retryable    boolean          NOT NULL DEFAULT false,
    -- When the attempt that succeeded began. It has no row in bongsu_attempts.
    sent_at         timestamptz,
    -- How long that attempt took, in milliseconds.
    millis          integer
) WITH (
    -- Inserted as READY, updated twice or more until it is finished, and then never again.
    fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX bongsu_deliveries_due ON bongsu_deliveries (channel, rank, due) WHERE status IN ('READY', 'SENDING');
-- Few rows, among all that wait.
CREATE INDEX bongsu_deliveries_sending ON bongsu_deliveries (due) WHERE status = 'SENDING';
CREATE INDEX bongsu_deliveries_notification ON bongsu_deliveries (notification_id);
-- With the status, so that dead deliveries are counted without reading their rows.
CREATE INDEX bongsu_deliveries_dead ON bongsu_deliveries (delivery_id, status) WHERE status IN ('FAIL', 'UNKNOWN');
CREATE INDEX bongsu_deliveries_dead_by_message ON bongsu_deliveries (message_id, member_id)
    WHERE status IN ('FAIL', 'UNKNOWN');
CREATE INDEX bongsu_deliveries_retryable ON bongsu_deliveries (delivery_id)
    WHERE is_retryable AND recovery_rounds < 3 AND status IN ('FAIL', 'UNKNOWN');

-- Attempts of deliveries that did not succeed. The one that succeeds is stored on the delivery itself.
CREATE TABLE bongsu_attempts (
    delivery_id bigint      NOT NULL,
    -- The delivery's epoch at the attempt.
    epoch       integer     NOT NULL,
    began_at    timestamptz NOT NULL,
    -- How long it took, in milliseconds.
    millis      integer     NOT NULL,
    -- The outcome's code (deliver/codes.py).
    code        text        NOT NULL,
    PRIMARY KEY (delivery_id, epoch)
);

-- Quotas that processes share, as token buckets that fill by the store's clock.
CREATE TABLE bongsu_quotas (
    name     text             NOT NULL PRIMARY KEY,
    -- What the bucket held after the last draw.
    tokens   double precision NOT NULL,
    -- What the last draw was granted.
    granted  double precision NOT NULL,
    drawn_at timestamptz      NOT NULL
);

-- Cancelled events. The request commits first; steps then change the rows of notifications and deliveries.
CREATE TABLE bongsu_cancellations (
    event_id          uuid             NOT NULL PRIMARY KEY,
    requested_at      timestamptz      NOT NULL,
    requested_by      text             NOT NULL,
    -- Whether notifications are also taken out of the inboxes.
    withdraw          boolean          NOT NULL,
    -- Deliveries that were stopped, as answered to the request. A repeated request gets the same answer.
    cancelled         bigint           NOT NULL,
    -- Deliveries that had gone out, as answered.
    sent              bigint           NOT NULL,
    -- Notifications taken out of inboxes, as answered.
    withdrawn         bigint           NOT NULL,
    -- How far the rows are changed: the message, and the last member of it.
    cursor_message_id bigint           NOT NULL DEFAULT 0,
    cursor_member_id  text COLLATE "C" NOT NULL DEFAULT '',
    finished_at       timestamptz
);
CREATE INDEX bongsu_cancellations_open ON bongsu_cancellations (requested_at) WHERE finished_at IS NULL;
-- Gateways ask for the latest withdrawals every second.
CREATE INDEX bongsu_cancellations_withdrawn ON bongsu_cancellations (finished_at) WHERE withdraw;

-- Runs: executions of jobs, and of what operators request and takes many steps, such as a replay of dead letters. A run is
-- leased by one process at a time. Each step saves the cursor and the counts in its own transaction, so that another process
-- can go on from there.
CREATE TABLE bongsu_runs (
    run_id       bigint      NOT NULL GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    -- The job's name: `recover`, `replay` or one of the user's own.
    job          text        NOT NULL,
    -- What the run is about, where runs of one job with different subjects may be under way at once. Else empty.
    subject      text        NOT NULL DEFAULT '',
    -- The due time. NULL: requested by hand.
    slot         timestamptz,
    -- `clock`, `cli:` and the user's name, or `key:` and the last four characters of the API key.
    requested_by text        NOT NULL,
    -- What was requested, as JSON: the filters of a replay.
    input        text        NOT NULL DEFAULT 'null',
    -- Fencing token: grows with each takeover. A process writes only while the row has the epoch of its claim.
    epoch        integer     NOT NULL DEFAULT 1,
    -- The process that holds it, or held it last: host and process id.
    leased_by    text        NOT NULL,
    -- When the lease ends.
    due          timestamptz NOT NULL,
    -- Claims since the last saved step. A run that was claimed often without one may crash its processes.
    claim_count  integer     NOT NULL DEFAULT 1,
    -- How far it has come, as JSON in the job's own words. NULL: at the beginning, or finished.
    cursor       text,
    -- What was done, as a JSON object of numbers.
    counts       text        NOT NULL DEFAULT '{}',
    -- Progress: how many items are finished.
    done         bigint      NOT NULL DEFAULT 0,
    -- Progress: of how many, if that is known.
    total        bigint,
    -- Whether the slot was missed and is made up for.
    is_made_up   boolean     NOT NULL DEFAULT false,
    -- How many slots before this one were missed and are not made up for; at most 1,000 are counted.
    skipped      integer     NOT NULL DEFAULT 0,
    started_at   timestamptz NOT NULL,
    finished_at  timestamptz,
    result       text,
    error        text
);
-- One run of a job and subject at a time.
CREATE UNIQUE INDEX bongsu_runs_open ON bongsu_runs (job, subject) WHERE finished_at IS NULL;
-- One run for each slot.
CREATE UNIQUE INDEX bongsu_runs_slot ON bongsu_runs (job, slot) WHERE slot IS NOT NULL;
CREATE INDEX bongsu_runs_by_job ON bongsu_runs (job, run_id);

-- Processes that run, and the difference of their clocks.
CREATE TABLE bongsu_processes (
    name         text             NOT NULL PRIMARY KEY,
    -- Comma separated.
    roles        text             NOT NULL,
    -- By how much its clock is ahead of the store's.
    skew_seconds double precision NOT NULL,
    seen_at      timestamptz      NOT NULL
);
