"""Logs and metrics. Console lines on a terminal, JSON lines otherwise; both on stderr, stdout is for results."""

from __future__ import annotations

import io
import json
import logging
import struct
import sys
from typing import Any, TextIO, cast

import orjson
import structlog
from prometheus_client import Counter, Gauge, Histogram

Log = structlog.stdlib.BoundLogger

# From a fast provider's few milliseconds to BONGSU_SEND_TIMEOUT_SECONDS.
_SEND_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0)


LOOP_CRASHES = Counter("bongsu_loop_crashes", "Ticks that ended in an exception", ["loop"])
SIGNALS_DROPPED = Counter("bongsu_signals_dropped", "Signals not sent because Redis was unreachable or slow")
EVENTS_ACCEPTED = Counter("bongsu_events_accepted", "Events stored for the first time", ["ingress"])
EVENTS_DUPLICATE = Counter("bongsu_events_duplicate", "Events whose id was already stored", ["ingress"])
SOURCE_UP = Gauge("bongsu_source_up", "1 while the source answers", ["source"])
SOURCE_LAG = Gauge("bongsu_source_lag_seconds", "Age of the oldest message that was received last", ["source"])
SOURCE_DEPTH = Gauge("bongsu_source_depth", "Messages that wait in the source, where it says so", ["source"])
SOURCE_ACCEPTED = Counter("bongsu_source_accepted", "Messages of a source that were stored for the first time", ["source"])
SOURCE_REJECTED = Counter("bongsu_source_rejected", "Messages of a source that were set aside as dead letters", ["source"])
SOURCE_REDELIVERED = Counter("bongsu_source_redelivered", "Messages that a source delivered again", ["source"])
SOURCE_ERRORS = Counter("bongsu_source_errors", "Failed attempts to use a source", ["source"])
EVENTS_FINISHED = Counter("bongsu_events_finished", "Events that were finished, by status", ["status"])
EVENTS_UNHANDLED = Counter("bongsu_events_unhandled", "Events of a type that no rule handles")
EVENTS_RETRIED = Counter("bongsu_events_retried", "Events put back after a rule or a decision failed")
CLOCK_SKEW = Gauge("bongsu_clock_skew_seconds", "Seconds by which this process's clock is ahead of the store's")
NOTIFICATIONS = Counter("bongsu_notifications", "Members notified, by type", ["type"])
MERGED = Counter("bongsu_merged", "Members for whom a notice was merged into an open digest, by type", ["type"])
DELIVERIES = Counter("bongsu_deliveries", "Results recorded for deliveries, held ones too", ["channel", "status", "code"])
SENDS = Histogram(
    "bongsu_send_seconds", "Response time of providers by outcome", ["channel", "outcome"], buckets=_SEND_SECONDS
)
BREAKER = Gauge("bongsu_breaker", "1 for the state that a channel's circuit breaker is in", ["channel", "state"])
TOKEN_GUARD_ACTIVE = Gauge(
    "bongsu_token_guard_active", "1 while so many tokens are refused that none is marked invalid", ["channel"]
)
HOLD_SECONDS = Gauge("bongsu_hold_seconds", "Seconds a channel still waits because its provider asked for it", ["channel"])
PACE_WAITING = Gauge("bongsu_pace_waiting", "Sends waiting for a slot of the pace in this process", ["channel"])
QUOTA_GRANTED = Counter("bongsu_quota_granted", "Sends this process was granted from the shared quota", ["channel"])
QUOTA_EMPTY = Counter("bongsu_quota_empty", "Requests to the shared quota that were granted nothing", ["channel"])
SUPPRESSIONS = Counter("bongsu_suppressions", "Members of an audience who were not notified, by reason", ["type", "reason"])
LIVE_STREAMS = Gauge("bongsu_live_streams", "Open streams")
LIVE_NOTIFICATIONS_SENT = Counter("bongsu_live_notifications_sent", "Notifications written to open streams")
COUNTER_FLUSHES = Histogram(
    "bongsu_counter_flush_seconds", "Duration of flushes that applied something", buckets=_SEND_SECONDS
)
COUNTER_KEYS = Counter("bongsu_counter_keys", "Counters changed by flushes")
COUNTER_PENDING = Gauge("bongsu_counter_pending", "Deltas left after the last flush, 10000 at most")
COUNTER_LAG = Gauge("bongsu_counter_lag_seconds", "Age of the oldest delta left after the last flush")
COUNTER_RECOUNTS = Counter("bongsu_counter_recounts", "Recounts of the pending sums in Redis")
COUNTER_TARGET_FAILURES = Counter("bongsu_counter_target_failures", "Failed runs of a counter's target", ["counter"])
CHAT_MESSAGES = Counter("bongsu_chat_messages", "Chat messages stored")
LIVE_CUT = Counter("bongsu_live_cut", "Streams closed because their readers stalled")


def log(name: str) -> Log:
    return cast(Log, structlog.get_logger(name))


def configure_logs(level: str = "INFO") -> None:
    """Render our own lines and those of the standard library's loggers alike.

    Ours bypass the standard library, which takes three times as long, because every request logs a line.
    """
    console = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso" if not console else "%H:%M:%S", utc=not console),
    ]
    # Plain tracebacks: the rich ones print local variables, and with them keys and personal data.
    rendering: list[structlog.typing.Processor] = (
        [_escape_values, structlog.dev.ConsoleRenderer(exception_formatter=_write_traceback)]
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
    # They log every request and migration, which we log ourselves.
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
    # A lone surrogate is not valid UTF-8: json.dumps escapes it.
    try:
        line = orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        line = json.dumps(event, default=repr)
    # It is read on a terminal. JSON has an escape for every character, so that nothing is lost by it.
    return line if line.isprintable() else "".join(map(_json_escape, line))


def _json_escape(character: str) -> str:
    if character.isprintable():
        return character
    return "".join(f"\\u{unit[0]:04x}" for unit in struct.iter_unpack(">H", character.encode("utf-16-be")))


# --- on a terminal ----------------------------------------------------------------------------------------------------


def escape_controls(text: str, *, keep: str = "") -> str:
    """Text from outside as a terminal may show it: an escape sequence could rewrite the screen, and a bidirectional control
    could reverse what is read."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else repr(character)[1:-1] for character in text
    )


def _escape_values(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    # A stack or a traceback has lines; anything that is not text is shown by its repr, which escapes.
    return {
        escape_controls(name): escape_controls(value, keep="\n" if name in ("stack", "exception") else "")
        if isinstance(value, str)
        else value
        for name, value in event.items()
    }


def _write_traceback(file: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, exc_info)
    file.write(escape_controls(plain.getvalue(), keep="\n\t"))
