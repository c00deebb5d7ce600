"""Which database a URL names."""

from __future__ import annotations

from urllib.parse import urlsplit

from bongsu.errors import BadSettings
from bongsu.ingress.relay.outbox import OutboxDatabase
from bongsu.ingress.relay.postgres import PostgresOutbox
from bongsu.ingress.relay.source import Relay
from bongsu.ingress.relay.sqlite import SqliteOutbox
from bongsu.settings.checks import check_outbox_url


def open_relay(name: str, url: str) -> Relay:
    """Nothing is connected yet."""
    outbox = open_outbox(url)
    return Relay(name, outbox, None if isinstance(outbox, SqliteOutbox) else open_outbox(url))


def open_outbox(url: str) -> OutboxDatabase:
    """Nothing is connected yet. Raises BadSettings."""
    if problem := check_outbox_url(url):
        raise BadSettings(f"The URL of the outbox {problem}")
    match urlsplit(url).scheme.lower():
        case "postgresql" | "postgres":
            return PostgresOutbox(url)
        case "sqlite":
            return SqliteOutbox(url)
    from bongsu.ingress.relay.mysql import MysqlOutbox  # noqa: PLC0415 (its driver is an extra)

    return MysqlOutbox(url)
