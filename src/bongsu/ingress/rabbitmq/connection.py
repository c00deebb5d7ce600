"""One connection to RabbitMQ, shared by the queues of a process, and what its errors mean."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from functools import partial

import aiormq
import yarl
from aiormq.abc import AbstractChannel
from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelAccessRefused,
    ChannelPreconditionFailed,
    ConnectionNotAllowed,
    IncompatibleProtocolError,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from pamqp.exceptions import PAMQPException

from bongsu.errors import BadSettings, SourceAway, SourceDiffers, SourceError, SourceLoginRefused
from bongsu.ingress.consumer import Outage
from bongsu.ingress.rabbitmq.properties import read_leniently
from bongsu.runtime import telemetry

# A broker that recovers a long backlog takes its time to answer; longer only delays the report.
TIMEOUT_SECONDS = 5.0
# A broker whose machine does not answer is noticed after three of these. The URL may say otherwise: ?heartbeat=60
HEARTBEAT_SECONDS = 10

# What the driver raises while the broker cannot be used. RuntimeError: it is used after its connection has ended.
ERRORS = (AMQPError, PAMQPException, OSError, TimeoutError, EOFError, StopAsyncIteration, RuntimeError)

_log = telemetry.log("bongsu.rabbitmq")
read_leniently()
# What goes wrong is reported here, once.
for name in ("aiormq", "aio_pika"):
    logging.getLogger(name).setLevel(logging.CRITICAL)


class Broker:
    """Connects when a channel is asked for. Logs once that RabbitMQ is away, and once that it is back."""

    def __init__(self, url: str, *, is_quiet: bool = False) -> None:
        """Raises BadSettings for a URL that the driver cannot use. With `is_quiet` the error says it, and no log line."""
        self._is_quiet = is_quiet
        self._url = _read_url(url)
        self.location = f"{self._url.host}:{self._url.port}{self._url.path}"
        self._connection: aiormq.abc.AbstractConnection | None = None
        self._connecting = asyncio.Lock()
        self._outage = Outage(_log, "source", f"RabbitMQ {self.location}")

    async def channel(self, *, confirms: bool = False) -> AbstractChannel:
        """A channel of the caller's own, to be closed by `close_channel`. Raises SourceError."""
        connection = await self._connect()
        with self.errors_named():
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await connection.channel(publisher_confirms=confirms)

    async def close(self) -> None:
        """May be called twice; what asks for a channel later connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*ERRORS):
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await connection.close()

    @contextlib.contextmanager
    def errors_named(self, *kept: type[Exception]) -> Iterator[None]:
        """Raise what the driver raises as a SourceError with a cure; `kept` as they are."""
        try:
            yield
        except kept:
            raise
        except ERRORS as error:
            raise self._named(error) from None

    async def _connect(self) -> aiormq.abc.AbstractConnection:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed:
                try:
                    with self.errors_named():
                        async with asyncio.timeout(TIMEOUT_SECONDS):
                            self._connection = await aiormq.connect(self._url)
                except SourceError as error:
                    self._report(error)
                    raise
                self._connection.closing.add_done_callback(partial(self._on_closed, self._connection))
                self._outage.end()
            return self._connection

    def _on_closed(self, connection: aiormq.abc.AbstractConnection, closing: asyncio.Future[object]) -> None:
        if connection is self._connection:  # not closed by us
            reason = None if closing.cancelled() else closing.exception()
            self._report(SourceAway(f"RabbitMQ at {self.location} has ended the connection: {_words(reason)}"))

    def _report(self, error: SourceError) -> None:
        if not self._is_quiet:
            self._outage.failed(error)
            error.is_reported = True

    def _named(self, error: BaseException) -> SourceError:
        where, words = f"RabbitMQ at {self.location}", _words(error)
        if isinstance(error, ChannelPreconditionFailed):
            return SourceDiffers(f"{where}: {words}")
        if isinstance(
            error, ProbableAuthenticationError | AuthenticationError | ChannelAccessRefused | ConnectionNotAllowed
        ):
            return SourceLoginRefused(f"{where}: {words}")
        if isinstance(error, IncompatibleProtocolError):
            return SourceAway(f"{where} does not speak AMQP 0-9-1")
        if isinstance(error, InvalidFrameError) and "OpenOk" in words:
            # The driver hides the broker's own answer then.
            return SourceLoginRefused(f"{where}: there is no such virtual host, or the user may not use it")
        found = SourceAway(f"{where} does not answer: {words}")
        if self._connection is None or self._connection.is_closed:
            self._report(found)
        return found


async def close_channel(channel: AbstractChannel | None) -> None:
    """What was delivered on it and not answered is delivered again."""
    if channel is not None and not channel.is_closed:
        with contextlib.suppress(*ERRORS):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await channel.close()


def _words(error: BaseException | None) -> str:
    """Without the URL and its password, which the driver puts into none of its errors."""
    return " ".join(str(error or "").split()) or type(error or ConnectionError()).__name__


def _read_url(url: str) -> yarl.URL:
    try:
        read = yarl.URL(url)
        if not read.host:
            raise ValueError("it names no host")
        if read.port is None:
            read = read.with_port(5671 if read.scheme == "amqps" else 5672)
        for name in ("heartbeat", "timeout"):
            if not read.query.get(name, "1").isdecimal():
                raise ValueError(f"{name} is not a number of seconds")
        if "heartbeat" not in read.query:
            read = read.update_query(heartbeat=str(HEARTBEAT_SECONDS))
    except (ValueError, TypeError) as error:
        raise BadSettings(f"BONGSU_RABBITMQ_URL cannot be used: {error}") from None
    return read
