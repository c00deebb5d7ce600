ALTER TABLE bongsu_messages ADD COLUMN is_digest boolean NOT NULL DEFAULT false;

-- SQLite cannot change a CHECK: the table is copied.
CREATE TABLE bongsu_suppressions_copy (
    message_id integer NOT NULL,
    member_id  text    NOT NULL,
    reason     text    NOT NULL
        CHECK (reason IN ('RATE_LIMITED', 'DUPLICATE', 'USER_OPTED_OUT', 'NO_ADDRESS', 'MERGED')),
    created_at integer NOT NULL,
    PRIMARY KEY (message_id, member_id)
);
INSERT INTO bongsu_suppressions_copy SELECT message_id, member_id, reason, created_at FROM bongsu_suppressions;
DROP TABLE bongsu_suppressions;
ALTER TABLE bongsu_suppressions_copy RENAME TO bongsu_suppressions;
CREATE INDEX bongsu_suppressions_member ON bongsu_suppressions (member_id, message_id);

CREATE TABLE bongsu_digests (
    notification_id integer NOT NULL PRIMARY KEY,
    member_id       text    NOT NULL,
    type            text    NOT NULL,
    key             text    NOT NULL,
    ends_at         integer NOT NULL,
    size            integer NOT NULL,
    title           text    NOT NULL,
    body            text    NOT NULL,
    data            text    NOT NULL
);
CREATE INDEX bongsu_digests_key ON bongsu_digests (member_id, type, key, ends_at, notification_id);

CREATE TABLE bongsu_digest_entries (
    message_id      integer NOT NULL,
    member_id       text    NOT NULL,
    notification_id integer NOT NULL,
    actor_id        text,
    actor_name      text,
    created_at      integer NOT NULL,
    left_at         integer,
    PRIMARY KEY (message_id, member_id)
);
CREATE INDEX bongsu_digest_entries_digest ON bongsu_digest_entries (notification_id, message_id);
CREATE UNIQUE INDEX bongsu_digest_entries_actor ON bongsu_digest_entries (actor_id, notification_id)
    WHERE actor_id IS NOT NULL;
