"""Which tests `pytest --quick` leaves out: those that need a server or another process, those marked slow, and files
that take more than a few seconds."""

from __future__ import annotations

import subprocess

import pytest

from tests.support import processes, servers
from tests.support.providers.scripted import Scripted

# Folders of tests that break or browse a running service.
SLOW_FOLDERS = {"tests.chaos", "tests.web"}
# Each takes more than four seconds, on SQLite alone. `make test` runs them.
LONG_FILES = {
    "tests.api.test_jobs", "tests.api.test_document_fuzz", "tests.api.test_http_protocol", "tests.api.test_cancel",
    "tests.decide.test_bulk", "tests.deliver.test_ranks", "tests.deliver.test_cancelled_sends", "tests.deliver.test_outage",
    "tests.deliver.test_dispatcher", "tests.deliver.test_stop", "tests.deliver.channels.test_conformance",
    "tests.live.test_ends", "tests.live.test_access", "tests.live.test_stream",
    "tests.store.outbox.test_event_plans", "tests.chat.test_killed_push", "tests.chat.test_push",
    "tests.deliver.test_recorder",
}  # fmt: skip
# Fixtures that start a server or a process, asked for by name or while a test runs.
SERVER_FIXTURES = {
    "postgres", "postgres_url", "redis_server", "running_simulator", "simulator", "browser",
    "mail_server", "sms_gateway", "environment", "postgresql_onlooker", "postgresql_outbox_onlooker", "mariadb",
    "mysql_outbox_onlooker", "rabbit_server", "rabbitmq_url",
}  # fmt: skip
# In the parameters that a test's name ends with.
SERVER_WORDS = ("postgresql", "redis", "mysql", "mariadb", "rabbitmq")
# A module that imports one of these starts servers or processes of its own.
STARTERS = (
    subprocess, processes.bongsu, processes.serving, processes.forks, Scripted,
    servers.start_postgres, servers.start_redis, servers.find_postgres, servers.find_redis,
)  # fmt: skip


def is_quick(test: pytest.Item) -> bool:
    if not isinstance(test, pytest.Function):
        return False
    return not (
        test.get_closest_marker("slow")
        or any(test.module.__name__.startswith(folder) for folder in SLOW_FOLDERS)
        or test.module.__name__ in LONG_FILES
        or SERVER_FIXTURES.intersection(test.fixturenames)
        or any(word in test.name.partition("[")[2] for word in SERVER_WORDS)
        or any(value is starter for value in vars(test.module).values() for starter in STARTERS)
    )
