"""A whole service under a fault: events go in, pushes reach the simulator, a page reads its stream; how soon it heals."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from tests.conftest import KEYS
from tests.simulator.running import Simulator
from tests.support.processes import KEY, Served, serving

# Until something that must happen is given up: far more than it should take, so that only a hang fails a test.
PATIENCE_SECONDS = 90
# One JSON line per healing, for docs/decisions.
REPORT = os.environ.get("CHAOS_REPORT")


def until(condition: Callable[[], bool], what: str) -> float:
    """Wait for a condition; return how many seconds that took."""
    began = time.monotonic()
    pause = threading.Event()
    while not condition():
        assert time.monotonic() - began < PATIENCE_SECONDS, f"still not: {what}"
        pause.wait(0.05)
    return time.monotonic() - began


def report(fault: str, **measured: Any) -> None:
    if REPORT:
        with Path(REPORT).open("a") as file:
            file.write(json.dumps({"fault": fault, **measured}) + "\n")


@dataclass
class Page:
    """An open page of one member: it reads the stream and comes back when it is closed."""

    address: str
    token: str
    seen: list[str] = field(default_factory=list)
    last_id: str = ""
    _closing: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def open(self) -> Iterator[Page]:
        thread = threading.Thread(target=self._read, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._closing.set()

    def _read(self) -> None:
        while not self._closing.is_set():
            headers = {"Authorization": f"Bearer {self.token}"} | ({"Last-Event-ID": self.last_id} if self.last_id else {})
            with (
                contextlib.suppress(httpx.HTTPError),
                httpx.stream("GET", f"{self.address}/api/notifications/stream", headers=headers, timeout=60) as answer,
            ):
                self._follow(answer)
            self._closing.wait(0.5)

    def _follow(self, answer: httpx.Response) -> None:
        event = ""
        for line in answer.iter_lines():
            if self._closing.is_set():
                return
            if line.startswith("event:"):
                event = line[6:].strip()
            elif line.startswith("id:"):
                self.last_id = line[3:].strip()
            elif line.startswith("data:") and event == "notification":
                self.seen.append(json.loads(line[5:])["title"])


@dataclass
class Shop:
    """A running service, the simulator behind it, and one member with a device and an open page."""

    served: Served
    client: httpx.Client
    simulator: Simulator
    page: Page
    sent: list[str] = field(default_factory=list)

    def notify(self, **more: Any) -> httpx.Response:
        """One push and inbox row for the member, known by its title."""
        title = f"n-{len(self.sent)}"
        body = {"type": "ORDER", "userIds": ["mina"], "title": title, "body": "b", "channels": ["PUSH", "IN_APP"],
                "critical": True, "idempotencyKey": title, **more}  # fmt: skip
        answer = self.client.post("/api/notifications", json=body)
        if answer.status_code == 202 and "sendAt" not in more:
            self.sent.append(title)
        return answer

    def pushed(self) -> list[str]:
        return sorted(
            message["text"]["title"]
            for message in self.simulator.ledger(token="token-mina")["messages"]
            for _ in range(message["accepted"])
        )

    def heal(self, fault: str, since: float | None = None) -> None:
        """All that was accepted is pushed and shown; report how long each took since the fault ended, by default now."""
        began = time.monotonic() if since is None else since
        until(lambda: set(self.sent) <= set(self.pushed()), f"all pushed, missing {set(self.sent) - set(self.pushed())}")
        pushed = time.monotonic() - began
        until(lambda: set(self.sent) <= set(self.page.seen), "all shown")
        report(fault, pushes_seconds=round(pushed, 2), page_seconds=round(time.monotonic() - began, 2))

    def assert_each_once(self) -> None:
        assert self.pushed() == sorted(self.sent)
        assert sorted(self.page.seen) == sorted(self.sent)


@contextlib.contextmanager
def opened(environment: Mapping[str, str], simulator: Simulator) -> Iterator[Shop]:
    environment = {**environment, "BONGSU_FCM_URL": simulator.address, "BONGSU_FCM_PROJECT": "demo"}
    token = Keys.load(Settings(**KEYS)).member_token("mina", timedelta(days=2))
    with serving(environment) as served, served.client(**KEY) as client:
        device = {"token": "token-mina", "platform": "ANDROID", "pushConsent": True}
        assert client.put("/api/members/mina/devices/phone", json=device).status_code == 200
        with Page(served.address, token).open() as page:
            shop = Shop(served, client, simulator, page)
            shop.notify()
            shop.heal("none")
            yield shop
