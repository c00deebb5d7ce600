"""The stream as `curl -N` shows it: what any program that reads lines gets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.live.harness import Live, bearer

CURL = shutil.which("curl")
pytestmark = pytest.mark.skipif(CURL is None, reason="curl is not in PATH: `apt install curl` gives you one")
WAIT_SECONDS = 30


@contextlib.asynccontextmanager
async def curl(live: Live, *options: str) -> AsyncIterator[Process]:
    assert CURL is not None
    header = f"Authorization: {bearer(live.settings, 'm-1')['Authorization']}"
    url = f"{live.address}/api/notifications/stream"
    process = await asyncio.create_subprocess_exec(CURL, "-sSN", "-H", header, *options, url, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def event(process: Process, kind: str) -> tuple[dict[str, str], Any]:
    """The next event of that kind: its lines, and its data."""
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_SECONDS):
        fields: dict[str, str] = {}
        while line := (await process.stdout.readline()).decode():
            if line.strip():
                name, _, value = line.rstrip("\n").partition(": ")
                fields[name] = value
            elif fields.get("event") == kind:
                return fields, json.loads(fields["data"])
            else:
                fields = {}
    raise AssertionError(f"the stream ended without {kind}")


async def test_lines_come_as_they_are_said_and_go_on_from_where_they_ended(live: Live) -> None:
    async with curl(live) as process:
        assert (await event(process, "badge"))[1] == {"unread": 0}
        (first,) = await live.ring(title="가격이 떨어졌어요!")
        fields, data = await event(process, "notification")
        assert (fields["id"], data["id"], data["title"]) == (str(first), str(first), "가격이 떨어졌어요!")
        assert (await event(process, "badge"))[1] == {"unread": 1}
    (missed,) = await live.ring()
    async with curl(live, "-H", f"Last-Event-ID: {first}") as process:
        assert (await event(process, "notification"))[0]["id"] == str(missed)
        (newest,) = await live.ring()
        assert (await event(process, "notification"))[0]["id"] == str(newest)
        await live.gateway.drain()
        fields, data = await event(process, "bye")
        assert data == {"reason": "restart"}
        assert int(fields["retry"]) >= 1000
        async with asyncio.timeout(WAIT_SECONDS):
            assert await process.wait() == 0, "the answer ended as an answer ends"
