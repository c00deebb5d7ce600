-- Since when there are messages that no push was decided about. While it is being looked at: when that lease ends. After
-- a look that left connected members out: when those are looked at again. NULL: there is nothing to look at.
ALTER TABLE bongsu_chat_rooms ADD COLUMN push_due timestamptz;
-- Before this time no messages are waiting: after pushes to many members the next ones come later.
ALTER TABLE bongsu_chat_rooms ADD COLUMN push_from timestamptz;
-- The last_seq at the last look.
ALTER TABLE bongsu_chat_rooms ADD COLUMN push_seq bigint NOT NULL DEFAULT 0;
-- Fencing token: grows with each look. The worker that looks writes only while the row has the epoch of its look.
ALTER TABLE bongsu_chat_rooms ADD COLUMN push_epoch integer NOT NULL DEFAULT 0;
-- When the last member left. NULL: no member has left yet, or others remained. Says nothing while there are members.
ALTER TABLE bongsu_chat_rooms ADD COLUMN emptied_at timestamptz;
-- The rooms to be looked at.
CREATE INDEX bongsu_chat_rooms_push ON bongsu_chat_rooms (push_due) WHERE push_due IS NOT NULL;

-- Up to this seq it is decided whether the member is sent a push.
ALTER TABLE bongsu_chat_members ADD COLUMN pushed_seq bigint NOT NULL DEFAULT 0;
