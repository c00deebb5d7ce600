"""A caller killed between its own row and the commit leaves nothing; one killed after the commit leaves both."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import asyncpg
import pytest

from bongsu import Event
from bongsu.model import new_id
from tests.ingress.databases import BOTH, NEITHER, Onlooker, Place, Seen

# The onlooker stays from test to test, and with it the loop its connection lives on.
pytestmark = pytest.mark.asyncio(loop_scope="package")

PROJECT = Path(__file__).parents[2]
# The server notices a dead client at once; more is reached only when something is broken.
PATIENCE_SECONDS = 10


@pytest.fixture(params=["sqlite", "postgresql"])
def onlooker(request: pytest.FixtureRequest) -> Onlooker:
    onlooker: Onlooker = request.getfixturevalue(f"{request.param}_onlooker")
    return onlooker


@pytest.mark.parametrize(("moment", "left"), [("before-commit", NEITHER), ("after-commit", BOTH)], ids=["before", "after"])
async def test_a_killed_caller_leaves_its_row_and_the_event_or_neither(
    place: Place, onlooker: Onlooker, moment: str, left: Seen
) -> None:
    event = Event(event_type="order.paid", ref_id=str(new_id()))
    await run_and_kill(place, event, moment)
    assert await onlooker.looks_for(event) == left


async def run_and_kill(place: Place, event: Event, moment: str) -> None:
    """Start a caller, wait until it says that it has come to that moment, and kill it there."""
    arguments = ("-m", "tests.ingress.caller", place.database, place.where, str(event.ref_id), str(event.event_id), moment)
    pipe = asyncio.subprocess.PIPE
    caller = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe, cwd=PROJECT)
    assert caller.stdout is not None
    said = (await caller.stdout.readline()).decode().split()
    assert said, "the caller ended early: its own words are on stderr"
    caller.kill()
    assert await caller.wait() == -signal.SIGKILL
    assert said[0] == moment
    if place.database == "postgresql":
        await is_gone(place, backend=int(said[1]))


async def is_gone(place: Place, backend: int) -> None:
    """The server ends the dead client's transaction by itself, a moment later."""
    connection = await asyncpg.connect(place.where)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", backend):
            pass
    await connection.close()
