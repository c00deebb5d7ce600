"""Chat over HTTP: its shapes, who may call, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from bongsu.api.app import build_api
from bongsu.chat.fanout import Fanout
from bongsu.chat.order import ChatOrder
from bongsu.ingress.intake import Intake
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store

ROOMS = "/api/chat/rooms"
As = Callable[[str], dict[str, str]]


@pytest.fixture
def by(settings: Settings) -> As:
    """The headers of a member."""
    keys = Keys.load(settings)
    return lambda member_id: {"Authorization": f"Bearer {keys.member_token(member_id, timedelta(hours=1))}"}


async def new_room(api: httpx.AsyncClient, *members: str) -> str:
    answer = await api.post(ROOMS, json={"name": "room", "memberIds": members})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["roomId"])


def send(text: str, **more: Any) -> dict[str, Any]:
    return {"clientMessageId": f"id of {text[:20]}", "message": text, **more}


async def test_a_room_is_created_written_to_read_and_listed(api: httpx.AsyncClient, by: As) -> None:
    created = await api.post(ROOMS, json={"name": "주말 여행", "memberIds": ["b", "b"]}, headers=by("a"))
    assert created.status_code == 201
    room = created.json()["roomId"]
    assert created.json() == {"roomId": room, "name": "주말 여행", "memberIds": ["a", "b"]}
    before = datetime.now(UTC) - timedelta(seconds=1)
    answer = await api.post(f"{ROOMS}/{room}/messages", json=send("안녕 👋"), headers=by("a"))
    assert answer.status_code == 200
    sent_at = answer.json()["sentAt"]
    assert before < datetime.fromisoformat(sent_at) < datetime.now(UTC) + timedelta(seconds=1)
    item = {
        "seq": 1, "senderId": "a", "message": "안녕 👋", "clientMessageId": "id of 안녕 👋", "sentAt": sent_at,
        "editedAt": None, "deletedAt": None,
    }  # fmt: skip
    assert answer.json() == {"roomId": room, **item}
    again = await api.post(f"{ROOMS}/{room}/messages", json=send("안녕 👋") | {"message": "other"}, headers=by("a"))
    assert again.json() == answer.json()
    assert (await api.get(f"{ROOMS}/{room}/messages", headers=by("b"))).json() == {"items": [item]}
    [listed] = (await api.get(ROOMS, headers=by("b"))).json()["items"]
    assert listed == {
        "roomId": room, "name": "주말 여행", "firstSeq": 1, "lastSeq": 1, "readSeq": 0, "unread": 1, "muted": False,
        "lastSentAt": sent_at,
    }  # fmt: skip
    read = await api.post(f"{ROOMS}/{room}/read", json={"seq": 7}, headers=by("b"))
    assert (read.status_code, read.json()) == (200, {"readSeq": 1, "lastSeq": 1, "unread": 0})
    assert (await api.post(f"{ROOMS}/{room}/mute", headers=by("b"))).status_code == 204
    assert (await api.get(ROOMS, headers=by("b"))).json()["items"][0]["muted"] is True
    assert (await api.post(f"{ROOMS}/{room}/unmute", headers=by("b"))).status_code == 204


async def test_a_message_is_edited_and_deleted(api: httpx.AsyncClient, by: As) -> None:
    room = await new_room(api, "a", "b")
    for text in ("1", "2"):
        await api.post(f"{ROOMS}/{room}/messages", json=send(text), headers=by("a"))
    message = f"{ROOMS}/{room}/messages/1"
    edited = await api.patch(message, json={"message": "eins"}, headers=by("a"))
    assert (edited.status_code, edited.json()["message"], edited.json()["seq"]) == (200, "eins", 1)
    assert (await api.patch(message, json={"message": "x"}, headers=by("b"))).status_code == 403
    assert (await api.delete(message, headers=by("b"))).status_code == 403
    for _ in range(2):
        assert (await api.delete(message, headers=by("a"))).status_code == 204
    assert (await api.patch(message, json={"message": "x"}, headers=by("a"))).status_code == 409
    assert (await api.patch(f"{ROOMS}/{room}/messages/9", json={"message": "x"}, headers=by("a"))).status_code == 404
    items = (await api.get(f"{ROOMS}/{room}/messages", headers=by("b"))).json()["items"]
    assert [(item["seq"], item["message"], item["deletedAt"] is None) for item in items] == [
        (1, None, False),
        (2, "2", True),
    ]


async def test_a_server_acts_for_members_of_the_room(api: httpx.AsyncClient, by: As) -> None:
    room = await new_room(api, "a", "b")
    path = f"{ROOMS}/{room}/messages"
    assert (await api.post(path, json=send("1"))).status_code == 422
    assert (await api.post(path, json=send("1", senderId="stranger"))).status_code == 403
    sent = await api.post(path, json=send("1", senderId="a"))
    assert (sent.status_code, sent.json()["senderId"]) == (200, "a")
    assert (await api.patch(f"{path}/1", json={"message": "x", "senderId": "b"})).status_code == 403
    assert (await api.patch(f"{path}/1", json={"message": "x", "senderId": "a"})).json()["message"] == "x"
    assert (await api.delete(f"{path}/1")).status_code == 422
    assert (await api.delete(f"{path}/1", params={"senderId": "a"})).status_code == 204
    assert (await api.get(path)).json()["items"][0]["message"] is None
    # A member is nobody but themselves.
    for call in (
        api.post(path, json=send("2", senderId="b"), headers=by("a")),
        api.patch(f"{path}/1", json={"message": "x", "senderId": "a"}, headers=by("a")),
        api.delete(f"{path}/1", params={"senderId": "a"}, headers=by("a")),
    ):
        assert (await call).status_code == 403
    for path in (f"{ROOMS}/{uuid4()}", f"{ROOMS}/nowhere"):
        assert (await api.get(f"{path}/messages")).status_code == 404
        assert (await api.post(f"{path}/members/a")).status_code == 404


async def test_a_member_who_is_not_in_the_room_gets_403_on_every_call_about_it(api: httpx.AsyncClient, by: As) -> None:
    room = await new_room(api, "a")
    await api.post(f"{ROOMS}/{room}/messages", json=send("1"), headers=by("a"))
    stranger = by("stranger")
    for path in (f"{ROOMS}/{room}", f"{ROOMS}/{uuid4()}", f"{ROOMS}/nowhere"):
        for call in (
            api.get(f"{path}/messages", headers=stranger),
            api.post(f"{path}/messages", json=send("1"), headers=stranger),
            api.patch(f"{path}/messages/1", json={"message": "x"}, headers=stranger),
            api.delete(f"{path}/messages/1", headers=stranger),
            api.get(f"{path}/members", headers=stranger),
            api.post(f"{path}/members/stranger", headers=stranger),
            api.post(f"{path}/members/other", headers=stranger),
            api.delete(f"{path}/members/stranger", headers=stranger),
            api.delete(f"{path}/members/a", headers=stranger),
            api.post(f"{path}/read", json={"seq": 1}, headers=stranger),
            api.post(f"{path}/mute", headers=stranger),
            api.post(f"{path}/unmute", headers=stranger),
        ):
            answer = await call
            assert answer.status_code == 403, answer.request.url
            assert answer.headers["content-type"] == "application/problem+json"
    assert (await api.get(ROOMS, headers=stranger)).json() == {"items": []}


async def test_members_come_and_go_and_are_listed_by_pages(api: httpx.AsyncClient, by: As) -> None:
    room = await new_room(api, *(f"m-{number}" for number in range(5)))
    path = f"{ROOMS}/{room}/members"
    first = (await api.get(path, params={"limit": 3}, headers=by("m-1"))).json()
    rest = (await api.get(path, params={"limit": 3, "cursor": first["next"]}, headers=by("m-1"))).json()
    assert [item["memberId"] for item in (*first["items"], *rest["items"])] == [f"m-{number}" for number in range(5)]
    assert rest["next"] is None
    assert set(rest["items"][0]) == {"memberId", "joinedAt", "readSeq", "online"}
    assert (await api.post(f"{path}/new%2Fone", headers=by("m-1"))).status_code == 204
    assert (await api.get(ROOMS, headers=by("new/one"))).json()["items"][0]["roomId"] == room
    assert (await api.delete(f"{path}/m-2", headers=by("m-1"))).status_code == 403
    assert (await api.delete(f"{path}/m-1", headers=by("m-1"))).status_code == 204
    assert (await api.delete(f"{path}/m-1", headers=by("m-1"))).status_code == 403
    for _ in range(2):
        assert (await api.delete(f"{path}/m-2")).status_code == 204
    assert (await api.get(f"{ROOMS}/{room}/messages", headers=by("m-2"))).status_code == 403


MISTAKES: list[tuple[str, str, Any, int]] = [
    ("POST", "", {}, 422),
    ("POST", "", {"name": "", "memberIds": []}, 422),
    ("POST", "", {"name": "x" * 201}, 422),
    ("POST", "", {"name": "x", "memberIds": ["a"] * 1001}, 422),
    ("POST", "", {"name": "x", "memberIds": [""]}, 422),
    ("POST", "", {"name": "x", "unknown": 1}, 422),
    ("POST", "/{room}/messages", {"message": "x"}, 422),
    ("POST", "/{room}/messages", {"clientMessageId": "x"}, 422),
    ("POST", "/{room}/messages", {"clientMessageId": "x", "message": ""}, 422),
    ("POST", "/{room}/messages", {"clientMessageId": "x", "message": 5}, 422),
    ("POST", "/{room}/messages", {"clientMessageId": "", "message": "x"}, 422),
    ("POST", "/{room}/messages", {"clientMessageId": "x" * 256, "message": "x"}, 422),
    ("POST", "/{room}/messages", {"clientMessageId": "x", "message": "a\0b"}, 422),
    ("POST", "/{room}/messages", {"clientMessageId": "x", "message": "가" * 1366}, 422),
    ("POST", "/{room}/messages", b'{"clientMessageId": "x", "message": "\\ud83d"}', 400),
    ("POST", "/{room}/messages", b"{", 400),
    ("PATCH", "/{room}/messages/1", {"message": "x" * 4097}, 422),
    ("PATCH", "/{room}/messages/0", {"message": "x"}, 422),
    ("PATCH", "/{room}/messages/one", {"message": "x"}, 422),
    ("POST", "/{room}/read", {}, 422),
    ("POST", "/{room}/read", {"seq": -1}, 422),
    ("POST", "/{room}/read", {"seq": "1"}, 422),
    ("POST", "/{room}/read", {"seq": 2**63}, 422),
    ("GET", "/{room}/messages?afterSeq=-1", None, 422),
    ("GET", "/{room}/messages?limit=101", None, 422),
    ("GET", "/{room}/messages?limit=0", None, 422),
    ("GET", "/{room}/messages?afterSeq=1&beforeSeq=2", None, 422),
    ("GET", "/{room}/messages?before=2", None, 422),
    ("GET", "/{room}/members?cursor=x", None, 422),
]


async def test_what_is_wrong_is_refused_and_changes_nothing(api: httpx.AsyncClient, by: As) -> None:
    room = await new_room(api, "a")
    await api.post(f"{ROOMS}/{room}/messages", json=send("1"), headers=by("a"))
    for method, path, body, status in MISTAKES:
        content: Any = {} if body is None else {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = await api.request(method, ROOMS + path.format(room=room), **content, headers=by("a"))
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), (path, body)
    [item] = (await api.get(ROOMS, headers=by("a"))).json()["items"]
    assert (item["lastSeq"], item["readSeq"]) == (1, 0)


async def test_a_long_text_is_taken_as_long_as_the_setting_says_in_bytes(
    store: Store, settings: Settings, signals: LocalSignals, intake: Intake
) -> None:
    large = settings.model_copy(update={"chat_max_bytes": 600_000, "chat_rate": 1})
    keys = Keys.load(settings)
    async with running(ChatOrder(store, Fanout(signals), large)) as order:
        order._limit._clock = lambda: 1.0
        app = build_api(store, intake, keys, large, lambda: False, signals, chat_order=order)
        headers = {"Authorization": f"Bearer {keys.member_token('a', timedelta(hours=1))}"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://b", headers=headers) as client:
            room = await new_room(client)
            text = "가" * 200_000
            answer = await client.post(f"{ROOMS}/{room}/messages", json=send(text))
            assert (answer.status_code, answer.json()["message"]) == (200, text)
            refused = await client.post(f"{ROOMS}/{room}/messages", json=send("2"))
            assert (refused.status_code, refused.json()["type"]) == (429, "urn:bongsu:chat-rate-limited")
            assert refused.headers["retry-after"] == "1"


async def test_many_senders_at_once_get_seqs_without_holes(api: httpx.AsyncClient, by: As) -> None:
    room = await new_room(api, *(f"m-{number}" for number in range(8)))

    async def talk(member: str) -> list[int]:
        path, headers = f"{ROOMS}/{room}/messages", by(member)
        return [(await api.post(path, json=send(f"{n}"), headers=headers)).json()["seq"] for n in range(10)]

    seqs = await asyncio.gather(*(talk(f"m-{number}") for number in range(8)))
    assert all(each == sorted(each) for each in seqs)
    assert sorted(seq for each in seqs for seq in each) == list(range(1, 81))
    page = (await api.get(f"{ROOMS}/{room}/messages", params={"afterSeq": 0, "limit": 100})).json()["items"]
    assert [item["seq"] for item in page] == list(range(1, 81))
