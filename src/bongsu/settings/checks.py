"""The types of single settings: what a value must be, and the error that explains what is wrong with it."""

from __future__ import annotations

import json
import re
from email.utils import parseaddr
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from bongsu.model.addresses import BadAddressError, mailbox
from bongsu.model.counter import is_counter_name


def _checked_url(value: str, *schemes: str) -> str:
    value = value.strip()
    if not value:
        return value
    try:
        url = urlsplit(value)
        url.port  # noqa: B018 (raises if it is not a number)
    except ValueError:
        raise PydanticCustomError("url", "is not a URL: its host or port cannot be read") from None
    if url.scheme not in schemes or "://" not in value:
        raise PydanticCustomError("url", "must begin with {schemes}://", {"schemes": ":// or ".join(schemes)})
    return f"{url.scheme}{value[len(url.scheme) :]}"  # drivers expect the scheme in lower case


def _url(*schemes: str) -> AfterValidator:
    return AfterValidator(lambda value: _checked_url(value, *schemes))


def _existing(value: str) -> str:
    if value and not Path(value).is_file():
        raise PydanticCustomError("file", "must be the path of a file that exists")
    return value


def _comma_separated(value: str) -> str:
    if value and not all(part.strip() for part in value.split(",")):
        raise PydanticCustomError("list", "must be comma separated, without empty parts")
    return value


def _addresses(value: str) -> str:
    if not all(re.fullmatch(r"\s*[^:\s]+:\d{1,5}\s*", part) for part in value.split(",") if value):
        raise PydanticCustomError("addresses", "must be host:port, comma separated")
    return value


class NamedUrl(NamedTuple):
    name: str
    url: str


OUTBOX_SCHEMES = ("mysql", "mariadb", "postgresql", "postgres", "sqlite")
_OUTBOX_OPTIONS = {"ssl_ca", "ssl_cert", "ssl_key"}
# A comma inside a URL does not begin the next one.
_NEXT_NAMED_URL = re.compile(r",(?=\s*[\w.-]+=)")


def check_outbox_url(url: str) -> str | None:
    """What is wrong with the URL of a database with an outbox; None if nothing is. The answer does not repeat the URL."""
    try:
        _checked_url(url, *OUTBOX_SCHEMES)
        parts = urlsplit(url)
    except (PydanticCustomError, ValueError) as error:
        return error.message() if isinstance(error, PydanticCustomError) else "is not a URL"
    scheme = parts.scheme.lower()
    if scheme != "sqlite" and not parts.hostname and not parts.query:
        return "names no host"
    if not parts.path.strip("/"):
        return "names no file" if scheme == "sqlite" else "names no database: it ends with /NAME"
    if scheme in ("mysql", "mariadb"):
        if not parts.username:
            return "names no user"
        if unknown := {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - _OUTBOX_OPTIONS:
            return f"has an option that is not known, {min(unknown)[:50]}: it takes {', '.join(sorted(_OUTBOX_OPTIONS))}"
    return None


def split_named_urls(value: str) -> list[NamedUrl]:
    parts = (part.strip().partition("=") for part in _NEXT_NAMED_URL.split(value) if value)
    return [NamedUrl(name, url) for name, _, url in parts]


def _named_urls(value: str) -> str:
    outboxes = split_named_urls(value.strip())
    for name, url in outboxes:
        if not re.fullmatch(r"[\w.-]{1,100}", name) or "://" not in url:
            raise PydanticCustomError("urls", "must be name=url, comma separated, as orders=mysql://user@host/database")
        if problem := check_outbox_url(url):
            raise PydanticCustomError("urls", "has {name}, whose URL {problem}", {"name": name, "problem": problem})
    if len({name for name, _ in outboxes}) < len(outboxes):
        raise PydanticCustomError("urls", "has a name twice: give each database a name of its own")
    return value


def _smtp_options(value: str) -> str:
    for name, option in parse_qsl(urlsplit(value).query, keep_blank_values=True):
        if name != "tls" or option not in ("required", "never"):
            raise PydanticCustomError("url", "takes ?tls=required and ?tls=never, and no other option")
    return value


def _mailbox(value: str) -> str:
    if not value:
        return value
    try:
        if not value.isprintable():
            raise BadAddressError
        mailbox(parseaddr(value)[1])
    except BadAddressError:
        raise PydanticCustomError("mailbox", "must be an e-mail address, as in Shop <hello@shop.example>") from None
    return value


def _sms_url(value: str) -> str:
    value = value.strip()
    scheme, colon, rest = value.partition("://")
    if scheme.lower() in ("http", "https"):
        return _checked_url(value, "http", "https")
    if value and not (colon and rest):
        raise PydanticCustomError("url", "must be an http:// or https:// gateway, or an Apprise URL")
    return value


# The placeholders that BONGSU_SMS_TEMPLATE may use.
SMS_PLACEHOLDERS = frozenset({"to", "from", "text", "title", "body", "id"})


def _sms_template(value: str) -> str:
    if not value.strip():
        return ""
    try:
        template = json.loads(value)
    except ValueError:
        template = None
    if not isinstance(template, dict):
        raise PydanticCustomError("template", "must be a JSON object")
    used = set(re.findall(r"\{(\w+)\}", json.dumps(template)))
    for name in sorted(used - SMS_PLACEHOLDERS):
        raise PydanticCustomError("template", "has an unknown placeholder {name}", {"name": f"{{{name}}}"})
    if "to" not in used or not used & {"text", "body"}:
        raise PydanticCustomError("template", "must contain {both}", {"both": "{to} and {text}"})
    return value


def _counter_targets(value: str) -> str:
    if not value.strip():
        return ""
    try:
        targets = json.loads(value)
    except ValueError:
        targets = None
    if not isinstance(targets, dict) or not all(isinstance(text, str) for text in targets.values()):
        raise PydanticCustomError("targets", "must be a JSON object of counter names and statements")
    for name, text in targets.items():
        if not is_counter_name(name):
            raise PydanticCustomError("targets", "names {name}, which cannot be a counter", {"name": repr(name)[:100]})
        if not re.match(r"\s*(UPDATE|INSERT|WITH)\b", text, re.IGNORECASE) or ";" in text.strip().rstrip(";"):
            raise PydanticCustomError("targets", "takes one UPDATE or INSERT for {name}", {"name": name})
        if missing := {":delta", ":key"} - set(re.findall(r"(?<!:):[a-z]+\b", text)):
            raise PydanticCustomError("targets", "has no {missing} in the statement for {name}",
                                      {"missing": " and no ".join(sorted(missing)), "name": name})  # fmt: skip
    return value


def _origins(value: str) -> str:
    """As browsers send them: one that is written differently would never match, silently."""
    for origin in (part.strip() for part in value.split(",") if part.strip()):
        _checked_url(origin, "http", "https")
        url = urlsplit(origin)
        if not url.hostname or origin != f"{url.scheme}://{url.netloc.lower()}" or "@" in origin:
            raise PydanticCustomError(
                "origin",
                "must be as browsers send them, https://shop.example: in lower case, with nothing after host and port",
            )
    return value


Count = Annotated[int, Field(ge=1)]
# A century; more would overflow a date.
Days = Annotated[int, Field(ge=1, le=36_500)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Listed = Annotated[str, AfterValidator(_comma_separated)]
Addresses = Annotated[str, AfterValidator(_addresses)]
ExistingFile = Annotated[str, AfterValidator(_existing)]
Mailbox = Annotated[str, AfterValidator(_mailbox)]
StoreUrl = Annotated[str, _url("postgresql", "postgres", "sqlite")]
RedisUrl = Annotated[str, _url("redis", "rediss", "unix")]
RabbitmqUrl = Annotated[str, _url("amqp", "amqps")]
HttpUrl = Annotated[str, _url("http", "https")]
SmtpUrl = Annotated[str, _url("smtp", "smtps"), AfterValidator(_smtp_options)]
SmsUrl = Annotated[str, AfterValidator(_sms_url)]
SmsTemplate = Annotated[str, AfterValidator(_sms_template)]
NamedUrls = Annotated[str, AfterValidator(_named_urls)]
Origins = Annotated[Listed, AfterValidator(_origins)]
CounterTargets = Annotated[str, AfterValidator(_counter_targets)]
