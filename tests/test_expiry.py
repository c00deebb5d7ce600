"""After an outage of a provider nothing goes out that is worth nothing any more, on any channel; the inbox keeps it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from bongsu import App
from bongsu.cli.why_view import lines_of
from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.channels.limits.priority_semaphore import PrioritySemaphore
from bongsu.desk.why import find_view
from bongsu.errors import BadApp
from bongsu.model import Channel, Listed, Member, NoticeType, utc_now
from bongsu.model.outcome import Outcome, Outgoing, Refused, Retry
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.members import put_member
from tests.support.decisions import add_members, decide, rows, rules_notifying, trigger_event
from tests.support.rows import NOW, set_columns
from tests.support.runs import recover
from tests.support.senders import ACCEPTED, AnsweringSender, dispatch_due

CHANNELS = (Channel.PUSH, Channel.SMS, Channel.EMAIL)
TYPE = NoticeType("BRIEF", (*CHANNELS, Channel.IN_APP))


AWAY = Retry("UNREACHABLE", after_seconds=3600)


async def one_notification(store: Store, settings: Settings, **notice: Any) -> None:
    await add_members(store, "a", device=True)
    async with store.transaction() as tx:
        await put_member(tx, "a", Member(email="a@shop.example", phone="+821012345678"))
    await decide(store, settings, rules_notifying(Listed(("a",)), TYPE, **notice), trigger_event())


async def dispatch(store: Store, settings: Settings, answer: Outcome) -> list[int]:
    """How many sends the provider of each channel was asked for."""
    senders = [AnsweringSender(answer, channel) for channel in CHANNELS]
    return [len(await dispatch_due(store, settings, sender)) for sender in senders]


async def outcomes(store: Store) -> list[tuple[str, str | None]]:
    return [tuple(row) for row in await rows(store, "SELECT status, code FROM bongsu_deliveries ORDER BY channel")]


@pytest.mark.parametrize("is_recovered", [False, True], ids=["claimed", "recovered"])
async def test_nothing_stale_goes_out_after_an_outage(store: Store, settings: Settings, is_recovered: bool) -> None:
    await one_notification(store, settings, expires_at=utc_now() + timedelta(hours=1))
    assert await dispatch(store, settings, AWAY) == [1, 1, 1]
    assert await outcomes(store) == [("READY", "UNREACHABLE")] * 3

    # Two hours later the providers are back.
    await set_columns(store, "messages", expires_at=timedelta(hours=-1))
    await set_columns(store, "deliveries", due=timedelta(hours=-1))
    if is_recovered:
        assert await recover(store) == "3 expired"
    assert await dispatch(store, settings, ACCEPTED) == [0, 0, 0]
    assert await outcomes(store) == [("FAIL", "EXPIRED")] * 3
    (inbox,) = await rows(store, "SELECT unread FROM bongsu_members")
    assert inbox["unread"] == 1
    explained = "\n".join(map(str, lines_of(await find_view(store, settings, "a", None, 10))))
    assert "EXPIRED" in explained
    assert "it expired" in explained


async def test_what_has_not_expired_goes_out_after_an_outage(store: Store, settings: Settings) -> None:
    await one_notification(store, settings, expires_at=utc_now() + timedelta(hours=3))
    assert await dispatch(store, settings, AWAY) == [1, 1, 1]
    await set_columns(store, "deliveries", due=NOW)
    assert await dispatch(store, settings, ACCEPTED) == [1, 1, 1]


async def test_a_send_that_expires_while_it_waits_for_its_turn_is_not_made(settings: Settings) -> None:
    sender = AnsweringSender(channel=Channel.SMS)
    guarded = GuardedSender(sender, semaphore=PrioritySemaphore(1))
    outgoing = Outgoing(1, 1, "a", "+821012345678", "BRIEF", "t", "b", expires_at=utc_now())
    assert isinstance(outcome := await guarded.send(outgoing), Refused)
    assert outcome.code == "EXPIRED"
    assert sender.sent == []


@pytest.mark.parametrize("hours", [0, -1, float("nan"), float("inf"), 1e9, "1", True])
def test_a_type_expires_after_a_number_of_hours(hours: Any) -> None:
    with pytest.raises(BadApp, match="expires_hours"):
        App().type("BRIEF", channels=["PUSH"], expires_hours=hours)
