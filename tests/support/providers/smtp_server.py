"""A mail server, run as a script: `smtp_server.py LEDGER [--starttls|--smtps] [--login user:password]`.

What it does with a mail, its recipient tells: `gone-7@example.org` is answered as `gone` is below.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

AT_RCPT = {
    "gone": "550 5.1.1 no such user",
    "policy": "550 5.7.1 not from you",
    "bare": "550 mailbox unavailable",
    "later": "450 4.2.0 greylisted, come back",
}
AFTER_CONTENT = {
    "spam": "554 5.7.1 looks like spam",
    "full": "452 4.3.1 no room at the moment",
    "busy": "421 4.3.2 shutting down",
}

# What a mail to `slow` takes: with few connections many of them wait for their turn.
SLOW_SECONDS = 0.5


class Script:
    """aiosmtpd's hooks. What they are given is written down before it is answered."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._tired: dict[Session, str] = {}

    async def handle_MAIL(self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]) -> str:
        mood = self._tired.get(session)
        if mood == "tired":
            _hang_up(server)
        if mood == "last":
            return "421 4.7.0 enough for one connection"
        if address.startswith("nobody"):
            return "553 5.1.8 we do not know you"
        envelope.mail_from = address
        return "250 2.1.0 go on"

    async def handle_RCPT(self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]) -> str:
        wish = _wish(address)
        if wish == "mute":
            await asyncio.Event().wait()
        if wish == "drop":
            _hang_up(server)
        if wish in AT_RCPT:
            return AT_RCPT[wish]
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 go on"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        wish = _wish(envelope.rcpt_tos[0])
        if wish in AFTER_CONTENT:
            return AFTER_CONTENT[wish]
        if wish == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        self._write(server, session, envelope)
        if wish == "hang":
            await asyncio.Event().wait()
        if wish == "close":
            _hang_up(server)
        if wish == "brief":
            asyncio.get_running_loop().call_soon(_hang_up, server)  # behind its reply
        if wish in ("tired", "last"):
            self._tired[session] = wish
        return "250 2.0.0 queued as 4711"

    def _write(self, server: SMTP, session: Session, envelope: Envelope) -> None:
        content = envelope.original_content or b""
        assert server.transport is not None
        assert session.peer is not None
        row = {
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "content": base64.b64encode(content).decode(),
            "connection": session.peer[1],
            "encrypted": server.transport.get_extra_info("sslcontext") is not None,
            "login": session.authenticated,
        }
        with self._ledger.open("a") as file:
            file.write(json.dumps(row) + "\n")


class Server(SMTP):
    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        print("lost", flush=True)


def _wish(address: str) -> str:
    return address.partition("@")[0].partition("-")[0]


def _hang_up(server: SMTP) -> None:
    assert server.transport is not None
    server.transport.close()


def _options(arguments: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {"enable_SMTPUTF8": True, "hostname": "localhost", "timeout": 60}
    if "--starttls" in arguments:
        options["tls_context"] = _tls()
    if "--login" in arguments:
        right = arguments[arguments.index("--login") + 1]

        def authenticate(_server: object, _session: object, _envelope: object, _mechanism: str, given: Any) -> AuthResult:
            assert isinstance(given, LoginPassword)
            return AuthResult(success=f"{given.login.decode()}:{given.password.decode()}" == right, handled=False)

        options |= {"authenticator": authenticate, "auth_require_tls": False, "auth_required": True}
    return options


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(Path(__file__).with_name("localhost.pem"))
    return context


async def main(ledger: Path, arguments: list[str]) -> None:
    loop = asyncio.get_running_loop()
    script, options = Script(ledger), _options(arguments)
    tls = _tls() if "--smtps" in arguments else None
    server = await loop.create_server(lambda: Server(script, loop=loop, **options), "127.0.0.1", 0, ssl=tls)
    print("ready", server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
