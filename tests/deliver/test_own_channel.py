"""A channel of a user's own, from the module that docs/howto/channels.md shows to everything that knows channels by name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes import BONGSU, KEY, bongsu, serving
from tests.support.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs/howto/channels.md"
APP = ("--app", "shop.alimtalk:app")


class AlimTalkGateway(ThreadingHTTPServer):
    """Answers 200 to what it has read, as such providers do; a number that ends in 9 has no KakaoTalk."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.messages: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/alimtalk/v2/messages"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: AlimTalkGateway

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = 200, _answer(message)
        if self.headers["X-Secret-Key"] != "secret":
            status, answer = 401, {}
        else:
            self.server.messages.append(message)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _answer(message: Mapping[str, str]) -> dict[str, Any]:
    if message["recipientNo"].endswith("9"):
        return {"header": {"isSuccessful": False, "resultCode": 3018, "resultMessage": "no KakaoTalk"}}
    return {"header": {"isSuccessful": True, "resultCode": 0}, "message": {"requestId": message["idempotencyKey"]}}


@pytest.fixture
def gateway() -> Iterator[AlimTalkGateway]:
    server = AlimTalkGateway()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def shop(
    migrated: dict[str, str], gateway: AlimTalkGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """A folder with the module of the page, and the environment to serve it in."""
    (shown,) = re.findall(r"^```python shop/alimtalk.py\n(.+?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "alimtalk.py").write_text(shown)
    monkeypatch.chdir(tmp_path)
    return {**migrated, "ALIMTALK_URL": gateway.url, "ALIMTALK_KEY": "secret", "COLUMNS": "300"}


def put(client: httpx.Client, member: str, number: str | None, **preference: Any) -> None:
    known = {} if number is None else {"addresses": {"ALIMTALK": number}}
    assert client.put(f"/api/members/{member}", json=known).status_code == 200
    if preference:
        wish = {"types": {"ORDER_SHIPPED": preference}}
        answer = client.put(f"/api/members/{member}/preferences", json=wish)
        assert answer.status_code == 200, answer.text


def history(client: httpx.Client, **filters: str) -> dict[str, str]:
    items = client.get("/api/admin/history", params=filters).json()["items"]
    return {item["memberId"]: item["status"] for item in items}


def of_folder(*arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A command that finds the module in the current directory."""
    environment = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run([*BONGSU, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_channel_shown_in_the_howto_is_known_everywhere(shop: dict[str, str], gateway: AlimTalkGateway) -> None:
    with serving(shop, *APP) as served, served.client(**KEY) as client:
        put(client, "kim", "01011110001")
        put(client, "lee", None)
        put(client, "park", "01011110003", channels=["PUSH", "IN_APP"])
        put(client, "choi", "01011110009", channels=["ALIMTALK"])
        for member in ("kim", "lee", "park", "choi"):
            event = {"eventType": "order.shipped", "targetId": member, "refId": "1024"}
            assert client.post("/api/events", json=event).status_code == 202
        ends = {"kim": "SENT", "lee": "NO_ADDRESS", "park": "USER_OPTED_OUT", "choi": "FAILED"}
        eventually(lambda: history(client), ends)
        assert history(client, channel="ALIMTALK") == ends
        assert history(client, channel="PUSH") == {}
        assert {one["recipientNo"] for one in gateway.messages} == {"01011110001", "01011110009"}
        assert {(one["templateCode"], one["content"]) for one in gateway.messages} == {
            ("ORDER_SHIPPED", "주문 1024 상품이 출발했습니다.")
        }
        of_the_api(client)
        of_the_commands(shop)
        of_another_process(shop, gateway)
        assert served.terminate() == 0


def of_the_api(client: httpx.Client) -> None:
    kim = client.get("/api/members/kim").json()
    assert kim["addresses"] == {"ALIMTALK": "01011110001"}
    (item,) = client.get("/api/admin/history", params={"userId": "kim"}).json()["items"]
    assert (item["channels"], item["deliveries"][0]["channel"]) == (["ALIMTALK"], "ALIMTALK")
    (dead,) = client.get("/api/admin/dead", params={"channel": "ALIMTALK"}).json()["items"]
    assert (dead["memberId"], dead["channel"], dead["code"]) == ("choi", "ALIMTALK", "ALIMTALK_3018")
    metrics = client.get("/metrics").text
    assert 'bongsu_deliveries_total{channel="ALIMTALK",code="",status="SUCCESS"} 1.0' in metrics
    assert 'bongsu_breaker{channel="ALIMTALK",state="closed"} 1.0' in metrics
    refused: list[tuple[Callable[[], httpx.Response], str]] = [
        (lambda: client.put("/api/members/m", json={"addresses": {"FAX": "1"}}), "there are ALIMTALK"),
        (lambda: client.put("/api/members/m", json={"addresses": {"SMS": "1"}}), "there are ALIMTALK"),
        (lambda: client.get("/api/admin/history", params={"channel": "FAX"}), "'IN_APP' or 'ALIMTALK'"),
        (lambda: client.get("/api/admin/dead", params={"channel": "FAX"}), "'IN_APP' or 'ALIMTALK'"),
    ]
    for call, says in refused:
        response = call()
        assert response.status_code == 422
        assert says in response.json()["errors"][0]["msg"]


def of_the_commands(shop: dict[str, str]) -> None:
    assert "not notified: has no ALIMTALK address" in bongsu("why", "lee", environment=shop).stdout
    park = bongsu("why", "park", environment=shop).stdout
    assert "wants ORDER_SHIPPED by PUSH, IN_APP, and it is sent by ALIMTALK" in park
    assert "ALIMTALK: sent" in bongsu("why", "kim", environment=shop).stdout
    listed = bongsu("dead", "list", "--channel", "alimtalk", environment=shop)
    (row,) = listed.stdout.splitlines()[1:]
    assert "choi" in row
    shown = bongsu("dead", "show", row.split()[0], environment=shop).stdout
    assert "ALIMTALK to ALIMTALK address" in shown
    unknown = bongsu("dead", "list", "--channel", "fax", environment=shop)
    assert (unknown.returncode, "'IN_APP' or 'ALIMTALK'" in unknown.stderr) == (1, True)
    assert "ALIMTALK" in bongsu("doctor", environment=shop).stdout
    examined = of_folder("doctor", *APP, environment=shop)
    assert examined.returncode == 0, examined.stdout + examined.stderr
    assert re.search(r"ALIMTALK +sent by AlimTalk of your app", examined.stdout)
    misspelt = of_folder("doctor", "--app", "shop.alimtalk:ap", environment=shop)
    assert (misspelt.returncode, "did you mean shop.alimtalk:app?" in misspelt.stdout) == (1, True)


def of_another_process(shop: dict[str, str], gateway: AlimTalkGateway) -> None:
    """One that runs without the app knows the channel from the store, and sends nothing on it."""
    with serving(shop, "--role", "api,worker") as served, served.client(**KEY) as client:
        put(client, "jung", "01011110005", channels=["ALIMTALK"])
        assert client.get("/api/members/jung").json()["addresses"] == {"ALIMTALK": "01011110005"}
        direct = {"type": "ORDER_SHIPPED", "userIds": ["jung"], "title": "t", "body": "b", "channels": ["ALIMTALK"]}
        assert client.post("/api/notifications", json=direct).status_code == 202
        eventually(lambda: history(client, userId="jung"), {"jung": "SENT"})
        assert gateway.messages[-1]["recipientNo"] == "01011110005"
        (item,) = client.get("/api/admin/history", params={"userId": "jung"}).json()["items"]
        assert item["deliveries"][0]["simulated"] is False
        assert served.terminate() == 0


def test_a_key_that_the_gateway_refuses_is_counted_and_nothing_is_lost(
    shop: dict[str, str], gateway: AlimTalkGateway
) -> None:
    with serving({**shop, "ALIMTALK_KEY": "wrong"}, *APP) as served, served.client(**KEY) as client:
        put(client, "kim", "01011110001")
        client.post("/api/events", json={"eventType": "order.shipped", "targetId": "kim", "refId": "1"})
        counted = 'bongsu_send_seconds_count{channel="ALIMTALK",outcome="misconfigured"} 1.0'
        eventually(lambda: counted in client.get("/metrics").text, True)
        eventually(lambda: history(client), {"kim": "FAILED"})
        assert gateway.messages == []
        assert served.terminate() == 0
    with serving(shop, *APP, "--role", "worker,api") as served, served.client(**KEY) as client:
        client.post("/api/admin/dead/replay", json={"filter": {"channel": "ALIMTALK"}})
        eventually(lambda: history(client), {"kim": "SENT"})
        assert [one["recipientNo"] for one in gateway.messages] == ["01011110001"]
        assert served.terminate() == 0
