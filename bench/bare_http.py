"""The HTTP client alone: bodies that are there already, posted in a loop, and nothing remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bongsu.deliver.channels.http.client import Answer, HttpClient

HEADERS = {"Content-Type": "application/json"}


def send_url(address: str) -> str:
    """Where `Push` posts to when it is given a simulator and no project."""
    return f"{address}/v1/projects/bongsu/messages:send"


async def post_all(client: HttpClient, url: str, bodies: Sequence[bytes], at_once: int) -> None:
    """Post each, with so many under way."""
    waiting = iter(bodies)

    async def post() -> None:
        for body in waiting:
            answer = await client.post(url, HEADERS, body)
            assert isinstance(answer, Answer)
            assert answer.status == 200

    await asyncio.gather(*(post() for _ in range(at_once)))
