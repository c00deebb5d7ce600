"""docs/STATES.md: every change of status that the code makes is in the diagrams, and every one in the diagrams happens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest

from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.model import Channel, Event, EventStatus, Listed, NoticeType
from bongsu.model.outcome import Accepted, Outcome, Outgoing, Refused, Retry, Unknown
from bongsu.settings import Settings
from bongsu.store import Statement, Store, outbox
from bongsu.store.core.query import same
from bongsu.store.deliveries import DeliveryStatus
from bongsu.store.desk import dead_letters, dead_replay
from bongsu.store.desk.cancellations import Cancellation
from bongsu.store.desk.dead_letters import Filters
from tests.support.cancellations import request_cancel, run_cancel_steps
from tests.support.decisions import add_members, decide, rows, rules_notifying, trigger_event
from tests.support.rows import set_columns

PAGE = (Path(__file__).parents[1] / "docs/STATES.md").read_text()
PUSHED = NoticeType("PUSHED", (Channel.PUSH, Channel.IN_APP), duplicate_hours=0)

Transitions = set[tuple[str, str]]
Answer = Callable[[], Awaitable[Outcome]]


def drawn(heading: str) -> Transitions:
    """The transitions of the diagram under that heading."""
    diagram = PAGE.split(f"## {heading}\n")[1].split("```mermaid\n")[1].split("```")[0]
    return set(re.findall(r"^ +(\S+) --> (\S+) : \S", diagram, re.M))


@pytest.mark.parametrize(("heading", "statuses"), [("Event", EventStatus), ("Delivery", DeliveryStatus)])
def test_the_diagrams_have_every_status_and_no_other(heading: str, statuses: type[EventStatus | DeliveryStatus]) -> None:
    names = {status.value for status in statuses}
    assert {state for transition in drawn(heading) for state in transition} == names | {"[*]"}
    table = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| ([A-Z]+) \|", table, re.M)) == names


# --- every change of status, recorded by the database -----------------------------------------------------------------

_CREATE_TABLE = same("CREATE TABLE transitions (of_table text, before text, after text)")


def _triggers(table: str, when: str, before: str) -> list[Statement]:
    """Write every insert or change of status into the table of transitions."""
    name = f"{table}_{when[:6]}"
    insert = f"INSERT INTO transitions VALUES ('{table}', {before}, NEW.status);"
    function = f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $f$BEGIN {insert} RETURN NULL; END$f$"
    trigger = f"CREATE TRIGGER {name} AFTER {when} ON {table} FOR EACH ROW"
    return [
        Statement(postgres=function, sqlite="SELECT 1"),
        Statement(postgres=f"{trigger} EXECUTE FUNCTION {name}()", sqlite=f"{trigger} BEGIN {insert} END"),
    ]


@pytest.fixture
async def watched(store: Store) -> Store:
    """A store that records every change of status."""
    statements = [_CREATE_TABLE]
    for table in ("bongsu_events", "bongsu_deliveries"):
        statements += _triggers(table, "INSERT", "'[*]'") + _triggers(table, "UPDATE OF status", "OLD.status")
    async with store.transaction() as tx:
        await tx.execute(*(statement() for statement in statements))
    return store


async def recorded(store: Store, table: str) -> Transitions:
    query = "SELECT DISTINCT before, after FROM transitions WHERE of_table = $1 AND before <> after"
    return {(row["before"], row["after"]) for row in await rows(store, query, table)}


async def replay_all(store: Store) -> None:
    async with store.transaction() as tx:
        found, _ = await dead_letters.find_page(tx, Filters())
        await dead_replay.replay(tx, found)


async def cancel(store: Store, settings: Settings, event_id: UUID, *, withdraw: bool = False) -> None:
    assert isinstance(await request_cancel(store, event_id, withdraw=withdraw), Cancellation)
    await run_cancel_steps(store)


def _fail(_event: Event) -> Listed:
    raise ValueError("a rule that fails")


async def test_events_change_as_drawn(watched: Store, settings: Settings) -> None:
    store, settings = watched, settings.model_copy(update={"max_retries": 0})
    in_app = rules_notifying(Listed(("a",)))
    waiting, finished = trigger_event(), trigger_event()
    async with store.transaction() as tx:
        await outbox.add(tx, [waiting])
    await cancel(store, settings, waiting.event_id)
    await decide(store, settings, in_app, finished)
    await cancel(store, settings, finished.event_id, withdraw=True)
    for rules, event_type in ((rules_notifying(_fail), "said"), (in_app, "of no rule")):
        replayed, withdrawn = (Event(event_type=event_type) for _ in range(2))
        await decide(store, settings, rules, replayed)
        await replay_all(store)
        await decide(store, settings, rules, withdrawn)
        await cancel(store, settings, withdrawn.event_id, withdraw=True)
    assert await recorded(store, "bongsu_events") == drawn("Event")


class Answering:
    """A channel whose answers are given."""

    channel = Channel.PUSH

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)

    async def send(self, _outgoing: Outgoing) -> Outcome:
        return await self._answers.pop(0)()

    async def close(self) -> None: ...


def answer(outcome: Outcome) -> Answer:
    async def give() -> Outcome:
        return outcome

    return give


async def decide_push(store: Store, settings: Settings) -> UUID:
    event = trigger_event()
    await decide(store, settings, rules_notifying(Listed(("a",)), PUSHED), event)
    return event.event_id


async def send_all(store: Store, settings: Settings, *answers: Answer) -> None:
    """Send what is due until everything has ended; the sends are answered in this order."""
    dispatcher = Dispatcher(store, GuardedSender(Answering(*answers)), settings)
    async with asyncio.timeout(30):
        while await rows(store, "SELECT 1 FROM bongsu_deliveries WHERE status IN ('READY', 'SENDING') LIMIT 1"):
            await dispatcher.tick()
    await dispatcher.stop()


async def test_deliveries_change_as_drawn(watched: Store, settings: Settings) -> None:
    store, settings = watched, settings.model_copy(update={"retry_base_seconds": 0.01})
    accepted = answer(Accepted("reference"))
    await add_members(store, "a", device=True)
    for answers in ([answer(Retry("UNAVAILABLE")), accepted], [answer(Refused("NO"))], [answer(Unknown("LOST"))]):
        await decide_push(store, settings)
        await send_all(store, settings, *answers)
    await replay_all(store)
    await send_all(store, settings, accepted, accepted)
    event_id = await decide_push(store, settings)

    async def cancelled_meanwhile() -> Outcome:
        await cancel(store, settings, event_id)
        return Retry("UNAVAILABLE")

    await send_all(store, settings, cancelled_meanwhile)
    await cancel(store, settings, await decide_push(store, settings))
    await decide_push(store, settings)
    await set_columns(store, "devices", status="INVALID")
    await send_all(store, settings)
    assert await recorded(store, "bongsu_deliveries") == drawn("Delivery")
