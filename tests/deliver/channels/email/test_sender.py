"""E-mail: what a mail looks like, what a server's replies mean, and how connections are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.channels.email.message import compose
from bongsu.deliver.channels.email.sender import Email
from bongsu.deliver.channels.email.smtp import CONNECTIONS, GREYLIST_SECONDS, QUOTA_SECONDS, Server, Stage, outcome_of
from bongsu.errors import BadSettings
from bongsu.model import utc_now
from bongsu.model.addresses import BadAddressError, mailbox
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Refused, Retry, Scope, Unknown
from bongsu.settings import Settings
from tests.deliver.channels.kits import mails, outgoing, text_part
from tests.support.providers.scripted import CERTIFICATE, Scripted

FROM = "봉수 상점 <hi@shop.example>"


def composed(**fields: Any) -> EmailMessage:
    mail = message_from_bytes(compose(outgoing("kim@example.org", **fields), FROM).content, policy=policy.default)
    assert isinstance(mail, EmailMessage)
    return mail


# --- what a mail looks like -------------------------------------------------------------------------------------------


def test_a_mail_carries_what_mail_readers_look_for() -> None:
    mail = composed(collapse_id="abc-_123", type="PRICE_DROP")
    assert mail["Subject"] == "가격이 내렸어요"
    assert mail["From"] == FROM
    assert mail["To"] == "kim@example.org"
    assert mail["Message-ID"] == "<abc-_123@shop.example>"
    assert mail["List-Unsubscribe"] == "<mailto:hi@shop.example?subject=unsubscribe%20PRICE_DROP>"
    assert mail["Auto-Submitted"] == "auto-generated"
    date: datetime = parsedate_to_datetime(mail["Date"])
    assert abs(utc_now() - date) < timedelta(minutes=5)
    assert text_part(mail) == "무선 이어폰: 12,000원 → 9,900원"
    assert "<p>무선 이어폰: 12,000원 → 9,900원</p>" in text_part(mail, "html")


def test_every_try_of_a_delivery_is_the_same_mail_and_every_delivery_another() -> None:
    message = outgoing("kim@example.org", collapse_id="")
    first, second = (message_from_bytes(compose(message, FROM).content)["Message-ID"] for _ in range(2))
    other = message_from_bytes(compose(outgoing("kim@example.org", collapse_id=""), FROM).content)["Message-ID"]
    assert first == second != other


def test_it_goes_through_servers_that_know_seven_bits_and_short_lines() -> None:
    content = compose(outgoing("kim@example.org", title="긴 제목 " * 40, body="한글 " * 5000 + "x" * 5000), FROM).content
    assert content.isascii()
    assert max(len(line) for line in content.split(b"\r\n")) <= 998
    assert b"\n" not in content.replace(b"\r\n", b"")


@pytest.mark.parametrize("field", ["title", "type", "collapse_id", "locale"])
def test_a_line_break_does_not_become_a_header(field: str) -> None:
    plain = composed()
    mail = composed(**{field: "x\r\nBcc: eve@example.org\r\n\r\n<script>"})
    assert mail.keys() == plain.keys()
    assert [part.get_content_type() for part in mail.walk()] == [part.get_content_type() for part in plain.walk()]


def test_the_page_shows_markup_instead_of_obeying_it() -> None:
    page = text_part(composed(title="<b>1 & 2</b>", body='<img src="x">\n둘째 줄'), "html")
    assert "<h2>&lt;b&gt;1 &amp; 2&lt;/b&gt;</h2>" in page
    assert "&lt;img src=&quot;x&quot;&gt;<br>\n둘째 줄" in page


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("kim@example.org", "kim@example.org"),
        (" kim+shop@example.org ", "kim+shop@example.org"),
        ("kim@봉수.kr", "kim@xn--9n3bo6g.kr"),
        ("o'neil@[127.0.0.1]", "o'neil@[127.0.0.1]"),
    ],
)
def test_an_address_is_written_as_an_envelope_takes_it(address: str, written: str) -> None:
    assert mailbox(address) == written


@pytest.mark.parametrize("address", ["", "kim", "@example.org", "kim@", "김@example.org", ".kim@example.org", "k..m@e.org"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(BadAddressError):
        mailbox(address)


# --- what a server's replies mean -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "reply", "outcome"),
    [
        (Stage.RCPT, "550 5.1.1 no such user", Gone("SMTP_550_5.1.1", "RCPT: 5.1.1 no such user")),
        (Stage.RCPT, "556 5.1.10 null MX", Gone("SMTP_556_5.1.10", "RCPT: 5.1.10 null MX")),
        (Stage.CONTENT, "550 5.1.1 found out late", Gone("SMTP_550_5.1.1", "CONTENT: 5.1.1 found out late")),
        (Stage.RCPT, "550 5.7.1 policy", Refused("SMTP_550_5.7.1", "RCPT: 5.7.1 policy")),
        (Stage.RCPT, "550 unavailable", Refused("SMTP_550", "RCPT: unavailable")),
        (Stage.RCPT, "550 5.2.1 too much at the moment", Refused("SMTP_550_5.2.1", "RCPT: 5.2.1 too much at the moment")),
        (Stage.CONTENT, "554 5.7.1 spam", Refused("SMTP_554_5.7.1", "CONTENT: 5.7.1 spam")),
        (Stage.MAIL, "552 5.3.4 too big", Refused("SMTP_552_5.3.4", "MAIL: 5.3.4 too big")),
        (Stage.MAIL, "553 5.1.8 bad sender", Misconfigured("SMTP_553_5.1.8", "MAIL: 5.1.8 bad sender")),
        (Stage.MAIL, "550 5.1.1 bad sender", Misconfigured("SMTP_550_5.1.1", "MAIL: 5.1.1 bad sender")),
        (Stage.RCPT, "530 5.7.0 log in", Misconfigured("SMTP_530_5.7.0", "RCPT: 5.7.0 log in", is_for_all=True)),
        (Stage.RCPT, "450 4.2.0 grey", Retry("SMTP_450_4.2.0", GREYLIST_SECONDS, detail="RCPT: 4.2.0 grey")),
        (Stage.CONTENT, "452 full", Retry("SMTP_452", detail="CONTENT: full")),
        (Stage.DATA, "421 bye", Retry("SMTP_421", scope=Scope.CHANNEL, detail="DATA: bye")),
        (Stage.MAIL, "550 5.4.5 quota", Retry("SMTP_550_5.4.5", QUOTA_SECONDS, Scope.CHANNEL, "MAIL: 5.4.5 quota")),
        (Stage.DATA, "250 what?", Retry("SMTP_250", scope=Scope.CHANNEL, detail="DATA: what?")),
        (Stage.CONTENT, "299 what?", Unknown("SMTP_299", "CONTENT: what?")),
    ],
)
def test_replies_are_distinguished_by_code_and_stage(stage: Stage, reply: str, outcome: Outcome) -> None:
    code, _, text = reply.partition(" ")
    assert outcome_of(stage, int(code), text) == outcome


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("smtp://mail.example", Server("mail.example", 25, None, None, False, None)),
        ("smtp://u%40x:p%2F@mail.example", Server("mail.example", 587, "u@x", "p/", False, True)),
        ("smtp://u:p@mail.example:2525?tls=never", Server("mail.example", 2525, "u", "p", False, False)),
        ("smtp://u:p@localhost", Server("localhost", 587, "u", "p", False, None)),
        ("smtp://mail.example?tls=required", Server("mail.example", 25, None, None, False, True)),
        ("smtps://u:p@mail.example", Server("mail.example", 465, "u", "p", True, False)),
    ],
)
def test_the_url_decides_about_tls_and_login(url: str, server: Server) -> None:
    assert Server.at(Settings(smtp_url=url).smtp_url) == server


def test_mail_needs_a_sender() -> None:
    with pytest.raises(BadSettings, match="BONGSU_EMAIL_FROM is not"):
        Email(Settings(smtp_url="smtp://mail.example"))


# --- over the wire ----------------------------------------------------------------------------------------------------

Build = Callable[..., Email]


@pytest.fixture
async def email() -> AsyncIterator[Build]:
    """Makes senders, and closes them."""
    built: list[Email] = []

    def build(
        server: Scripted,
        login: str = "",
        scheme: str = "smtp",
        query: str = "",
        sender: str = FROM,
        timeout: float = 20,
        **more: Any,
    ) -> Email:
        url = f"{scheme}://{login}127.0.0.1:{server.port}{query}"
        built.append(Email(Settings(smtp_url=url, email_from=sender, send_timeout_seconds=timeout), **more))
        return built[-1]

    yield build
    for one in built:
        await one.close()


async def say(email: Email | GuardedSender, wish: str) -> Outcome:
    return await email.send(outgoing(f"{wish}@example.org"))


@pytest.mark.parametrize(
    ("wish", "outcome"),
    [
        ("gone", Gone("SMTP_550_5.1.1", "RCPT: 5.1.1 no such user")),
        ("policy", Refused("SMTP_550_5.7.1", "RCPT: 5.7.1 not from you")),
        ("bare", Refused("SMTP_550", "RCPT: mailbox unavailable")),
        ("later", Retry("SMTP_450_4.2.0", GREYLIST_SECONDS, detail="RCPT: 4.2.0 greylisted, come back")),
        ("spam", Refused("SMTP_554_5.7.1", "CONTENT: 5.7.1 looks like spam")),
        ("full", Retry("SMTP_452_4.3.1", detail="CONTENT: 4.3.1 no room at the moment")),
        ("busy", Retry("SMTP_421_4.3.2", scope=Scope.CHANNEL, detail="CONTENT: 4.3.2 shutting down")),
        ("fine", Accepted("2.0.0 queued as 4711")),
    ],
)
async def test_a_reply_reaches_the_dispatcher_as_what_it_means(
    mail_server: Scripted, email: Build, wish: str, outcome: Outcome
) -> None:
    assert await say(email(mail_server), wish) == outcome


async def test_mails_share_a_connection_even_after_a_refusal(mail_server: Scripted, email: Build) -> None:
    sender = email(mail_server)
    outcomes = [await say(sender, wish) for wish in ("reuse-1", "gone", "reuse-2", "spam", "reuse-3")]
    assert [type(outcome) for outcome in outcomes] == [Accepted, Gone, Accepted, Refused, Accepted]
    connections = [row["connection"] for row, _ in mails(mail_server) if row["to"][0].startswith("reuse-")]
    assert len(connections) == 3
    assert len(set(connections)) == 1


@pytest.mark.parametrize("wish", ["tired", "last"], ids=["hangs up", "says 421"])
async def test_a_server_that_has_enough_of_a_connection_costs_no_mail(
    mail_server: Scripted, email: Build, wish: str
) -> None:
    sender = email(mail_server)
    recipients = [f"{wish}-{number}@example.org" for number in range(3)]
    outcomes = [await sender.send(outgoing(recipient)) for recipient in recipients]
    assert [type(outcome) for outcome in outcomes] == [Accepted, Accepted, Accepted]
    rows = [row for row, _ in mails(mail_server) if row["to"][0] in recipients]
    assert [row["to"][0] for row in rows] == recipients
    assert len({row["connection"] for row in rows}) == 3


async def test_a_connection_the_server_closed_meanwhile_is_replaced(email: Build) -> None:
    with Scripted("smtp_server.py") as server:
        sender = email(server)
        for _ in range(3):
            assert isinstance(await say(sender, "brief"), Accepted)
            await asyncio.to_thread(server.wait_for, "lost")
        assert len(server.ledger()) == 3


async def test_idle_connections_are_closed(email: Build) -> None:
    with Scripted("smtp_server.py") as server:
        sender = email(server, idle_seconds=0.01)
        await asyncio.gather(*(say(sender, "fine") for _ in range(3)))
        opened = len({row["connection"] for row in server.ledger()})
        for _ in range(opened):
            await asyncio.to_thread(server.wait_for, "lost")
        assert isinstance(await say(sender, "fine"), Accepted)


async def test_no_more_connections_are_opened_than_the_server_likes(email: Build) -> None:
    with Scripted("smtp_server.py") as server:
        sender = email(server)
        in_turn = GuardedSender(sender, semaphore=sender.semaphore)
        await asyncio.gather(*(say(in_turn, "fine") for _ in range(5 * CONNECTIONS)))
        rows = server.ledger()
        assert len(rows) == 5 * CONNECTIONS
        assert 1 < len({row["connection"] for row in rows}) <= CONNECTIONS


async def test_a_critical_mail_goes_while_all_connections_that_others_may_have_are_in_use(email: Build) -> None:
    with Scripted("smtp_server.py") as server:
        sender = email(server)
        in_turn = GuardedSender(sender, semaphore=sender.semaphore)
        others = [
            asyncio.create_task(in_turn.send(outgoing(f"hang-{number}@example.org"))) for number in range(3 * CONNECTIONS)
        ]
        async with asyncio.timeout(30):
            while len(server.ledger()) < CONNECTIONS - 1:
                await asyncio.sleep(0.01)
            for number in range(3):
                critical = outgoing(f"fine-{number}@example.org", is_critical=True)
                assert isinstance(await in_turn.send(critical), Accepted)
        recipients = [row["to"][0].partition("-")[0] for row in server.ledger()]
        assert recipients == ["hang"] * (CONNECTIONS - 1) + ["fine"] * 3
        for task in others:
            task.cancel()
        await asyncio.wait(others)


async def test_a_mail_under_way_at_the_close_arrives_and_leaves_no_connection(email: Build) -> None:
    with Scripted("smtp_server.py") as server:
        sender = email(server, idle_seconds=3600)
        under_way = asyncio.create_task(say(sender, "fine"))
        await sender.close()
        assert isinstance(await under_way, Accepted)
        await asyncio.to_thread(server.wait_for, "lost")


async def test_lines_that_begin_with_a_dot_arrive_whole(mail_server: Scripted, email: Build) -> None:
    body = "first\n.\n..two\n.three\n...\nlast"
    assert isinstance(await email(mail_server).send(outgoing("dots@example.org", title="Dots", body=body)), Accepted)
    assert [text_part(mail) for row, mail in mails(mail_server) if row["to"] == ["dots@example.org"]] == [body]


async def test_silence_before_the_content_means_that_nothing_went(mail_server: Scripted, email: Build) -> None:
    sender = email(mail_server, timeout=0.2)
    outcome = await say(sender, "mute")
    assert outcome == Retry("TIMEOUT", scope=Scope.CHANNEL, detail="no answer within 0.2 s")


async def test_a_connection_lost_before_the_content_means_that_nothing_went(mail_server: Scripted, email: Build) -> None:
    outcome = await say(email(mail_server), "drop")
    assert isinstance(outcome, Retry)
    assert outcome.code == "CONNECTION_LOST"


async def test_a_cancelled_mail_does_not_leave_its_reply_to_the_next(mail_server: Scripted, email: Build) -> None:
    sender = email(mail_server)
    assert isinstance(await say(sender, "fine"), Accepted)
    task = asyncio.create_task(say(sender, "hang-cancelled"))
    while not any(row["to"] == ["hang-cancelled@example.org"] for row in mail_server.ledger()):
        await asyncio.to_thread(mail_server.ledger)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(await say(sender, "gone"), Gone)


async def test_a_sender_the_server_does_not_know_is_ours_to_mend(mail_server: Scripted, email: Build) -> None:
    outcome = await say(email(mail_server, sender="nobody@shop.example"), "fine")
    assert outcome == Misconfigured("SMTP_553_5.1.8", "MAIL: 5.1.8 we do not know you")


# --- login and encryption ---------------------------------------------------------------------------------------------


async def test_the_right_password_opens_and_the_wrong_one_is_ours_to_mend(mail_server: Scripted, email: Build) -> None:
    with Scripted("smtp_server.py", "--login", "kim:p@ss/word") as server:
        assert isinstance(await say(email(server, login="kim:p%40ss%2Fword@"), "fine"), Accepted)
        wrong = await say(email(server, login="kim:guess@"), "fine")
        assert isinstance(wrong, Misconfigured)
        assert wrong.code == "SMTP_535"
        nobody = await say(email(server), "fine")
        assert isinstance(nobody, Misconfigured)
        assert [row["login"] for row in server.ledger()] == [True]
    unasked = await say(email(mail_server, login="kim:x@"), "fine")
    assert isinstance(unasked, Misconfigured)
    assert unasked.code == "SMTP_NOT_OFFERED"


@pytest.mark.parametrize(("option", "scheme"), [("--starttls", "smtp"), ("--smtps", "smtps")])
async def test_what_can_be_encrypted_is(monkeypatch: pytest.MonkeyPatch, email: Build, option: str, scheme: str) -> None:
    with Scripted("smtp_server.py", option) as server:
        untrusted = await say(email(server, scheme=scheme), "fine")
        assert isinstance(untrusted, Misconfigured)
        assert untrusted.code == "TLS_CERTIFICATE"
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        assert isinstance(await say(email(server, scheme=scheme), "fine"), Accepted)
        assert [row["encrypted"] for row in server.ledger()] == [True]


async def test_encryption_can_be_demanded_and_forgone(mail_server: Scripted, email: Build) -> None:
    demanded = await say(email(mail_server, query="?tls=required"), "fine")
    assert isinstance(demanded, Misconfigured)
    with Scripted("smtp_server.py", "--starttls") as server:
        assert isinstance(await say(email(server, query="?tls=never"), "fine"), Accepted)
        assert [row["encrypted"] for row in server.ledger()] == [False]
