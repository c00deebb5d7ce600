"""Outboxes that a team has made or filled in its own way, and servers that hang: nothing stops what is good."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest
from structlog.testing import capture_logs

from bongsu.errors import DriverMissing, OutboxDiffers, OutboxTooOld, SourceLoginRefused
from bongsu.ingress.consumer import Consumer
from bongsu.ingress.decode import decode_event
from bongsu.ingress.relay import RejectedFilter, mysql, open_outbox, open_relay, postgres
from bongsu.model import Event, new_id
from bongsu.runtime.loop import running
from bongsu.store.outbox import NewEvent
from tests.ingress.databases import connect_plainly, run_plainly
from tests.ingress.source_rigs import OUTBOXES, OutboxRig, QueueRig, empty_database, outbox_rig, rig_of, until_empty
from tests.support.waiting import until

MOMENT = datetime(2026, 3, 1, 0, 30, 15, 123456, tzinfo=UTC)

# As somebody's migration may have it, who knows the databases and not us.
OWN_TYPES = {
    "postgresql": """
        CREATE TABLE bongsu_outbox (
            event_id uuid PRIMARY KEY DEFAULT gen_random_uuid(), event_type varchar(200) NOT NULL, occurred_at timestamp,
            actor_id varchar(64), target_id uuid, ref_id bigint, payload jsonb,
            created_at timestamp NOT NULL DEFAULT now(), failed_at timestamp, error varchar(1000))""",
    "mariadb": """
        CREATE TABLE bongsu_outbox (
            event_id char(36) NOT NULL DEFAULT (uuid()) PRIMARY KEY, event_type varchar(200) NOT NULL,
            occurred_at timestamp(6) NULL, actor_id varchar(64), target_id char(36), ref_id bigint, payload json,
            created_at timestamp(6) NOT NULL DEFAULT now(6), failed_at timestamp(6) NULL, error text,
            KEY bongsu_outbox_waiting (failed_at, created_at)) CHARSET latin1""",
    "sqlite": """
        CREATE TABLE bongsu_outbox (
            event_id text PRIMARY KEY, event_type text NOT NULL, occurred_at datetime, actor_id text, target_id blob,
            ref_id integer, payload json, created_at datetime NOT NULL DEFAULT CURRENT_TIMESTAMP, failed_at datetime,
            error text)""",
}
# Times that PostgreSQL has and Python has not; zeros that MariaDB takes unless it is told to be strict.
ODD_TIMES = {
    "postgresql": ["infinity", "-infinity", "20000-01-01", "0044-03-15 BC", "294276-12-31"],
    "mariadb": ["0000-00-00", "0000-01-01", "9999-12-31 23:59:59.999999"],
}


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event | NewEvent] = []

    async def accept(self, events: Sequence[Event | NewEvent]) -> Sequence[bool]:
        self.events += events
        return [True] * len(events)

    @property
    def ids(self) -> list[str]:
        return [str(event.event_id) for event in self.events]


@pytest.fixture
async def rig(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> AsyncIterator[OutboxRig]:
    with empty_database(request, database, tmp_path) as place:
        async with outbox_rig(place) as rig:
            yield rig


@pytest.mark.parametrize("database", OWN_TYPES)
async def test_a_table_with_types_of_its_own_is_relayed_too(rig: OutboxRig, database: str) -> None:
    run_plainly(rig.place, "DROP TABLE bongsu_outbox", OWN_TYPES[database])
    if database == "postgresql":
        run_plainly(rig.place, f"ALTER DATABASE {urlsplit(rig.place.where).path[1:]} SET timezone = 'Asia/Seoul'")
    good, bad, member = new_id(), new_id(), new_id()
    at = f"{MOMENT:%Y-%m-%d %H:%M:%S.%f}"
    zone = {"mariadb": "SET time_zone = '+00:00'", "postgresql": "SET timezone = 'UTC'", "sqlite": "SELECT 1"}
    run_plainly(
        rig.place,
        zone[database],
        "INSERT INTO bongsu_outbox (event_id, event_type, occurred_at, target_id, ref_id, payload) VALUES "
        f"('{good}', 'order.paid', '{at}', '{member}', 42, '{{\"amount\": 1}}'), "
        f"('{bad}', 'order.paid', '{at}', NULL, NULL, '[]')",
    )
    recorder = Recorder()
    async with running(Consumer(rig.source(), decode_event, recorder.accept)):
        await until_empty(rig)
        (event,) = recorder.events
        assert (event.event_id, event.occurred_at) == (good, MOMENT)
        assert (event.target_id, event.ref_id) == (str(member), "42")
        assert list(await rig.rejected()) == [str(bad)]
        outbox = open_outbox(rig.url)
        assert await outbox.count_rejected(RejectedFilter(event_id=str(bad), event_type="order.paid")) == 1
        run_plainly(rig.place, "UPDATE bongsu_outbox SET payload = '{}'")
        assert await outbox.replay([str(bad)]) == 1
        await outbox.close()
        await until_empty(rig)
        assert recorder.ids == [str(good), str(bad)]


@pytest.mark.parametrize("database", ODD_TIMES)
async def test_a_time_that_is_out_of_range_stops_no_other_row(rig: OutboxRig, database: str) -> None:
    known = str(new_id())
    begin = "SET sql_mode = ''" if database == "mariadb" else "SET timezone = 'UTC'"
    for time in ODD_TIMES[database]:
        for columns in ("created_at", "occurred_at", "occurred_at, created_at"):
            values = ", ".join([f"'{time}'"] * len(columns.split(",")))
            run_plainly(
                rig.place, begin, f"INSERT INTO bongsu_outbox (event_type, {columns}) VALUES ('order.paid', {values})"
            )
    run_plainly(rig.place, f"INSERT INTO bongsu_outbox (event_id, event_type) VALUES ('{known}', 'order.paid')")
    recorder = Recorder()
    with capture_logs() as lines:
        async with running(Consumer(rig.source(), decode_event, recorder.accept)):
            await until_empty(rig)
    assert known in recorder.ids
    assert [line["event"] for line in lines if line["event"] != "messages rejected"] == []
    reasons = await rig.rejected()
    assert len(reasons) + len(recorder.ids) == 3 * len(ODD_TIMES[database]) + 1
    assert all("occurredAt" in reason for reason in reasons.values())


@pytest.mark.parametrize("database", ["mariadb"])
async def test_rows_that_their_id_does_not_find_are_an_error_and_the_others_arrive(rig: OutboxRig) -> None:
    """Else they would be relayed again at once, for ever."""
    run_plainly(rig.place, "ALTER TABLE bongsu_outbox MODIFY event_id varchar(64) CHARACTER SET utf8mb4 NOT NULL")
    known = str(new_id())
    run_plainly(rig.place, f"INSERT INTO bongsu_outbox (event_id, event_type) VALUES ('주문-1', 'x'), ('{known}', 'x')")
    run_plainly(rig.place, "ALTER TABLE bongsu_outbox MODIFY event_id varbinary(64) NOT NULL")
    run_plainly(rig.place, "UPDATE bongsu_outbox SET event_id = X'ff' WHERE event_id LIKE '주문%'")
    relay = rig.source()
    batch = await relay.receive(10)
    (good,) = [each for each in batch if each.handle == known]
    for each in batch:
        if each is not good:
            await relay.reject(each, "eventId")
    with pytest.raises(OutboxDiffers, match="1 are not found by their event_id"):
        await relay.acknowledge([good])
    await relay.close()
    assert await rig.waiting() == 1


@pytest.mark.parametrize("database", OUTBOXES)
async def test_a_table_of_another_shape_is_named_with_the_page_that_shows_ours(rig: OutboxRig) -> None:
    """Not with the command that creates it: the table is there."""
    outbox = open_outbox(rig.url)
    run_plainly(rig.place, "ALTER TABLE bongsu_outbox DROP COLUMN payload")
    with pytest.raises(OutboxDiffers, match=r"payload.*outbox-sql\.md"):
        await outbox.check()
    run_plainly(
        rig.place,
        "DROP TABLE bongsu_outbox",
        "CREATE TABLE bongsu_outbox (event_id varchar(64) PRIMARY KEY, event_type varchar(200) NOT NULL, payload text)",
    )
    for use in (outbox.create, outbox.check):
        with pytest.raises(OutboxDiffers, match=r"outbox-sql\.md"):
            await use()
    await outbox.close()


@pytest.fixture
def limited(rig: OutboxRig, database: str) -> Iterator[tuple[str, str]]:
    """A user of the server without any right, and the URL of the outbox with it."""
    name = f"bongsu_test_{secrets.token_hex(4)}"
    place = rig.place
    if database == "postgresql":
        run_plainly(place, f"CREATE ROLE {name} LOGIN PASSWORD 'a-secret'")
        grantee, drop = name, f"DROP OWNED BY {name}; DROP ROLE {name}"
    else:
        run_plainly(place, f"CREATE USER {name} IDENTIFIED BY 'a-secret'")
        grantee, drop = name, f"DROP USER {name}"
    host = urlsplit(place.where).netloc.rpartition("@")[2]
    yield grantee, urlsplit(place.where)._replace(netloc=f"{name}:a-secret@{host}").geturl()
    run_plainly(place, drop)


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
async def test_the_doctor_finds_a_right_that_is_missing_and_the_rights_of_the_page_suffice(
    rig: OutboxRig, limited: tuple[str, str]
) -> None:
    grantee, url = limited
    waiting = str(new_id())
    await rig.put({"eventId": waiting, "eventType": "order.paid"})
    outbox = open_outbox(url)
    for rights in ("SELECT", "SELECT, UPDATE"):
        run_plainly(rig.place, f"GRANT {rights} ON bongsu_outbox TO {grantee}")
        with pytest.raises(SourceLoginRefused, match="its rights"):
            await outbox.check()
    run_plainly(rig.place, f"GRANT SELECT, UPDATE, DELETE ON bongsu_outbox TO {grantee}")
    assert "answers" in await outbox.check()
    assert await rig.waiting() == 1
    await outbox.close()
    recorder = Recorder()
    async with running(Consumer(open_relay("orders", url), decode_event, recorder.accept)):
        await until_empty(rig)
    assert recorder.ids == [waiting]


@pytest.mark.parametrize(
    ("version", "is_good"),
    [
        ("10.11.19-MariaDB-0+deb12u1", True), ("5.5.5-10.6.0-MariaDB-log", True), ("11.4.2-MariaDB", True),
        ("10.5.29-MariaDB", False), ("5.5.5-10.5.1-MariaDB-log", False), ("5.5.68-MariaDB", False),
        ("8.0.4-rc-log", True), ("8.0.45-1", True), ("8.4.3", True), ("9.7.4-2", True),
        ("8.0.3-rc", False), ("5.7.44-log", False),
    ],
)  # fmt: skip
def test_a_server_that_is_too_old_is_named_with_what_is_needed(version: str, is_good: bool) -> None:
    try:
        mysql._check_version(version)
    except OutboxTooOld as error:
        assert not is_good
        assert version in str(error) and "MariaDB 10.6, MySQL 8.0.4" in str(error)
    else:
        assert is_good


async def test_a_password_that_needs_a_missing_package_is_one_line_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """MySQL's caching_sha2_password without TLS, where PyMySQL was installed alone."""

    def connect(**_options: Any) -> None:
        raise RuntimeError("'cryptography' package is required for sha256_password or caching_sha2_password auth methods")

    monkeypatch.setattr(pymysql, "connect", connect)
    outbox = open_outbox("mysql://orders:a-secret@127.0.0.1/orders")
    with pytest.raises(DriverMissing, match=r"cryptography.*pip install 'bongsu\[mysql\]'"):
        await outbox.check()
    await outbox.close()


LOCK = {"postgresql": "LOCK TABLE bongsu_outbox", "mariadb": "LOCK TABLES bongsu_outbox WRITE"}
UNLOCK = {"postgresql": "COMMIT", "mariadb": "UNLOCK TABLES"}
CONNECTIONS = {
    "postgresql": """
        SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bongsu relay' AND datname = current_database()""",
    "mariadb": "SELECT count(*) FROM information_schema.processlist WHERE db = database() AND id <> connection_id()",
}


@pytest.mark.parametrize("database", LOCK)
async def test_a_table_that_is_locked_for_long_is_waited_for_and_does_not_use_up_connections(
    rig: OutboxRig, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while it is altered."""
    for module in (mysql, postgres):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 2)
    waiting = str(new_id())
    await rig.put({"eventId": waiting, "eventType": "order.paid"})
    recorder = Recorder()
    taking = Consumer[Event | NewEvent](rig.source(), decode_event, recorder.accept)
    with contextlib.closing(connect_plainly(rig.place)) as other:
        cursor = other.cursor()
        cursor.execute(LOCK[database])
        async with running(taking):
            await until(lambda: taking._source_outage._failures >= 4)
            ((connections,),) = run_plainly(rig.place, CONNECTIONS[database])
            cursor.execute(UNLOCK[database])
            await until_empty(rig)
    assert recorder.ids == [waiting]
    # The relay's, one that the server has not ended yet, and the one that holds the lock.
    assert connections <= 3


# --- a server that hangs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["postgresql", "mariadb", "rabbitmq"])
async def test_a_source_that_hangs_is_given_up_and_found_again(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections stay open, and no answer comes, as with a machine or a network that stands still."""
    for module in (mysql, postgres):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 1)
    async with rig_of(name, request, tmp_path) as rig:
        assert isinstance(rig, OutboxRig | QueueRig)
        if isinstance(rig, QueueRig):
            rig.options = "?heartbeat=1"
        forwarder = rig.forwarder
        assert forwarder is not None
        messages = [{"eventId": str(new_id()), "eventType": "order.paid"} for _ in range(2)]
        recorder = Recorder()
        with capture_logs() as lines:
            async with running(Consumer(rig.source(), decode_event, recorder.accept)):
                await rig.put(messages[0])
                await until_empty(rig)
                forwarder.hang()
                await until(lambda: any(line["event"] == "source is away" for line in lines))
                await rig.put(messages[1])
                forwarder.flow()
                await until_empty(rig)
        assert recorder.ids == [message["eventId"] for message in messages]
        said = [line["event"] for line in lines]
        assert said[0] == "source is away" and said[-1] == "source is back"
        assert "crashed" not in str(lines)
