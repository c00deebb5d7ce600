"""Logs and metrics. Console lines where a terminal is, JSON lines otherwise; both on stderr, stdout is for answers."""

from __future__ import annotations

import logging
import sys
from typing import cast

import structlog
from prometheus_client import Counter, Gauge

Log = structlog.stdlib.BoundLogger

LOOP_CRASHES = Counter("bongsu_loop_crashes", "Ticks that ended in an exception", ["loop"])
SIGNALS_DROPPED = Counter("bongsu_signals_dropped", "Signals not sent because Redis was away or behind")
EVENTS_ACCEPTED = Counter("bongsu_events_accepted", "Events stored for the first time", ["ingress"])
EVENTS_DUPLICATE = Counter("bongsu_events_duplicate", "Events whose id was already stored", ["ingress"])
EVENTS_FINISHED = Counter("bongsu_events_finished", "Events the worker has finished with", ["status"])
EVENTS_RETRIED = Counter("bongsu_events_retried", "Events put back after a rule or a decision failed")
NOTIFICATIONS = Counter("bongsu_notifications", "Notifications written to inboxes", ["type"])
DELIVERIES = Counter("bongsu_deliveries", "Tries of deliveries, by what became of them", ["channel", "status", "code"])
SUPPRESSIONS = Counter("bongsu_suppressions", "Members of an audience who got none", ["type", "reason"])
LIVE_STREAMS = Gauge("bongsu_live_streams", "Open streams")
LIVE_TOLD = Counter("bongsu_live_told", "Notifications written to open streams")
LIVE_CUT = Counter("bongsu_live_cut", "Streams cut because their readers did not read")


def log(name: str) -> Log:
    return cast(Log, structlog.get_logger(name))


def configure_logs(level: str = "INFO") -> None:
    """Route structlog and the standard library's loggers through one renderer."""
    console = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso" if not console else "%H:%M:%S", utc=not console),
    ]
    # Plain tracebacks: the richer kind prints local variables, and with them keys and people's data.
    rendering: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]
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
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
