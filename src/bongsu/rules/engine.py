"""The tiny engine: which rules there are for an event's type, and what they say of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from bongsu.model import Event, Notice

Rule = Callable[[Event], Iterable[Notice]]


class Rules:
    """A set of rules. `@rules.rule("product.price_changed")` adds one."""

    def __init__(self) -> None:
        self._rules: defaultdict[str, list[Rule]] = defaultdict(list)

    def rule(self, event_type: str) -> Callable[[Rule], Rule]:
        def add(function: Rule) -> Rule:
            self._rules[event_type].append(function)
            return function

        return add

    def detect(self, event: Event) -> list[Notice]:
        """What is to be said because of this event. An event no rule is about gives rise to nothing."""
        return [notice for rule in self._rules.get(event.event_type, ()) for notice in rule(event)]
