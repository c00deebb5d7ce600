"""bongsu doctor: checks everything this process would need, and prints what to do about each problem."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import redis.asyncio

from bongsu.clock.skew import SEEN_SECONDS, WARN_SECONDS, measure_skew
from bongsu.clock.slots import next_slot
from bongsu.deliver.channels.checks import reach
from bongsu.deliver.channels.registry import check_channel
from bongsu.errors import (
    BadSettings,
    BadTemplate,
    BongsuError,
    BrokerUnreachable,
    ClockSkewed,
    FilesExposed,
    NotFlushed,
    RedisUnreachable,
    StoreNotMigrated,
    StoreTooNew,
    StoreTooOld,
)
from bongsu.ingress.rabbitmq import require_driver
from bongsu.ingress.relay import open_outbox
from bongsu.model import utc_now
from bongsu.model.channels import Address, ChannelSpec, describe_channel, names_with_deliveries
from bongsu.model.outcome import Sender
from bongsu.render.templates import Templates
from bongsu.rules import Rules, catalogue, load_app
from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from bongsu.store import Store, check
from bongsu.store.core.private_files import exposed_files, sqlite_path
from bongsu.store.counters.deltas import count_pending
from bongsu.store.counters.user_targets import read_target
from bongsu.store.desk.processes import Process, find_seen
from bongsu.store.members.channels import load_channels

TIMEOUT_SECONDS = 5
# What is pending for longer, in flushes and at least, is applied by no process, or its target fails.
LAG_FLUSHES = 10
LEAST_LAG_SECONDS = 60.0

# Returns what was found, or raises what is wrong.
Check = Callable[[Settings], Awaitable[str]]


@dataclass(frozen=True)
class Finding:
    """What was checked, whether it is good, and what was found or is to be done."""

    name: str
    is_good: bool
    message: str


async def examine(app_name: str | None = None) -> list[Finding]:
    """A finding for each part, the user's app included if it is named."""
    try:
        settings = Settings.load()
    except BongsuError as error:
        return [Finding("settings", False, str(error))]
    findings = [Finding("settings", True, "read")]
    rules = Rules()
    if app_name is not None:
        rules, finding = _app(app_name, settings)
        findings.append(finding)
    parts: list[tuple[str, Check]] = [
        ("keys", _keys),
        ("files", _files),
        ("store", _store),
        ("clock", _clock),
        ("redis", _redis),
        ("kafka", _kafka),
        ("rabbitmq", _rabbitmq),
    ]
    findings += [await _run(name, check, settings) for name, check in (*parts, *_outboxes(settings))]
    # Now that the store was read, its channels are known.
    for spec in _channels_to_check(rules):
        findings.append(await _run(spec.label, partial(_channel, spec, rules.senders.get(spec.name)), settings))
    last: list[tuple[str, Check]] = [("counters", _counters), ("jobs", _jobs), ("texts", _texts)]
    findings += [await _run(name, check, settings) for name, check in last]
    return _without_repeats(findings)


def _without_repeats(findings: Sequence[Finding]) -> list[Finding]:
    """One cause is described once: a store that is away concerns several parts."""
    described: dict[str, str] = {}
    shown = []
    for finding in findings:
        first = finding.name if finding.is_good else described.setdefault(finding.message, finding.name)
        shown.append(finding if first == finding.name else replace(finding, message=f"not checked: see {first}"))
    return shown


def _app(name: str, settings: Settings) -> tuple[Rules, Finding]:
    try:
        app = load_app(name)
        catalogue(settings, app)
    except BongsuError as error:
        return Rules(), Finding("app", False, str(error))
    return app, Finding("app", True, f"{name} can be loaded")


def _channels_to_check(rules: Rules) -> list[ChannelSpec]:
    """Those with a sender, the ones that the app would declare included."""
    known = names_with_deliveries()
    return [describe_channel(name) for name in (*known, *sorted(rules.declared_channels.difference(known)))]


async def _channel(spec: ChannelSpec, own: Sender | None, settings: Settings) -> str:
    if own is not None:
        return f"sent by {type(own).__name__} of your app"
    if spec.address is Address.OWN:
        return "declared in this store by an app: name it with --app to see its sender"
    return await check_channel(spec, settings)


async def _run(name: str, check: Check, settings: Settings) -> Finding:
    try:
        async with asyncio.timeout(2 * TIMEOUT_SECONDS):
            return Finding(name, True, await check(settings))
    except BongsuError as error:
        return Finding(name, False, str(error))
    except TimeoutError:
        return Finding(name, False, f"no answer within {2 * TIMEOUT_SECONDS} s: start it again, or correct its setting")
    except Exception as error:
        return Finding(name, False, f"{type(error).__name__}: {error}".splitlines()[0])


async def _keys(settings: Settings) -> str:
    made_later = settings.is_embedded and not (settings.keys and settings.jwt_secrets) and not settings.data_dir.exists()
    if made_later:
        return "will be made by the first `bongsu serve`"
    if weakness := Keys.load(settings).weakness:
        raise BadSettings(weakness)
    return "in place"


async def _files(settings: Settings) -> str:
    if not settings.is_embedded:
        return "none: keys are given, and the store is a server"
    if not settings.data_dir.exists():
        return "will be made by the first `bongsu serve`"
    if commands := [f"chmod {mode:o} {shlex.quote(str(path))}" for path, mode in exposed_files(settings)]:
        raise FilesExposed(" && ".join(commands))
    return "readable by their owner only"


async def _store(settings: Settings) -> str:
    if settings.is_embedded and not settings.data_dir.exists():
        return "will be made by the first `bongsu serve`"
    store = Store.open(settings)
    if settings.is_embedded and not sqlite_path(settings).exists():
        return f"{store.location}: will be made by the first `bongsu serve`"
    try:
        await check(store)
        await load_channels(store)
        return f"{store.location} answers and is up to date"
    finally:
        await store.close()


async def _clock(settings: Settings) -> str:
    """Whether the clocks of this machine and of each running process agree with the store's, which everything due uses."""
    here = "the embedded store uses this machine's own"
    if settings.is_embedded and not (settings.data_dir.exists() and sqlite_path(settings).exists()):
        return here
    store = Store.open(settings)
    try:
        skew = await measure_skew(store)
        processes = await _running_processes(store)
    finally:
        await store.close()
    if not settings.is_embedded:
        here = f"this machine's is {_offset(skew)}"
    lines = [here, *(f"{_describe(process)} is {_offset(process.skew_seconds)}" for process in processes)]
    if problem := _worst_clock(skew, processes):
        raise ClockSkewed("\n".join([*lines, problem]))
    return "\n".join(lines)


async def _running_processes(store: Store) -> list[Process]:
    """Those seen lately. None if the store has another version's tables, which its own finding reports."""
    try:
        await check(store)
    except (StoreNotMigrated, StoreTooNew, StoreTooOld):
        return []
    async with store.read() as tx:
        return await find_seen(tx, SEEN_SECONDS)


def _worst_clock(skew: float, processes: Sequence[Process]) -> str | None:
    """The clock that is off the most, if that is too much. `skew` is this machine's."""
    clocks = [
        (skew, "This machine's clock"),
        *((process.skew_seconds, f"{_describe(process)} runs on a machine whose clock") for process in processes),
    ]
    worst, whose = max(clocks, key=lambda clock: abs(clock[0]))
    return f"{whose} is {_offset(worst)}" if abs(worst) > WARN_SECONDS else None


def _describe(process: Process) -> str:
    return f"{process.name} ({', '.join(process.roles)})"


def _offset(skew: float) -> str:
    return f"{abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} the store's"


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
        await reach(host, int(port), BrokerUnreachable)
    return "reachable"


async def _rabbitmq(settings: Settings) -> str:
    """Whether each work queue can be used as the workers use it; declares what is missing."""
    if not settings.rabbitmq_url:
        return "not configured"
    require_driver()
    from bongsu.ingress.rabbitmq.connection import Broker  # noqa: PLC0415 (the driver is an extra)
    from bongsu.ingress.rabbitmq.queue import QueueSource  # noqa: PLC0415
    from bongsu.ingress.rabbitmq.topology import QUEUES  # noqa: PLC0415

    broker = Broker(settings.rabbitmq_url, is_quiet=True)
    try:
        found = [await QueueSource(broker, queue).check() for queue in QUEUES]
    finally:
        await broker.close()
    return "\n".join([broker.location, *found])


def _outboxes(settings: Settings) -> list[tuple[str, Check]]:
    return [(f"outbox {name}", partial(_outbox, url)) for name, url in settings.outboxes]


async def _outbox(url: str, _settings: Settings) -> str:
    outbox = open_outbox(url)
    try:
        return await outbox.check()
    finally:
        await outbox.close()


async def _counters(settings: Settings) -> str:
    """Whether what was counted is applied, and whether the database takes the statements of the targets."""
    if settings.is_embedded and not (settings.data_dir.exists() and sqlite_path(settings).exists()):
        return "none yet"
    store = Store.open(settings)
    try:
        await check(store)
        for counter, text in settings.targets.items():
            await read_target(store, counter, text)
        async with store.read() as tx:
            pending = await count_pending(tx)
    except (StoreNotMigrated, StoreTooNew, StoreTooOld):
        return "not looked at: the store has the tables of another version"
    finally:
        await store.close()
    targets = f", targets of {', '.join(settings.targets)} can be run" if settings.targets else ""
    if pending.age > max(LEAST_LAG_SECONDS, LAG_FLUSHES * settings.counter_flush_seconds):
        raise NotFlushed(f"{pending.deltas} deltas of counters are pending, the oldest since {pending.age:.0f} s")
    return f"{pending.deltas} deltas pending{targets}"


async def _jobs(settings: Settings) -> str:
    now = utc_now()
    crons = {"recovery": settings.recovery_cron}
    if settings.recommendation_enabled:
        crons["recommendation"] = settings.recommendation_cron
    slots = {name: next_slot(cron, settings.zone, now) for name, cron in crons.items()}
    times = (f"{name} at {slot.astimezone(settings.zone):%Y-%m-%d %H:%M}" for name, slot in slots.items() if slot)
    return f"next {', '.join(times)} ({settings.timezone}), while a process with the role clock runs"


async def _texts(_settings: Settings) -> str:
    templates = Templates.load()
    if problems := templates.check():
        raise BadTemplate("; ".join(problems))
    return (
        f"all can be filled in; yours are {', '.join(templates.own)}"
        if templates.own
        else "the built-in ones can be filled in"
    )
