"""What `bongsu doctor` checks of a configured channel: are its settings whole, and does its provider accept connections?

Nothing is sent: a provider might take it for a message.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bongsu.deliver.channels.push.sender import GOOGLE
from bongsu.errors import BadCredentials, BongsuError, ProviderUnreachable
from bongsu.settings import Settings

CONNECT_SECONDS = 5

_WEB = {"http": 80, "https": 443}


async def check_push(settings: Settings) -> str:
    if not settings.fcm_credentials:
        where = await _reach_url(settings.fcm_url, "BONGSU_FCM_URL", _WEB)
        return f"{where} is reachable, and called without credentials as a simulator"
    account = _read_account(Path(settings.fcm_credentials))
    missing = {"client_email", "private_key", "project_id"} - set(account if isinstance(account, dict) else ())
    if missing:
        raise BadCredentials(f"{settings.fcm_credentials} has no {', '.join(sorted(missing))}")
    where = await _reach_url(settings.fcm_url or GOOGLE, "BONGSU_FCM_URL", _WEB)
    return f"a service account of project {settings.fcm_project or account['project_id']}; {where} is reachable"


def _read_account(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadCredentials(f"{path}: {error}") from None


async def check_email(settings: Settings) -> str:
    # The ports the channel itself would take.
    ports = {"smtps": 465, "smtp": 587 if urlsplit(settings.smtp_url).username else 25}
    return f"{await _reach_url(settings.smtp_url, 'BONGSU_SMTP_URL', ports)} is reachable"


async def check_sms(settings: Settings) -> str:
    if urlsplit(settings.sms_url).scheme.lower() not in _WEB:
        return "an Apprise URL, which is tried by the first message"
    return f"{await _reach_url(settings.sms_url, 'BONGSU_SMS_URL', _WEB)} is reachable"


async def _reach_url(text: str, name: str, ports: dict[str, int]) -> str:
    url = urlsplit(text)
    host, port = url.hostname or "localhost", url.port or ports[url.scheme]
    await reach(host, port, ProviderUnreachable, name)
    return f"{host}:{port}"


async def reach(host: str, port: int, error: type[BongsuError], name: str = "") -> None:
    """Raise the error unless something accepts connections there."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_SECONDS)
    except (OSError, TimeoutError) as reason:
        raise error(f"{f'{name} ' if name else ''}{host}:{port}: {reason or 'no answer'}") from None
    writer.close()
