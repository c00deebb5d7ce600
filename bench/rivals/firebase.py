"""Google's own client: `send_each_async`, which takes up to 500 messages and sends them all at once.

It is given a hundred at a time, which is how many connections it has: 300 sends a second, against 220 with 500 at a time.
And it is asked once before the clock runs, because it drops its connections after five idle seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import warnings
from collections.abc import AsyncIterator, Sequence
from typing import Any
from unittest import mock

import firebase_admin
import google.auth.credentials
import orjson
from firebase_admin import credentials, messaging
from tests.simulator.account import service_account

COUNT = 500
AT_ONCE = 100


class Firebase:
    name = f"firebase-admin, send_each_async of {AT_ONCE}"
    count = COUNT

    def __init__(self, app: firebase_admin.App, bodies: Sequence[bytes]) -> None:
        self._app = app
        self._messages = [_message(body) for body in bodies[:COUNT]]

    async def fill(self) -> None:
        """It takes messages from memory."""

    async def send(self) -> float:
        await self._send(0)
        began = time.perf_counter()
        for first in range(0, COUNT, AT_ONCE):
            await self._send(first)
        return time.perf_counter() - began

    async def _send(self, first: int) -> None:
        answer = await messaging.send_each_async(self._messages[first : first + AT_ONCE], app=self._app)
        assert answer.success_count == AT_ONCE, f"{answer.failure_count} of {AT_ONCE} failed"


def _message(body: bytes) -> messaging.Message:
    """What the member sees and the app is told; the parts for each platform are left out, which makes it lighter."""
    message: dict[str, Any] = orjson.loads(body)["message"]
    shown = message.get("notification", {})
    return messaging.Message(
        token=message["token"],
        notification=messaging.Notification(shown.get("title"), shown.get("body")),
        data=message.get("data"),
    )


@contextlib.asynccontextmanager
async def firebase(address: str, bodies: Sequence[bytes]) -> AsyncIterator[Firebase]:
    """Pointed at the simulator, as the simulator's own tests do it."""
    boundary = google.auth.credentials.CredentialsWithRegionalAccessBoundary
    with (
        mock.patch.dict(os.environ, {"NO_PROXY": "127.0.0.1"}),
        # google-auth asks Google in the background where the account may act. There is no Google here.
        mock.patch.object(boundary, "_maybe_start_regional_access_boundary_refresh", lambda *_: None),
        mock.patch.object(messaging._MessagingService, "FCM_URL", address + "/v1/projects/{0}/messages:send"),
        warnings.catch_warnings(),
    ):
        # Google would rather see installation ids. Devices send us tokens, and tokens go on working.
        warnings.filterwarnings("ignore", message="Message.token is deprecated")
        app = firebase_admin.initialize_app(credentials.Certificate(service_account(f"{address}/token")))
        try:
            yield Firebase(app, bodies)
        finally:
            await messaging._get_messaging_service(app)._async_client.aclose()
            # It closes the client once more, on a loop of its own.
            await asyncio.to_thread(firebase_admin.delete_app, app)
