"""The simulator's door: control and ledger over HTTP, faults as bytes on a socket, and how the process begins and ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from bongsu.errors import AddressTaken, BadCommand
from bongsu.simulator import serve
from tests.simulator.running import Simulator
from tests.support.processes import WAIT_SECONDS

SEND = "/v1/projects/shop/messages:send"


def post(simulator: Simulator, path: str, content: Any, **options: Any) -> httpx.Response:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    with httpx.Client(base_url=simulator.address, trust_env=False, timeout=WAIT_SECONDS) as client:
        return client.post(path, content=body, **options)


def message(number: int, token: str = "ok") -> dict[str, Any]:
    return {"message": {"token": token, "data": {"notificationId": str(number), "nid": f"n{number}"}}}


def request_bytes(content: dict[str, Any]) -> bytes:
    body = json.dumps(content).encode()
    return f"POST {SEND} HTTP/1.1\r\nHost: fcm\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def connected(simulator: Simulator) -> socket.socket:
    host, _, port = simulator.address.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_SECONDS)


# --- control ----------------------------------------------------------------------------------------------------------


def test_a_config_is_replaced_whole_and_returned(simulator: Simulator) -> None:
    answer = post(simulator, "/_sim/config", {"seed": 3, "faults": {"unavailable": 1}, "oauth": {"required": True}})
    assert answer.status_code == 200
    assert answer.json()["faults"] == {"unavailable": 1.0}
    assert answer.json()["oauth"] == {"required": True, "seconds": 3600.0, "fault": "none"}
    # What is left out is back at its default.
    assert post(simulator, "/_sim/config", {"seed": 4}).json()["faults"] == {}


@pytest.mark.parametrize(
    ("config", "loc", "cure"),
    [
        (b"{", [], "is not JSON"),
        ([], [], "must be a valid dictionary"),
        ({"sed": 1}, ["sed"], "no such setting"),
        ({"faults": {"unavailble": 1}}, ["faults", "unavailble", "[key]"], "take one of none, unavailable"),
        ({"faults": {"unavailable": 2}}, ["faults", "unavailable"], "less than or equal to 1"),
        ({"faults": {"unavailable": 0.6, "reset": 0.6}}, ["faults"], "make them 1 or less"),
        ({"faults": {"unavailable": "often"}}, ["faults", "unavailable"], "must be a valid number"),
        ({"latency": {"medianMs": -1}}, ["latency", "medianMs"], "greater than or equal to 0"),
        ({"retryAfter": {"form": "tomorrow"}}, ["retryAfter", "form"], "must be 'seconds', 'date'"),
        ({"quota": {"perMinute": 0}}, ["quota", "perMinute"], "greater than or equal to 1"),
        ({"attempts": ["none", "never"]}, ["attempts", 1], "take one of none"),
        ({"outages": [{"fromSecond": 5, "toSecond": 5}]}, ["outages", 0, "toSecond"], "more than fromSecond"),
        ({"outages": [{"toSecond": 5}, {"fromSecond": 4, "toSecond": 9}]}, ["outages"], "let one end before"),
    ],
)
def test_a_bad_config_is_a_problem_that_names_the_cure_and_changes_nothing(
    simulator: Simulator, config: Any, loc: list[str | int], cure: str
) -> None:
    simulator.configure(seed=42)
    answer = post(simulator, "/_sim/config", config)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == 400
    (mistake,) = answer.json()["errors"]
    assert mistake["loc"] == loc
    assert cure in mistake["msg"]
    assert httpx.get(f"{simulator.address}/_sim/config", trust_env=False).json()["seed"] == 42


def test_ledger_and_stats_have_what_was_sent_and_reset_empties_them(simulator: Simulator) -> None:
    for number, token in enumerate(["a", "b", "b"]):
        assert post(simulator, SEND, message(number, token)).status_code == 200
    assert simulator.stats()["accepted"] == 3
    assert len(simulator.ledger()["messages"]) == 3
    assert len(simulator.ledger(token="b")["messages"]) == 2
    assert simulator.ledger(message="n0")["messages"][0]["token"] == "a"
    simulator.reset()
    assert simulator.ledger()["messages"] == []


@pytest.mark.parametrize(("method", "path"), [("GET", "/_sim/nothing"), ("POST", "/_sim/ledger"), ("DELETE", "/_sim")])
def test_other_control_addresses_say_which_there_are(simulator: Simulator, method: str, path: str) -> None:
    answer = httpx.request(method, simulator.address + path, trust_env=False)
    assert answer.status_code == 404
    assert "/_sim/config" in answer.json()["detail"]


def test_elsewhere_there_is_a_page_as_googles(simulator: Simulator) -> None:
    answer = post(simulator, "/v1/projects/shop/messages:sned", message(1))
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")


# --- bytes ------------------------------------------------------------------------------------------------------------


def read_answers(line: socket.socket, count: int) -> list[str]:
    """The status lines of so many answers."""
    received = b""
    while received.count(b"HTTP/1.1 ") < count or not received.endswith(b"}"):
        more = line.recv(65536)
        assert more, received
        received += more
    return [part.split(b"\r\n")[0].decode() for part in received.split(b"HTTP/1.1 ")[1:]]


def test_a_connection_is_kept_and_pipelined_requests_are_answered_in_order(simulator: Simulator) -> None:
    simulator.configure(latency={"medianMs": 1})
    tokens = ["ok", "unregistered-1", "bad-1", *["ok"] * 30]
    with connected(simulator) as line:
        line.sendall(b"".join(request_bytes(message(number, token)) for number, token in enumerate(tokens)))
        answers = read_answers(line, len(tokens))
    assert [answer[:3] for answer in answers] == ["200", "404", "400", *["200"] * 30]


def test_a_request_in_pieces_is_put_together(simulator: Simulator) -> None:
    whole = request_bytes(message(1))
    with connected(simulator) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(whole), 7):
            line.sendall(whole[at : at + 7])
        assert read_answers(line, 1) == ["200 OK"]


def test_what_is_not_http_is_answered_so_and_disconnected(simulator: Simulator) -> None:
    with connected(simulator) as line:
        line.sendall(b"EHLO fcm\r\n\r\n")
        received = b""
        while more := line.recv(65536):
            received += more
    assert received.startswith(b"HTTP/1.1 400 ")


def test_a_body_beyond_all_limits_is_refused(simulator: Simulator) -> None:
    assert post(simulator, SEND, b"x" * 1_000_001).status_code == 413


def test_a_client_that_expects_100_continue_gets_it(simulator: Simulator) -> None:
    head, _, body = request_bytes(message(1)).partition(b"\r\n\r\n")
    with connected(simulator) as line:
        line.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert line.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.sendall(body)
        assert read_answers(line, 1) == ["200 OK"]


def test_who_wants_the_connection_closed_gets_it_closed(simulator: Simulator) -> None:
    answer = post(simulator, SEND, message(1), headers={"Connection": "close"})
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("fault", ["reset", "acceptedReset"])
def test_a_reset_is_a_reset(simulator: Simulator, fault: str) -> None:
    simulator.configure(faults={fault: 1})
    with connected(simulator) as line:
        line.sendall(request_bytes(message(1)))
        with pytest.raises(ConnectionResetError):
            line.recv(1)
    assert simulator.stats()["accepted"] == (fault == "acceptedReset")


def test_silence_is_silence_on_that_connection_only(simulator: Simulator) -> None:
    simulator.configure(faults={"acceptedSilence": 1})
    with connected(simulator) as line:
        line.sendall(request_bytes(message(1)))
        # Over another connection: it has been taken on, and the first is as silent as it was.
        while simulator.stats()["accepted"] == 0:
            pass
        line.setblocking(False)
        with pytest.raises(BlockingIOError):
            line.recv(1)


def test_a_drip_comes_byte_by_byte_and_whole(simulator: Simulator) -> None:
    simulator.configure(faults={"drip": 1}, dripMs=0.1)
    with connected(simulator) as line:
        line.sendall(request_bytes(message(1)))
        assert read_answers(line, 1) == ["200 OK"]
        line.sendall(request_bytes(message(2)))
        assert read_answers(line, 1) == ["200 OK"]


def test_a_broken_answer_is_broken_as_configured(simulator: Simulator) -> None:
    simulator.configure(attempts=["truncated", "garbage", "badGateway"])
    answers = [post(simulator, SEND, message(1)) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [500, 200, 502]
    for answer in answers:
        with pytest.raises(ValueError):
            answer.json()
    assert answers[2].text.startswith("<!DOCTYPE html>")


# --- the process ------------------------------------------------------------------------------------------------------


def test_it_takes_its_faults_from_a_file_and_leaves_in_peace(tmp_path: Path) -> None:
    file = tmp_path / "faults.json"
    file.write_text('{"faults": {"internal": 1}}')
    process = started("--port", "0", "--faults", str(file))
    assert process.stderr is not None
    ready = json.loads(process.stderr.readline())
    assert ready["event"] == "ready"
    assert httpx.post(ready["address"] + SEND, json=message(1), trust_env=False).status_code == 500
    host, _, port = ready["address"].removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_SECONDS) as idle:
        process.terminate()
        assert idle.recv(1) == b""
    process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0


def test_a_bad_file_is_one_line_and_no_start(tmp_path: Path) -> None:
    file = tmp_path / "faults.json"
    file.write_text('{"sed": 1}')
    process = started("--faults", str(file))
    _, stderr = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 1
    assert stderr.count("\n") == 1
    assert "sed: there is no such setting" in stderr


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bongsu.simulator", *arguments]
    environment = {"PATH": os.environ["PATH"]}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


async def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadCommand, match="cannot be read"):
        await serve("127.0.0.1", 0, tmp_path / "missing.json")
    (tmp_path / "half.json").write_text("{")
    with pytest.raises(BadCommand, match="is not JSON"):
        await serve("127.0.0.1", 0, tmp_path / "half.json")


async def test_a_port_that_is_taken_is_reported(simulator: Simulator) -> None:
    with pytest.raises(AddressTaken, match="Cannot listen"):
        await serve("127.0.0.1", int(simulator.address.rpartition(":")[2]))
