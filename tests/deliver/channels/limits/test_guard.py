"""A provider that fails is left alone for a while, and found again by itself."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from bongsu.deliver.channels.callback import GuardedSender
from bongsu.deliver.channels.limits.breaker import PROBE_ANSWER_SECONDS, Breaker
from bongsu.deliver.channels.limits.guard import FIRST_PROBE_SECONDS, Guard
from bongsu.model import Channel
from bongsu.model.outcome import Accepted, Misconfigured, Outcome, Outgoing, Refused, Retry, Scope, Unknown
from tests.deliver.channels.kits import outgoing

DOWN = Retry("CONNECT", scope=Scope.CHANNEL)


class Provider:
    """Answers what it is set to answer, and counts how often it was asked."""

    channel = Channel.SMS

    def __init__(self) -> None:
        self.answer: Outcome | Exception = Accepted()
        self.asked = 0
        self.reached = asyncio.Event()
        self.door = asyncio.Event()
        self.door.set()

    async def send(self, outgoing: Outgoing) -> Outcome:
        self.asked += 1
        self.reached.set()
        await self.door.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def close(self) -> None: ...


class Scene:
    """A provider behind its guard, and the time it is."""

    def __init__(self, breaker: Breaker | None = None) -> None:
        self.now = 1000.0
        self.provider = Provider()
        breaker = breaker or Breaker(failures=3, open_seconds=10, most_open_seconds=40)
        guard = Guard(Channel.SMS, clock=lambda: self.now, breaker=breaker)
        self.guarded = GuardedSender(self.provider, guard)

    async def send(self, answer: Outcome | None = None, *, is_critical: bool = False) -> Outcome:
        if answer is not None:
            self.provider.answer = answer
        return await self.guarded.send(outgoing("+821012345678", is_critical=is_critical))

    async def asks(self) -> bool:
        """Whether a send reaches the provider now."""
        before = self.provider.asked
        await self.send()
        return self.provider.asked > before


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("failure", [DOWN, Unknown("TIMEOUT")], ids=["down", "unknown"])
async def test_a_provider_that_keeps_failing_is_left_alone_and_then_tried_with_one(scene: Scene, failure: Outcome) -> None:
    for _ in range(3):
        assert await scene.send(failure) == failure
    held = await scene.send()
    assert isinstance(held, Retry)
    assert (held.code, held.after_seconds, held.scope, held.is_held) == ("CIRCUIT_OPEN", 10.0, Scope.CHANNEL, True)
    assert scene.provider.asked == 3
    scene.now += 10
    assert await scene.send(Accepted("back")) == Accepted("back")
    assert await scene.asks()


async def test_after_a_long_outage_sends_go_within_seconds_of_its_end() -> None:
    scene = Scene(Breaker())
    for _ in range(300):
        await scene.send(Unknown("TIMEOUT"))
        scene.now += 1
    well_at = scene.now
    scene.provider.answer = Accepted()
    while isinstance(held := await scene.send(), Retry):
        scene.now += held.after_seconds
    assert scene.now - well_at <= 5


async def test_a_critical_send_that_waits_is_the_probe_and_others_follow(scene: Scene) -> None:
    for _ in range(3):
        await scene.send(DOWN)
    assert isinstance(await scene.send(is_critical=True), Retry)
    scene.now += 10
    assert not await scene.asks()
    assert await scene.send(Accepted(), is_critical=True) == Accepted()
    assert await scene.asks()


async def test_sends_that_were_out_before_do_not_count_as_the_probe(scene: Scene) -> None:
    """As a slow provider fails them: one by one, while the probe is out."""
    guard = scene.guarded._guard
    earlier = [outgoing("+821012345678") for _ in range(20)]
    assert [guard.admit(one) for one in earlier] == [None] * 20
    for one in earlier[:3]:
        guard.answered(one, Unknown("TIMEOUT"), 0.0)
    scene.now += 10
    assert guard.admit(outgoing("+821012345678")) is None
    for one in earlier[3:]:
        guard.answered(one, Unknown("TIMEOUT"), 0.0)
    # The probe is still out: others wait for its answer, not for the next.
    held = guard.admit(outgoing("+821012345678"))
    assert held is not None
    assert held.after_seconds == PROBE_ANSWER_SECONDS


async def test_a_critical_send_waits_as_long_as_the_provider_asks(scene: Scene) -> None:
    await scene.send(Retry("HTTP_429", 30.0, Scope.CHANNEL))
    scene.now += 29
    held = await scene.send(is_critical=True)
    assert isinstance(held, Retry)
    assert (held.code, held.after_seconds) == ("PROVIDER_BUSY", 1.0)


async def test_a_long_outage_is_one_line_a_minute() -> None:
    scene = Scene(Breaker())
    with capture_logs() as lines:
        for _ in range(125):
            await scene.send(DOWN)
            scene.now += 1
    assert [line["code"] for line in lines if line["log_level"] == "error"] == ["CONNECT"] * 2


async def test_what_concerns_one_message_does_not_hold_the_others(scene: Scene) -> None:
    answers: list[Outcome] = [Refused("NO"), Retry("SMTP_450", 60.0)]
    for answer in answers * 5:
        assert await scene.send(answer) == answer
    assert await scene.asks()


async def test_patience_the_provider_asks_for_is_kept_by_all(scene: Scene) -> None:
    await scene.send(Retry("HTTP_429", 7.0, Scope.CHANNEL))
    scene.now += 6
    held = await scene.send()
    assert isinstance(held, Retry)
    assert (held.code, held.after_seconds, held.is_held) == ("PROVIDER_BUSY", 1.0, True)
    scene.now += 1
    assert await scene.asks()


async def test_wrong_settings_hold_the_channel_and_are_tried_again_with_one(scene: Scene) -> None:
    wrong = Misconfigured("HTTP_401", "who?", is_for_all=True)
    assert await scene.send(wrong) == wrong
    assert not await scene.asks()
    scene.now += FIRST_PROBE_SECONDS
    scene.provider.reached.clear()
    scene.provider.door.clear()
    scene.provider.answer = Accepted()
    probe = asyncio.create_task(scene.send())
    await scene.provider.reached.wait()
    assert scene.provider.asked == 2
    held = await scene.send()  # while the one is out, the others wait
    assert isinstance(held, Retry)
    assert (held.code, held.is_held) == (wrong.code, True)
    scene.provider.door.set()
    assert await probe == Accepted()
    assert await scene.asks()


async def test_a_sender_that_crashes_counts_as_failing(scene: Scene) -> None:
    scene.provider.answer = RuntimeError("a bug")
    for _ in range(3):
        assert await scene.send() == Unknown("CRASHED", "RuntimeError")
    assert isinstance(await scene.send(), Retry)
    assert scene.provider.asked == 3
