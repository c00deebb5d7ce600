"""What the conformance suite needs of each channel: a sender, addresses with wishes, and a look at what arrived."""

from __future__ import annotations

import base64
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from bongsu.deliver.channels.email.sender import Email
from bongsu.deliver.channels.simulated import Simulated
from bongsu.deliver.channels.sms.sender import Sms
from bongsu.model import Channel
from bongsu.model.outcome import Outgoing, Sender
from bongsu.settings import Settings
from tests.support.providers.scripted import Scripted

_numbers = itertools.count(1)


def outgoing(address: str, **fields: Any) -> Outgoing:
    number = next(_numbers)
    given: dict[str, Any] = {
        "delivery_id": number,
        "notification_id": number,
        "member_id": "member-1",
        "address": address,
        "type": "PRICE_DROP",
        "title": "가격이 내렸어요",
        "body": "무선 이어폰: 12,000원 → 9,900원",
        "locale": "ko",
        "collapse_id": f"collapse-id-{number:020}",
    }
    return Outgoing(**(given | fields))


def mails(server: Scripted) -> list[tuple[dict[str, Any], EmailMessage]]:
    """What the mail server was handed: envelope and mail."""
    return [(row, _parsed(row["content"])) for row in server.ledger()]


@functools.cache  # the ledger only grows, and is read again and again
def _parsed(content: str) -> EmailMessage:
    mail = message_from_bytes(base64.b64decode(content), policy=policy.default)
    assert isinstance(mail, EmailMessage)
    return mail


def text_part(mail: EmailMessage, kind: str = "plain") -> str:
    part = mail.get_body((kind,))
    assert part is not None
    return str(part.get_content()).replace("\r\n", "\n").rstrip("\n")


@dataclass(frozen=True)
class Kit:
    """How one channel is tested."""

    build: Callable[[int, float], Sender]
    wishes: dict[str, str] = field(default_factory=dict)
    address: str = "{wish}-{number}@example.org"
    arrived: Callable[[], list[tuple[str, str]]] = list

    def to(self, wish: str) -> str:
        return self.address.format(wish=self.wishes.get(wish, wish), number=f"{next(_numbers):07}")


def email_kit(server: Scripted) -> Kit:
    def build(port: int, timeout: float) -> Sender:
        settings = Settings(
            smtp_url=f"smtp://127.0.0.1:{port or server.port}",
            email_from="Shop <hi@shop.example>",
            send_timeout_seconds=timeout,
        )
        return Email(settings)

    def arrived() -> list[tuple[str, str]]:
        return [(row["to"][0], f"{mail['Subject']}\n{text_part(mail)}") for row, mail in mails(server)]

    return Kit(build, {"refuse": "policy"}, arrived=arrived)


PHONE = "+8210{wish}{number}"
PHONE_WISHES = {"accept": "1", "refuse": "2", "hang": "3", "close": "4"}


def gateway_kit(gateway: Scripted) -> Kit:
    def build(port: int, timeout: float) -> Sender:
        url = f"http://AC1:secret@127.0.0.1:{port or gateway.port}/Messages.json"
        return Sms(Settings(sms_url=url, sms_from="+15005550006", send_timeout_seconds=timeout))

    def arrived() -> list[tuple[str, str]]:
        messages = [row["message"] for row in gateway.ledger()]
        return [(message["To"], message["Body"]) for message in messages if "To" in message]

    return Kit(build, PHONE_WISHES, PHONE, arrived)


def apprise_kit(gateway: Scripted) -> Kit:
    def build(port: int, timeout: float) -> Sender:
        return Sms(Settings(sms_url=f"json://127.0.0.1:{port or gateway.port}/?:to={{to}}", send_timeout_seconds=timeout))

    def arrived() -> list[tuple[str, str]]:
        messages = [row["message"] for row in gateway.ledger()]
        return [(message["to"], message["message"]) for message in messages if "to" in message and "message" in message]

    return Kit(build, PHONE_WISHES, PHONE, arrived)


def simulated_kit() -> Kit:
    return Kit(lambda _port, _timeout: Simulated(Channel.SMS))
