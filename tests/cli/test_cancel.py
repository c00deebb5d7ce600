"""`bongsu event cancel`, as an operator uses it."""

from __future__ import annotations

import getpass
from uuid import UUID

import pytest

from bongsu.model import new_id
from bongsu.settings import Settings
from bongsu.store import Store
from tests.cli.test_dead import Do, typed
from tests.support.campaigns import add_event
from tests.support.cancellations import counts_are_exact, decide_campaign, event_status, in_inboxes, statuses
from tests.support.decisions import rows
from tests.support.processes import bongsu


@pytest.fixture
def with_store(settings: Settings) -> Do:
    return Do(settings)


def test_it_says_what_was_stopped_sent_and_withdrawn(
    with_store: Do, settings: Settings, environment: dict[str, str]
) -> None:
    event_id = with_store(lambda store: decide_campaign(store, settings, 3, chunk=2))
    cancel = ("event", "cancel", str(event_id))
    for _ in range(2):
        done = bongsu(*cancel, environment=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "3 deliveries cancelled, 0 already sent, 0 inbox rows withdrawn\n"
    assert with_store(statuses) == {"CANCELLED": 3}
    assert with_store(in_inboxes) == 3
    done = bongsu(*cancel, "--withdraw", environment=environment)
    assert done.stdout == "3 deliveries cancelled, 0 already sent, 3 inbox rows withdrawn\n"
    assert with_store(in_inboxes) == 0
    assert with_store(counts_are_exact)
    shown = bongsu("event", "show", str(event_id), environment=environment).stdout
    assert f"by cli:{getpass.getuser()}" in shown
    assert "3 deliveries stopped, 0 sent before, 3 inbox rows withdrawn" in shown
    assert "PUSH       CANCELLED 3" in shown


def test_what_cannot_be_cancelled_is_said_with_its_cure(with_store: Do, environment: dict[str, str]) -> None:
    async def finished(store: Store) -> UUID:
        async with store.transaction() as tx:
            return await add_event(tx, status="DONE")

    event_id, unknown = with_store(finished), new_id()
    for one, says in (
        (str(event_id), "nothing left to cancel. All of it has been sent already"),
        (str(unknown), f"There is no event {unknown}"),
        ("7", "give the event's id, a UUID"),
    ):
        done = bongsu("event", "cancel", one, environment=environment)
        assert done.returncode != 0
        assert says in " ".join(done.stderr.split())
        assert done.stdout == ""
    assert with_store(lambda store: event_status(store, event_id)) == "DONE"
    assert with_store(lambda store: rows(store, "SELECT 1 FROM bongsu_cancellations")) == []


def test_on_a_terminal_it_asks_first(with_store: Do, settings: Settings, environment: dict[str, str]) -> None:
    event_id = with_store(lambda store: decide_campaign(store, settings, 2))
    terminal = {**environment, "TERM": "xterm", "COLUMNS": "100"}
    cancel = ("event", "cancel", str(event_id), "--withdraw")
    code, shown = typed("n", *cancel, environment=terminal)
    assert (code, "Aborted" in shown) == (1, True)
    assert f"Cancel event {event_id} and withdraw it from the inboxes?" in " ".join(shown.split())
    assert with_store(lambda store: event_status(store, event_id)) == "DONE"
    code, shown = typed("y", *cancel, environment=terminal)
    assert (code, "2 inbox rows withdrawn" in shown) == (0, True)
    code, shown = typed("n", *cancel, "--yes", environment=terminal)
    assert (code, "Cancel event" in shown) == (0, False)
    assert with_store(statuses) == {"CANCELLED": 2}
