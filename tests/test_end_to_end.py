"""The whole way: a fact goes in by HTTP, the right people's devices and inboxes hear of it, and the desk can say so."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx

from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from tests.simulator.running import Simulator
from tests.support.processes import KEY, serving
from tests.support.waiting import eventually


def fill(client: httpx.Client) -> None:
    for member, token in (("mina", "token-mina"), ("jun", "unregistered-jun"), ("sora", "token-sora")):
        device = {"token": token, "platform": "ANDROID", "pushConsent": True}
        assert client.put(f"/api/members/{member}/devices/phone", json=device).status_code == 200
        seen = {"userId": member, "productId": "sku-1", "action": "VIEW"}
        assert client.post("/api/behaviors", json=seen).status_code == 202
    client.put("/api/products/sku-1", json={"name": "사과"})
    client.put("/api/members/sora/preferences", json={"types": {"PRICE_DROP": {"enabled": False}}})


def fates(client: httpx.Client, event_id: str) -> dict[str, str]:
    items = client.get("/api/admin/history", params={"eventId": event_id}).json()["items"]
    return {item["memberId"]: item["status"] for item in items}


def test_a_price_drop_reaches_the_devices_of_those_who_looked(
    migrated: dict[str, str], settings: Settings, simulator: Simulator
) -> None:
    environment = {**migrated, "BONGSU_FCM_URL": simulator.address, "BONGSU_FCM_PROJECT": "demo"}
    with serving(environment) as served, served.client(**KEY) as client:
        fill(client)
        drop = {
            "eventType": "product.price_changed",
            "refId": "sku-1",
            "payload": {"previousPrice": 10000, "currentPrice": 7000},
        }
        event_id = client.post("/api/events", json=drop).json()["events"][0]["eventId"]
        eventually(lambda: fates(client, event_id), {"mina": "SENT", "jun": "FAILED", "sora": "USER_OPTED_OUT"})
        (accepted,) = simulator.ledger(token="token-mina")["messages"]
        assert accepted["accepted"] == 1
        assert "사과" in accepted["text"]["body"] + accepted["text"]["title"]
        assert simulator.ledger(token="token-sora")["messages"] == []
        (device,) = client.get("/api/members/jun/devices").json()["devices"]
        assert device["status"] == "INVALID"
        token = Keys.load(settings).member_token("mina", timedelta(hours=1))
        inbox: dict[str, Any] = client.get("/api/notifications", headers={"Authorization": f"Bearer {token}"}).json()
        assert (inbox["unread"], inbox["items"][0]["type"], inbox["items"][0]["refId"]) == (1, "PRICE_DROP", "sku-1")
        told = client.get("/metrics").text
        assert 'bongsu_send_seconds_count{channel="PUSH",outcome="accepted"} 1.0' in told
        assert 'bongsu_send_seconds_count{channel="PUSH",outcome="gone"} 1.0' in told
        assert 'bongsu_breaker{channel="PUSH",state="closed"} 1.0' in told
        # Drawn from the quota that this process would share with others.
        assert 'bongsu_quota_granted_total{channel="PUSH"} 16.0' in told
        assert client.get("/api/admin/history", params={"status": "FAILED"}).json()["items"][0]["memberId"] == "jun"
        assert served.terminate() == 0
