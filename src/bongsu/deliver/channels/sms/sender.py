"""SMS by an HTTP gateway, or by a service that Apprise knows. docs/howto/sms.md"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

import orjson

from bongsu.deliver.channels.http.client import Answer, HttpClient, NotSent, ResponseLost
from bongsu.deliver.channels.http.credentials import split_credentials
from bongsu.deliver.channels.limits.priority_semaphore import PrioritySemaphore
from bongsu.deliver.channels.sms.answers import read_answer
from bongsu.deliver.channels.text import clean_text, one_line
from bongsu.errors import BadSettings
from bongsu.model import Channel, utc_now
from bongsu.model.addresses import BadAddressError, phone_number
from bongsu.model.outcome import Gone, Misconfigured, Outcome, Outgoing, Refused, Retry, Scope, Unknown
from bongsu.settings import Settings

# Kept open between messages: as many as the dispatcher can have under way.
CONNECTIONS = 64

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Gateway(Protocol):
    """A way to hand over one message: the two kinds of BONGSU_SMS_URL."""

    async def send(self, outgoing: Outgoing) -> Outcome: ...

    async def close(self) -> None: ...


class Sms:
    """Hands messages to whatever BONGSU_SMS_URL names."""

    channel = Channel.SMS

    def __init__(self, settings: Settings) -> None:
        self._gateway: Gateway
        # How many go at once, if the gateway limits that.
        self.semaphore: PrioritySemaphore | None = None
        if urlsplit(settings.sms_url).scheme in ("http", "https"):
            self._gateway = HttpGateway(settings)
        else:
            # Imported for those who use it: it brings a hundred services along.
            from bongsu.deliver.channels.sms.apprise_sender import THREADS, AppriseGateway  # noqa: PLC0415

            self._gateway = AppriseGateway(settings)
            self.semaphore = PrioritySemaphore(THREADS)

    async def send(self, outgoing: Outgoing) -> Outcome:
        if not text_of(outgoing):
            return Refused("NO_TEXT", "the message has no text")
        try:
            number_of(outgoing)
        except BadAddressError as error:
            return Gone("ADDRESS_INVALID", str(error))
        return await self._gateway.send(outgoing)

    async def close(self) -> None:
        await self._gateway.close()


class HttpGateway:
    """One POST a message: the form Twilio takes, or JSON by BONGSU_SMS_TEMPLATE."""

    def __init__(self, settings: Settings) -> None:
        url, authorization = split_credentials(settings.sms_url, "BONGSU_SMS_URL")
        self._url = url.geturl()
        self._from = settings.sms_from
        self._template: dict[str, Any] | None = json.loads(settings.sms_template) if settings.sms_template else None
        self._headers = {
            "Content-Type": "application/json" if self._template else "application/x-www-form-urlencoded",
            "Accept": "application/json",
            **authorization,
        }
        if "{from}" in settings.sms_template and not self._from:
            raise BadSettings("BONGSU_SMS_TEMPLATE has {from} and BONGSU_SMS_FROM is not set")
        self._client = HttpClient(settings.send_timeout_seconds, CONNECTIONS)

    async def send(self, outgoing: Outgoing) -> Outcome:
        match await self._client.post(self._url, self._headers, self._body(outgoing)):
            case Answer(status, headers, body):
                return read_answer(status, headers, body, utc_now(), is_twilio=self._template is None)
            case NotSent(detail) if "certificate" in detail:
                return Misconfigured("TLS_CERTIFICATE", detail, is_for_all=True)
            case NotSent(detail):
                return Retry("CONNECT", scope=Scope.CHANNEL, detail=detail)
            case ResponseLost(is_timeout, detail):
                return Unknown("TIMEOUT" if is_timeout else "CONNECTION_LOST", detail)

    async def close(self) -> None:
        await self._client.close()

    def _body(self, outgoing: Outgoing) -> bytes:
        to, text = number_of(outgoing), text_of(outgoing)
        if self._template is None:
            # A messaging service stands for many numbers; Twilio distinguishes the two by the field's name.
            sender = "MessagingServiceSid" if self._from.startswith("MG") else "From"
            form = {"To": to, sender: self._from, "Body": text}
            return urlencode({name: value for name, value in form.items() if value}).encode()
        values = {
            "to": to,
            "from": self._from,
            "text": text,
            "title": one_line(outgoing.title),
            "body": clean_text(outgoing.body).strip(),
            "id": one_line(outgoing.collapse_id) or str(outgoing.delivery_id),
        }
        return orjson.dumps(fill_template(self._template, values))


def number_of(outgoing: Outgoing) -> str:
    """Raises BadAddressError if the address is not a phone number."""
    return phone_number(outgoing.address)


def text_of(outgoing: Outgoing) -> str:
    """An SMS has no title, so it begins with it."""
    return "\n".join(part for part in (one_line(outgoing.title), clean_text(outgoing.body).strip()) if part)


def fill_template(template: Any, values: Mapping[str, str]) -> Any:
    """Fill in the placeholders. The template is parsed before, so that no text can break out of its string."""
    match template:
        case str():
            return _PLACEHOLDER.sub(lambda match: values[match[1]], template)
        case dict():
            return {fill_template(key, values): fill_template(value, values) for key, value in template.items()}
        case list():
            return [fill_template(value, values) for value in template]
        case _:
            return template
