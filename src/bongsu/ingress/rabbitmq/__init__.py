"""RabbitMQ as a Source of events: what is declared there, the connection, the queues, their dead letters."""

from __future__ import annotations

from importlib.util import find_spec

from bongsu.errors import DriverMissing


def require_driver() -> None:
    """Before the other modules of this package are imported. Raises DriverMissing."""
    if find_spec("aiormq") is None:
        raise DriverMissing("aio-pika is not installed: `pip install 'bongsu[rabbitmq]'`")
