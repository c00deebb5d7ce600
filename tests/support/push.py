"""Pushes against the simulator."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

from bongsu.deliver.channels.push.sender import Push
from bongsu.model.outcome import Outcome, Outgoing
from bongsu.settings import Settings
from tests.simulator.running import Simulator

_numbers = itertools.count(1)


def outgoing(address: str = "ok", **fields: Any) -> Outgoing:
    number = next(_numbers)
    given: dict[str, Any] = {
        "delivery_id": number,
        "notification_id": number,
        "member_id": "m",
        "address": address,
        "type": "PRICE_DROP",
        "title": "가격이 내렸어요",
        "body": "9,900원",
        "collapse_id": f"{number:032}",
    }
    return Outgoing(**(given | fields))


@contextlib.asynccontextmanager
async def pushing(address: str, timeout: float = 20, credentials: str = "", **parts: Any) -> AsyncIterator[Push]:
    settings = Settings(fcm_url=address, send_timeout_seconds=timeout, fcm_credentials=credentials)
    push = Push(settings, **parts)
    try:
        yield push
    finally:
        await push.close()
        await push.close()


async def sent(simulator: Simulator, *several: Outgoing, **options: Any) -> list[Outcome]:
    async with pushing(simulator.address, **options) as push:
        return [await push.send(one) for one in several]
