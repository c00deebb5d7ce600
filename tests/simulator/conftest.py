"""One simulator for all of these tests, as new for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulator.running import Simulator, simulating


@pytest.fixture(scope="session")
def running_simulator() -> Iterator[Simulator]:
    with simulating() as simulator:
        yield simulator


@pytest.fixture
def simulator(running_simulator: Simulator) -> Simulator:
    running_simulator.reset()
    return running_simulator
