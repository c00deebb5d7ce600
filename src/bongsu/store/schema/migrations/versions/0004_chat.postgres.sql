-- Chat rooms. To give a message its seq, to change one, or to change who is in the room, lock this row first.
CREATE TABLE bongsu_chat_rooms (
    room_id      uuid        NOT NULL PRIMARY KEY,
    name         text        NOT NULL CHECK (name <> ''),
    -- The seq of the newest message. 0: none was sent yet.
    last_seq     bigint      NOT NULL DEFAULT 0,
    -- The seq of the oldest message that retention has kept. Without retention, and before the first message: 1.
    first_seq    bigint      NOT NULL DEFAULT 1,
    -- How often a message was edited or deleted, or a member has left. A gateway that knows a smaller number has to read
    -- what has changed before it sends the next message.
    changes      bigint      NOT NULL DEFAULT 0,
    -- When the newest message was sent, or the room was created.
    last_sent_at timestamptz NOT NULL DEFAULT now(),
    created_at   timestamptz NOT NULL DEFAULT now()
) WITH (
    -- Updated with every message: the new version stays on its page and the index is not touched.
    fillfactor = 50
);

-- Who is in a chat room, and how far they have read.
CREATE TABLE bongsu_chat_members (
    room_id        uuid             NOT NULL REFERENCES bongsu_chat_rooms,
    member_id      text COLLATE "C" NOT NULL CHECK (member_id <> ''),
    joined_at      timestamptz      NOT NULL DEFAULT now(),
    -- The read mark: the seq of the last message that the member has read. It only grows.
    read_seq       bigint           NOT NULL DEFAULT 0,
    -- How many of the member's own messages come after the read mark. They are not unread, so the unread count is
    -- last_seq - read_seq - own_after_read (with first_seq - 1 for a read_seq below it), without looking at messages.
    own_after_read bigint           NOT NULL DEFAULT 0,
    -- Whether the member wants no push about this room.
    is_muted       boolean          NOT NULL DEFAULT false,
    PRIMARY KEY (room_id, member_id)
) WITH (fillfactor = 70);
-- The rooms of a member.
CREATE INDEX bongsu_chat_members_rooms ON bongsu_chat_members (member_id, room_id);

-- Chat messages. No foreign key to the room: a message is only inserted under the lock of its room, and rooms stay.
CREATE TABLE bongsu_chat_messages (
    room_id           uuid             NOT NULL,
    -- The message's position in the room: 1, 2, 3, … without holes.
    seq               bigint           NOT NULL,
    -- NULL: the sender was erased.
    sender_id         text COLLATE "C",
    -- By which a repeated send is recognised. NULL: the sender was erased.
    client_message_id text COLLATE "C",
    -- NULL: deleted.
    message           text,
    sent_at           timestamptz      NOT NULL,
    edited_at         timestamptz,
    deleted_at        timestamptz,
    -- The room's last_seq when the message was last edited or deleted. A reader who comes back and has read up to seq N is
    -- sent the changes with a changed_seq of N or more: all others were made before message N, and so before the reader left.
    -- NULL: never changed.
    changed_seq       bigint,
    PRIMARY KEY (room_id, seq)
);
-- A clientMessageId is unique per room and sender. Finds the messages of a sender too, for erasure.
CREATE UNIQUE INDEX bongsu_chat_messages_client ON bongsu_chat_messages (sender_id, room_id, client_message_id);
-- What has changed since a reader left.
CREATE INDEX bongsu_chat_messages_changed ON bongsu_chat_messages (room_id, changed_seq) WHERE changed_seq IS NOT NULL;
