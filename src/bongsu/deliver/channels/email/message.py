"""What a mail looks like: a delivery in, bytes out. Pure but for the date.

Title and body are the caller's and the address is the member's, so none of them is trusted: a line break in one of them
would otherwise be a header of theirs.
"""

from __future__ import annotations

import hashlib
import html
import re
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, parseaddr
from urllib.parse import quote

from bongsu.model import utc_now
from bongsu.model.outcome import Outgoing

# Seven bits: a server that cannot take eight is not asked whether it can.
_POLICY = SMTP.clone(cte_type="7bit")
# The local part as RFC 5321 has it without quotes; mailboxes that need quotes are not given out any more.
_LOCAL = re.compile(r"(?=.{1,64}$)[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_DOMAIN = re.compile(r"[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*|\[[0-9A-Fa-f.:Ipv]+\]")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Longer ones are cut by every reader, and folded into dozens of lines before that.
SUBJECT_LIMIT = 250


class BadAddressError(ValueError):
    """No mail server would take this for an address."""


@dataclass(frozen=True)
class Mail:
    """A mail, ready for the envelope commands and for DATA."""

    sender: str
    recipient: str
    content: bytes


def compose(outgoing: Outgoing, mail_from: str) -> Mail:
    """The mail, in text and in HTML. Raises BadAddressError if the member's address is not an e-mail address."""
    name, sender = parseaddr(mail_from)
    recipient = mailbox(outgoing.address)
    message = EmailMessage(policy=_POLICY)
    message["From"] = Address(_line(name), addr_spec=sender)
    message["To"] = Address(addr_spec=recipient)
    message["Subject"] = _line(outgoing.title)[:SUBJECT_LIMIT]
    message["Date"] = format_datetime(utc_now())
    message["Message-ID"] = _message_id(outgoing, sender)
    # To the sender's mailbox: one click would need a page that takes it, and we do not promise what is not there.
    subject = quote(_line(f"unsubscribe {outgoing.type}"), safe="")
    message["List-Unsubscribe"] = f"<mailto:{quote(sender, safe='@')}?subject={subject}>"
    # Keeps out-of-office answers from coming back.
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(_text(outgoing.body) + "\n", charset="utf-8")
    message.add_alternative(_page(outgoing), subtype="html", charset="utf-8")
    return Mail(sender, recipient, message.as_bytes())


def mailbox(address: str) -> str:
    """The address as it is written on an envelope: its domain in ASCII."""
    local, _, domain = address.strip().rpartition("@")
    try:
        domain = domain.encode("idna").decode("ascii")
    except UnicodeError:
        raise BadAddressError("its domain is not valid") from None
    if not (_LOCAL.fullmatch(local) and _DOMAIN.fullmatch(domain)):
        raise BadAddressError("it is not of the form name@domain, the name in ASCII letters")
    return f"{local}@{domain}"


def _message_id(outgoing: Outgoing, sender: str) -> str:
    """The same on every try, so that a mail client that threads or filters by it shows a mail that arrives twice as one."""
    token = outgoing.collapse_id or f"delivery-{outgoing.delivery_id}"
    if not _TOKEN.fullmatch(token):
        token = hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
    return f"<{token}@{sender.rpartition('@')[2]}>"


def _page(outgoing: Outgoing) -> str:
    language = html.escape(_line(outgoing.locale or "und"))
    title = html.escape(_line(outgoing.title))
    body = html.escape(_text(outgoing.body)).replace("\n", "<br>\n")
    return (
        f'<!DOCTYPE html>\n<html lang="{language}">\n<head><meta charset="utf-8"><title>{title}</title></head>\n'
        f"<body>\n<h2>{title}</h2>\n<p>{body}</p>\n</body>\n</html>\n"
    )


def _line(text: str) -> str:
    return " ".join(_text(text).split())


def _text(text: str) -> str:
    """Without what cannot be encoded and what no reader shows."""
    text = text.encode("utf-8", "replace").decode()
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
