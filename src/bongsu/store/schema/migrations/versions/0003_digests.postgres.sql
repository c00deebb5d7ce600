-- Whether its notice has a digest: what its notifications say is in bongsu_digests, and cancelling it takes it out of them.
ALTER TABLE bongsu_messages ADD COLUMN is_digest boolean NOT NULL DEFAULT false;

-- MERGED: the member has no notification of this message, because it was merged into a digest.
ALTER TABLE bongsu_suppressions DROP CONSTRAINT bongsu_suppressions_reason_check;
ALTER TABLE bongsu_suppressions ADD CONSTRAINT bongsu_suppressions_reason_check
    CHECK (reason IN ('RATE_LIMITED', 'DUPLICATE', 'USER_OPTED_OUT', 'NO_ADDRESS', 'MERGED')) NOT VALID;

-- Digests: notifications that gather all notices of one key. They have a text of their own, instead of their message's.
CREATE TABLE bongsu_digests (
    notification_id bigint           NOT NULL PRIMARY KEY,
    member_id       text COLLATE "C" NOT NULL,
    -- The name of a notice type.
    type            text             NOT NULL,
    -- What its notices have in common, such as the post they are about.
    key             text             NOT NULL,
    -- Until then others are merged into it; its push, SMS and mail are due then.
    ends_at         timestamptz      NOT NULL,
    -- How many it has gathered, without those that were cancelled.
    size            integer          NOT NULL,
    title           text             NOT NULL,
    body            text             NOT NULL,
    -- Fields for the client, as a JSON object.
    data            text             NOT NULL
) WITH (
    -- Every merge updates the row: space for its versions on the same page.
    fillfactor = 50
);
-- The open ones of a key, however many of it have ended.
CREATE INDEX bongsu_digests_key ON bongsu_digests (member_id, type, key, ends_at, notification_id);

-- What digests have gathered: of each member and message the digest it is in.
CREATE TABLE bongsu_digest_entries (
    message_id      bigint           NOT NULL,
    member_id       text COLLATE "C" NOT NULL,
    -- The digest.
    notification_id bigint           NOT NULL,
    -- Who did it. NULL: not known, erased, or it has left the digest.
    actor_id        text,
    actor_name      text,
    created_at      timestamptz      NOT NULL,
    -- When its event was cancelled, and it no longer counted.
    left_at         timestamptz,
    PRIMARY KEY (message_id, member_id)
);
-- The newest of a digest, and all of it when it is deleted.
CREATE INDEX bongsu_digest_entries_digest ON bongsu_digest_entries (notification_id, message_id);
-- An actor counts once in a digest. An erasure finds by it where a member is an actor.
CREATE UNIQUE INDEX bongsu_digest_entries_actor ON bongsu_digest_entries (actor_id, notification_id)
    WHERE actor_id IS NOT NULL;
