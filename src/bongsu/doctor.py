"""bongsu doctor: looks at everything this process would need, and says what to do about what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bongsu.clock.slots import next_slot
from bongsu.deliver.channels.push import GOOGLE
from bongsu.errors import (
    BadCredentials,
    BadSettings,
    BadTemplate,
    BongsuError,
    BrokerUnreachable,
    ClockSkewed,
    ProviderUnreachable,
    RedisUnreachable,
)
from bongsu.keys import Keys
from bongsu.model import utc_now
from bongsu.settings import Settings
from bongsu.store import Store, check
from bongsu.store.skew import WARN_SECONDS, measure_skew
from bongsu.store.store import sqlite_path
from bongsu.templates import Templates

TIMEOUT_SECONDS = 5


@dataclass(frozen=True)
class Finding:
    """What was looked at, whether it will do, and what was seen or is to be done."""

    name: str
    is_good: bool
    word: str


async def examine(console: Console) -> bool:
    """Print a finding for each part; return whether all are good."""
    findings = await _findings()
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for finding in findings:
        table.add_row(
            "[green]✓[/]" if finding.is_good else "[bold red]✗[/]", f"[bold]{finding.name}[/]", escape(finding.word)
        )
    console.print(table, highlight=False)
    return all(finding.is_good for finding in findings)


async def _findings() -> list[Finding]:
    try:
        settings = Settings.load()
    except BongsuError as error:
        return [Finding("settings", False, str(error))]
    looks: list[tuple[str, Callable[[Settings], Awaitable[str]]]] = [
        ("keys", _keys),
        ("store", _store),
        ("clock", _clock),
        ("redis", _redis),
        ("kafka", _kafka),
        ("rabbitmq", _rabbitmq),
        ("push", _fcm),
        ("e-mail", _smtp),
        ("sms", _sms),
        ("jobs", _jobs),
        ("texts", _texts),
    ]
    return [Finding("settings", True, "read"), *[await _look(name, look, settings) for name, look in looks]]


async def _look(name: str, look: Callable[[Settings], Awaitable[str]], settings: Settings) -> Finding:
    try:
        async with asyncio.timeout(2 * TIMEOUT_SECONDS):
            return Finding(name, True, await look(settings))
    except BongsuError as error:
        return Finding(name, False, str(error))
    except Exception as error:
        return Finding(name, False, f"{type(error).__name__}: {error}".splitlines()[0])


async def _keys(settings: Settings) -> str:
    made_later = settings.is_embedded and not (settings.keys and settings.jwt_secret) and not settings.data_dir.exists()
    if made_later:
        return "will be made by the first `bongsu serve`"
    if weakness := Keys.load(settings).weakness:
        raise BadSettings(weakness)
    return "in place"


async def _store(settings: Settings) -> str:
    if settings.is_embedded and not settings.data_dir.exists():
        return "will be made by the first `bongsu serve`"
    store = Store.open(settings)
    if settings.is_embedded and not sqlite_path(settings).exists():
        return f"{store.place}: will be made by the first `bongsu serve`"
    try:
        await check(store)
        return f"{store.place} answers and is up to date"
    finally:
        await store.close()


async def _clock(settings: Settings) -> str:
    """Whether this machine's clock agrees with the store's, which is the one that counts."""
    if settings.is_embedded:
        return "the embedded store uses this machine's own"
    store = Store.open(settings)
    try:
        skew = await measure_skew(store)
    finally:
        await store.close()
    words = f"{abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} the store's"
    if abs(skew) > WARN_SECONDS:
        raise ClockSkewed(f"This machine's clock is {words}")
    return f"this machine's is {words}"


async def _redis(settings: Settings) -> str:
    if not settings.redis_url:
        return "not configured: signals stay within this process, other processes find work by polling"
    client = redis.asyncio.Redis.from_url(settings.redis_url, socket_connect_timeout=TIMEOUT_SECONDS)
    try:
        await client.ping()
    except (redis.RedisError, OSError) as error:
        raise RedisUnreachable(str(error)) from None
    finally:
        await client.aclose()
    return "answers"


async def _kafka(settings: Settings) -> str:
    if not settings.kafka_servers:
        return "not configured"
    servers = [server.strip().rpartition(":") for server in settings.kafka_servers.split(",")]
    for host, _, port in servers:
        await _reach(host, int(port))
    return "reachable"


async def _rabbitmq(settings: Settings) -> str:
    if not settings.rabbitmq_url:
        return "not configured"
    url = urlsplit(settings.rabbitmq_url)
    await _reach(url.hostname or "localhost", url.port or (5671 if url.scheme == "amqps" else 5672))
    return "reachable"


async def _reach(host: str, port: int, error: type[BongsuError] = BrokerUnreachable, name: str = "") -> None:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), TIMEOUT_SECONDS)
    except (OSError, TimeoutError) as reason:
        raise error(f"{f'{name} ' if name else ''}{host}:{port}: {reason or 'no answer'}") from None
    writer.close()


async def _reach_url(text: str, name: str, ports: dict[str, int]) -> str:
    """Where a URL leads, if anybody listens there. Nothing is said to them: a word might be taken for a message."""
    url = urlsplit(text)
    host, port = url.hostname or "localhost", url.port or ports[url.scheme]
    await _reach(host, port, ProviderUnreachable, name)
    return f"{host}:{port}"


_WEB = {"http": 80, "https": 443}


async def _fcm(settings: Settings) -> str:
    if not settings.fcm_credentials:
        if not settings.fcm_url:
            return "not configured: push is simulated, nothing leaves the house"
        where = await _reach_url(settings.fcm_url, "BONGSU_FCM_URL", _WEB)
        return f"{where} is reachable, and called without credentials as a simulator"
    account = _read_account(Path(settings.fcm_credentials))
    missing = {"client_email", "private_key", "project_id"} - set(account if isinstance(account, dict) else ())
    if missing:
        raise BadCredentials(f"{settings.fcm_credentials} has no {', '.join(sorted(missing))}")
    where = await _reach_url(settings.fcm_url or GOOGLE, "BONGSU_FCM_URL", _WEB)
    return f"a service account of project {settings.fcm_project or account['project_id']}; {where} is reachable"


async def _smtp(settings: Settings) -> str:
    if not settings.smtp_url:
        return "not configured: e-mail is simulated, nothing leaves the house"
    # The ports the channel itself would take.
    ports = {"smtps": 465, "smtp": 587 if urlsplit(settings.smtp_url).username else 25}
    return f"{await _reach_url(settings.smtp_url, 'BONGSU_SMTP_URL', ports)} is reachable"


async def _sms(settings: Settings) -> str:
    if not settings.sms_url:
        return "not configured: SMS is simulated, nothing leaves the house"
    if urlsplit(settings.sms_url).scheme.lower() not in _WEB:
        return "an Apprise URL, which is tried by the first message"
    return f"{await _reach_url(settings.sms_url, 'BONGSU_SMS_URL', _WEB)} is reachable"


async def _jobs(settings: Settings) -> str:
    now = utc_now()
    slots = {
        name: next_slot(cron, settings.zone, now)
        for name, cron in (("recovery", settings.recovery_cron), ("recommendation", settings.recommendation_cron))
    }
    if never := [name for name, slot in slots.items() if slot is None]:
        raise BadSettings(f"BONGSU_{never[0].upper()}_CRON names a day that never comes")
    times = (f"{name} at {slot.astimezone(settings.zone):%Y-%m-%d %H:%M}" for name, slot in slots.items() if slot)
    return f"next {', '.join(times)} ({settings.timezone}), while a process with the role clock runs"


def _read_account(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadCredentials(f"{path}: {error}") from None


async def _texts(_settings: Settings) -> str:
    templates = Templates.load()
    if problems := templates.check():
        raise BadTemplate("; ".join(problems))
    return (
        f"all can be filled in; yours are {', '.join(templates.own)}"
        if templates.own
        else "the built-in ones can be filled in"
    )
