"""The tiny engine: which rules there are for an event's type, and what they say of it.

Nothing in here knows the built-in catalogue: that is written with `Rules`, as a user's own rules are.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from bongsu.errors import BadApp
from bongsu.model import Audience, Channel, Event, Guarantee, Notice, NoticeType, Priority
from bongsu.outcome import Sender
from bongsu.rules.fields import member_of, members_of

Rule = Callable[[Event], Iterable[Notice] | Notice | None]
_Rule = TypeVar("_Rule", bound=Rule)

# It becomes a file name (the type's texts), a key of preferences and a label of metrics.
TYPE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class Rules:
    """A set of rules and of the notice types they speak in. `Rules(these, those)` has the rules of both."""

    def __init__(self, *included: Rules) -> None:
        self._rules: defaultdict[str, list[Rule]] = defaultdict(list)
        self._types: dict[str, NoticeType] = {}
        self._senders: dict[Channel, Sender] = {}
        for one in included:
            for event_type, rules in one._rules.items():
                self._rules[event_type].extend(rules)
            for declared in one._types.values():
                self._declare(declared)
            for channel, sender in one._senders.items():
                self._appoint(channel, sender)

    def rule(self, event_type: str) -> Callable[[_Rule], _Rule]:
        """`@app.rule("order.shipped")`: have this function asked about every event of that type."""
        if not isinstance(event_type, str):
            raise BadApp('@rule stands without an event type: write @app.rule("order.shipped")')

        def add(function: _Rule) -> _Rule:
            if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
                raise BadApp(f"Rule {_name(function)} is async: a rule is a plain function of the event, without I/O")
            self._rules[event_type].append(function)
            return function

        return add

    def type(
        self,
        name: str,
        *,
        channels: Iterable[Channel | str],
        priority: Priority | str = Priority.NORMAL,
        guarantee: Guarantee | str = Guarantee.AT_MOST_ONCE,
        critical: bool = False,
        duplicate_hours: float | None = None,
        expires_hours: float | None = None,
    ) -> NoticeType:
        """Declare a notice type, under the name that preferences, history and texts know it by."""
        if not TYPE_NAME.fullmatch(name):
            raise BadApp(f"{name!r} cannot name a notice type: take letters, digits, - and _, at most 64")
        try:
            declared = NoticeType(
                name,
                members_of(Channel, [channels] if isinstance(channels, str) else list(channels), "channels"),
                member_of(Priority, priority, "priority"),
                member_of(Guarantee, guarantee, "guarantee"),
                critical,
                duplicate_hours,
                expires_hours,
            )
        except ValueError as error:
            raise BadApp(f"Notice type {name}: {error}") from None
        self._declare(declared)
        return declared

    def _declare(self, declared: NoticeType) -> None:
        # Two meanings of one name would make the member's preference for it ambiguous.
        if self._types.setdefault(declared.name, declared) != declared:
            raise BadApp(f"Notice type {declared.name} is declared twice, and differently: give yours another name")

    def _appoint(self, channel: Channel, sender: Sender) -> None:
        if self._senders.setdefault(channel, sender) is not sender:
            raise BadApp(f"Channel {channel.value} has two senders: a message goes out once, so choose one")

    @property
    def types(self) -> Mapping[str, NoticeType]:
        """The declared notice types by name."""
        return MappingProxyType(self._types)

    @property
    def senders(self) -> Mapping[Channel, Sender]:
        """The user's own senders by the channel they speak on."""
        return MappingProxyType(self._senders)

    def knows(self, event_type: str) -> bool:
        """Whether any rule is about such events, even if it says nothing of them."""
        return event_type in self._rules

    def detect(self, event: Event) -> list[Notice]:
        """What is to be said because of this event. An event no rule is about gives rise to nothing."""
        return [notice for rule in self._rules.get(event.event_type, ()) for notice in _said(rule, event)]


class App(Rules):
    """Your own rules, notice types and senders, which `bongsu serve --app package.module:app` adds to the built-in ones."""

    def channel(self, name: Channel | str, sender: Sender) -> None:
        """`app.channel("SMS", OurGateway())`: what goes out on that channel goes out by this sender, instead of ours."""
        try:
            channel = member_of(Channel, name, "channel")
        except ValueError as error:
            raise BadApp(str(error)) from None
        if channel is Channel.IN_APP:
            raise BadApp("IN_APP is the inbox itself and has no sender: choose PUSH, SMS or EMAIL")
        if isinstance(sender, type):
            raise BadApp(f"The sender of {channel.value} is a class: hand over one of it, {sender.__name__}()")
        for verb in ("send", "close"):
            if not inspect.iscoroutinefunction(getattr(sender, verb, None)):
                raise BadApp(f"The sender of {channel.value} has no async {verb}")
        self._appoint(channel, sender)


def _said(rule: Rule, event: Event) -> Iterator[Notice]:
    said = rule(event)
    if said is None:
        return
    notices = [said] if isinstance(said, Notice) else said
    if not isinstance(notices, Iterable):
        raise TypeError(f"rule {_name(rule)} gave {notices!r:.100} instead of notices")
    for notice in notices:
        if not isinstance(notice, Notice):
            raise TypeError(f"rule {_name(rule)} gave {notice!r:.100} instead of a Notice")
        if not isinstance(notice.audience, Audience):
            said = f"rule {_name(rule)} names {notice.audience!r:.100} as its audience"
            raise TypeError(f"{said}: write Listed, Interested, Everyone or Selected")
        yield notice if notice.subject else replace(notice, subject=notice.ref_id or str(event.event_id))


def _name(rule: object) -> str:
    return str(getattr(rule, "__qualname__", repr(rule)))
