"""Settings: the environment over the file over the defaults, and one line for whatever is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

import bongsu
from bongsu.errors import BadSettings
from bongsu.settings import NOT_USED_YET, PREFIX, Settings

NOWHERE = Path("no such file.toml")


def complaint(environment: dict[str, str], file: Path = NOWHERE) -> str:
    with pytest.raises(BadSettings) as caught:
        Settings.load(environment, file)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_defaults_are_the_contracts() -> None:
    settings = Settings.load({}, NOWHERE)
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert settings.is_embedded
    assert settings.data_dir == Path(".bongsu")
    assert (settings.daily_limit, settings.duplicate_hours, settings.max_retries) == (10, 1, 3)
    assert settings.timezone == "Asia/Seoul"
    assert settings.recovery_cron == "*/5 9-21 * * *"
    assert (settings.sse_max_connections, settings.sse_ping_seconds, settings.sse_timeout_seconds) == (3, 20, 1800)


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bongsu.toml"
    file.write_text('port = 9000\ntimezone = "UTC"\napi_keys = "one, two"\n')
    settings = Settings.load({"BONGSU_PORT": "9001", "PATH": "/bin"}, file)
    assert (settings.port, settings.timezone, settings.keys) == (9001, "UTC", ("one", "two"))


def test_an_unknown_name_is_refused_and_the_near_one_named() -> None:
    assert "BONGSU_PROT in the environment is not a setting: did you mean BONGSU_PORT?" in complaint({"BONGSU_PROT": "1"})
    assert "remove it" in complaint({"BONGSU_ZZZZZZ": "1"})


def test_an_unknown_name_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bongsu.toml"
    file.write_text("daily_limt = 3\n")
    assert f"BONGSU_DAILY_LIMT in {file} is not a setting: did you mean BONGSU_DAILY_LIMIT?" in complaint({}, file)


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bongsu.toml"
    file.write_text("port: 9000")
    assert "cannot be read" in complaint({}, file)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PORT", "eighty", "must be a valid integer"),
        ("PORT", "70000", "less than or equal to 65535"),
        ("TIMEZONE", "Asia", "must be a time zone"),
        ("TIMEZONE", "../etc/passwd", "must be a time zone"),
        ("TIMEZONE", "Seoul", "must be a time zone such as Asia/Seoul"),
        ("DATABASE_URL", "mysql://x", "must begin with postgresql"),
        ("REDIS_URL", "localhost:6379", "must begin with redis"),
        ("REDIS_URL", "redis://localhost:abc", "its host or port cannot be read"),
        ("DATABASE_URL", "postgresql://u@h:abc/db", "its host or port cannot be read"),
        ("DATABASE_URL", "sqlite:foo", "must begin with postgresql"),
        ("RECOVERY_CRON", "every day", "must be five cron fields"),
        ("RECOVERY_CRON", "61 * * * *", "must be five cron fields"),
        ("RECOVERY_CRON", "0 0 30 2 *", "on a day that exists"),
        ("RECOMMENDATION_CRON", "0 0 9 * * *", "must be five cron fields"),
        ("POLL_SECONDS", "0", "greater than 0"),
        ("POLL_SECONDS", "nan", "finite number"),
        ("PRICE_DROP_THRESHOLD", "101", "less than or equal to 100"),
        ("FCM_CREDENTIALS", "/no/such/file", "must be the path of a file that exists"),
        ("API_KEYS", "a,,b", "without empty parts"),
        ("SMTP_URL", "mail.example:25", "must begin with smtp:// or smtps://"),
        ("SMTP_URL", "smtp://mail.example?tls=maybe", "takes ?tls=required and ?tls=never, and no other option"),
        ("SMTP_URL", "smtp://mail.example?ssl=1", "takes ?tls=required and ?tls=never, and no other option"),
        ("EMAIL_FROM", "the shop", "must be an e-mail address, as in Shop <hello@shop.example>"),
        ("EMAIL_FROM", "a@b.example\nBcc: c@d.example", "must be an e-mail address"),
        ("SMS_URL", "gateway.example", "must be an http:// or https:// gateway, or an Apprise URL"),
        ("SMS_URL", "https://gateway.example:abc/", "its host or port cannot be read"),
        ("SMS_TEMPLATE", '["{to}", "{text}"]', "must be a JSON object"),
        ("SMS_TEMPLATE", "{to}", "must be a JSON object"),
        ("SMS_TEMPLATE", '{"to": "{to}", "say": "{words}"}', "has an unknown placeholder {words}"),
        ("SMS_TEMPLATE", '{"to": "{to}"}', "must contain {to} and {text}"),
        ("KAFKA_FORMAT", "xml", "must be 'avro' or 'json'"),
        ("TRANSPORT", "pigeon", "must be 'store' or 'kafka'"),
        ("OUTBOX_URLS", "mysql://shop", "must be name=url, comma separated"),
        ("OUTBOX_URLS", "shop=oracle://u:hidden@h/d", "has shop, whose URL must begin with mysql:// or mariadb://"),
        ("OUTBOX_URLS", "shop=mysql://u:hidden@h", "names no database"),
        ("OUTBOX_URLS", "shop=mysql://h/d", "names no user"),
        ("OUTBOX_URLS", "shop=mysql://u@h:port/d", "is not a URL"),
        ("OUTBOX_URLS", "shop=mysql://u@h/d?charset=latin1", "has an option that is not known, charset"),
        ("OUTBOX_URLS", "a=mysql://u@h/d,a=mysql://u@h/e", "has a name twice"),
        ("CHAT_RATE", "0", "greater than or equal to 1"),
        ("MAX_HEADER_BYTES", "100", "greater than or equal to 4096"),
        ("MAX_HEADERS", "5", "greater than or equal to 20"),
        ("REQUEST_TIMEOUT_SECONDS", "0", "greater than 0"),
        ("MAX_CONNECTIONS_PER_ADDRESS", "-1", "greater than or equal to 0"),
    ],
)
def test_a_bad_value_is_refused_in_one_line_that_names_it(name: str, value: str, says: str) -> None:
    text = complaint({f"BONGSU_{name}": value})
    assert f"BONGSU_{name}" in text
    assert says in text


@pytest.mark.parametrize("url", ["PostgreSQL://u@h/d", " postgresql://u@h/d ", "postgres://u@h/d"])
def test_postgresql_is_known_however_it_is_written(url: str) -> None:
    assert not Settings.load({"BONGSU_DATABASE_URL": url}, NOWHERE).is_embedded


def test_a_secret_is_not_repeated_in_a_complaint() -> None:
    assert "hunter2" not in complaint({"BONGSU_API_KEYS": "hunter2,,x"})
    assert "hunter2" not in complaint({"BONGSU_DATABASE_URL": "mysql://u:hunter2@h/d"})
    assert "hunter2" not in complaint({"BONGSU_SMS_TEMPLATE": '{"key": "hunter2"}'})


def test_settings_are_frozen_and_hide_their_secrets() -> None:
    settings = Settings(jwt_secret="hunter2", api_keys="hunter3")
    with pytest.raises(ValidationError):
        settings.port = 1  # type: ignore[misc]
    assert "hunter" not in repr(settings)


def test_settings_without_effect_are_accepted_and_named() -> None:
    given = {"BONGSU_KAFKA_SERVERS": "k:9092", "BONGSU_OPENSEARCH_URL": "http://h:9200"}
    settings = Settings.load({**given, "BONGSU_PORT": "1"}, NOWHERE)
    assert settings.without_effect == ["BONGSU_KAFKA_SERVERS", "BONGSU_OPENSEARCH_URL"]
    assert Settings.load({"BONGSU_PORT": "1"}, NOWHERE).without_effect == []


def test_what_is_not_used_yet_is_marked_in_the_code_and_in_the_documentation() -> None:
    """The doctor reads some of them only to check that what they point at answers."""
    package = Path(bongsu.__file__).parent
    sources = "".join(file.read_text() for file in package.rglob("*.py") if file.name != "doctor.py")
    sources += (package / "settings" / "__init__.py").read_text().replace("self.", "settings.")
    used = {name for name in Settings.model_fields if re.search(rf"settings\.{name}\b", sources)}
    assert used.isdisjoint(NOT_USED_YET)
    assert used | NOT_USED_YET == set(Settings.model_fields)
    lines = re.findall(rf"\| `{PREFIX}(\w+)` \|.*\| (not used yet)?", (package.parents[1] / "docs/settings.md").read_text())
    assert {name.lower() for name, _ in lines} == set(Settings.model_fields)
    assert {name.lower() for name, mark in lines if mark} == NOT_USED_YET
