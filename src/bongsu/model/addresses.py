"""E-mail addresses and phone numbers: one check for each, used where an address is stored and again where it is sent to.

A stored address may be older than the check, so a sender does not rely on what the store accepts today.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

EMAIL_LIMIT, LOCAL_LIMIT, DOMAIN_LIMIT = 320, 64, 255
# An atom of RFC 5322 and 6531 without the question mark. An encoded word of RFC 2047 (=?utf-8?q?…?=) needs one, and mail
# programs decode such a word wherever it stands, to line breaks too; no provider gives out a mailbox with one.
_ATOM = r"[A-Za-z0-9!#$%&'*+/=^_`{|}~\u00a1-\U0010ffff-]+"
# Without quotes: mailboxes that need them are not given out any more.
_LOCAL = rf"{_ATOM}(\.{_ATOM})*"
_DOMAIN = re.compile(r"[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*|\[[0-9A-Fa-f.:Ipv]+\]")
_PHONE = r"\+?[0-9][0-9 ()-]{2,30}"


class BadAddressError(ValueError):
    """Nothing can be sent to this address."""


def mailbox(address: str) -> str:
    """The address as an envelope and a header take it: ASCII, its domain in IDNA. Raises BadAddressError."""
    local, domain = _parts(address.strip(" "))
    if not local.isascii():
        # It may well exist. Servers that take such names (SMTPUTF8) are few, and we do not ask for it.
        raise BadAddressError("the name before its @ is not ASCII")
    return f"{local}@{domain}"


def _parts(address: str) -> tuple[str, str]:
    """The name, and the domain in ASCII."""
    local, _, domain = address.rpartition("@")
    if len(address) > EMAIL_LIMIT or len(local) > LOCAL_LIMIT:
        raise BadAddressError(f"it has more than {LOCAL_LIMIT} characters before its @ or {EMAIL_LIMIT} in all")
    if not (address.isprintable() and re.fullmatch(_LOCAL, local)):
        raise BadAddressError("it is not of the form name@domain, the name of letters, digits and !#$%&'*+/=^_`{|}~-.")
    try:
        domain = domain.encode("idna").decode("ascii")
    except UnicodeError:
        raise BadAddressError("its domain is not valid") from None
    if len(domain) > DOMAIN_LIMIT or not _DOMAIN.fullmatch(domain):
        raise BadAddressError("its domain is not valid")
    return local, domain


def phone_number(address: str) -> str:
    """The number without the spaces, hyphens and brackets people write it with. Raises BadAddressError."""
    if not re.fullmatch(_PHONE, address):
        raise BadAddressError("it is not a phone number: digits, spaces, hyphens and brackets, perhaps after a +")
    return re.sub(r"[^0-9+]", "", address)


def _well_formed(address: str) -> str:
    """Also one that we cannot send to yet: a member is not refused for it."""
    try:
        _parts(address)
    except BadAddressError as error:
        raise PydanticCustomError("email", "must be an e-mail address: {reason}", {"reason": str(error)}) from None
    return address


# For the API's document, in words that every implementation of regular expressions understands.
_PATTERN = r"^[^@?\s\x00-\x1f]+@[^@\s\x00-\x1f]+$"
Email = Annotated[
    str,
    Field(max_length=EMAIL_LIMIT, json_schema_extra={"format": "email", "pattern": _PATTERN}),
    AfterValidator(_well_formed),
]
Phone = Annotated[str, StringConstraints(pattern=f"^{_PHONE}$")]
