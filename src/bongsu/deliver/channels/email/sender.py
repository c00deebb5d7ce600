"""E-mail by SMTP. docs/howto/email.md"""

from __future__ import annotations

import asyncio

from bongsu.deliver.channels.email.message import Mail, compose
from bongsu.deliver.channels.email.smtp import (
    CANNOT_OPEN,
    CONNECTIONS,
    IDLE_SECONDS,
    Server,
    SmtpPool,
    Stage,
    lost,
    unopened,
)
from bongsu.deliver.channels.limits.priority_semaphore import PrioritySemaphore
from bongsu.errors import BadSettings
from bongsu.model import Channel
from bongsu.model.addresses import BadAddressError
from bongsu.model.outcome import Gone, Outcome, Outgoing, Retry
from bongsu.settings import Settings


class Email:
    """Hands mails to the server of BONGSU_SMTP_URL, over connections it keeps."""

    channel = Channel.EMAIL

    def __init__(self, settings: Settings, *, idle_seconds: float = IDLE_SECONDS) -> None:
        if not settings.email_from:
            raise BadSettings("BONGSU_SMTP_URL is set and BONGSU_EMAIL_FROM is not: mail needs a sender")
        self._from = settings.email_from
        self._timeout = settings.send_timeout_seconds
        self._pool = SmtpPool(Server.at(settings.smtp_url), idle_seconds=idle_seconds)
        # One mail at a time on a connection.
        self.semaphore = PrioritySemaphore(CONNECTIONS)

    async def send(self, outgoing: Outgoing) -> Outcome:
        try:
            mail = compose(outgoing, self._from)
        except BadAddressError as error:
            return Gone("ADDRESS_INVALID", str(error))
        return await self._hand_over(mail)

    async def close(self) -> None:
        await self._pool.close()

    async def _hand_over(self, mail: Mail) -> Outcome:
        connection = self._pool.take()
        try:
            async with asyncio.timeout(self._timeout):
                if connection is not None:
                    outcome = await connection.send(mail)
                    if connection.is_usable or not isinstance(outcome, Retry):
                        return outcome
                    # The server had closed an idle connection. Nothing was sent; it is sent on a new one.
                connection = None
                connection = await self._pool.open()
                return await connection.send(mail)
        except TimeoutError:
            return lost(connection.stage if connection else Stage.MAIL, "TIMEOUT", f"no answer within {self._timeout:g} s")
        except CANNOT_OPEN as error:
            return unopened(error)
        finally:
            if connection is not None:
                self._pool.give_back(connection)
