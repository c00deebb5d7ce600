"""Hostile text on the channels besides e-mail: an SMS gateway, Apprise and FCM are handed that text and nothing more."""

from __future__ import annotations

import json
import re

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bongsu.deliver.channels.push.message import FCM_KEYS, OWN_KEYS, request_body
from bongsu.deliver.channels.sms.sender import Sms, text_of
from bongsu.model import utc_now
from bongsu.model.outcome import Accepted, Gone, Outcome, Refused
from bongsu.settings import Settings
from tests.deliver.channels.kits import outgoing
from tests.support.hostile import KNOWN, hostile_texts
from tests.support.providers.scripted import Scripted

TEMPLATE = json.dumps({"to": "{to}", "say": "{text}", "parts": ["{title}", "{body}"], "id": "{id}"})
NUMBER = "+82101{:07}"


def settings_of(kind: str, port: int) -> Settings:
    match kind:
        case "form":
            return Settings(sms_url=f"http://AC1:secret@127.0.0.1:{port}/Messages.json", sms_from="+15005550006")
        case "json":
            return Settings(sms_url=f"http://:token@127.0.0.1:{port}/", sms_template=TEMPLATE)
    return Settings(sms_url=f"json://127.0.0.1:{port}/?:to={{to}}")


@pytest.mark.parametrize("kind", ["form", "json", "apprise"])
async def test_an_sms_gateway_is_handed_the_text_and_no_field_of_its_making(sms_gateway: Scripted, kind: str) -> None:
    sender = Sms(settings_of(kind, sms_gateway.port))
    before = len(sms_gateway.ledger())
    expected = []
    try:
        for number, text in enumerate(KNOWN):
            message = outgoing(NUMBER.format(number), title=text, body=f"{text}!", type=text, collapse_id=text, ref_id=text)
            assert isinstance(await sender.send(message), Accepted)
            expected.append((message.address, text_of(message)))
    finally:
        await sender.close()
    rows = sms_gateway.ledger()[before:]
    names = {"form": {"To", "From", "Body"}, "json": {"to", "say", "parts", "id"}}
    for row in rows:
        assert set(row["message"]) == names.get(kind, set(row["message"]))
    said = [
        (
            row["message"].get("To") or row["message"]["to"],
            next(filter(None, map(row["message"].get, ("Body", "say", "message")))),
        )
        for row in rows
    ]
    assert said == expected


@given(hostile_texts, hostile_texts)
def test_an_sms_has_its_title_in_the_first_line_and_no_control_characters(title: str, body: str) -> None:
    text = text_of(outgoing("+821011110000", title=title, body=body))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]", text)
    only_title, only_body = (text_of(outgoing("", title=one, body=other)) for one, other in ((title, ""), ("", body)))
    assert "\n" not in only_title
    assert text == "\n".join(filter(None, (only_title, only_body)))


@pytest.mark.parametrize("kind", ["form", "json", "apprise"])
@pytest.mark.parametrize("address", ["", "+", "nobody", "+8210\r\nX: y", "+82101&To=1", "+8210111100001\n", "1" * 40])
async def test_what_is_no_number_is_not_sent_to(sms_gateway: Scripted, kind: str, address: str) -> None:
    before = len(sms_gateway.ledger())
    sender = Sms(settings_of(kind, sms_gateway.port))
    try:
        outcome: Outcome = await sender.send(outgoing(address))
    finally:
        await sender.close()
    assert isinstance(outcome, Gone)
    assert outcome.code == "ADDRESS_INVALID"
    assert len(sms_gateway.ledger()) == before


@given(hostile_texts, hostile_texts, st.dictionaries(hostile_texts | st.sampled_from([*OWN_KEYS, *FCM_KEYS]), hostile_texts))
def test_a_push_has_the_texts_as_they_are_and_our_own_fields(title: str, body: str, data: dict[str, str]) -> None:
    message = outgoing("device-token", title=title, body=body, type=title[:200], ref_id=body[:200], data=data)
    request = request_body(message, utc_now())
    if isinstance(request, Refused):
        assert request.code in ("UNENCODABLE", "PAYLOAD_TOO_LARGE")
        return
    assert b"\n" not in request
    (sent,) = orjson.loads(request).values()
    assert set(sent) == {"token", "data", "android", "apns", "webpush", "notification"}
    assert sent["token"] == "device-token"
    assert sent["notification"] == {"title": title, "body": body}
    own = {
        "notificationId": str(message.notification_id),
        "type": title[:200],
        "nid": message.collapse_id,
        "refId": body[:200],
    }
    assert {name: sent["data"][name] for name in own} == own
    assert not FCM_KEYS & set(sent["data"])
    assert len(sent["data"]) == len(own) + len(data)
    assert sent["apns"]["payload"]["aps"] == {"alert": {"title": title, "body": body}, "sound": "default"}
