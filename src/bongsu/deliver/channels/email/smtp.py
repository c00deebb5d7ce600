"""A mail server: where it is, what its replies mean, and the connections to it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qs, unquote, urlsplit

import aiosmtplib

from bongsu.deliver.channels.email.message import Mail
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Refused, Retry, Scope, Unknown

# Mail servers commonly allow ten or twenty from one client. Who finds all of them busy waits; what waits is bounded by what
# the dispatcher has in flight.
CONNECTIONS = 8
# RFC 5321 wants servers to wait five minutes, many wait one. Shorter → more handshakes; longer → more stale connections.
IDLE_SECONDS = 30.0
# How long a server may take over QUIT before the connection is closed without its answer.
QUIT_SECONDS = 2.0
# Greylisting wants minutes; our usual 1, 2, 4 seconds would spend all tries within it.
GREYLIST_SECONDS = 60.0
# A daily quota does not come back within minutes.
QUOTA_SECONDS = 3600.0

# What opening a connection raises. UnicodeError is what the resolver raises for a host name that is not valid.
CANNOT_OPEN = (aiosmtplib.SMTPException, OSError, UnicodeError)

_LINE_START_DOT = re.compile(rb"(?m)^\.")
_ENHANCED = re.compile(r"^([245]\.\d{1,3}\.\d{1,3})\b")
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class Stage(StrEnum):
    """How far a mail has come; what a reply means depends on it."""

    MAIL = "MAIL"
    RCPT = "RCPT"
    DATA = "DATA"
    # The mail itself is on its way: from here on only the server knows whether it has it.
    CONTENT = "CONTENT"


# Enhanced codes (RFC 3463, 7505) that say the mailbox or its domain is not there. 5.2.1 is not among them: some servers
# say it of a mailbox that gets too much at the moment. Neither is a bare 550, which is policy as often as absence.
GONE = frozenset({"5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10"})
# Replies that are about us, whatever the stage: log in first, a stronger mechanism, encryption first, wrong password.
ABOUT_US = frozenset({530, 534, 535, 538})


def outcome_of(stage: Stage, code: int, text: str) -> Outcome:
    """What a reply that is not the hoped-for one means."""
    enhanced = match[1] if (match := _ENHANCED.match(text)) else ""
    name = f"SMTP_{code}_{enhanced}".rstrip("_")
    detail = f"{stage}: {' '.join(text.split())}"[:300]
    if code == 421:
        return Retry(name, scope=Scope.CHANNEL, detail=detail)
    if enhanced == "5.4.5":
        return Retry(name, QUOTA_SECONDS, Scope.CHANNEL, detail)
    if 400 <= code < 500:
        return Retry(name, GREYLIST_SECONDS if stage is Stage.RCPT else 0.0, detail=detail)
    if code in ABOUT_US:
        return Misconfigured(name, detail, is_for_all=True)
    if 500 <= code < 600:
        return _for_good(stage, code, enhanced)(name, detail)
    # Not a reply code of SMTP.
    return lost(stage, name, detail)


def _for_good(stage: Stage, code: int, enhanced: str) -> type[Gone | Refused | Misconfigured]:
    if stage is Stage.MAIL:
        # No recipient has been named yet: it can only be the sender, but for the size, which is the mail's own.
        return Refused if code == 552 or enhanced == "5.3.4" else Misconfigured
    return Gone if enhanced in GONE else Refused


def lost(stage: Stage, code: str, detail: str) -> Outcome:
    """What it means that the connection broke or timed out: only with the content under way can the server have it."""
    return Unknown(code, detail) if stage is Stage.CONTENT else Retry(code, scope=Scope.CHANNEL, detail=detail)


def unopened(error: Exception) -> Outcome:
    """Why no connection could be had. Nothing was sent."""
    detail = str(error)[:300]
    if isinstance(error, aiosmtplib.SMTPResponseException):
        code = f"SMTP_{error.code}"
        if error.code >= 500:
            return Misconfigured(code, detail, is_for_all=True)
        return Retry(code, scope=Scope.CHANNEL, detail=detail)
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in (error, error.__cause__)):
        return Misconfigured("TLS_CERTIFICATE", detail, is_for_all=True)
    if isinstance(error, OSError):
        return Retry("CONNECT", scope=Scope.CHANNEL, detail=detail)
    # An error of aiosmtplib itself: the server offers no STARTTLS or no login, and the settings ask for it.
    return Misconfigured("SMTP_NOT_OFFERED", detail, is_for_all=True)


@dataclass(frozen=True)
class Server:
    """Where the mail server is and how to approach it."""

    host: str
    port: int
    user: str | None
    password: str | None = field(repr=False)
    # From the first byte (smtps), or by STARTTLS: True demands it, None takes it when offered, False never.
    is_tls: bool
    start_tls: bool | None

    @classmethod
    def at(cls, smtp_url: str) -> Server:
        """Read BONGSU_SMTP_URL. A password leaves this machine encrypted or not at all, unless ?tls=never says so."""
        url = urlsplit(smtp_url)
        host, is_tls = url.hostname or "localhost", url.scheme == "smtps"
        tls = parse_qs(url.query).get("tls", [""])[-1]
        start_tls = {"required": True, "never": False}.get(tls, True if url.username and host not in _LOOPBACK else None)
        return cls(
            host=host,
            port=url.port or (465 if is_tls else 587 if url.username else 25),
            user=unquote(url.username) if url.username else None,
            password=unquote(url.password or "") if url.username else None,
            is_tls=is_tls,
            start_tls=False if is_tls else start_tls,
        )


class SmtpConnection:
    """One connection, which sends one mail at a time."""

    def __init__(self, client: aiosmtplib.SMTP) -> None:
        self._client = client
        self.stage = Stage.MAIL
        # A refusal leaves the server in the middle of a mail.
        self._needs_reset = False
        # Stays set if a send was interrupted: what the server answers next belongs to that mail.
        self._is_sending = False
        # Set while it is idle: closes it when its time is over.
        self.expiry: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        return self._client.is_connected and not self._is_sending

    async def send(self, mail: Mail) -> Outcome:
        """Hand over one mail, once. Interrupted, `stage` says how far it came."""
        self.stage, self._is_sending = Stage.MAIL, True
        try:
            reply = await self._talk(mail)
        except aiosmtplib.SMTPResponseException as refusal:
            outcome = outcome_of(self.stage, refusal.code, refusal.message)
        except (aiosmtplib.SMTPException, OSError) as error:
            self.drop()
            outcome = lost(self.stage, "CONNECTION_LOST", str(error))
        else:
            outcome = Accepted(" ".join(reply.message.split())[:200])
        self._is_sending, self._needs_reset = False, not isinstance(outcome, Accepted)
        return outcome

    async def _talk(self, mail: Mail) -> aiosmtplib.SMTPResponse:
        await self._reset()
        await self._client.mail(mail.sender)
        self.stage = Stage.RCPT
        await self._client.rcpt(mail.recipient)
        self.stage = Stage.DATA
        reply = await self._client.execute_command(b"DATA")
        # By hand, because aiosmtplib's own `data` does not show whether it broke before the content or after.
        protocol = self._client.protocol
        if reply.code != aiosmtplib.SMTPStatus.start_input or protocol is None:
            raise aiosmtplib.SMTPDataError(reply.code, reply.message)
        self.stage = Stage.CONTENT
        protocol.write(_LINE_START_DOT.sub(b"..", mail.content) + b".\r\n")
        reply = await protocol.read_response()
        if reply.code != aiosmtplib.SMTPStatus.completed:
            raise aiosmtplib.SMTPDataError(reply.code, reply.message)
        return reply

    async def _reset(self) -> None:
        try:
            if self._needs_reset:
                await self._client.rset()
        except aiosmtplib.SMTPResponseException as refusal:
            raise aiosmtplib.SMTPServerDisconnected(f"RSET was answered with {refusal.code}") from refusal

    async def quit(self) -> None:
        """Send QUIT and close, within a time limit."""
        with contextlib.suppress(aiosmtplib.SMTPException, OSError):
            async with asyncio.timeout(QUIT_SECONDS):
                await self._client.quit()
        self.drop()

    def drop(self) -> None:
        self._client.close()


class SmtpPool:
    """Connections, opened when needed. The one used last is used next, so that spare ones fall idle. The caller bounds how
    many mails are under way."""

    def __init__(self, server: Server, idle_seconds: float = IDLE_SECONDS) -> None:
        self._server = server
        self._idle_seconds = idle_seconds
        self._idle: list[SmtpConnection] = []
        self._quitting: set[asyncio.Task[None]] = set()
        self._tls = ssl.create_default_context() if server.is_tls or server.start_tls is not False else None
        # What we greet with. Looked up once: with a slow resolver it would cost every connection seconds.
        self._hostname: str | None = None
        self._is_closed = False

    def take(self) -> SmtpConnection | None:
        """An idle connection, if there is one that still looks open."""
        while self._idle:
            connection = self._idle.pop()
            if connection.expiry is not None:
                connection.expiry.cancel()
            if connection.is_usable:
                return connection
            connection.drop()
        return None

    async def open(self) -> SmtpConnection:
        """A new connection, greeted, encrypted and logged in. Raises what aiosmtplib does."""
        client = aiosmtplib.SMTP(
            hostname=self._server.host,
            port=self._server.port,
            username=self._server.user,
            password=self._server.password,
            use_tls=self._server.is_tls,
            start_tls=self._server.start_tls,
            tls_context=self._tls,
            local_hostname=self._hostname,
            timeout=None,  # the whole of it is timed by who sends
        )
        await client.connect()
        self._hostname = client.local_hostname
        return SmtpConnection(client)

    def give_back(self, connection: SmtpConnection) -> None:
        """Keep it for the next mail, for a while."""
        if self._is_closed or not connection.is_usable:
            connection.drop()
            return
        connection.expiry = asyncio.get_running_loop().call_later(self._idle_seconds, self._expire, connection)
        self._idle.append(connection)

    async def close(self) -> None:
        self._is_closed = True
        while connection := self.take():
            self._quit(connection)
        if self._quitting:
            await asyncio.wait(self._quitting)

    def _expire(self, connection: SmtpConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
            self._quit(connection)

    def _quit(self, connection: SmtpConnection) -> None:
        task = asyncio.create_task(connection.quit())
        self._quitting.add(task)
        task.add_done_callback(self._quitting.discard)
