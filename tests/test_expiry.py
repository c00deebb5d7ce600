"""After an outage of a provider nothing goes out that is worth nothing any more, on any channel; the inbox keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from bongsu import App
from bongsu.cli.why_view import lines_of
from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.channels.limits.priority_semaphore import PrioritySemaphore
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.desk.why import find_view
from bongsu.errors import BadApp
from bongsu.model import Channel, Listed, Member, NoticeType, utc_now
from bongsu.model.outcome import Accepted, Outcome, Outgoing, Refused, Retry
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.members import put_member
from tests.support.decisions import add_members, decide, rows, rules_notifying, trigger_event
from tests.support.rows import NOW, set_columns
from tests.support.runs import recover

CHANNELS = (Channel.PUSH, Channel.SMS, Channel.EMAIL)
TYPE = NoticeType("BRIEF", (*CHANNELS, Channel.IN_APP))


class Provider:
    """Away until it is back."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.is_away = True
        self.asked = asyncio.Event()
        self.accepted: list[Outgoing] = []

    async def send(self, outgoing: Outgoing) -> Outcome:
        self.asked.set()
        if self.is_away:
            return Retry("UNREACHABLE", after_seconds=3600)
        self.accepted.append(outgoing)
        return Accepted("ref")

    async def close(self) -> None: ...


async def one_notification(store: Store, settings: Settings, **notice: Any) -> None:
    await add_members(store, "a", device=True)
    async with store.transaction() as tx:
        await put_member(tx, "a", Member(email="a@shop.example", phone="+821012345678"))
    await decide(store, settings, rules_notifying(Listed(("a",)), TYPE, **notice), trigger_event())


async def dispatch(store: Store, settings: Settings, providers: Sequence[Provider]) -> None:
    for provider in providers:
        dispatcher = Dispatcher(store, GuardedSender(provider), settings)
        while await dispatcher.tick():
            pass
        await dispatcher.stop()


async def outcomes(store: Store) -> list[tuple[str, str | None]]:
    return [tuple(row) for row in await rows(store, "SELECT status, code FROM bongsu_deliveries ORDER BY channel")]


@pytest.mark.parametrize("is_recovered", [False, True], ids=["claimed", "recovered"])
async def test_nothing_stale_goes_out_after_an_outage(store: Store, settings: Settings, is_recovered: bool) -> None:
    await one_notification(store, settings, expires_at=utc_now() + timedelta(hours=1))
    providers = [Provider(channel) for channel in CHANNELS]
    await dispatch(store, settings, providers)
    assert all(provider.asked.is_set() for provider in providers)
    assert await outcomes(store) == [("READY", "UNREACHABLE")] * 3

    # Two hours later the providers are back.
    await set_columns(store, "messages", expires_at=timedelta(hours=-1))
    await set_columns(store, "deliveries", due=timedelta(hours=-1))
    if is_recovered:
        assert await recover(store) == "3 expired"
    for provider in providers:
        provider.is_away = False
    await dispatch(store, settings, providers)

    assert [provider.accepted for provider in providers] == [[], [], []]
    assert await outcomes(store) == [("FAIL", "EXPIRED")] * 3
    (inbox,) = await rows(store, "SELECT unread FROM bongsu_members")
    assert inbox["unread"] == 1
    explained = "\n".join(map(str, lines_of(await find_view(store, settings, "a", None, 10))))
    assert "EXPIRED" in explained
    assert "it expired" in explained


async def test_what_has_not_expired_goes_out_after_an_outage(store: Store, settings: Settings) -> None:
    await one_notification(store, settings, expires_at=utc_now() + timedelta(hours=3))
    providers = [Provider(channel) for channel in CHANNELS]
    await dispatch(store, settings, providers)
    await set_columns(store, "deliveries", due=NOW)
    for provider in providers:
        provider.is_away = False
    await dispatch(store, settings, providers)
    assert [len(provider.accepted) for provider in providers] == [1, 1, 1]


async def test_a_send_that_expires_while_it_waits_for_its_turn_is_not_made(settings: Settings) -> None:
    sender = Provider(Channel.SMS)
    sender.is_away = False
    guarded = GuardedSender(sender, semaphore=PrioritySemaphore(1))
    outgoing = Outgoing(1, 1, "a", "+821012345678", "BRIEF", "t", "b", expires_at=utc_now())
    assert isinstance(outcome := await guarded.send(outgoing), Refused)
    assert outcome.code == "EXPIRED"
    assert sender.accepted == []


@pytest.mark.parametrize("hours", [0, -1, float("nan"), float("inf"), 1e9, "1", True])
def test_a_type_expires_after_a_number_of_hours(hours: Any) -> None:
    with pytest.raises(BadApp, match="expires_hours"):
        App().type("BRIEF", channels=["PUSH"], expires_hours=hours)
