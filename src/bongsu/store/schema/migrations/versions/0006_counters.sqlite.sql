CREATE TABLE bongsu_counters (
    counter    text    NOT NULL CHECK (counter <> ''),
    key        text    NOT NULL CHECK (key <> ''),
    -- SQLite makes an integer that is too large a floating-point number.
    value      integer NOT NULL CHECK (typeof(value) = 'integer'),
    changed_at integer NOT NULL,
    PRIMARY KEY (counter, key)
) WITHOUT ROWID;

CREATE TABLE bongsu_count_deltas (
    delta_id   integer NOT NULL PRIMARY KEY AUTOINCREMENT,
    counter    text    NOT NULL CHECK (counter <> ''),
    key        text    NOT NULL CHECK (key <> ''),
    delta      integer NOT NULL CHECK (typeof(delta) = 'integer'),
    created_at integer NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS integer))
);
CREATE INDEX bongsu_count_deltas_key ON bongsu_count_deltas (counter, key);

CREATE TABLE bongsu_count_batches (
    batch_id       integer NOT NULL PRIMARY KEY AUTOINCREMENT,
    processed_from integer NOT NULL,
    processed_to   integer NOT NULL,
    keys           integer NOT NULL,
    sum            numeric NOT NULL
);

CREATE TABLE bongsu_counted_items (
    counter    text    NOT NULL CHECK (counter <> ''),
    key        text    NOT NULL CHECK (key <> ''),
    name       text    NOT NULL CHECK (name <> ''),
    root       text,
    is_counted boolean NOT NULL,
    deleted_at integer,
    PRIMARY KEY (counter, key, name)
) WITHOUT ROWID;
CREATE INDEX bongsu_counted_items_root ON bongsu_counted_items (counter, key, root) WHERE root IS NOT NULL;
CREATE INDEX bongsu_counted_items_deleted ON bongsu_counted_items (deleted_at) WHERE deleted_at IS NOT NULL;
