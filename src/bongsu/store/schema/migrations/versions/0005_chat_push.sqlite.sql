ALTER TABLE bongsu_chat_rooms ADD COLUMN push_due integer;
ALTER TABLE bongsu_chat_rooms ADD COLUMN push_from integer;
ALTER TABLE bongsu_chat_rooms ADD COLUMN push_seq integer NOT NULL DEFAULT 0;
ALTER TABLE bongsu_chat_rooms ADD COLUMN push_epoch integer NOT NULL DEFAULT 0;
ALTER TABLE bongsu_chat_rooms ADD COLUMN emptied_at integer;
CREATE INDEX bongsu_chat_rooms_push ON bongsu_chat_rooms (push_due) WHERE push_due IS NOT NULL;

ALTER TABLE bongsu_chat_members ADD COLUMN pushed_seq integer NOT NULL DEFAULT 0;
