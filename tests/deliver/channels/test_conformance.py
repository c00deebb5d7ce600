"""What every sender keeps to, whatever it speaks: each against a real provider in a process of its own."""

from __future__ import annotations

import asyncio

import pytest

from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Outgoing, Refused, Retry, Unknown
from tests.deliver.channels.kits import Kit, apprise_kit, email_kit, gateway_kit, outgoing, simulated_kit

KITS = {"email": email_kit, "sms-http": gateway_kit, "sms-apprise": apprise_kit}
# Long enough for a loaded machine to get a message out, so that what times out is the answer.
PATIENCE_SECONDS = 1.0
HOSTILE = "한글 🔥 emoji\r\nBcc: eve@example.org\n.\n..\n{to} %s <b>&amp;</b> \x07 \ud800 'quotes' \"too\""


@pytest.fixture(params=KITS)
def kit(request: pytest.FixtureRequest) -> Kit:
    """A channel with a provider."""
    return KITS[request.param](request.getfixturevalue("mail_server" if request.param == "email" else "sms_gateway"))


@pytest.fixture(params=[*KITS, "simulated"])
def any_kit(request: pytest.FixtureRequest) -> Kit:
    if request.param == "simulated":
        return simulated_kit()
    return KITS[request.param](request.getfixturevalue("mail_server" if request.param == "email" else "sms_gateway"))


async def sent(kit: Kit, *several: Outgoing, port: int = 0, patience: float = 20) -> list[Outcome]:
    sender = kit.build(port, patience)
    try:
        return [await sender.send(one) for one in several]
    finally:
        await sender.close()


def arrived(kit: Kit, *messages: Outgoing) -> list[list[str]]:
    """For each of them the texts that came to its address."""
    ledger = kit.arrived()
    return [[text for address, text in ledger if address == message.address] for message in messages]


async def test_what_is_accepted_arrives_once_with_its_text(kit: Kit) -> None:
    message = outgoing(kit.to("accept"))
    (outcome,) = await sent(kit, message)
    assert isinstance(outcome, Accepted)
    assert not outcome.is_simulated
    assert arrived(kit, message) == [["가격이 내렸어요\n무선 이어폰: 12,000원 → 9,900원"]]


async def test_korean_and_emoji_arrive_as_they_were(kit: Kit) -> None:
    title, body = "🎉 예약이 확정되었습니다 👩‍👩‍👧", "쓿뷁 — 가나다\n둘째 줄 😀\n.점으로 시작하는 줄\n" + "긴 " * 1000 + "끝"
    message = outgoing(kit.to("accept"), title=title, body=body)
    assert isinstance((await sent(kit, message))[0], Accepted)
    assert arrived(kit, message) == [[f"{title}\n{body}"]]


async def test_what_the_provider_refuses_is_refused(kit: Kit) -> None:
    message = outgoing(kit.to("refuse"))
    (outcome,) = await sent(kit, message)
    assert isinstance(outcome, Refused)
    assert outcome.code


async def test_with_the_provider_down_it_is_to_be_retried(kit: Kit, closed_port: int) -> None:
    message = outgoing(kit.to("accept"))
    (outcome,) = await sent(kit, message, port=closed_port)
    assert isinstance(outcome, Retry)
    assert arrived(kit, message) == [[]]


async def test_a_provider_that_takes_it_and_falls_silent_leaves_it_unknown(kit: Kit) -> None:
    first, silent = outgoing(kit.to("accept")), outgoing(kit.to("hang"))
    outcomes = await sent(kit, first, silent, patience=PATIENCE_SECONDS)
    assert [type(outcome) for outcome in outcomes] == [Accepted, Unknown]
    assert [len(texts) for texts in arrived(kit, first, silent)] == [1, 1]


async def test_a_provider_that_takes_it_and_hangs_up_leaves_it_unknown(kit: Kit) -> None:
    first, cut, last = outgoing(kit.to("accept")), outgoing(kit.to("close")), outgoing(kit.to("accept"))
    outcomes = await sent(kit, first, cut, last)
    assert [type(outcome) for outcome in outcomes] == [Accepted, Unknown, Accepted]
    # Not sent again by itself: whether to is the dispatcher's to decide.
    assert [len(texts) for texts in arrived(kit, first, cut, last)] == [1, 1, 1]


async def test_fifty_at_once_all_arrive_once(kit: Kit) -> None:
    sender = kit.build(0, 20)
    messages = [outgoing(kit.to("accept"), body=f"번호 {number}") for number in range(50)]
    outcomes = await asyncio.gather(*(sender.send(message) for message in messages))
    await sender.close()
    assert {type(outcome) for outcome in outcomes} == {Accepted}
    assert arrived(kit, *messages) == [[f"가격이 내렸어요\n번호 {n}"] for n in range(50)]


@pytest.mark.parametrize(
    "fields",
    [
        {"title": HOSTILE, "body": HOSTILE, "type": HOSTILE, "member_id": HOSTILE, "locale": HOSTILE},
        {"title": "", "body": ""},
        {"title": "긴" * 20_000, "body": "x" * 65_536},
        {"collapse_id": ""},
        {"collapse_id": HOSTILE},
        {"data": {"any": object()}},
    ],
    ids=["hostile", "empty", "long", "no-collapse-id", "odd-collapse-id", "data"],
)
async def test_whatever_it_is_given_it_answers(any_kit: Kit, fields: dict[str, object]) -> None:
    (outcome,) = await sent(any_kit, outgoing(any_kit.to("accept"), **fields))
    assert isinstance(outcome, Accepted | Refused)


@pytest.mark.parametrize("address", ["", "@", "nobody", "a@b\r\nRCPT TO:<eve@example.org>", "\x00", "주소", "x" * 400])
async def test_an_address_that_is_none_is_answered_too(any_kit: Kit, address: str) -> None:
    (outcome,) = await sent(any_kit, outgoing(address), patience=PATIENCE_SECONDS)
    assert isinstance(outcome, Accepted | Gone | Refused | Misconfigured | Unknown)


async def test_closing_twice_or_before_any_use_is_fine(any_kit: Kit) -> None:
    unused, used = any_kit.build(0, 20), any_kit.build(0, 20)
    assert isinstance(await used.send(outgoing(any_kit.to("accept"))), Accepted)
    for sender in (unused, used):
        await sender.close()
        await sender.close()
