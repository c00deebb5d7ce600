"""The HTTP application in a thread with an event loop of its own, for tests that Hypothesis calls, which cannot await."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from starlette.types import ASGIApp, Message

from bongsu.api.app import build_api
from bongsu.chat.fanout import Fanout
from bongsu.chat.order import ChatOrder
from bongsu.counters.calls import Counters
from bongsu.desk.jobs import build_jobs
from bongsu.ingress.intake import Intake
from bongsu.live.gateway import Gateway
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store

_T = TypeVar("_T")
RawHeaders = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for given, value in self.headers if given == name), None)


class ServedApp:
    """Answers one request at a time, as they were sent: nothing is normalised on the way."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.keys = Keys.load(settings)
        self.app: ASGIApp
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call(self, method: str, target: str, headers: RawHeaders = (), body: bytes = b"") -> Answer:
        """`target` is the path and query as they stand in the request line."""
        return self.run(_call(self.app, method, target, headers, body))

    def token(self, member_id: str, lifetime: timedelta = timedelta(hours=1)) -> str:
        return self.keys.member_token(member_id, lifetime)

    @property
    def server_key(self) -> str:
        return self.keys.api_keys[0]


@contextlib.contextmanager
def served_app(settings: Settings, *, is_demo: bool = False) -> Iterator[ServedApp]:
    """Everything that a process with all roles answers, on a store that has its tables."""
    loop = asyncio.new_event_loop()
    served = ServedApp(settings, loop)
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        store, signals = Store.open(settings), LocalSignals()
        order = ChatOrder(store, Fanout(signals), settings)
        counters = Counters(store)
        async with running(Intake(store, signals, "http")) as intake, running(order), running(counters):
            served.keys = served.keys.with_guests(["mina"])
            served.app = build_api(
                store,
                intake,
                served.keys,
                settings,
                lambda: False,
                signals,
                gateway=Gateway(store, signals, settings),
                chat_order=order,
                counters=counters,
                all_jobs=build_jobs(settings, store, signals),
                is_demo=is_demo,
            )
            ready.set()
            await stop.wait()
        await store.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield served
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _call(app: ASGIApp, method: str, target: str, headers: RawHeaders, body: bytes) -> Answer:
    url = urlsplit(target)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(url.path),
        "raw_path": url.path.encode("latin-1"),
        "query_string": url.query.encode("latin-1"),
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in headers],
        "client": ("127.0.0.1", 1),
        "server": ("bongsu", 80),
        "extensions": {},
    }
    incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]
    sent: list[Message] = []

    async def receive() -> Message:
        return incoming.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    found = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in sent[0]["headers"]]
    return Answer(sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]))
