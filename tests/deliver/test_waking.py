"""Which dispatchers a signal wakes."""

from __future__ import annotations

from dataclasses import dataclass

from bongsu.decide.progress import Decision, EventInProgress
from bongsu.deliver.waking import DispatcherWaker
from bongsu.model import Channel, Event, Listed, Notice
from bongsu.rules.social import POST_LIKE
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import DELIVERIES_TOPIC
from bongsu.store.outbox import ClaimedEvent


@dataclass
class Woken:
    channel: str
    times: int = 0

    def wake(self) -> None:
        self.times += 1


def step(deliveries: int) -> Decision:
    """A step of an event whose notice goes by push and into the inbox."""
    event = EventInProgress(ClaimedEvent(Event(event_type="post.liked"), 1, 0, 1), [Notice(POST_LIKE, Listed(("m-1",)))])
    return Decision(finished=[event], deliveries=deliveries)


def test_a_step_wakes_the_dispatchers_of_its_channels_and_of_no_other() -> None:
    waker = DispatcherWaker(LocalSignals())
    push, email = Woken(Channel.PUSH), Woken(Channel.EMAIL)
    with waker.waking(push), waker.waking(email):
        waker.decided(step(deliveries=1))
    assert (push.times, email.times) == (1, 0)


def test_a_step_without_deliveries_wakes_none() -> None:
    waker, push = DispatcherWaker(LocalSignals()), Woken(Channel.PUSH)
    with waker.waking(push):
        waker.decided(step(deliveries=0))
        assert push.times == 0
        waker.decided(step(deliveries=1))
    waker.decided(step(deliveries=1))
    assert push.times == 1


def test_a_signal_that_names_no_channel_wakes_all() -> None:
    """A replay or a recovery sends it; None comes when signals may have been lost."""
    signals = LocalSignals()
    waker, push, email = DispatcherWaker(signals), Woken(Channel.PUSH), Woken(Channel.EMAIL)
    with waker.waking(push), waker.waking(email):
        signals.send(DELIVERIES_TOPIC)
        signals.send(DELIVERIES_TOPIC, b"EMAIL,PUSH")
    assert (push.times, email.times) == (2, 2)
