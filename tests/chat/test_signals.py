"""Signals that carry messages that were stored together: none is missing, none is too large, none is sent twice."""

from __future__ import annotations

import asyncio
import re
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from bongsu.chat.fanout import Fanout
from bongsu.chat.order import ChatOrder
from bongsu.chat.signals import MESSAGE, SIGNAL_BYTES, read_signal, write_messages
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import room_topic
from tests.live.harness import Live
from tests.support.talkers import new_room, talking


@given(st.lists(st.integers(1, 2 * SIGNAL_BYTES), min_size=1, max_size=12), st.integers(1, 10**12))
def test_messages_are_split_into_few_signals_that_follow_each_other(sizes: list[int], first: int) -> None:
    frames = [b"%d" % (place % 10) * size for place, size in enumerate(sizes)]
    found: list[bytes] = []
    size_before = SIGNAL_BYTES
    for data in write_messages(first, 7, frames):
        signal = read_signal(data)
        assert signal is not None
        assert (signal.kind, signal.seq, signal.changes) == (MESSAGE, first + len(found), 7)
        # As full as it can be: the first frame did not fit into the last.
        assert size_before + len(signal.frames()[0]) > SIGNAL_BYTES
        size_before = sum(map(len, signal.frames()))
        assert len(signal.frames()) == 1 or size_before <= SIGNAL_BYTES
        found += signal.frames()
    assert found == frames


async def test_messages_stored_together_are_one_signal_and_reach_a_reader_once_whatever_it_has(live: Live) -> None:
    room = await new_room(live, "a", "b")
    sent: list[bytes] = []
    elsewhere = LocalSignals()
    async with talking(live, "b") as (b,), running(ChatOrder(live.store, Fanout(elsewhere), live.settings)) as order:
        with elsewhere.listen(room_topic(UUID(room)), lambda data: sent.append(data or b"")):
            sends = [order.send(UUID(room), "a", str(number), f"m-{number}") for number in range(1, 7)]
            await asyncio.gather(*sends)
        # The group commit takes the first at once and the others together, or all of them.
        frames = [frame for data in sent if (signal := read_signal(data)) for frame in signal.frames()]
        assert len(sent) <= 2
        # A part that overlaps with what the reader has, a later one first, and all of it again.
        for first, last in ((1, 2), (5, 6), (2, 4), (1, 6)):
            for data in write_messages(first, 0, frames[first - 1 : last]):
                live.signals.send(room_topic(UUID(room)), data)
        assert await b.messages(6) == [1, 2, 3, 4, 5, 6]
        assert [int(re.findall(rb'"seq":(\d+)', frame)[0]) for frame in frames] == [1, 2, 3, 4, 5, 6]
