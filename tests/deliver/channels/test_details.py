"""What a provider answered is kept and logged without the address it is about."""

from __future__ import annotations

import pytest

from bongsu.deliver.channels.details import without_address
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Outgoing, Refused, Retry, Unknown

KINDS = (Gone, Refused, Misconfigured, Unknown)


def to(address: str) -> Outgoing:
    return Outgoing(1, 1, "m-1", address, "T", "title", "body")


@pytest.mark.parametrize(
    ("address", "said", "kept"),
    [
        ("a.b@example.org", "RCPT: 550 <A.B@Example.org>: no such user", "RCPT: 550 <[address]>: no such user"),
        ("a.b@example.org", "GET /?to=a.b%40example.org", "GET /?to=[address]"),
        ("010-1234-5678", "01012345678 is not valid", "[address] is not valid"),
        ("+82 10 1234 5678", "'To' +821012345678 or 821012345678", "'To' [address] or [address]"),
        ("+821012345678", "To=%2B821012345678&Body=x", "To=[address]&Body=x"),
        ("token:1", "the token token:1 is not known", "the token [address] is not known"),
        ("a.b@example.org", "axb@example.org is another", "axb@example.org is another"),
    ],
)
def test_a_detail_does_not_repeat_the_address(address: str, said: str, kept: str) -> None:
    outcomes: list[Outcome] = [*(kind("CODE", said) for kind in KINDS), Retry("CODE", 3.0, detail=said)]
    for outcome in outcomes:
        hidden = without_address(outcome, to(address))
        assert type(hidden) is type(outcome)
        assert not isinstance(hidden, Accepted)
        assert (hidden.code, hidden.detail) == ("CODE", kept)


def test_what_has_no_address_in_it_is_left_as_it_is() -> None:
    outcome = Refused("CODE", "no")
    assert without_address(outcome, to("a@example.org")) is outcome
    assert without_address(outcome, to("")) is outcome
    for returned in (None, Refused("CODE", 1)):  # type: ignore[arg-type]
        assert without_address(returned, to("a@example.org")) is returned  # type: ignore[arg-type]
