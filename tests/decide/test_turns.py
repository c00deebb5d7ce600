"""Whose turn it is: every event that can be decided has its turn, whatever else is in progress."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from bongsu.decide.turns import Alone, behind_others, next_alone, next_together


@dataclass(eq=False)
class Fake:
    """An event in progress. `steps` are those that have decided something of it."""

    is_listed: bool = True
    is_long: bool = False
    is_ready: bool = True
    steps: int = 0

    @property
    def position(self) -> tuple[int, str]:
        return 0, str(self.steps)

    def advance(self) -> None:
        self.steps += 1


@dataclass
class Rounds:
    """What the worker does in each round, for events that never end."""

    events: list[Fake]
    # Whether the lists of a round fill its first step.
    are_lists_many: bool
    is_turn_of_large: bool = False

    def run(self) -> Alone[Fake]:
        together = next_together(self.events)
        for event in together.events:
            if event.is_listed:
                event.advance()
        if together.unlisted is not None and not self.are_lists_many:
            together.unlisted.advance()
        alone = next_alone(self.events, together, was_turn_of_large=self.is_turn_of_large)
        self.is_turn_of_large = alone.is_turn_of_large
        if alone.event is not None:
            alone.event.advance()
            self.events = behind_others(self.events, alone.event)
        return alone


def test_small_events_have_a_step_together_and_a_large_one_has_one_alone() -> None:
    small, unlisted, large, waiting = Fake(), Fake(is_listed=False), Fake(is_long=True), Fake(is_ready=False)
    rounds = Rounds([waiting, large, small, unlisted], are_lists_many=False)
    assert next_together(rounds.events).events == [small, unlisted]
    assert rounds.run().event is large
    assert (waiting.steps, small.steps, unlisted.steps, large.steps) == (0, 1, 1, 1)


def test_what_the_lists_left_no_room_for_takes_turns_with_the_large_ones() -> None:
    first, second, unlisted = Fake(is_long=True), Fake(is_long=True), Fake(is_listed=False)
    rounds = Rounds([first, Fake(), unlisted, second], are_lists_many=True)
    assert [rounds.run().event for _ in range(6)] == [first, unlisted, second, unlisted, first, unlisted]


def test_without_large_ones_it_goes_alone_in_every_round() -> None:
    unlisted = Fake(is_listed=False)
    rounds = Rounds([Fake(), unlisted], are_lists_many=True)
    assert [rounds.run().event for _ in range(3)] == [unlisted] * 3


def test_an_event_that_became_large_in_the_first_step_has_had_its_turn() -> None:
    event, large = Fake(is_listed=False), Fake(is_long=True)
    together = next_together([event, large])
    event.advance()
    event.is_long = True
    assert next_alone([event, large], together, was_turn_of_large=False).event is large
    assert next_alone([event], together, was_turn_of_large=False).event is None


def test_an_event_that_ended_in_the_first_step_has_no_other_turn() -> None:
    unlisted = Fake(is_listed=False)
    together = next_together([unlisted])
    assert next_alone([], together, was_turn_of_large=False) == Alone(None, is_turn_of_large=False)
    assert behind_others([], unlisted) == []


FAKES = st.builds(Fake, is_listed=st.booleans(), is_long=st.booleans(), is_ready=st.booleans())


@given(st.lists(FAKES, max_size=8), st.booleans(), st.booleans())
def test_nothing_starves(events: list[Fake], are_lists_many: bool, is_turn_of_large: bool) -> None:
    """Lists and large ones have their turns, and so has the first of the others: those behind it follow when it ends."""
    rounds = Rounds(list(events), are_lists_many, is_turn_of_large)
    small = [event for event in events if event.is_ready and not event.is_long]
    unlisted = [event for event in small if not event.is_listed]
    large = [event for event in events if event.is_ready and event.is_long]
    # Two rounds for each large one, and as many for what is passed over.
    for _ in range(2 * (len(large) + len(unlisted) + 1)):
        rounds.run()
    assert sorted(map(id, rounds.events)) == sorted(map(id, events))
    for event in (*large, *(event for event in small if event.is_listed)):
        assert event.steps > 0
    if unlisted:
        assert any(event.steps for event in unlisted)
    assert not any(event.steps for event in events if not event.is_ready)


@given(st.lists(FAKES, max_size=8), st.booleans(), st.booleans())
def test_what_has_a_step_alone_can_be_decided_and_had_none_in_this_round(
    events: list[Fake], are_lists_many: bool, is_turn_of_large: bool
) -> None:
    rounds = Rounds(list(events), are_lists_many, is_turn_of_large)
    for _ in range(4):
        before = {id(event): event.steps for event in events}
        alone = rounds.run().event
        if alone is not None:
            assert alone.is_ready
            assert alone.steps == before[id(alone)] + 1
