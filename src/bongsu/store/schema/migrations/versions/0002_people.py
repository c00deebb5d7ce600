"""Members and what is known of them: preferences, devices, what they did with which product."""

from alembic import op

revision = "0002"
down_revision = "0001"

# Times are the dialect's own; everything else reads the same on both.
TABLES = """
CREATE TABLE bongsu_members (
    member_id   text     NOT NULL PRIMARY KEY CHECK (member_id <> ''),
    locale      text,
    timezone    text,
    email       text,
    phone       text,
    is_enabled  boolean  NOT NULL DEFAULT true,
    quiet_start integer  CHECK (quiet_start BETWEEN 0 AND 1439),
    quiet_end   integer  CHECK (quiet_end BETWEEN 0 AND 1439),
    created_at  {time}   NOT NULL DEFAULT {now},
    CHECK ((quiet_start IS NULL) = (quiet_end IS NULL))
);
CREATE TABLE bongsu_preferences (
    member_id   text     NOT NULL REFERENCES bongsu_members ON DELETE CASCADE,
    type        text     NOT NULL,
    is_enabled  boolean  NOT NULL,
    channels    integer,
    PRIMARY KEY (member_id, type)
);
CREATE TABLE bongsu_products (
    product_id  text     NOT NULL PRIMARY KEY CHECK (product_id <> ''),
    name        text     NOT NULL,
    price       double precision,
    stock       bigint,
    updated_at  {time}   NOT NULL DEFAULT {now}
);
CREATE TABLE bongsu_behaviors (
    product_id  text     NOT NULL,
    member_id   text     NOT NULL,
    action      text     NOT NULL CHECK (action IN ('VIEW', 'CLICK', 'ADD_TO_CART', 'PURCHASE')),
    at          {time}   NOT NULL DEFAULT {now},
    PRIMARY KEY (product_id, member_id, action)
);
CREATE TABLE bongsu_devices (
    member_id   text     NOT NULL REFERENCES bongsu_members ON DELETE CASCADE,
    device_id   text     NOT NULL,
    token       text     NOT NULL UNIQUE,
    platform    text     NOT NULL CHECK (platform IN ('ANDROID', 'IOS', 'WEB')),
    has_consent boolean  NOT NULL,
    status      text     NOT NULL DEFAULT 'ACTIVE' CHECK (status IN ('ACTIVE', 'INVALID')),
    updated_at  {time}   NOT NULL DEFAULT {now},
    PRIMARY KEY (member_id, device_id)
)
"""


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    time, now = ("timestamptz", "now()") if is_postgres else (
        "integer", "(CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))"
    )  # fmt: skip
    for statement in TABLES.format(time=time, now=now).split(";\n"):
        op.get_bind().exec_driver_sql(statement)
