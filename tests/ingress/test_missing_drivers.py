"""A source whose driver is not installed: one line that names the extra."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from bongsu.errors import DriverMissing
from bongsu.ingress.rabbitmq import require_driver
from bongsu.ingress.relay import open_outbox


async def test_an_outbox_in_mysql_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    outbox = open_outbox("mysql://orders:secret@127.0.0.1:1/orders")
    with pytest.raises(DriverMissing, match=r"PyMySQL is not installed: `pip install 'bongsu\[mysql\]'`"):
        await outbox.check()
    await outbox.close()


def test_rabbitmq_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bongsu.ingress.rabbitmq.find_spec", lambda name: importlib.util.find_spec(f"{name}_is_away"))
    with pytest.raises(DriverMissing, match=r"aio-pika is not installed: `pip install 'bongsu\[rabbitmq\]'`"):
        require_driver()
