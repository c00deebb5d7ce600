"""Rules put together, and what users get wrong in theirs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

import pytest

from bongsu import App, Channel, Digest, Event, Everyone, Guarantee, Listed, Notice, NoticeType, Priority, Run
from bongsu.errors import BadApp
from bongsu.model.outcome import Accepted, Outcome, Outgoing
from bongsu.rules import Rules, catalogue
from bongsu.settings import Settings
from tests.rules.events import notices_of, the_only

LIKED: dict[str, Any] = {"actor_id": "a", "target_id": "b", "ref_id": "1"}


def test_a_users_rule_adds_to_the_built_in_ones() -> None:
    app = App()
    team = app.type("TEAM", channels=["PUSH"])

    @app.rule("post.liked")
    def tell_the_team(_event: Event) -> Iterable[Notice]:
        yield Notice(team, Everyone())

    names = [notice.type.name for notice in notices_of("post.liked", catalogue(Settings(), app), **LIKED)]
    assert names == ["POST_LIKE", "TEAM"]
    # The app is included, not changed; and what is included later has no part in it.
    assert list(app.types) == ["TEAM"]
    assert [notice.type.name for notice in notices_of("post.liked", **LIKED)] == ["POST_LIKE"]


def test_a_type_declares_all_that_holds_for_its_kind() -> None:
    app = App()
    declared = app.type(
        "SHIPPED",
        channels=["PUSH", Channel.SMS],
        priority="HIGH",
        guarantee="at_least_once",
        critical=True,
        duplicate_hours=0,
    )
    assert declared == NoticeType(
        "SHIPPED", (Channel.PUSH, Channel.SMS), Priority.HIGH, Guarantee.AT_LEAST_ONCE, is_critical=True, duplicate_hours=0
    )
    assert app.types == {"SHIPPED": declared}


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda app: app.type("../x", channels=["PUSH"]), "cannot name a notice type"),
        (lambda app: app.type("X", channels=["FAX"]), "X: channels takes PUSH, SMS, EMAIL, IN_APP, not 'FAX'"),
        (lambda app: app.type("X", channels=[]), "X: channels must be a list of some of"),
        (lambda app: app.type("X", channels=["PUSH"], priority="URGENT"), "priority takes HIGH, NORMAL, LOW"),
        (lambda app: app.type("X", channels=["PUSH"], guarantee="no"), "guarantee takes at_least_once, at_most_once"),
        (lambda app: app.rule(lambda _event: ()), "@rule stands without an event type"),
    ],
)
def test_a_wrong_declaration_says_what_it_takes(declare: Any, says: str) -> None:
    with pytest.raises(BadApp, match=says):
        declare(App())


async def nothing(_run: Run) -> str:
    """Does nothing.

    For long.
    """
    return ""


def test_an_app_may_bring_a_job() -> None:
    app = App()
    assert app.job("weekly-report", cron="0 9 * * 1", at_least_for=timedelta(minutes=5))(nothing) is nothing
    (job,) = catalogue(Settings(), app).jobs
    assert (job.name, job.cron, job.does, job.work) == ("weekly-report", "0 9 * * 1", "Does nothing.", nothing)
    assert (job.misfire_grace, job.at_most_for, job.at_least_for) == (
        timedelta(hours=1), timedelta(hours=1), timedelta(minutes=5),
    )  # fmt: skip
    assert catalogue(Settings()).jobs == ()


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda app: app.job("weekly report", cron="0 9 * * 1"), "'weekly report' cannot name a job"),
        (lambda app: app.job(nothing, cron="0 9 * * 1"), "cannot name a job"),
        (lambda app: app.job("x", cron="every day"), "Job x: cron 'every day' must be five cron fields"),
        (lambda app: app.job("x", cron="0 0 30 2 *"), "on a day that exists"),
        (lambda app: app.job("x", cron=5), "Job x: cron 5 must be five cron fields"),
        (
            lambda app: app.job("x", cron="0 9 * * 1", misfire_grace=60),
            "Job x: misfire_grace is 60: give a timedelta",
        ),
        (lambda app: app.job("x", cron="0 9 * * 1", at_most_for=None), "Job x: at_most_for is None: give a timedelta"),
        (
            lambda app: app.job("x", cron="0 9 * * 1", at_most_for=timedelta(0)),
            "at_most_for is .*: .* of more than 0",
        ),
        (
            lambda app: app.job("x", cron="0 9 * * 1", at_least_for=timedelta(-1)),
            "at_least_for is .*: .* of 0 or more",
        ),
        (lambda app: app.job("x", cron="0 9 * * 1")(lambda run: ""), "Job x: .* is not an async function"),
        (lambda app: app.job("taken", cron="0 9 * * 1")(nothing), "Job taken is declared twice"),
    ],
)
def test_a_wrong_job_says_what_it_takes(declare: Any, says: str) -> None:
    app = App()
    app.job("taken", cron="0 9 * * 1")(nothing)
    with pytest.raises(BadApp, match=says):
        declare(app)


class Pigeon:
    channel = Channel.SMS

    async def send(self, _outgoing: Outgoing) -> Outcome:
        return Accepted("coo")

    async def close(self) -> None: ...


def test_an_app_may_bring_a_sender_for_a_channel() -> None:
    app, pigeon = App(), Pigeon()
    app.channel("SMS", pigeon)
    app.channel(Channel.SMS, pigeon)
    assert catalogue(Settings(), app).senders == {Channel.SMS: pigeon}
    assert catalogue(Settings()).senders == {}


@pytest.mark.parametrize(
    ("channel", "sender", "says"),
    [
        ("FAX", Pigeon(), "The sender of FAX has channel = <Channel.SMS: 'SMS'>: write channel = 'FAX' in its class"),
        ("FAX LINE", Pigeon(), "'FAX LINE' cannot name a channel: take letters, digits and _"),
        ("F" * 33, Pigeon(), "at most 32"),
        ("Sms", Pigeon(), "Channel Sms is too much like SMS: write that, or take another name"),
        ("IN_APP", Pigeon(), "IN_APP is the inbox itself and has no sender: choose one of PUSH, SMS, EMAIL"),
        ("SMS", Pigeon, "The sender of SMS is a class: pass an instance, Pigeon()"),
        ("SMS", object(), "The sender of SMS has no async send"),
        ("SMS", Pigeon(), "Channel SMS has two senders: a message goes out once, so choose one"),
    ],
)
def test_a_wrong_sender_says_what_it_lacks(channel: str, sender: Any, says: str) -> None:
    app = App()
    app.channel("SMS", Pigeon())
    with pytest.raises(BadApp, match=re.escape(says)):
        app.channel(channel, sender)


class Kite(Pigeon):
    channel: Any = "KITE"


def test_an_app_may_declare_a_channel_that_its_types_name() -> None:
    app, kite = App(), Kite()
    app.channel("KITE", kite, concurrency=8)
    flown = app.type("FLOWN", channels=["KITE", Channel.IN_APP])
    assert flown.channels == ("KITE", "IN_APP")
    rules = catalogue(Settings(), app)
    assert rules.senders == {"KITE": kite}
    assert (dict(rules.concurrency), sorted(rules.declared_channels)) == ({"KITE": 8}, ["KITE"])
    with pytest.raises(BadApp, match="Y: channels takes PUSH, SMS, EMAIL, IN_APP, not 'KITE'"):
        App().type("Y", channels=["KITE"])
    with pytest.raises(BadApp, match="Channel KITE has concurrency=0: give 1 or more"):
        app.channel("KITE", kite, concurrency=0)


def test_a_name_means_one_type() -> None:
    app = App()
    app.type("PRICE_DROP", channels=["SMS"])
    with pytest.raises(BadApp, match="PRICE_DROP is declared twice, and differently: give yours another name"):
        catalogue(Settings(), app)


def test_a_rule_that_would_do_io_is_refused() -> None:
    app: Any = App()

    async def fetch(_event: Event) -> list[Notice]:
        return []

    async def stream(_event: Event) -> AsyncIterator[Notice]:
        yield Notice(NoticeType("X", ()), Everyone())

    for function in (fetch, stream):
        with pytest.raises(BadApp, match=f"{function.__name__} is async: a rule is a plain function"):
            app.rule("x")(function)


ONE = Notice(NoticeType("X", (Channel.PUSH,)), Listed(("a",)), subject="s")


@pytest.mark.parametrize(
    ("given", "notices"), [(None, []), ((), []), (ONE, [ONE]), ([ONE, ONE], [ONE, ONE]), (iter([ONE]), [ONE])]
)
def test_a_rule_gives_none_one_or_many(given: Any, notices: list[Notice]) -> None:
    rules = Rules()
    rules.rule("x")(lambda _event: given)
    assert notices_of("x", rules) == notices


@pytest.mark.parametrize(
    ("given", "says"),
    [(7, "rule .*careless gave 7 instead of notices"), (["X"], "rule .*careless gave 'X' instead of a Notice")],
)
def test_a_rule_that_gives_something_else_is_named(given: Any, says: str) -> None:
    rules = Rules()

    @rules.rule("x")
    def careless(_event: Event) -> Any:
        return given

    with pytest.raises(TypeError, match=says):
        notices_of("x", rules)


def test_a_notice_that_names_no_subject_is_about_its_ref_or_else_about_its_event() -> None:
    rules = Rules()
    rules.rule("x")(lambda event: Notice(ONE.type, Everyone(), ref_id=event.ref_id))
    event = Event(event_type="x")
    assert the_only(rules.detect(event)).subject == str(event.event_id)
    assert the_only(notices_of("x", rules, ref_id="7")).subject == "7"


def test_an_event_no_rule_is_about_gives_rise_to_nothing() -> None:
    assert notices_of("nobody.knows") == []


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"digest": Digest(), "critical": True}, "X: it is critical and has a digest: what is critical does not wait"),
        ({"digest": Digest(), "pace_per_minute": 5}, "X: it has a pace and a digest"),
        ({"digest": 300}, "X: digest must be a Digest, not 300: write digest=Digest(seconds=300)"),
        ({"digest": Digest(-1)}, "X: digest seconds must be a number of seconds, 0 to 604800, not -1"),
        ({"digest": Digest(float("nan"))}, "X: digest seconds must be a number of seconds"),
        ({"digest": Digest(3600), "expires_hours": 1}, "X: it expires before its digest is pushed"),
    ],
)
def test_a_digest_that_cannot_be_is_refused(declared: dict[str, Any], says: str) -> None:
    with pytest.raises(BadApp, match=re.escape(says)):
        App().type("X", channels=["PUSH"], **declared)


def test_a_notice_with_a_digest_is_about_its_event_unless_it_says_otherwise() -> None:
    """About its ref_id, all but the first would be duplicates."""
    app = App()
    kind = app.type("X", channels=["PUSH"], digest=Digest())
    subjects = iter(["", "own"])

    @app.rule("visited")
    def visited(_event: Event) -> Notice:
        return Notice(kind, Everyone(), subject=next(subjects), ref_id="page")

    event = Event(event_type="visited")
    assert [app.detect(event)[0].subject for _ in range(2)] == [str(event.event_id), "own"]
