"""Fair scheduling: which events the worker decides next, so that none starves. Pure.

A large event is one whose audience did not fit into a step. Each round has two steps. The first is for all small events
together: in it lists come first, and one audience of another kind follows only if the step is not full. The second is for
one event alone: a large one, which takes many rounds, or the small one that no longer fitted behind the lists. These two
kinds take turns, and so do the large ones among each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Candidate(Protocol):
    """An event in progress, as the scheduler sees it."""

    @property
    def is_ready(self) -> bool: ...
    @property
    def is_long(self) -> bool: ...
    @property
    def is_listed(self) -> bool: ...
    @property
    def position(self) -> tuple[int, str]: ...


Event = TypeVar("Event", bound=Candidate)


@dataclass(frozen=True)
class Together(Generic[Event]):
    """The events of a step that is for all small ones."""

    events: Sequence[Event]
    # The first of them that is not a list, and how far it was before the step.
    unlisted: Event | None
    position: tuple[int, str] | None

    def has_passed_over(self, event: Event) -> bool:
        """After the step: whether this event did not fit into it."""
        return event is self.unlisted and event.position == self.position


@dataclass(frozen=True)
class Alone(Generic[Event]):
    """The event that has a step to itself, if any; and whether it is the turn of the large ones, for the next round."""

    event: Event | None
    is_turn_of_large: bool


def next_together(in_progress: Sequence[Event]) -> Together[Event]:
    small = [event for event in in_progress if event.is_ready and not event.is_long]
    unlisted = next((event for event in small if not event.is_listed), None)
    return Together(small, unlisted, None if unlisted is None else unlisted.position)


def next_alone(in_progress: Sequence[Event], together: Together[Event], *, was_turn_of_large: bool) -> Alone[Event]:
    """After the step of the small ones: an event that became large in it has had its turn in this round."""
    had_step = {id(event) for event in together.events}
    large = [event for event in in_progress if event.is_ready and event.is_long and id(event) not in had_step]
    passed_over = next((event for event in in_progress if together.has_passed_over(event)), None)
    if passed_over is None:
        return Alone(large[0] if large else None, was_turn_of_large)
    is_turn_of_large = bool(large) and not was_turn_of_large
    return Alone(large[0] if is_turn_of_large else passed_over, is_turn_of_large)


def behind_others(in_progress: Sequence[Event], event: Event) -> list[Event]:
    """The same events, with the one that had its turn last; without it if it is not in progress any more."""
    others = [other for other in in_progress if other is not event]
    return others if len(others) == len(in_progress) else [*others, event]
