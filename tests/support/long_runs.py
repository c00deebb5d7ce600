"""How long the suite takes: how many seeds and examples a test of random schedules tries (few in `make test`, many more in
`make chaos`), and which files begin first."""

from __future__ import annotations

import os

# How many times the seeds of `make test` there are in `make chaos`.
TIMES = int(os.environ.get("CHAOS_SEEDS", "1"))


def seeds(few: int) -> range:
    """Each is a test of its own."""
    return range(1, 1 + few * TIMES)


def examples(few: int) -> int:
    """All of them are one test, which must end before its timeout."""
    return few * min(TIMES, 4)


# The files that take longest, in the order in which they begin. Those that mostly wait for faults to last stand between
# those that compute, so that there is always something to do.
LONG_FILES = (
    "tests/chaos/test_faults.py",
    "tests/api/test_document_fuzz.py",
    "tests/test_serve.py",
    "tests/chaos/test_two_workers.py",
    "tests/chaos/test_counters.py",
    "tests/chaos/test_killed_mix.py",
    "tests/web/test_bell.py",
    "tests/web/test_bell_states.py",
    "tests/decide/test_killed_workers.py",
    "tests/desk/test_cancel.py",
    "tests/desk/test_killed_cancels.py",
    "tests/chaos/test_bursts.py",
    "tests/deliver/test_killed_dispatchers.py",
    "tests/web/test_connection.py",
    "tests/live/test_instances.py",
    "tests/chaos/test_cancel_under_load.py",
    "tests/store/desk/test_cancel_machine.py",
    "tests/ingress/rabbitmq/test_killed_rabbitmq.py",
    "tests/ingress/relay/test_killed_relay.py",
    "tests/deliver/test_own_channel.py",
    "tests/decide/test_bulk.py",
    "tests/web/test_bell_setup.py",
    "tests/deliver/test_ranks.py",
    "tests/support/test_servers.py",
    "tests/deliver/test_outage.py",
    "tests/store/outbox/test_event_plans.py",
    "tests/decide/test_step.py",
    "tests/web/test_shop.py",
    "tests/decide/test_shared_keys.py",
    "tests/store/messages/test_counts.py",
)
