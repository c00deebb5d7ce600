"""What `bongsu doctor` says; its findings about real servers are tested with each of them."""

from __future__ import annotations

import asyncio

import pytest

from bongsu.desk import doctor
from bongsu.settings import Settings


async def test_what_does_not_answer_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TIMEOUT_SECONDS", 0.01)

    async def hang(_settings: Settings) -> str:
        await asyncio.Event().wait()
        return "never"

    finding = await doctor._run("outbox orders", hang, Settings())
    assert (finding.name, finding.is_good) == ("outbox orders", False)
    assert "no answer within" in finding.message and "start it again" in finding.message
