"""What a mail looks like: a delivery in, bytes out. Pure but for the date.

Title and body are the caller's and the address is the member's, so none of them is trusted: a line break in one of them
would otherwise be a header of theirs. The header fields are written by headers.py; Python's email package writes the body,
whose own headers have no text from outside.
"""

from __future__ import annotations

import hashlib
import html
import re
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, parseaddr
from urllib.parse import quote

from bongsu.deliver.channels.email.headers import address_field, text_field
from bongsu.deliver.channels.text import clean_text, one_line
from bongsu.model import utc_now
from bongsu.model.addresses import mailbox
from bongsu.model.outcome import Outgoing

# Seven bits: a server that cannot take eight is not asked whether it can.
_POLICY = SMTP.clone(cte_type="7bit")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Longer ones are cut by every reader, and folded into dozens of lines before that.
SUBJECT_LIMIT = 250
# A URL cannot be folded, and a line of a mail has at most 998 characters, of which the sender's address may take 450.
UNSUBSCRIBE_LIMIT = 400


@dataclass(frozen=True)
class Mail:
    """A mail, ready for the envelope commands and for DATA."""

    sender: str
    recipient: str
    content: bytes


def compose(outgoing: Outgoing, mail_from: str) -> Mail:
    """The mail, in text and in HTML. Raises BadAddressError if the member's address is not an e-mail address."""
    name, address = parseaddr(mail_from)
    sender, recipient = mailbox(address), mailbox(outgoing.address)
    fields = [
        address_field("From", one_line(name), sender),
        address_field("To", "", recipient),
        text_field("Subject", one_line(outgoing.title)[:SUBJECT_LIMIT].rstrip()),
        f"Date: {format_datetime(utc_now())}",
        f"Message-ID: {_message_id(outgoing, sender)}",
        f"List-Unsubscribe: {_unsubscribe(outgoing, sender)}",
        # Keeps out-of-office answers from coming back.
        "Auto-Submitted: auto-generated",
    ]
    head = "".join(f"{field}\r\n" for field in fields).encode("ascii")
    return Mail(sender, recipient, head + _body(outgoing))


def _body(outgoing: Outgoing) -> bytes:
    """Both versions of the text, and the headers that describe it."""
    body = EmailMessage(policy=_POLICY)
    body.set_content(clean_text(outgoing.body) + "\n", charset="utf-8")
    body.add_alternative(_page(outgoing), subtype="html", charset="utf-8")
    return body.as_bytes()


def _message_id(outgoing: Outgoing, sender: str) -> str:
    """The same on every try, so that a mail client that threads or filters by it shows a mail that arrives twice as one."""
    token = outgoing.collapse_id or f"delivery-{outgoing.delivery_id}"
    if not _TOKEN.fullmatch(token):
        token = hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
    return f"<{token}@{sender.rpartition('@')[2]}>"


def _unsubscribe(outgoing: Outgoing, sender: str) -> str:
    """To the sender's mailbox: one click would need a page that takes it, and we do not promise what is not there."""
    subject = one_line(f"unsubscribe {outgoing.type}")
    while len(quote(subject, safe="")) > UNSUBSCRIBE_LIMIT:
        subject = subject[:-1]
    return f"<mailto:{quote(sender, safe='@')}?subject={quote(subject, safe='')}>"


def _page(outgoing: Outgoing) -> str:
    language = html.escape(one_line(outgoing.locale or "und"))
    title = html.escape(one_line(outgoing.title))
    body = html.escape(clean_text(outgoing.body)).replace("\n", "<br>\n")
    return (
        f'<!DOCTYPE html>\n<html lang="{language}">\n<head><meta charset="utf-8"><title>{title}</title></head>\n'
        f"<body>\n<h2>{title}</h2>\n<p>{body}</p>\n</body>\n</html>\n"
    )
