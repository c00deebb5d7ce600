"""Pushes about chat by running processes: one with all roles, and two that share PostgreSQL and Redis."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from bongsu.settings import Settings
from tests.live.harness import bearer
from tests.live.socket_client import socket_url
from tests.simulator.running import Simulator
from tests.support.processes import KEY, Served, serving
from tests.support.servers import RedisServer
from tests.support.waiting import eventually


def register(client: httpx.Client, *member_ids: str) -> None:
    for member_id in member_ids:
        device = {"token": f"token-{member_id}", "platform": "ANDROID", "pushConsent": True}
        assert client.put(f"/api/members/{member_id}", json={"locale": "en"}).is_success
        assert client.put(f"/api/members/{member_id}/devices/phone", json=device).is_success


def bodies(simulator: Simulator) -> dict[str, list[str]]:
    """What each member was pushed."""
    found: dict[str, list[str]] = {}
    for entry in simulator.ledger()["messages"]:
        found.setdefault(entry["token"].removeprefix("token-"), []).append(entry["text"]["body"])
    return found


def send(client: httpx.Client, room: str, sender: str, text: str) -> None:
    message = {"clientMessageId": text, "message": text, "senderId": sender}
    assert client.post(f"/api/chat/rooms/{room}/messages", json=message).status_code == 200


def run(settings: Settings, simulator: Simulator, client: httpx.Client, reader: Served) -> None:
    register(client, "ann", "bob", "cho")
    room = client.post("/api/chat/rooms", json={"name": "trip", "memberIds": ["ann", "bob", "cho"]}).json()["roomId"]
    with connect(socket_url(reader.address), additional_headers=bearer(settings, "bob"), proxy=None) as socket:
        while json.loads(socket.recv())["op"] != "ready":
            pass
        send(client, room, "ann", "hello")
        eventually(lambda: sorted(bodies(simulator)), ["cho"])
        # By then the room was looked at, and bob left out.
        history = client.get("/api/admin/history", params={"type": "CHAT_MESSAGE"}).json()["items"]
        assert [(row["memberId"], row["status"]) for row in history] in ([("cho", "SENT")], [("cho", "PENDING")])
    # Gone now: the next message reaches bob too.
    eventually(lambda: online(client, room, "bob"), False)
    send(client, room, "ann", "again")
    unread = "ann: again\n2 unread messages."
    eventually(lambda: bodies(simulator), {"cho": ["ann: hello", unread], "bob": [unread]})
    assert simulator.stats()["differentCollapseIds"] == 0


def online(client: httpx.Client, room: str, member_id: str) -> Any:
    items = client.get(f"/api/chat/rooms/{room}/members").json()["items"]
    return next(item["online"] for item in items if item["memberId"] == member_id)


def environment_of(migrated: dict[str, str], simulator: Simulator) -> dict[str, str]:
    return {
        **migrated,
        "BONGSU_FCM_URL": simulator.address,
        "BONGSU_FCM_PROJECT": "chat",
        "BONGSU_CHAT_PUSH_SECONDS": "0.2",
    }


def test_the_service_pushes_to_those_who_are_not_connected(
    migrated: dict[str, str], settings: Settings, simulator: Simulator
) -> None:
    with serving(environment_of(migrated, simulator)) as served, served.client(**KEY) as client:
        run(settings, simulator, client, served)
        assert served.terminate() == 0


@pytest.mark.parametrize("settings", ["postgresql"], indirect=True)
def test_a_worker_knows_who_is_connected_to_another_instance(
    migrated: dict[str, str], settings: Settings, simulator: Simulator, redis_server: RedisServer
) -> None:
    environment = {**environment_of(migrated, simulator), "BONGSU_REDIS_URL": redis_server.url}
    with ExitStack() as stack:
        gateway = stack.enter_context(serving(environment, "--role", "api,gateway"))
        worker = stack.enter_context(serving(environment, "--role", "worker"))
        client = stack.enter_context(gateway.client(**KEY))
        run(settings, simulator, client, gateway)
        assert [one.terminate() for one in (worker, gateway)] == [0, 0]
