"""Logs and metrics. Console lines where a terminal is, JSON lines otherwise; both on stderr, stdout is for answers."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, cast

import orjson
import structlog
from prometheus_client import Counter, Gauge, Histogram

Log = structlog.stdlib.BoundLogger

# A provider is quick in milliseconds, and given up after BONGSU_SEND_TIMEOUT_SECONDS.
_SEND_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0)


LOOP_CRASHES = Counter("bongsu_loop_crashes", "Ticks that ended in an exception", ["loop"])
SIGNALS_DROPPED = Counter("bongsu_signals_dropped", "Signals not sent because Redis was away or behind")
EVENTS_ACCEPTED = Counter("bongsu_events_accepted", "Events stored for the first time", ["ingress"])
EVENTS_DUPLICATE = Counter("bongsu_events_duplicate", "Events whose id was already stored", ["ingress"])
EVENTS_FINISHED = Counter("bongsu_events_finished", "Events the worker has finished with", ["status"])
EVENTS_UNHANDLED = Counter("bongsu_events_unhandled", "Events of a type that no rule handles")
EVENTS_RETRIED = Counter("bongsu_events_retried", "Events put back after a rule or a decision failed")
CLOCK_SKEW = Gauge("bongsu_clock_skew_seconds", "By how much this process's clock is ahead of the store's")
NOTIFICATIONS = Counter("bongsu_notifications", "Notifications written to inboxes", ["type"])
DELIVERIES = Counter("bongsu_deliveries", "Tries of deliveries, by what became of them", ["channel", "status", "code"])
SENDS = Histogram(
    "bongsu_send_seconds", "How long providers take, by what they answered", ["channel", "outcome"], buckets=_SEND_SECONDS
)
BREAKER = Gauge("bongsu_breaker", "1 for the state that a channel's circuit breaker is in", ["channel", "state"])
BRAKE = Gauge("bongsu_brake", "1 while so many tokens are refused that none is taken for dead", ["channel"])
HOLD_SECONDS = Gauge("bongsu_hold_seconds", "How much longer a channel waits because its provider asked for it", ["channel"])
PACE_WAITING = Gauge("bongsu_pace_waiting", "Sends that wait for their turn in this process", ["channel"])
QUOTA_GRANTED = Counter("bongsu_quota_granted", "Sends this process has drawn of the quota all share", ["channel"])
QUOTA_EMPTY = Counter("bongsu_quota_empty", "Draws that came to an empty quota", ["channel"])
SUPPRESSIONS = Counter("bongsu_suppressions", "Members of an audience who got none", ["type", "reason"])
LIVE_STREAMS = Gauge("bongsu_live_streams", "Open streams")
LIVE_TOLD = Counter("bongsu_live_told", "Notifications written to open streams")
LIVE_CUT = Counter("bongsu_live_cut", "Streams cut because their readers did not read")


def log(name: str) -> Log:
    return cast(Log, structlog.get_logger(name))


def configure_logs(level: str = "INFO") -> None:
    """Render our own lines and those of the standard library's loggers alike.

    Ours do not go through the standard library, which takes three times as long, and every request is a line.
    """
    console = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso" if not console else "%H:%M:%S", utc=not console),
    ]
    # Plain tracebacks: the richer kind prints local variables, and with them keys and people's data.
    rendering: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_as_json)]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)
    # Ours say what happened in our words; theirs would repeat it for every request and migration.
    for noisy in ("uvicorn.access", "uvicorn.error", "alembic", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, *rendering],
        logger_factory=_Stderr,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        cache_logger_on_first_use=True,
    )


class _Stderr:
    """Writes each line with one call, so that the lines of two processes on one terminal do not mix."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def msg(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")

    log = debug = info = warn = warning = error = err = critical = fatal = failure = exception = msg


def _as_json(event: dict[str, Any], **_options: Any) -> str:
    # Half a surrogate pair is no UTF-8: such a text is shown as Python would write it.
    try:
        return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        return json.dumps(event, default=repr)
