"""A message that may be sent over HTTP may be sent over a socket."""

from __future__ import annotations

import json
from typing import Any

from websockets.sync.client import connect

from bongsu.api.http_limits import FRAME_BYTES, HttpLimits
from bongsu.settings import Settings
from tests.live.harness import bearer
from tests.live.socket_client import socket_url
from tests.support.processes import KEY, serving


def test_frames_are_as_large_as_a_message_with_every_byte_escaped_needs() -> None:
    assert HttpLimits.of(Settings()).frame_bytes == FRAME_BYTES
    assert HttpLimits.of(Settings(chat_max_bytes=1_048_576)).frame_bytes > 6 * 1_048_576


def test_the_longest_message_that_is_allowed_fits_into_a_frame(migrated: dict[str, str], settings: Settings) -> None:
    size = 200_000
    with serving({**migrated, "BONGSU_CHAT_MAX_BYTES": str(size)}) as served, served.client(**KEY) as client:
        room = client.post("/api/chat/rooms", json={"name": "room", "memberIds": ["ann"]}).json()["roomId"]
        about = {"op": "send", "roomId": room}
        with connect(
            socket_url(served.address), additional_headers=bearer(settings, "ann"), proxy=None, max_size=None
        ) as socket:
            socket.send(json.dumps({**about, "clientMessageId": "long", "message": "\x01" * size}))
            socket.send(json.dumps({**about, "clientMessageId": "longer", "message": "\x01" * (size + 1)}))
            answers: dict[str, Any] = {}
            while len(answers) < 2:
                frame = json.loads(socket.recv())
                if frame["op"] in ("ack", "error"):
                    answers[frame["op"]] = frame
        assert answers["ack"]["seq"] == 1
        assert answers["error"]["code"] == "BAD_MESSAGE"
