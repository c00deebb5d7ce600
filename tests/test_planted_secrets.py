"""Secrets and personal data are planted in the settings, the store and the requests of a running service, and looked for in
what it shows: logs, errors, pages, metrics, the doctor, and the text of its objects.

The providers repeat in their errors whatever they were sent, as some do.
"""

from __future__ import annotations

import base64
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from bongsu.deliver.channels.email.smtp import Server
from bongsu.deliver.channels.http.proxy import Proxy
from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from tests.simulator.account import service_account
from tests.support.processes import bongsu, serving

API_KEY, OLD_KEY = "planted-api-key-1", "planted-api-key-2"
JWT_SECRET = "planted-jwt-secret-of-more-than-32-bytes"
SMTP_PASSWORD, SMS_PASSWORD, REDIS_PASSWORD = "planted-smtp-password", "planted-sms-password", "planted-redis-password"
DATABASE_PASSWORD, JWKS_PASSWORD = "planted-database-password", "planted-jwks-password"
DEVICE_TOKEN, ACCESS_TOKEN = "planted-device-token", "planted-access-token"
OTHER_KEY = "planted-wrong-key-of-a-caller"
EMAIL, PHONE = "planted.address@example.org", "+821098765432"
PLANTED = [
    API_KEY, OLD_KEY, JWT_SECRET, SMTP_PASSWORD, SMS_PASSWORD, REDIS_PASSWORD, DATABASE_PASSWORD, JWKS_PASSWORD,
    DEVICE_TOKEN, ACCESS_TOKEN, OTHER_KEY, EMAIL, PHONE, PHONE.removeprefix("+"),
]  # fmt: skip
SERVER = {"Authorization": f"Bearer {API_KEY}"}


def encodings(secret: str) -> Iterator[str]:
    """As it is, and inside of base64 wherever it begins: what is in the middle of it does not depend on what is around."""
    yield secret
    for offset in range(3):
        encoded = base64.b64encode(b"x" * offset + secret.encode()).decode()
        yield encoded[4 : len(encoded) - 8] if offset else encoded[: len(encoded) - 8]


def find(text: str, *more: str) -> set[str]:
    return {secret for secret in (*PLANTED, *more) for form in encodings(secret) if form in text}


# --- providers that repeat what they are sent ------------------------------------------------------------------------


class EchoingHttp(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while line := self.rfile.readline():
            headers = dict(self._headers())
            body = self.rfile.read(int(headers.get(b"content-length", b"0")))
            # Not the headers: who repeats those shows our password to everybody else too.
            wrong = f"cannot read {(line + body).decode('latin-1')}"
            if line.startswith(b"POST /token"):
                self._answer(b"200 OK", {"access_token": ACCESS_TOKEN, "expires_in": 3600, "token_type": "Bearer"})
            else:
                error = {"status": "INVALID_ARGUMENT", "code": 400, "message": wrong}
                self._answer(b"400 Bad Request", {"error": error, "code": 21211, "message": wrong})

    def _headers(self) -> Iterator[tuple[bytes, bytes]]:
        while (line := self.rfile.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            yield name.lower(), value.strip()

    def _answer(self, status: bytes, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        head = b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\nContent-Length: "
        self.wfile.write(head + str(len(body)).encode() + b"\r\n\r\n" + body)


class EchoingSmtp(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            word = line[:4].upper()
            if word == b"EHLO":
                self.wfile.write(b"250-here\r\n250 AUTH PLAIN\r\n")
            elif word == b"RCPT":
                self.wfile.write(b"550 5.1.1 no such user: " + line.strip() + b"\r\n")
            elif word == b"AUTH":
                self.wfile.write(b"235 2.7.0 welcome " + line.strip() + b"\r\n")
            else:
                self.wfile.write(b"250 2.0.0 " + line.strip() + b"\r\n")


@contextmanager
def listening(handler: type[socketserver.StreamRequestHandler]) -> Iterator[str]:
    class Listener(socketserver.ThreadingTCPServer):
        daemon_threads, block_on_close = True, False

    with Listener(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


# --- a running service ------------------------------------------------------------------------------------------------


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[dict[str, str]]:
    with listening(EchoingHttp) as http, listening(EchoingSmtp) as smtp:
        account = service_account(f"http://{http}/token")
        (tmp_path / "account.json").write_text(json.dumps(account))
        yield {
            "BONGSU_DATA_DIR": str(tmp_path / "data"),
            "BONGSU_API_KEYS": f"{API_KEY},{OLD_KEY}",
            "BONGSU_JWT_SECRET": JWT_SECRET,
            "BONGSU_FCM_CREDENTIALS": str(tmp_path / "account.json"),
            "BONGSU_FCM_URL": f"http://{http}",
            "BONGSU_SMTP_URL": f"smtp://mailer:{SMTP_PASSWORD}@{smtp}?tls=never",
            "BONGSU_EMAIL_FROM": "shop@example.org",
            "BONGSU_SMS_URL": f"http://sender:{SMS_PASSWORD}@{http}/sms",
            "BONGSU_POLL_SECONDS": "0.05",
            "BONGSU_MAX_RETRIES": "0",
        }


def make_failures(client: httpx.Client) -> None:
    """A notification to a member on every channel, all of which fail."""
    assert client.put("/api/members/m-1", json={"email": EMAIL, "phone": PHONE}).status_code == 200
    device = {"token": DEVICE_TOKEN, "platform": "ANDROID", "pushConsent": True}
    assert client.put("/api/members/m-1/devices/phone", json=device).status_code == 200
    direct = {"type": "NOTICE", "userIds": ["m-1"], "title": "a", "body": "b", "channels": ["EMAIL", "SMS", "PUSH"]}
    assert client.post("/api/notifications", json=direct).status_code == 202


def hostile_answers(client: httpx.Client, token: str) -> Iterator[httpx.Response]:
    """Errors, and what anybody may see."""
    for key in (OTHER_KEY, token[:-2] + "xx", f"{API_KEY}x"):
        for headers in (
            {"Authorization": f"Bearer {key}"},
            {"Authorization": key},
            {"X-API-Key": key},
            {"Cookie": f"bongsu_session={key}"},
        ):
            for path in ("/api/notifications", "/api/admin/stats", "/api/notifications/stream"):
                yield httpx.get(f"{client.base_url}{path}", headers=headers)
    yield client.put("/api/members/m-1", json={"email": f"{EMAIL} x", "phone": f"{PHONE}x"})
    yield client.put("/api/members/m-1/devices/phone", json={"token": f"{DEVICE_TOKEN} \n", "platform": "X"})
    yield client.put("/api/members/m-1/devices/phone", content=f'{{"token": "{DEVICE_TOKEN}",')
    yield client.post("/api/events", content=json.dumps({"eventType": "", "payload": {"email": EMAIL}}))
    for path in ("/openapi.json", "/docs", "/bongsu-bell.js", "/healthz", "/readyz", "/nowhere", "/demo"):
        yield client.get(path)


def operators_answers(client: httpx.Client) -> Iterator[httpx.Response]:
    for path in (
        "/metrics",
        "/api/admin/dead",
        "/api/admin/history",
        "/api/admin/events",
        "/api/admin/jobs",
        "/api/admin/stats",
    ):
        yield client.get(path)


def test_nothing_planted_is_in_logs_errors_pages_and_metrics(planted: dict[str, str]) -> None:
    private_key = json.loads(Path(planted["BONGSU_FCM_CREDENTIALS"]).read_text())["private_key"]
    more = [line for line in private_key.splitlines() if len(line) == 64]
    with serving(planted) as served, served.client(**SERVER) as client:
        token = bongsu("token", "m-1", environment=planted).stdout.strip()
        more.append(token)
        make_failures(client)
        wait_until_failed(client)
        for answer in [*hostile_answers(client, token), *operators_answers(client)]:
            assert not find(answer.text + str(answer.headers), *more), (answer.request.url, answer.text)
        begun = httpx.post(f"{client.base_url}/api/session", headers={"Authorization": f"Bearer {token}"})
        assert begun.status_code == 204
        doctor = bongsu("doctor", environment=planted)
        dead = bongsu("dead", "list", environment=planted)
        assert all(channel in dead.stdout for channel in ("EMAIL", "SMS", "PUSH"))
        for shown in (doctor.stdout, doctor.stderr, dead.stdout, dead.stderr):
            assert not find(shown, *more), shown
        assert served.terminate() == 0
        served.wait_for("stopped")
    assert len(served.lines) > 20
    for line in served.lines:
        assert not find(json.dumps(line, ensure_ascii=False), *more), line


def wait_until_failed(client: httpx.Client) -> None:
    def failed() -> bool:
        items = client.get("/api/admin/history", params={"userId": "m-1"}).json()["items"]
        deliveries = [delivery for item in items for delivery in item["deliveries"]]
        return len(deliveries) == 3 and all(delivery["attempts"] for delivery in deliveries)

    waited = threading.Event()
    while not failed():
        waited.wait(0.05)


def test_no_password_of_a_server_that_is_away_is_shown(planted: dict[str, str]) -> None:
    away = planted | {
        "BONGSU_DATABASE_URL": f"postgresql://u:{DATABASE_PASSWORD}@127.0.0.1:1/bongsu",
        "BONGSU_REDIS_URL": f"redis://:{REDIS_PASSWORD}@127.0.0.1:1/0",
        "BONGSU_JWKS_URL": f"http://u:{JWKS_PASSWORD}@127.0.0.1:1/keys",
        "BONGSU_JWT_ISSUER": "i",
        "BONGSU_JWT_AUDIENCE": "a",
    }
    for command in (["doctor"], ["migrate"], ["dead", "list"], ["publish", "x"]):
        ended = bongsu(*command, environment=away)
        assert ended.returncode, command
        assert not find(ended.stdout + ended.stderr), (command, ended)


# --- the text of objects ----------------------------------------------------------------------------------------------


def test_no_object_that_holds_a_secret_shows_it() -> None:
    settings = _settings()
    shown: list[object] = [
        settings,
        Keys.load(settings),
        Keys.load(settings).with_guests(["mina"]),
        Server.at(settings.smtp_url),
        Proxy("proxy", 3128, f"user:{SMS_PASSWORD}"),
    ]
    for each in shown:
        assert not find(f"{each!r} {each!s}"), each
    # What it shows helps somebody who looks for a mistake.
    assert "daily_limit" in repr(settings)


def _settings(**more: Any) -> Settings:
    urls = {
        "database_url": f"postgresql://u:{DATABASE_PASSWORD}@h/d",
        "redis_url": f"redis://:{REDIS_PASSWORD}@h",
        "smtp_url": f"smtps://u:{SMTP_PASSWORD}@h",
        "sms_url": f"https://u:{SMS_PASSWORD}@h",
        "jwks_url": f"https://u:{JWKS_PASSWORD}@h",
        "opensearch_url": f"https://u:{SMS_PASSWORD}@h",
        "rabbitmq_url": f"amqp://u:{SMS_PASSWORD}@h",
        "outbox_urls": f"shop=mysql://u:{DATABASE_PASSWORD}@h/d",
        "recommendation_url": f"https://u:{SMS_PASSWORD}@h",
    }
    keys = {"api_keys": API_KEY, "jwt_secret": JWT_SECRET, "jwt_issuer": "i", "jwt_audience": "a"}
    return Settings(**urls, **keys, **more)


def test_no_secret_is_in_the_complaint_about_another_setting() -> None:
    with pytest.raises(ValidationError) as refused:
        _settings(port=-1)
    assert not find(str(refused.value))
    with pytest.raises(ValidationError) as refused:
        Settings(jwks_url=f"https://u:{JWKS_PASSWORD}@h")
    assert not find(str(refused.value))
