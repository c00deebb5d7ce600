"""`bongsu migrate --outbox`, and the dead letters of outboxes over the command line and HTTP, as an operator uses them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from bongsu.model import new_id
from tests.conftest import KEYS, SettingsMaker
from tests.ingress.databases import Place, run_plainly
from tests.ingress.source_rigs import OUTBOXES, empty_database, url_of
from tests.support.processes import KEY, bongsu, serving
from tests.support.waiting import eventually

# Everything that a migration could have left, by database.
OBJECTS = {
    "mysql": """
        SELECT table_name FROM information_schema.tables WHERE table_schema = database()
        UNION ALL SELECT routine_name FROM information_schema.routines WHERE routine_schema = database()
        UNION ALL SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = database()""",
    "postgresql": """
        SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind <> 'i'
        UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
        UNION ALL SELECT extname FROM pg_extension WHERE extname <> 'plpgsql'""",
    "sqlite": "SELECT name FROM sqlite_master WHERE type <> 'index'",
}


# What the doctor says about each.
CURES = {
    "sqlite": "can be read and written",
    "postgresql": "bongsu migrate --outbox URL",
    "mariadb": "bongsu migrate --outbox URL",
    "refused": "Correct the user and password",
    "away": "Start it, or correct its URL",
}


AWAY = {"billing": "postgresql", "orders": "mysql"}


def migrate_outbox(url: str) -> tuple[int | None, str, str]:
    done = bongsu("migrate", "--outbox", url, environment={})
    return done.returncode, done.stdout, done.stderr


def is_one_line(stderr: str) -> bool:
    return stderr.startswith("bongsu: ") and stderr.count("\n") == 1 and "Traceback" not in stderr


def test_the_command_creates_one_table_and_nothing_else_and_says_when_it_is_there(elsewhere: Place) -> None:
    run_plainly(elsewhere, "CREATE TABLE orders (ref varchar(64) PRIMARY KEY)")
    run_plainly(elsewhere, "INSERT INTO orders VALUES ('kept')")
    code, stdout, stderr = migrate_outbox(url_of(elsewhere))
    assert (code, stderr, stdout.count("\n")) == (0, "", 1)
    assert stdout.startswith("Created bongsu_outbox in ")
    assert sorted(name for (name,) in run_plainly(elsewhere, OBJECTS[elsewhere.database])) == ["bongsu_outbox", "orders"]

    run_plainly(elsewhere, "INSERT INTO bongsu_outbox (event_type) VALUES ('order.paid')")
    code, stdout, stderr = migrate_outbox(url_of(elsewhere))
    assert (code, stderr, stdout.count("\n")) == (0, "", 1)
    assert stdout.startswith("bongsu_outbox is there already in ")
    assert run_plainly(elsewhere, "SELECT count(*) FROM bongsu_outbox") == [(1,)]
    assert run_plainly(elsewhere, "SELECT ref FROM orders") == [("kept",)]


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
@pytest.mark.parametrize("wrong", ["login", "database"])
def test_a_login_or_a_database_that_is_refused_is_one_line_that_names_the_cure(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, wrong: str
) -> None:
    with empty_database(request, database, tmp_path) as place:
        parts = urlsplit(place.where)
        host = parts.netloc.rpartition("@")[2]
        url = (
            parts._replace(netloc=f"nobody-like-this:a-secret@{host}") if wrong == "login" else parts._replace(path="/none")
        )
        code, stdout, stderr = migrate_outbox(url.geturl())
        assert (code, stdout) == (1, "")
        assert is_one_line(stderr)
        assert "Correct the user and password" in stderr
        assert "a-secret" not in stderr
        assert run_plainly(place, OBJECTS[place.database]) == []


@pytest.mark.parametrize(
    ("url", "cure"),
    [
        ("mysql://orders:a-secret@127.0.0.1:1/orders", "Start it, or correct its URL"),
        ("postgresql://orders:a-secret@127.0.0.1:1/orders", "Start it, or correct its URL"),
        ("sqlite:////no/such/folder/shop.db", "Start it, or correct its URL"),
        ("sqlite:////", "names no file"),
        ("oracle://orders:a-secret@db/orders", "mysql"),
        ("orders", "mysql"),
        ("mysql://orders:a-secret@db", "names no database"),
        ("mysql://db/orders", "names no user"),
        ("mysql://orders:a-secret@db/orders?charset=utf8", "charset"),
        ("mysql://orders:a-secret@db:port/orders", "outbox"),
    ],
)
def test_a_url_that_cannot_be_used_is_one_line_without_its_password(url: str, cure: str) -> None:
    code, stdout, stderr = migrate_outbox(url)
    assert (code, stdout) == (1, "")
    assert is_one_line(stderr), stderr
    assert cure in stderr
    assert "a-secret" not in stderr


def test_the_doctor_checks_each_outbox_and_names_the_cure_of_those_that_cannot_be_used(
    request: pytest.FixtureRequest, tmp_path: Path, migrated_settings: SettingsMaker
) -> None:
    with contextlib.ExitStack() as stack:
        places = {name: stack.enter_context(empty_database(request, name, tmp_path)) for name in OUTBOXES}
        assert migrate_outbox(url_of(places["sqlite"]))[0] == 0
        environment = environment_with(migrated_settings, places)
        host = urlsplit(places["mariadb"].where).netloc.rpartition("@")[2]
        environment["BONGSU_OUTBOX_URLS"] += (
            f",refused=mysql://nobody:a-secret@{host}/orders,away=postgresql://shop:a-secret@127.0.0.1:1/shop"
        )
        found = bongsu("doctor", environment=environment)
    said = " ".join(found.stdout.split())
    for name, cure in CURES.items():
        assert cure in said.partition(f" outbox {name} ")[2].partition(" outbox ")[0], found.stdout + found.stderr
    assert found.returncode == 1
    assert "a-secret" not in found.stdout + found.stderr


# --- dead letters -----------------------------------------------------------------------------------------------------


def environment_with(settings_of: SettingsMaker, places: Mapping[str, Place]) -> dict[str, str]:
    return {
        "BONGSU_DATA_DIR": str(settings_of("sqlite").data_dir),
        "BONGSU_JWT_SECRET": KEYS["jwt_secret"],
        "BONGSU_API_KEYS": KEYS["api_keys"],
        "BONGSU_OUTBOX_URLS": ",".join(f"{name}={url_of(place)}" for name, place in places.items()),
        "COLUMNS": "300",
    }


def test_a_row_that_cannot_be_an_event_is_listed_mended_and_replayed_in_every_database(
    request: pytest.FixtureRequest, tmp_path: Path, migrated_settings: SettingsMaker
) -> None:
    folder = tmp_path / "callers"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        places = {name: stack.enter_context(empty_database(request, name, folder)) for name in OUTBOXES}
        environment = environment_with(migrated_settings, places)
        for place in places.values():
            assert migrate_outbox(url_of(place))[0] == 0
        served = stack.enter_context(serving(environment))
        client = stack.enter_context(served.client(**KEY))
        ids = {name: str(new_id()) for name in places}
        for name, place in places.items():
            run_plainly(
                place,
                "INSERT INTO bongsu_outbox (event_id, event_type, ref_id, payload) "
                f"VALUES ('{ids[name]}', 'order.paid', '{name}', 'no JSON')",
            )
        eventually(lambda: sorted(each["eventId"] for each in letters(client)), sorted(ids.values()))

        assert {(each["queue"], each["eventId"]) for each in letters(client)} == set(ids.items())
        assert all("payload" in each["error"] and each["state"] == "REJECTED" for each in letters(client))
        assert [each["queue"] for each in letters(client, queue="mariadb")] == ["mariadb"]
        assert letters(client, limit=1) == letters(client)
        listed = bongsu("dead", "list", "--source", "outbox", environment=environment)
        assert all(name in listed.stdout and event_id in listed.stdout for name, event_id in ids.items()), listed.stderr
        for event_id in ids.values():
            shown = bongsu("dead", "show", event_id, "--source", "outbox", environment=environment)
            assert "no JSON" in shown.stdout and "payload" in shown.stdout, shown.stderr
            details = client.get(f"/api/admin/dead/{event_id}", params={"source": "outbox"}).json()
            assert (details["eventId"], details["body"]) == (event_id, "no JSON")

        dry = bongsu("dead", "replay", "--source", "outbox", "--dry-run", environment=environment)
        assert (dry.returncode, dry.stdout) == (0, "3 matched, 0 replayed\n"), dry.stderr
        assert rejected(places) == 3

        for place in places.values():
            run_plainly(place, "UPDATE bongsu_outbox SET payload = '{\"amount\": 12000}'")
        one = bongsu("dead", "replay", "--source", "outbox", "--queue", "mariadb", environment=environment)
        assert one.stdout == "1 matched, 1 replayed\n", one.stderr
        eventually(lambda: {each["queue"] for each in letters(client)}, {"sqlite", "postgresql"})
        answer = client.post("/api/admin/dead/replay", json={"filter": {"source": "outbox"}})
        assert answer.json() == {"matched": 2, "replayed": 2}
        eventually(lambda: [client.get(f"/api/events/{each}").status_code for each in ids.values()], [200, 200, 200])
        eventually(lambda: sum(rows_of(place) for place in places.values()), 0)
        assert letters(client) == []
        runs = client.get("/api/admin/jobs/replay").json()["runs"]
        assert [(run["requestedBy"].partition(":")[0], run["input"]["filter"], run["counts"]) for run in runs] == [
            ("key", {"source": "outbox"}, {"matched": 2, "replayed": 2}),
            ("cli", {"source": "outbox", "queue": "mariadb"}, {"matched": 1, "replayed": 1}),
        ]
        assert served.terminate() == 0


def test_an_outbox_that_is_away_disturbs_no_other(
    request: pytest.FixtureRequest, tmp_path: Path, migrated_settings: SettingsMaker
) -> None:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(empty_database(request, "sqlite", tmp_path))
        assert migrate_outbox(url_of(place))[0] == 0
        environment = environment_with(migrated_settings, {"shop": place})
        away = (f"{name}={scheme}://shop:a-secret@127.0.0.1:1/shop" for name, scheme in AWAY.items())
        environment["BONGSU_OUTBOX_URLS"] = ",".join([*away, environment["BONGSU_OUTBOX_URLS"]])
        served = stack.enter_context(serving(environment))
        client = stack.enter_context(served.client(**KEY))
        for _ in AWAY:
            served.wait_for("source is away")
        for _ in range(3):
            run_plainly(
                place, f"INSERT INTO bongsu_outbox (event_id, event_type) VALUES ('{(event_id := new_id())}', 'order.paid')"
            )
            eventually(lambda: client.get(f"/api/events/{event_id}").status_code, 200)
        metrics = client.get("/metrics").text
        assert 'bongsu_source_up{source="outbox shop"} 1.0' in metrics
        assert 'bongsu_source_accepted_total{source="outbox shop"} 3.0' in metrics
        assert all(f'bongsu_source_up{{source="outbox {name}"}} 0.0' in metrics for name in AWAY)
        assert client.get("/readyz").status_code == 200
        listed = client.get("/api/admin/dead", params={"source": "outbox", "queue": "shop"})
        assert (listed.status_code, listed.json()["items"]) == (200, [])
        assert client.get("/api/admin/dead", params={"source": "outbox", "queue": "billing"}).status_code == 503
        assert served.terminate() == 0
    said = [line["source"] for line in served.lines if line["event"] == "source is away"]
    assert sorted(said) == [f"outbox {name}" for name in sorted(AWAY)], "once each"
    assert "a-secret" not in str(served.lines)


def letters(client: httpx.Client, **asked: Any) -> list[dict[str, Any]]:
    """All pages."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        answer = client.get("/api/admin/dead", params={"source": "outbox", **asked, **cursor})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["items"]
        if not page.get("next"):
            return found
        cursor = {"cursor": page["next"]}


def rejected(places: Mapping[str, Place]) -> int:
    return sum(
        run_plainly(place, "SELECT count(*) FROM bongsu_outbox WHERE failed_at IS NOT NULL")[0][0]
        for place in places.values()
    )


def rows_of(place: Place) -> int:
    return int(run_plainly(place, "SELECT count(*) FROM bongsu_outbox")[0][0])
