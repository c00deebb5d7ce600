"""What the composition root does besides putting things together."""

from __future__ import annotations

import resource
from typing import cast

from bongsu.decide.progress import Decision, EventInProgress
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.model import Channel, Event, Listed, Notice
from bongsu.rules.social import POST_LIKE
from bongsu.service import _channels_of, _make_room_for_connections, _waking
from bongsu.store.outbox import ClaimedEvent


class Woken:
    def __init__(self) -> None:
        self.times = 0

    def wake(self) -> None:
        self.times += 1


def test_a_step_wakes_the_dispatchers_of_its_own_channels_and_other_signals_wake_all() -> None:
    event = EventInProgress(ClaimedEvent(Event(event_type="post.liked"), 1, 0, 1), [Notice(POST_LIKE, Listed(("m-1",)))])
    decided = ",".join(sorted(_channels_of(Decision(finished=[event])))).encode()
    push, email = Woken(), Woken()
    hearing = [_waking(cast(Dispatcher, one), channel) for one, channel in ((push, Channel.PUSH), (email, Channel.EMAIL))]
    for data, times in ((decided, (1, 0)), (b"", (2, 1)), (None, (3, 2))):
        for hear in hearing:
            hear(data)
        assert (push.times, email.times) == times


def test_a_gateway_may_have_as_many_streams_as_the_system_allows_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        _make_room_for_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
