"""`bongsu why`: what a support person reads, in sentences and as the command prints it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from bongsu import App, Digest
from bongsu.cli.why_view import delivery_sentence, event_sentence, facts, lines_of, reason_sentence, row_sentences
from bongsu.decide.quiet_hours import local_day
from bongsu.deliver.codes import in_words
from bongsu.desk.why import View, find_view, reason_of
from bongsu.model import (
    Channel,
    Device,
    DeviceStatus,
    Event,
    EventStatus,
    Member,
    Platform,
    Preferences,
    QuietHours,
    TypePreference,
    new_id,
    utc_now,
)
from bongsu.settings import Settings
from bongsu.store import Store, Transaction, migrate, outbox
from bongsu.store.core.query import same
from bongsu.store.desk import unfinished
from bongsu.store.desk.cancellations import Cancellation
from bongsu.store.desk.delivery_history import DeliveryRow
from bongsu.store.desk.history import HistoryRow, Status
from bongsu.store.members import ensure_members, put_member, put_preferences
from bongsu.store.members.devices import DeviceRow
from bongsu.store.outbox import EventRow
from tests.support.notifications import NOON, add_past_message, add_past_notification, add_past_suppression
from tests.support.plans import generic_plan
from tests.support.processes import bongsu
from tests.support.rows import set_columns

# --- sentences --------------------------------------------------------------------------------------------------------

ROW = HistoryRow(
    message_id=1,
    member_id="m-1",
    event_id=new_id(),
    type="PRICE_DROP",
    subject="product-1",
    title="사과",
    body="싸요",
    locale="ko",
    is_critical=False,
    channels=(Channel.PUSH, Channel.SMS),
    notification_id=None,
    status=Status.RATE_LIMITED,
    created_at=NOON,
    read_at=None,
)
SENT = DeliveryRow(1, Channel.PUSH, "phone", "SUCCESS", None, 1, False, NOON, NOON, NOON)
PHONE = DeviceRow(
    "phone", Device(token="t", platform=Platform.IOS, push_consent=True), DeviceStatus.ACTIVE, NOON
)  # fmt: skip


def view(**fields: Any) -> View:
    seen = View(
        settings=Settings(),
        now=NOON,
        member_id="m-1",
        member=Member(),
        preferences=Preferences(),
        devices=(),
        counted_today=3,
        rows=(),
    )
    return replace(seen, **fields)


def suppressed(status: Status, seen: View | None = None, **fields: Any) -> str:
    seen = seen or view()
    return reason_sentence(reason_of(seen, replace(ROW, status=status, **fields)))


def test_limits_and_windows_are_shown_as_they_are_set() -> None:
    assert suppressed(Status.RATE_LIMITED) == "daily limit of 10 reached"
    assert suppressed(Status.DUPLICATE) == "the same about product-1 was sent within 1 h"
    settings = Settings(daily_limit=3, duplicate_hours=0.5)
    assert suppressed(Status.RATE_LIMITED, view(settings=settings)) == "daily limit of 3 reached"
    assert suppressed(Status.DUPLICATE, view(settings=settings)) == "the same about product-1 was sent within 0.5 h"


def test_the_window_of_a_type_of_ones_own_is_shown_when_its_rules_are_named() -> None:
    app = App()
    app.type("SHIPPED", channels=["PUSH"], duplicate_hours=12)
    beginning = "the same about product-1 was sent within"
    assert suppressed(Status.DUPLICATE, view(app=app), type="SHIPPED") == f"{beginning} 12 h"
    assert suppressed(Status.DUPLICATE, view(app=app), type="MARKETING") == f"{beginning} 1 h"
    unsure = f"{beginning} 1 h, or the hours that your own rules give SHIPPED (--app)"
    assert suppressed(Status.DUPLICATE, type="SHIPPED") == unsure


def test_an_actor_who_is_in_a_digest_is_not_said_to_be_about_the_event() -> None:
    """A notice with a digest is about its event unless its rule says otherwise, so no other is about the same."""
    app = App()
    app.type("VISIT", channels=["PUSH"], digest=Digest(600))
    own: dict[str, Any] = {"type": "VISIT", "subject": str(ROW.event_id)}
    assert suppressed(Status.DUPLICATE, view(app=app), **own) == "its actor is in the digest already"
    assert suppressed(Status.DUPLICATE, **own) == "its actor is in the digest already"
    either = "the same about p1:ann was sent within 1 h, or its actor is in the digest already"
    assert suppressed(Status.DUPLICATE, type="POST_LIKE", subject="p1:ann") == either


def test_the_preference_that_suppressed_it_is_named() -> None:
    def with_preferences(**fields: Any) -> str:
        return suppressed(Status.USER_OPTED_OUT, view(preferences=Preferences(**fields)))

    assert with_preferences(enabled=False) == "has turned all notifications off"
    assert with_preferences(types={"PRICE_DROP": TypePreference(enabled=False)}) == "has turned PRICE_DROP off"
    only_mail = {"PRICE_DROP": TypePreference(channels=frozenset({Channel.EMAIL}))}
    assert with_preferences(types=only_mail) == "wants PRICE_DROP by EMAIL, and it is sent by PUSH, SMS"
    nothing = {"PRICE_DROP": TypePreference(channels=frozenset())}
    assert with_preferences(types=nothing) == "wants PRICE_DROP by no channel, and it is sent by PUSH, SMS"
    # The switch does not hold critical ones back, so it was not the switch.
    off = view(preferences=Preferences(enabled=False, types={"PRICE_DROP": TypePreference(enabled=False)}))
    assert suppressed(Status.USER_OPTED_OUT, off, is_critical=True) == "has turned PRICE_DROP off"
    assert with_preferences() == "had turned PRICE_DROP off, and has it on again by now"


def test_a_missing_address_is_named() -> None:
    assert suppressed(Status.NO_ADDRESS) == "has neither device nor phone"
    assert suppressed(Status.NO_ADDRESS, channels=(Channel.PUSH,)) == "has no device"
    assert suppressed(Status.NO_ADDRESS, channels=(Channel.EMAIL,)) == "has no e-mail address"
    dead = view(devices=[replace(PHONE, status=DeviceStatus.INVALID)])
    assert suppressed(Status.NO_ADDRESS, dead, channels=(Channel.PUSH,)) == "has no device that can be pushed to"
    by_now = view(member=Member(phone="010-1234"))
    assert suppressed(Status.NO_ADDRESS, by_now) == "had neither device nor phone then"
    only_push = view(preferences=Preferences(types={"PRICE_DROP": TypePreference(channels=frozenset({Channel.PUSH}))}))
    assert suppressed(Status.NO_ADDRESS, only_push) == "has no device"


def test_each_delivery_says_what_became_of_it() -> None:
    def sentence(seen: View | None = None, **fields: Any) -> str:
        return delivery_sentence(seen or view(), replace(SENT, **fields))

    later = NOON + timedelta(hours=1)
    assert sentence() == "sent 2026-03-01 21:00:00"
    assert sentence(status="FAIL", code="UNREGISTERED") == f"failed after 1 attempt ({in_words('UNREGISTERED')})"
    assert (
        sentence(status="UNKNOWN", code="TIMEOUT")
        == "it is not known whether it arrived (TIMEOUT: it was sent and the answer was lost)"
    )
    assert sentence(status="SENDING") == "being sent"
    assert sentence(status="READY") == "due now"
    assert sentence(status="READY", due=later, attempts=0) == "waits until 2026-03-01 22:00:00"
    quiet = view(preferences=Preferences(quiet_hours=QuietHours(start="20:00", end="22:00")))
    waits = "waits until 2026-03-01 22:00:00 for the end of quiet hours"
    assert sentence(quiet, status="READY", due=later, attempts=0) == waits
    # The window of a digest may end outside them.
    by_day = view(preferences=Preferences(quiet_hours=QuietHours(start="23:00", end="08:00")))
    assert sentence(by_day, status="READY", due=later, attempts=0) == "waits until 2026-03-01 22:00:00"
    morning = "waits until 2026-03-02 08:00:00 for the end of quiet hours"
    assert sentence(by_day, status="READY", due=NOON + timedelta(hours=11), attempts=0) == morning
    held = f"waits until 2026-03-01 22:00:00 ({in_words('CIRCUIT_OPEN')})"
    assert sentence(quiet, status="READY", due=later, attempts=0, code="CIRCUIT_OPEN") == held
    again = "2 attempts failed (VENDOR_7), next attempt at 2026-03-01 22:00:00"
    assert sentence(status="READY", due=later, attempts=2, code="VENDOR_7") == again


def test_a_notification_lists_its_deliveries() -> None:
    both = (Channel.PUSH, Channel.IN_APP)
    sent = (SENT, replace(SENT, is_simulated=True))
    row = replace(ROW, notification_id=7, status=Status.SENT, channels=both, deliveries=sent)
    # Without IN_APP it is not in the inbox.
    assert next(row_sentences(view(), replace(row, channels=(Channel.PUSH,)))).startswith("PUSH to phone: sent")
    assert list(row_sentences(view(member=Member(timezone="UTC")), row)) == [
        "inbox: not read yet",
        "PUSH to phone: sent 2026-03-01 12:00:00",
        "PUSH to phone: sent 2026-03-01 12:00:00 (simulated: the channel is not configured, so nothing was sent)",
    ]
    assert next(row_sentences(view(), replace(row, read_at=NOON))) == "inbox: read 2026-03-01 21:00:00"
    archived = replace(row, read_at=NOON, archived_at=NOON + timedelta(hours=1))
    assert next(row_sentences(view(), archived)) == (
        "inbox: read 2026-03-01 21:00:00, archived by the member 2026-03-01 22:00:00"
    )
    deleted = replace(row, deleted_at=NOON)
    assert next(row_sentences(view(), deleted)) == "inbox: not read, deleted by the member 2026-03-01 21:00:00"


def test_an_event_is_described_from_the_members_side() -> None:
    event_id = new_id()
    event = EventRow(
        event_id=event_id, event_type="product.price_changed", status=EventStatus.PENDING, due=NOON, created_at=NOON
    )

    def sentence(status: EventStatus, seen: View | None = None, **fields: Any) -> str:
        text = event_sentence(seen or view(), replace(event, status=status, **fields))
        beginning = f"Event {event_id} (product.price_changed) "
        assert text.startswith(beginning)
        return text.removeprefix(beginning)

    later = NOON + timedelta(hours=1)
    failed = " 2 attempts have failed, the last with: KeyError: 'x'"
    assert sentence(EventStatus.PENDING) == "is PENDING: it waits for a worker."
    assert sentence(EventStatus.PENDING, due=later) == "is PENDING: it is due at 2026-03-01 22:00:00."
    assert sentence(EventStatus.PENDING, due=later, is_leased=True) == "is PENDING: a worker has claimed it."
    assert sentence(EventStatus.PENDING, attempts=2, error="KeyError: 'x'") == f"is PENDING: it waits for a worker.{failed}"
    assert sentence(EventStatus.PENDING, is_begun=True).endswith("not all of it has been reached yet.")
    assert sentence(EventStatus.FAILED, attempts=2, error="KeyError: 'x'").endswith(f"unless it is replayed.{failed}")
    assert sentence(EventStatus.DONE) == "is DONE, and m-1 was not in its audience."
    assert sentence(EventStatus.DONE, view(rows=[ROW])) == "is DONE."
    unhandled = replace(event, event_type="order.shiped", status=EventStatus.UNHANDLED)
    assert "is UNHANDLED: no rule handled its type" in event_sentence(view(), unhandled)
    assert event_sentence(view(), unhandled).endswith("start the workers with --app and replay it.")
    assert event_sentence(view(app=App()), unhandled).endswith("Still none does; replay it once one does.")
    assert sentence(EventStatus.UNHANDLED).endswith("Replay it: a rule handles that type now.")
    assert sentence(EventStatus.CANCELLED).startswith("was CANCELLED. m-1 was not decided before that")
    cancelled = Cancellation(event_id, NOON + timedelta(hours=1), "cli:ann", True, 0, 0, 0, is_finished=True)
    whole = "was CANCELLED at 2026-03-01 22:00:00 by cli:ann, and withdrawn from the inboxes."
    assert sentence(EventStatus.CANCELLED, view(rows=[ROW], cancellation=cancelled)) == whole
    before = sentence(EventStatus.CANCELLED, view(cancellation=cancelled), finished_at=NOON)
    assert before == f"{whole} m-1 was not in its audience."


def test_what_is_known_of_the_member_comes_first() -> None:
    assert dict(facts(view())) == {
        "locale": "not known",
        "time zone": "Asia/Seoul, as for all whose own is not known; times below are in it",
        "e-mail": "none",
        "phone": "none",
        "devices": "none",
        "switch": "on",
        "quiet hours": "none",
        "today": "3 of 10",
    }
    types = {
        "A": TypePreference(enabled=False),
        "B": TypePreference(channels=frozenset({Channel.SMS})),
        "C": TypePreference(),
    }
    preferences = Preferences(enabled=False, types=types, quiet_hours=QuietHours(start="22:00", end="08:00"))
    no_consent = replace(PHONE, device_id="web", device=PHONE.device.model_copy(update={"push_consent": False}))
    seen = view(
        member=Member(locale="en", timezone="UTC", email="a@b", phone="010"),
        preferences=preferences,
        devices=[PHONE, no_consent],
    )
    assert dict(facts(seen)) == {
        "locale": "en",
        "time zone": "UTC; times below are in it",
        "e-mail": "known",
        "phone": "known",
        "devices": "phone (IOS, ACTIVE), web (IOS, ACTIVE, without consent to push)",
        "switch": "off: only critical ones get through",
        "preferences": "A off; B by SMS; C on",
        "quiet hours": "22:00 to 08:00",
        "today": "3 of 10",
    }


def test_more_than_the_limit_means_that_the_service_has_another() -> None:
    assert dict(facts(view(counted_today=11)))["today"] == "11; the service allows more than the 10 set here"


def test_a_title_cannot_steer_the_terminal() -> None:
    hostile = replace(ROW, title="\x1b]0;x\x07\x1b[2J사과\r\n[red]x[/]", subject="\x1b[1m")
    shown = [line.plain for line in lines_of(view(rows=[hostile]))]
    assert not any("\x1b" in line or "\r" in line or "\n" in line for line in shown)
    assert any("사과  [red]x[/]" in line for line in shown)


# --- the command ------------------------------------------------------------------------------------------------------


def prepare(settings: Settings, work: Callable[[Transaction], Awaitable[None]]) -> None:
    async def alone() -> None:
        store = Store.open(settings)
        await migrate(store)
        async with store.transaction() as tx:
            await work(tx)
        await store.close()

    asyncio.run(alone())


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("bongsu: ")
    return line


def test_a_page_a_support_person_can_read(settings: Settings, environment: dict[str, str]) -> None:
    event = Event(event_type="product.price_changed")
    waiting = Event(event_type="post.liked")

    async def past(tx: Transaction) -> None:
        await put_member(tx, "m-1", Member(locale="ko", timezone="UTC", phone="010-1234"))
        await put_preferences(tx, "m-1", Preferences(types={"POST_LIKE": TypePreference(enabled=False)}))
        await add_past_notification(
            tx, await add_past_message(tx, event_id=event.event_id), "m-1", "SUCCESS", finished_at=None
        )
        await add_past_suppression(
            tx, await add_past_message(tx, "POST_LIKE", subject="post-1", title="좋아요"), "m-1", "USER_OPTED_OUT"
        )
        # Tomorrow's counts as today's too, and so midnight may come while this runs.
        today = local_day(utc_now(), ZoneInfo("UTC")) + 1
        await set_columns(tx, "members", {"member_id": "m-1"}, capped_day=today, capped_count=4)
        await outbox.add(tx, [event, waiting])

    prepare(settings, past)
    done = bongsu("why", "m-1", environment=environment)
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[0] == "m-1"
    for line in (
        "  phone       known",
        "  devices     none",
        "  preferences POST_LIKE off",
        "  today       4 of 10",
        "2026-03-01 12:00:00  SENT  PRICE_DROP  사과 가격이 내렸어요",
        "    PUSH to d-0: sent 2026-03-01 12:00:00",
        "2026-03-01 12:00:00  USER_OPTED_OUT  POST_LIKE  좋아요",
        "    not notified: has turned POST_LIKE off",
        f"    about product-1, event {event.event_id}",
    ):
        assert line in lines, done.stdout
    assert lines.index("    not notified: has turned POST_LIKE off") < lines.index("    inbox: not read yet")
    assert "inbox" not in bongsu("why", "m-1", "--limit", "1", environment=environment).stdout

    pending = bongsu("why", "m-1", "--event", str(waiting.event_id), environment=environment).stdout
    assert "is PENDING: it waits for a worker." in pending
    assert "inbox" not in pending


def test_the_rules_of_ones_own_are_asked_too(
    settings: Settings, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = "from bongsu import App\napp = App()\napp.type('SHIPPED', channels=['PUSH'], duplicate_hours=36)\n"
    (tmp_path / "our_rules.py").write_text(rules)

    async def past(tx: Transaction) -> None:
        await add_past_suppression(tx, await add_past_message(tx, "SHIPPED", subject="order-7"), "m-1", "DUPLICATE")

    prepare(settings, past)
    # The command's process takes over this one's path.
    monkeypatch.syspath_prepend(tmp_path)
    shown = bongsu("why", "m-1", "--app", "our_rules:app", environment=environment)
    assert shown.returncode == 0, shown.stderr
    assert "not notified: the same about order-7 was sent within 36 h" in shown.stdout


def test_who_and_what_is_not_there_is_one_line(settings: Settings, environment: dict[str, str]) -> None:
    async def past(tx: Transaction) -> None:
        await ensure_members(tx, ["m-1"])

    prepare(settings, past)
    assert "There is no member m-2" in refused(bongsu("why", "m-2", environment=environment))
    assert "MEMBER must be" in refused(bongsu("why", "", environment=environment))
    unknown = str(new_id())
    assert f"There is no event {unknown}" in refused(bongsu("why", "m-1", "--event", unknown, environment=environment))
    assert "--event 7" in refused(bongsu("why", "m-1", "--event", "7", environment=environment))
    assert "No notifications for this member" in bongsu("why", "m-1", environment=environment).stdout


@pytest.mark.parametrize("is_known", [True, False])
def test_events_that_have_not_reached_the_member_are_shown_also_if_the_store_does_not_know_them(
    settings: Settings, environment: dict[str, str], is_known: bool
) -> None:
    waits = Event(event_type="reservation.confirmed", target_id="m-1", ref_id="r-1")
    failed = Event(event_type="reservation.confirmed", target_id="m-1", ref_id="r-2")
    unhandled = Event(event_type="reservation.confirmd", target_id="m-1")
    scheduled = Event(event_type="bongsu.notification", payload={"userIds": ["m-0", "m-1", "민아"]})
    vote = Event(event_type="vote.closed", payload={"memberIds": ["m-1"]})
    done = Event(event_type="post.liked", target_id="m-1")
    others = [
        Event(event_type="reservation.confirmed", target_id="m-2"),
        Event(event_type="bongsu.notification", payload={"userIds": ["m-11", "m-0"], "title": "m-1"}),
    ]

    async def past(tx: Transaction) -> None:
        if is_known:
            await ensure_members(tx, ["m-1"])
        await outbox.add(tx, [waits, failed, unhandled, scheduled, vote, done, *others])
        for event, status in ((failed, "FAILED"), (unhandled, "UNHANDLED"), (vote, "FAILED"), (done, "DONE")):
            ended = {"status": status, "error": "KeyError: 'x'", "finished_at": NOON, "attempts": 1}
            await set_columns(tx, "events", {"event_id": event.event_id}, **ended)

    prepare(settings, past)
    shown = bongsu("why", "m-1", environment=environment)
    assert shown.returncode == 0, shown.stderr
    for sentence in (
        f"Event {waits.event_id} (reservation.confirmed) is PENDING: it waits for a worker.",
        f"Event {failed.event_id} (reservation.confirmed) has FAILED: it sends nothing more unless it is replayed. "
        "1 attempts have failed, the last with: KeyError: 'x'",
        f"Event {unhandled.event_id} (reservation.confirmd) is UNHANDLED: no rule handled its type",
        f"Event {scheduled.event_id} (bongsu.notification) is PENDING",
        f"Event {vote.event_id} (vote.closed) has FAILED",
    ):
        assert sentence in shown.stdout, shown.stdout
    for event in (done, *others):
        assert str(event.event_id) not in shown.stdout
    assert ("No member of this id is stored" in shown.stdout) is not is_known
    assert ("devices" in shown.stdout) is is_known
    # By letters that JSON may escape, too.
    assert str(scheduled.event_id) in bongsu("why", "민아", environment=environment).stdout
    named = bongsu("why", "m-1", "--event", str(failed.event_id), environment=environment).stdout
    assert (str(failed.event_id) in named, str(waits.event_id) in named) == (True, False)


async def test_an_event_whose_notification_is_shown_is_not_shown_twice(store: Store, settings: Settings) -> None:
    event = Event(event_type="reservation.confirmed", target_id="m-1")
    async with store.transaction() as tx:
        await outbox.add(tx, [event])
        await add_past_notification(tx, await add_past_message(tx, event_id=event.event_id), "m-1", "SUCCESS")
    seen = await find_view(store, settings, "m-1", None, 10)
    assert ([row.event_id for row in seen.rows], seen.unfinished) == ([event.event_id], [])


async def test_the_events_of_a_member_are_found_by_their_index(store: Store) -> None:
    events = [Event(event_type="post.liked", target_id=f"m-{number}") for number in range(2_000)]
    async with store.transaction() as tx:
        await outbox.add(tx, events)
        await tx.execute(same("ANALYZE")())
    steps = await generic_plan(store, unfinished.BY_TARGET)
    assert "bongsu_events_target" in steps, steps
    steps = await generic_plan(store, unfinished.BY_LIST)
    assert ("bongsu_events_due" in steps, "bongsu_events_dead" in steps) == (True, True), steps
