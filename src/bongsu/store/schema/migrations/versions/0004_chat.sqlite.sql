CREATE TABLE bongsu_chat_rooms (
    room_id      text    NOT NULL PRIMARY KEY,
    name         text    NOT NULL CHECK (name <> ''),
    last_seq     integer NOT NULL DEFAULT 0,
    first_seq    integer NOT NULL DEFAULT 1,
    changes      integer NOT NULL DEFAULT 0,
    last_sent_at integer NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS integer)),
    created_at   integer NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS integer))
);

CREATE TABLE bongsu_chat_members (
    room_id        text    NOT NULL REFERENCES bongsu_chat_rooms,
    member_id      text    NOT NULL CHECK (member_id <> ''),
    joined_at      integer NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS integer)),
    read_seq       integer NOT NULL DEFAULT 0,
    own_after_read integer NOT NULL DEFAULT 0,
    is_muted       boolean NOT NULL DEFAULT false,
    PRIMARY KEY (room_id, member_id)
);
CREATE INDEX bongsu_chat_members_rooms ON bongsu_chat_members (member_id, room_id);

CREATE TABLE bongsu_chat_messages (
    room_id           text    NOT NULL,
    seq               integer NOT NULL,
    sender_id         text,
    client_message_id text,
    message           text,
    sent_at           integer NOT NULL,
    edited_at         integer,
    deleted_at        integer,
    changed_seq       integer,
    PRIMARY KEY (room_id, seq)
);
CREATE UNIQUE INDEX bongsu_chat_messages_client ON bongsu_chat_messages (sender_id, room_id, client_message_id);
CREATE INDEX bongsu_chat_messages_changed ON bongsu_chat_messages (room_id, changed_seq) WHERE changed_seq IS NOT NULL;
