-- Drawn from the same sequence as notification_id, under the member's lock, when the row was last updated or left the
-- inbox. NULL: never.
ALTER TABLE bongsu_notifications ADD COLUMN change_id integer;
-- When its content last changed: a digest has grown.
ALTER TABLE bongsu_notifications ADD COLUMN updated_at integer;
-- When the member first saw it in the list.
ALTER TABLE bongsu_notifications ADD COLUMN seen_at integer;
-- When the member archived it. Such a row is not among the inbox's: its channels lack IN_APP.
ALTER TABLE bongsu_notifications ADD COLUMN archived_at integer;
-- When the member deleted it from the inbox. The history keeps it.
ALTER TABLE bongsu_notifications ADD COLUMN deleted_at integer;
-- The newest change id of this member's notifications and of the two marks below. NULL: nothing was ever changed.
ALTER TABLE bongsu_members ADD COLUMN changed_id integer;
-- The last notification that a read-all covered.
ALTER TABLE bongsu_members ADD COLUMN read_up_to integer;
-- The change id of that read-all.
ALTER TABLE bongsu_members ADD COLUMN read_change_id integer;
-- The last notification that the member has seen in the list.
ALTER TABLE bongsu_members ADD COLUMN seen_up_to integer;
-- The change id of the last time the member saw the list.
ALTER TABLE bongsu_members ADD COLUMN seen_change_id integer;

-- What has changed since a cursor.
CREATE INDEX bongsu_notifications_changed ON bongsu_notifications (member_id, change_id) WHERE change_id IS NOT NULL;
-- The list of the archived.
CREATE INDEX bongsu_notifications_archived ON bongsu_notifications (member_id, notification_id)
    WHERE archived_at IS NOT NULL;

-- Withdrawals travel by change id: no gateway asks for the latest of them any more.
DROP INDEX bongsu_cancellations_withdrawn;
