"""Hostile text in every field of a mail: whatever it is, the mail has our headers, our parts and that text, decoded once.

Read back by both of Python's decoders, and as the mail server of the tests was handed it.
"""

from __future__ import annotations

import asyncio
import base64
import re
from email import message_from_bytes, policy
from email.header import decode_header, make_header
from email.message import EmailMessage
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bongsu.deliver.channels.email.message import SUBJECT_LIMIT, compose
from bongsu.deliver.channels.email.sender import Email
from bongsu.deliver.channels.text import clean_text, one_line
from bongsu.errors import BadSettings
from bongsu.model.addresses import BadAddressError, mailbox
from bongsu.model.outcome import Accepted, Gone, Outgoing
from bongsu.settings import Settings
from tests.deliver.channels.kits import outgoing, text_part
from tests.support.hostile import KNOWN, hostile_texts
from tests.support.long_runs import examples
from tests.support.providers.scripted import Scripted

SENDER = "hi@shop.example"
HEADERS = [
    "From", "To", "Subject", "Date", "Message-ID", "List-Unsubscribe", "Auto-Submitted", "MIME-Version", "Content-Type",
]  # fmt: skip
PARTS = ["multipart/alternative", "text/plain", "text/html"]
TAGS = {"html", "head", "meta", "title", "body", "h2", "p", "br"}


class Page(HTMLParser):
    """The tags of a page, and what it shows in its heading."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.heading = ""
        self._tag = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._tag = tag

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag == "h2":
            self.heading += data


def assert_lines_are_whole(content: bytes) -> None:
    assert content.isascii()
    assert not re.search(rb"(?<!\r)\n|\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", content)
    head, _, body = content.partition(b"\r\n\r\n")
    assert max(map(len, content.split(b"\r\n"))) <= 998
    # But for what cannot be folded: an address, a URL and the id.
    foldable = [line for line in head.split(b"\r\n") if not re.search(rb"@", line)]
    assert max(map(len, [*foldable, *body.split(b"\r\n")])) <= 78


def decoded(content: bytes) -> dict[str, str]:
    """The headers as a reader shows them; both of Python's decoders agree about them."""
    new, old = message_from_bytes(content, policy=policy.default), message_from_bytes(content)
    assert new.keys() == old.keys() == HEADERS
    assert [part.get_content_type() for part in new.walk()] == [part.get_content_type() for part in old.walk()] == PARTS
    assert [defect for part in new.walk() for defect in part.defects] == []
    headers = {name: str(new[name]) for name in HEADERS}
    for name in HEADERS:
        unfolded = re.sub(r"\r\n(?=[ \t])", "", str(make_header(decode_header(old[name]))))
        # The newer decoder puts a name into quotes where it needs them, as in "Shop, Inc.".
        assert name == "From" or unfolded == headers[name], name
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", unfolded), name
    return headers


def assert_is_the_mail(content: bytes, message: Outgoing, name: str) -> None:
    assert_lines_are_whole(content)
    headers = decoded(content)
    assert headers["Subject"] == one_line(message.title)[:SUBJECT_LIMIT].rstrip()
    assert headers["To"] == mailbox(message.address)
    mail = message_from_bytes(content, policy=policy.default)
    assert isinstance(mail, EmailMessage)
    (author,) = mail["From"].addresses
    assert author.addr_spec == SENDER
    # The newer decoder keeps the space between two encoded words of a name, which is none of the name's.
    assert author.display_name.replace(" ", "") == one_line(name).replace(" ", "")
    old = str(make_header(decode_header(message_from_bytes(content)["From"])))
    shown = f"{one_line(name)} <{SENDER}>" if one_line(name) else SENDER
    assert re.sub(r"\s*\r\n ", " ", old) == shown
    assert text_part(mail) == clean_text(message.body).rstrip("\n")
    page = Page(text_part(mail, "html"))
    assert page.tags <= TAGS
    assert page.heading == one_line(message.title)


def composed(name: str = "봉수 상점", **fields: Any) -> tuple[bytes, Outgoing, str]:
    message = outgoing("kim@example.org", **fields)
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return compose(message, f'"{quoted}" <{SENDER}>').content, message, name


@pytest.mark.parametrize("text", KNOWN)
@pytest.mark.parametrize("field", ["title", "body", "type", "locale", "collapse_id", "ref_id", "member_id"])
def test_a_known_attack_in_a_field_is_text(field: str, text: str) -> None:
    assert_is_the_mail(*composed(**{field: text}))


@settings(max_examples=examples(30))
@given(title=hostile_texts, body=hostile_texts, kind=hostile_texts, locale=hostile_texts, collapse_id=hostile_texts)
def test_hostile_text_in_every_field_is_text(title: str, body: str, kind: str, locale: str, collapse_id: str) -> None:
    data = {title: body, "link": title}
    assert_is_the_mail(
        *composed(title=title, body=body, type=kind, locale=locale, collapse_id=collapse_id, ref_id=kind, data=data)
    )


@settings(max_examples=examples(30))
@given(st.sampled_from(KNOWN) | st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=80))
@example("Shop, Inc.")
@example("=?utf-8?q?a=0D=0ABcc:_x?=")
def test_a_senders_name_is_the_name_or_stops_the_start(name: str) -> None:
    try:
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        Settings.model_validate({"email_from": f'"{quoted}" <{SENDER}>'})
    except ValueError:
        assert not name.isprintable()
        return
    assert_is_the_mail(*composed(name=name))


ENCODED_WORD = "=?utf-8?q?a=0D=0ABcc:_eve?=@example.org"


@pytest.mark.parametrize("sender", [ENCODED_WORD, f"Shop <{ENCODED_WORD}>", "Shop <hi@shop.example\r\nBcc: x>", "Shop <>"])
def test_a_sender_that_no_mail_can_have_stops_the_start(sender: str) -> None:
    with pytest.raises(BadSettings, match="BONGSU_EMAIL_FROM in the environment must be an e-mail address"):
        Settings.load({"BONGSU_EMAIL_FROM": sender})


ATOM = "abcXYZ019!#$%&'*+/=?^_`{|}~-."
addresses = st.one_of(
    st.just(ENCODED_WORD),
    st.tuples(hostile_texts, st.sampled_from(["example.org", "봉수.kr", "x\r\nBcc: y", ""])).map("@".join),
    st.tuples(st.text(ATOM, min_size=1, max_size=70), st.just("example.org")).map("@".join),
)


@settings(max_examples=examples(30))
@given(addresses)
@example(ENCODED_WORD)
@example("kim@example.org\r\n")
@example("kim@example.org\r\nRCPT TO:<eve@example.org>")
def test_an_address_is_written_as_it_is_or_refused(address: str) -> None:
    message = outgoing(address)
    try:
        content = compose(message, f"Shop <{SENDER}>").content
    except BadAddressError:
        return
    assert re.fullmatch(r"[!->@-~]+@[A-Za-z0-9.-]+", mailbox(address))
    assert_is_the_mail(content, message, "Shop")


# --- over the wire ----------------------------------------------------------------------------------------------------


async def _sent(server: Scripted, message: Outgoing) -> Accepted | Gone:
    sender = Email(Settings(smtp_url=f"smtp://127.0.0.1:{server.port}", email_from=f"봉수 =?상점 <{SENDER}>"))
    try:
        outcome = await sender.send(message)
    finally:
        await sender.close()
    assert isinstance(outcome, Accepted | Gone), outcome
    return outcome


def sent(server: Scripted, message: Outgoing) -> Accepted | Gone:
    return asyncio.run(_sent(server, message))


@settings(max_examples=examples(10))
@given(title=hostile_texts, body=hostile_texts, kind=hostile_texts)
@example(KNOWN[0], KNOWN[0], KNOWN[0])
@example("t", "end\n.\nQUIT\r.\r\n.\r\n", "T")
def test_the_server_is_handed_one_mail_with_the_text_in_it(mail_server: Scripted, title: str, body: str, kind: str) -> None:
    message = outgoing("hostile@example.org", title=title, body=body, type=kind)
    assert isinstance(sent(mail_server, message), Accepted)
    row = mail_server.ledger()[-1]
    assert (row["from"], row["to"]) == (SENDER, ["hostile@example.org"])
    content = base64.b64decode(row["content"])
    assert message.collapse_id.encode() in content
    assert_is_the_mail(content, message, "봉수 =?상점")


@settings(max_examples=examples(10))
@given(addresses.map(lambda address: f"hostile-{address}"))
@example(f"hostile-{ENCODED_WORD}")
@example("hostile-o'neil+a=b/c{d}|~`^#$%&*!@example.org")
def test_the_envelope_has_the_address_as_it_is_or_there_is_no_mail(mail_server: Scripted, address: str) -> None:
    before = len(mail_server.ledger())
    outcome = sent(mail_server, outgoing(address))
    new = mail_server.ledger()[before:]
    if isinstance(outcome, Gone):
        assert outcome.code == "ADDRESS_INVALID"
        assert new == []
    else:
        assert [row["to"] for row in new] == [[mailbox(address)]]
