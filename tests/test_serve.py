"""The service as processes: one with all roles, one for each, stopped gently, killed, with its database restarted."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx

from tests.support.processes import BONGSU, KEY, bongsu, serving
from tests.support.servers import RedisServer, start_postgres
from tests.support.waiting import eventually


def status_of(client: httpx.Client, event_id: str) -> str:
    return str(client.get(f"/api/events/{event_id}").json()["status"])


def is_listed(environment: dict[str, str], process: str) -> bool:
    """Whether the doctor lists such a process."""
    return process in " ".join(bongsu("doctor", environment=environment).stdout.split())


def test_an_event_goes_in_and_comes_out_done(migrated: dict[str, str]) -> None:
    with serving(migrated) as served, served.client(**KEY) as client:
        answer = client.post("/api/events", json={"eventType": "product.updated", "refId": "sku-1"}).json()
        event_id = answer["events"][0]["eventId"]
        eventually(lambda: status_of(client, event_id), "DONE")
        client.get("/nowhere", headers={"X-Request-ID": "look-for-me"})
        assert served.terminate() == 0
        served.wait_for("stopped")
    (line,) = [line for line in served.lines if line.get("request_id") == "look-for-me"]
    assert (line["event"], line["method"], line["path"], line["status"]) == ("request", "GET", "/nowhere", 404)


def test_roles_in_processes_of_their_own_do_the_same_together(migrated: dict[str, str], redis_server: RedisServer) -> None:
    environment = {**migrated, "BONGSU_REDIS_URL": redis_server.url, "BONGSU_POLL_SECONDS": "60"}
    with (
        serving(environment, "--role", "worker") as worker,
        serving(environment, "--role", "clock") as clock,
        serving(environment, "--role", "gateway") as gateway,
        serving(environment, "--role", "api") as api,
        api.client(**KEY) as client,
    ):
        for one in (worker, clock, gateway):
            with one.client(**KEY) as door:
                assert door.get("/readyz").status_code == 200
                # How it is, and no more: events go in by the API's door.
                assert door.post("/api/events", json={"eventType": "x"}).status_code == 404
        for one, role in ((worker, "worker"), (clock, "clock"), (gateway, "gateway"), (api, "api")):
            eventually(partial(is_listed, environment, f":{one.process.pid} ({role}) is "), True)
        # With a minute between polls, only a signal can be what makes the worker quick; one may be lost, not ten.
        for _ in range(10):
            answer = client.post("/api/events", json={"eventType": "product.updated"}).json()
        eventually(lambda: status_of(client, answer["events"][0]["eventId"]), "DONE")
        assert [one.terminate() for one in (api, gateway, clock, worker)] == [0, 0, 0, 0]
    assert not is_listed(environment, ") is ")


def test_what_another_process_published_is_found_by_polling(migrated: dict[str, str]) -> None:
    with serving(migrated) as served, served.client(**KEY) as client:
        done = bongsu("publish", "product.updated", "--ref", "sku-1", environment=migrated)
        event_id, word = done.stdout.split()
        assert word == "accepted"
        eventually(lambda: status_of(client, event_id), "DONE")


def test_killed_right_after_the_answer_the_event_is_there_and_finished_by_the_next(migrated: dict[str, str]) -> None:
    with serving(migrated, "--role", "api") as served, served.client(**KEY) as client:
        answer = client.post("/api/events", json={"eventType": "product.updated"}).json()
        served.process.kill()
    with serving(migrated) as served, served.client(**KEY) as client:
        eventually(lambda: status_of(client, answer["events"][0]["eventId"]), "DONE")
        assert client.get("/api/admin/stats").json()["events"] == {"pending": 0, "failed": 0, "unhandled": 0}


def test_sigterm_lets_a_request_under_way_finish(migrated: dict[str, str]) -> None:
    event_id = str(uuid4())
    body = json.dumps({"eventType": "product.updated", "eventId": event_id}).encode()
    with serving(migrated) as served:
        host, port = served.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as caller:
            caller.settimeout(30)
            head = (
                f"POST /api/events HTTP/1.1\r\nHost: {host}\r\nX-API-Key: server-key-of-the-tests\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
            )
            caller.sendall(head.encode())
            assert b"100 Continue" in caller.recv(1000)  # the server is reading this request's body now
            served.process.terminate()
            served.wait_for("stopping")
            served.process.terminate()  # again: no reason to hurry
            caller.sendall(body)
            assert b"202 Accepted" in caller.recv(10_000)
        assert served.process.wait(30) == 0
    with serving(migrated) as served, served.client(**KEY) as client:
        eventually(lambda: status_of(client, event_id), "DONE")


def test_the_database_restarted_under_a_running_service_heals_without_help(tmp_path: Path) -> None:
    server = start_postgres()
    environment = {
        "BONGSU_DATA_DIR": str(tmp_path),
        "BONGSU_DATABASE_URL": server.create_database(),
        "BONGSU_JWT_SECRET": "x" * 32,
        "BONGSU_API_KEYS": "server-key-of-the-tests",
        "BONGSU_POLL_SECONDS": "0.05",
        # The answer to a claim may be lost with the server: that event is due again when its lease has ended.
        "BONGSU_SEND_TIMEOUT_SECONDS": "2",
        "BONGSU_LEASE_SECONDS": "5",
    }
    try:
        assert bongsu("migrate", environment=environment).returncode == 0
        with serving(environment) as served, served.client(**KEY) as client:
            assert client.post("/api/events", json={"eventType": "product.updated"}).status_code == 202
            server.crash()
            response = client.post("/api/events", json={"eventType": "product.updated"})
            assert response.status_code == 503
            assert client.get("/readyz").status_code == 503
            assert client.get("/healthz").status_code == 200
            server.start()
            eventually(lambda: client.get("/readyz").status_code, 200)
            answer = client.post("/api/events", json={"eventType": "product.updated"}).json()
            eventually(lambda: status_of(client, answer["events"][0]["eventId"]), "DONE")
            eventually(lambda: client.get("/api/admin/stats").json()["events"], {"pending": 0, "failed": 0, "unhandled": 0})
            assert served.terminate() == 0
    finally:
        server.stop()


def test_the_embedded_store_needs_no_settings_at_all(tmp_path: Path) -> None:
    environment = {"BONGSU_DATA_DIR": str(tmp_path / "data")}
    # Started as a user starts it, and not forked from a process that has imported more than it imports itself.
    with serving(environment, program=BONGSU) as served:
        key = bongsu("apikey", environment=environment).stdout.strip()
        with served.client(Authorization=f"Bearer {key}") as client:
            assert client.post("/api/events", json={"eventType": "x"}).status_code == 202
        served.terminate()
        assert served.process.stdout is not None
        greeting = served.process.stdout.read()
    # Its output is not a terminal here.
    assert key not in greeting
    assert "bongsu apikey" in greeting
    assert f"{served.address}/docs" in greeting


def refused(environment: dict[str, str], *arguments: str) -> str:
    """What a start that must not happen says, in one line."""
    done = bongsu("serve", *arguments, environment=environment)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    return line


def test_settings_that_nothing_uses_yet_are_named_at_the_start(tmp_path: Path) -> None:
    prepared = {"BONGSU_KAFKA_SERVERS": "kafka:9092", "BONGSU_TRANSPORT": "kafka"}
    with serving({"BONGSU_DATA_DIR": str(tmp_path), **prepared}, "--role", "worker") as served:
        (line,) = [line for line in served.lines if "effect" in line["event"]]
        assert line["names"] == ["BONGSU_KAFKA_SERVERS", "BONGSU_TRANSPORT"]
        assert served.terminate() == 0


def test_a_start_that_cannot_be_says_why_in_one_line(tmp_path: Path, postgres_url: str) -> None:
    embedded = {"BONGSU_DATA_DIR": str(tmp_path)}
    assert "did you mean BONGSU_PORT?" in refused({**embedded, "BONGSU_PROT": "1"})
    assert "BONGSU_TIMEZONE" in refused({**embedded, "BONGSU_TIMEZONE": "Mars"})
    assert "takes all, or some of api, gateway, worker, clock" in refused(embedded, "--role", "boss")
    assert "BONGSU_DATA_DIR /proc/x cannot be created" in refused({"BONGSU_DATA_DIR": "/proc/x"})
    shared = {**embedded, "BONGSU_DATABASE_URL": postgres_url}
    assert "set BONGSU_JWT_SECRET and BONGSU_API_KEYS" in refused(shared)
    shared |= {"BONGSU_JWT_SECRET": "x" * 32, "BONGSU_API_KEYS": "k" * 16}
    assert "Run `bongsu migrate`" in refused(shared, "--port", "0")
    missing = {**shared, "BONGSU_DATABASE_URL": postgres_url.rsplit("/", 1)[0] + "/no_such_database"}
    assert "Correct BONGSU_DATABASE_URL" in refused(missing, "--port", "0")
    assert "BONGSU_PORT" in refused({**embedded, "BONGSU_PORT": "[/x]"})
    assert "BONGSU_REDIS_URL cannot be used" in refused({**embedded, "BONGSU_REDIS_URL": "redis://h?foo=bar"}, "--port", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another with --host and --port" in refused(embedded, "--port", str(taken.getsockname()[1]))


def test_a_start_without_its_server_waits_says_so_and_can_be_stopped(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "BONGSU_DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/x",
        "BONGSU_JWT_SECRET": "x" * 32,
        "BONGSU_API_KEYS": "k" * 16,
    }
    process = subprocess.Popen([*BONGSU, "serve", "--port", "0"], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = json.loads(process.stderr.readline())
        assert line["event"] == "waiting for the store"
        assert "Start the database" in line["error"]
        assert "hunter2" not in str(line)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_ctrl_c_is_a_gentle_stop_too(migrated: dict[str, str]) -> None:
    with serving(migrated) as served:
        served.process.send_signal(2)
        assert served.process.wait(30) == 0


def test_help_names_the_verbs() -> None:
    done = bongsu("--help", environment={})
    assert done.returncode == 0
    for verb in ("serve", "migrate", "publish", "token", "apikey", "doctor"):
        assert verb in done.stdout


def test_sigterm_ends_the_service_also_while_another_program_keeps_the_file_locked(tmp_path: Path) -> None:
    environment = {"BONGSU_DATA_DIR": str(tmp_path), "BONGSU_API_KEYS": KEY["X-API-Key"], "BONGSU_POLL_SECONDS": "0.05"}
    event = {"eventType": "reservation.confirmed", "targetId": "m-1", "refId": "r-1"}
    with serving(environment) as served, served.client(**KEY) as client:
        event_id = client.post("/api/events", json=event).json()["events"][0]["eventId"]
        with contextlib.closing(sqlite3.connect(tmp_path / "bongsu.db", isolation_level=None)) as rival:
            rival.execute("BEGIN IMMEDIATE")
            answer = client.post("/api/events", json=event)
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:bongsu:store-busy")
            served.process.terminate()
            assert served.process.wait(25) == 0  # orchestrators kill at 30 s
    with serving(environment) as served, served.client(**KEY) as client:
        eventually(lambda: status_of(client, event_id), "DONE")
        items = client.get("/api/admin/history", params={"userId": "m-1"}).json()["items"]
        assert [item["eventId"] for item in items] == [event_id]
