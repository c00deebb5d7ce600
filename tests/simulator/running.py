"""The simulator in a process of its own, waited for by what it says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import httpx
import uvloop

from bongsu.simulator import serve
from tests.support.processes import WAIT_SECONDS, forks


class Simulator:
    """A running simulator, and its control and ledger."""

    def __init__(self, address: str, client: httpx.Client) -> None:
        self.address = address
        self._client = client

    def configure(self, **config: Any) -> None:
        answer = self._client.post("/_sim/config", json=config)
        assert answer.status_code == 200, answer.text

    def reset(self) -> None:
        self.configure()
        assert self._client.post("/_sim/reset").status_code == 200

    def ledger(self, **filters: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.get("/_sim/ledger", params=filters).json()
        return answer

    def entry(self, token: str) -> dict[str, Any]:
        """The one message that was sent to a token."""
        (entry,) = self.ledger(token=token)["messages"]
        assert isinstance(entry, dict)
        return entry

    def stats(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.get("/_sim/stats").json()
        return answer


@contextlib.contextmanager
def simulating() -> Iterator[Simulator]:
    """Simulate on a free port until the block ends, in a process forked from one that has imported most of it already."""
    here, there = forks.Pipe()
    process = forks.Process(target=_simulate, args=(there,))
    process.start()
    there.close()
    try:
        assert here.poll(WAIT_SECONDS), "the simulator does not come up"
        address = here.recv()
        # The environment's proxies are not for a neighbour on the same machine.
        with httpx.Client(base_url=address, timeout=WAIT_SECONDS, trust_env=False) as client:
            yield Simulator(address, client)
    finally:
        process.terminate()
        process.join(WAIT_SECONDS)
        assert process.exitcode == 0
        here.close()


def _simulate(there: Connection) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve("127.0.0.1", 0, on_ready=there.send))
