"""Providers in processes of their own, for the whole run."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.simulator.conftest import running_simulator, simulator  # noqa: F401 (fixtures)
from tests.support.providers.scripted import Scripted


@pytest.fixture(scope="session")
def mail_server() -> Iterator[Scripted]:
    with Scripted("smtp_server.py") as server:
        yield server


@pytest.fixture(scope="session")
def sms_gateway() -> Iterator[Scripted]:
    with Scripted("http_gateway.py") as gateway:
        yield gateway


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses: taken, so that nobody else listens there, and not listened on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
