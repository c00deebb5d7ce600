"""SMS: what is handed to a gateway, what its answers mean, and what Apprise's words do."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from bongsu.deliver.channels.http.retry_after import LONGEST_ASKED
from bongsu.deliver.channels.sms.answers import BUSY_SECONDS, QUOTA_SECONDS, read_answer
from bongsu.deliver.channels.sms.apprise_sender import THREADS, AppriseGateway, outcome_of
from bongsu.deliver.channels.sms.sender import Sms, fill_template, number_of, text_of
from bongsu.errors import BadSettings
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Refused, Retry, Scope, Unknown
from bongsu.settings import Settings
from tests.deliver.channels.kits import outgoing
from tests.support.providers.scripted import Scripted

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


async def sent(settings: Settings, number: str, **fields: Any) -> Outcome:
    sender = Sms(settings)
    try:
        return await sender.send(outgoing(number, **fields))
    finally:
        await sender.close()


def request_to(gateway: Scripted, number: str) -> dict[str, Any]:
    (row,) = [row for row in gateway.ledger() if number in row["message"].values()]
    return row


# --- what is handed over ----------------------------------------------------------------------------------------------


async def test_the_default_is_the_form_twilio_takes(sms_gateway: Scripted) -> None:
    url = f"http://AC1:s%2Fcret@127.0.0.1:{sms_gateway.port}/2010-04-01/Accounts/AC1/Messages.json"
    outcome = await sent(Settings(sms_url=url, sms_from="+15005550006"), "+82 10-1111-0001", title="제목", body="내용 🔥")
    assert outcome == Accepted("SM4711")
    row = request_to(sms_gateway, "+821011110001")
    assert row["line"] == "POST /2010-04-01/Accounts/AC1/Messages.json HTTP/1.1"
    assert row["message"] == {"To": "+821011110001", "From": "+15005550006", "Body": "제목\n내용 🔥"}
    assert base64.b64decode(row["headers"]["authorization"].removeprefix("Basic ")) == b"AC1:s/cret"


async def test_a_messaging_service_stands_in_for_a_number(sms_gateway: Scripted) -> None:
    settings = Settings(sms_url=f"http://127.0.0.1:{sms_gateway.port}/", sms_from="MG123")
    assert isinstance(await sent(settings, "+821011110002"), Accepted)
    message = request_to(sms_gateway, "+821011110002")["message"]
    assert message["MessagingServiceSid"] == "MG123"
    assert "From" not in message


async def test_a_gateway_that_knows_the_sender_itself_is_not_sent_one(sms_gateway: Scripted) -> None:
    assert isinstance(await sent(Settings(sms_url=f"http://127.0.0.1:{sms_gateway.port}/"), "+821011110006"), Accepted)
    assert set(request_to(sms_gateway, "+821011110006")["message"]) == {"To", "Body"}


async def test_a_template_makes_it_json_and_a_token_a_bearer(sms_gateway: Scripted) -> None:
    template = {
        "to": "{to}",
        "from": "{from}",
        "content": {"say": ["[봉수] {title}", "{body}"]},
        "key": "{id}",
        "retry": False,
    }
    settings = Settings(
        sms_url=f"http://:to-ken@127.0.0.1:{sms_gateway.port}/send?app=1",
        sms_from="15881234",
        sms_template=json.dumps(template),
    )
    hostile = '", "to": "+821099999999 {to} \\'
    assert isinstance(await sent(settings, "+821011110003", title="제목", body=hostile, collapse_id="abc"), Accepted)
    row = request_to(sms_gateway, "+821011110003")
    assert row["line"].startswith("POST /send?app=1 ")
    assert row["headers"]["authorization"] == "Bearer to-ken"
    assert row["message"] == {
        "to": "+821011110003",
        "from": "15881234",
        "content": {"say": ["[봉수] 제목", hostile]},
        "key": "abc",
        "retry": False,
    }


def test_what_fills_a_place_is_not_filled_again() -> None:
    assert fill_template({"{to}": ["{text}", 7, None]}, {"to": "{text}", "text": "{to}"}) == {"{text}": ["{to}", 7, None]}


def test_an_sms_begins_with_its_title_and_a_number_is_digits() -> None:
    assert text_of(outgoing("x", title=" 제목 ", body="내용\n")) == "제목\n내용"
    assert text_of(outgoing("x", title="", body="내용")) == "내용"
    assert number_of(outgoing("+82 (10) 1234-5678")) == "+821012345678"


async def test_nothing_to_say_is_not_sent() -> None:
    assert isinstance(
        await sent(Settings(sms_url="http://127.0.0.1:1/", sms_from="1"), "+8210", title=" ", body=""), Refused
    )


# --- what answers mean ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "answer", "outcome"),
    [
        (201, {"sid": "SM1"}, Accepted("SM1")),
        (200, {"messageId": 77}, Accepted("77")),
        (202, None, Accepted()),
        (400, {"code": 21211, "message": "no number"}, Gone("TWILIO_21211", "no number")),
        (400, {"code": 21614}, Gone("TWILIO_21614", '{"code": 21614}')),
        (400, {"code": 21610, "message": "stop"}, Refused("TWILIO_21610", "stop")),
        (400, {"code": 21606, "message": "not yours"}, Misconfigured("TWILIO_21606", "not yours")),
        (401, {"code": 20003, "message": "who?"}, Misconfigured("TWILIO_20003", "who?", is_for_all=True)),
        (429, {"code": 63038, "message": "day"}, Retry("TWILIO_63038", QUOTA_SECONDS, Scope.CHANNEL, "day")),
        (400, {"code": 99999, "message": "new"}, Refused("HTTP_400", "new")),
        (400, {"code": "21211", "message": "a text"}, Refused("HTTP_400", "a text")),
        (401, {"message": "no"}, Misconfigured("HTTP_401", "no", is_for_all=True)),
        (403, {"message": "no"}, Misconfigured("HTTP_403", "no", is_for_all=True)),
        (302, {"message": "there"}, Misconfigured("HTTP_302", "there")),
        (404, {"message": "what"}, Refused("HTTP_404", "what")),
        (408, {"message": "slow"}, Retry("HTTP_408", detail="slow")),
        (429, {"message": "many"}, Retry("HTTP_429", BUSY_SECONDS, Scope.CHANNEL, "many")),
        (500, {"message": "oh"}, Retry("HTTP_500", 0, Scope.CHANNEL, "oh")),
        (503, ["list"], Retry("HTTP_503", 0, Scope.CHANNEL, '["list"]')),
        (504, {"message": "no answer"}, Unknown("HTTP_504", "no answer")),
    ],
)
def test_answers_are_distinguished(status: int, answer: object, outcome: Outcome) -> None:
    body = b"" if answer is None else json.dumps(answer).encode()
    assert read_answer(status, {}, body, NOW, is_twilio=True) == outcome


def test_a_number_that_is_twilios_means_nothing_in_another_gateways_mouth() -> None:
    body = b'{"code": 21211, "message": "?"}'
    assert read_answer(400, {}, body, NOW, is_twilio=False) == Refused("HTTP_400", "?")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT"}, 30.0),
        ({"Retry-After": "soon"}, BUSY_SECONDS),
        ({"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, LONGEST_ASKED),
    ],
)
def test_a_gateway_that_says_how_long_is_believed(headers: Mapping[str, str], seconds: float) -> None:
    for body in (b"", b'{"code": 20429}'):
        outcome = read_answer(429, headers, body, NOW, is_twilio=True)
        assert isinstance(outcome, Retry)
        assert outcome.after_seconds == seconds


@pytest.mark.parametrize(
    ("digit", "outcome"),
    [
        ("2", Refused("TWILIO_21610", "unsubscribed")),
        ("5", Retry("TWILIO_20429", 7.0, Scope.CHANNEL, "too many")),
        ("6", Gone("TWILIO_21211", "no number")),
        ("7", Misconfigured("HTTP_302", "{}")),
        ("8", Retry("HTTP_503", 0, Scope.CHANNEL, "later")),
    ],
    ids=["refused", "busy", "gone", "redirect", "down"],
)
async def test_an_answer_reaches_the_dispatcher_as_what_it_means(
    sms_gateway: Scripted, digit: str, outcome: Outcome
) -> None:
    settings = Settings(sms_url=f"http://127.0.0.1:{sms_gateway.port}/", sms_from="+15005550006")
    assert await sent(settings, f"+8210{digit}1110004") == outcome


async def test_an_answer_that_breaks_off_leaves_it_unknown(sms_gateway: Scripted) -> None:
    settings = Settings(sms_url=f"http://127.0.0.1:{sms_gateway.port}/", sms_from="+15005550006")
    assert isinstance(await sent(settings, "+821091110004"), Unknown)


async def test_an_unknown_certificate_is_misconfigured() -> None:
    with Scripted("smtp_server.py", "--smtps") as server:  # any server that shows it will do
        outcome = await sent(Settings(sms_url=f"https://127.0.0.1:{server.port}/", sms_from="1"), "+821011110005")
    assert isinstance(outcome, Misconfigured)
    assert outcome.code == "TLS_CERTIFICATE"


# --- Apprise ----------------------------------------------------------------------------------------------------------

REFUSED = (
    "Socket Exception: HTTPConnectionPool(host='h', port=1): Max retries exceeded (Caused by NewConnectionError('refused'))"
)
RESET = "Socket Exception: ('Connection aborted.', RemoteDisconnected('closed without response'))"


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (
            [(logging.WARNING, "Failed to send JSON POST notification: error=429.")],
            Retry("HTTP_429", BUSY_SECONDS, Scope.CHANNEL),
        ),
        ([(logging.WARNING, "Failed to send Twilio notification to +1: no number, error=21211.")], Gone("TWILIO_21211")),
        ([(logging.WARNING, "Failed: error=40001.")], Refused("APPRISE_40001")),
        ([(logging.DEBUG, REFUSED)], Retry("CONNECT", scope=Scope.CHANNEL)),
        ([(logging.DEBUG, RESET)], Unknown("CONNECTION_LOST")),
        ([(logging.DEBUG, REFUSED), (logging.DEBUG, RESET)], Unknown("CONNECTION_LOST")),
        ([(logging.DEBUG, "Payload: error=404, NewConnectionError")], Unknown("APPRISE")),
        ([], Unknown("APPRISE")),
    ],
)
def test_a_failure_of_apprise_is_what_it_logged_and_else_unknown(said: list[tuple[int, str]], outcome: Outcome) -> None:
    assert outcome_of(said, is_twilio=True) == outcome


async def test_a_number_the_service_drops_does_not_become_a_message_to_somebody_else() -> None:
    settings = Settings(sms_url="twilio://AC0123456789abcdef:0123456789abcdef@15005550006/{to}")
    assert await sent(settings, "+1234") == Gone("ADDRESS_INVALID", "the service does not take it for a phone number")


async def test_an_apprise_url_without_a_place_gets_the_number_at_its_end(sms_gateway: Scripted) -> None:
    url = f"json://127.0.0.1:{sms_gateway.port}/say?:kind=a"
    assert isinstance(await sent(Settings(sms_url=url), "+821011110007"), Accepted)
    rows = [row for row in sms_gateway.ledger() if row["line"].startswith("POST /say/+821011110007 ")]
    assert [row["message"]["kind"] for row in rows] == ["a"]


def test_numbers_and_texts_do_not_leave_apprises_own_log() -> None:
    assert not logging.getLogger("apprise").propagate


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            Settings(sms_url="https://gateway.example/", sms_template='{"to": "{to}", "from": "{from}", "say": "{text}"}'),
            "BONGSU_SMS_FROM is not set",
        ),
        (Settings(sms_url="https:///path", sms_from="1"), "names no host"),
        (Settings(sms_url="https://:a%0Ab@gateway.example/", sms_from="1"), "a token that no header can carry"),
        (Settings(sms_url="nosuch://{to}"), "not a URL that Apprise understands"),
    ],
)
def test_what_cannot_work_stops_the_start(settings: Settings, says: str) -> None:
    with pytest.raises(BadSettings, match=says):
        Sms(settings)


async def test_without_a_free_thread_nothing_is_sent_and_the_channel_waits(sms_gateway: Scripted) -> None:
    """Each thread is busy with a message that was given up: what comes next was not sent, and is not in doubt."""
    url = f"json://127.0.0.1:{sms_gateway.port}/?:to={{to}}"
    gateway = AppriseGateway(Settings(sms_url=url, send_timeout_seconds=0.05))
    for _ in range(THREADS):
        await gateway._free.acquire()
    outcome = await gateway.send(outgoing("+821011119999"))
    await gateway.close()
    assert isinstance(outcome, Retry)
    assert (outcome.code, outcome.is_held, outcome.scope) == ("NO_THREAD", True, Scope.CHANNEL)
    assert not any("+821011119999" in row["message"].values() for row in sms_gateway.ledger())
