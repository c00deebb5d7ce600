"""The rule engine: which rules handle an event type, and the effects they give for an event: notices and deltas.

It does not know the built-in catalogue, which is written with the same `Rules` as a user's own.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import TypeVar

from bongsu.errors import BadApp
from bongsu.model import Audience, Delta, Digest, Event, Guarantee, Notice, NoticeType, Priority
from bongsu.model.base import check_cron
from bongsu.model.channels import BUILT_IN, CHANNEL_NAME, Address
from bongsu.model.counter import is_counter_name
from bongsu.model.job import Job, Work
from bongsu.model.outcome import Sender
from bongsu.rules.fields import channels_of, hours_of, member_of, pace_of, seconds_of

# What a rule may give.
Effect = Notice | Delta
Rule = Callable[[Event], Iterable[Effect] | Effect | None]
_Rule = TypeVar("_Rule", bound=Rule)
_Work = TypeVar("_Work", bound=Work)

# It becomes a file name (the type's texts), a key of preferences and a label of metrics.
TYPE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
# A second, in hours. What expires sooner is never sent.
LEAST_EXPIRY = 1 / 3600


@dataclass(frozen=True)
class Effects:
    """What the rules give for one event: what is sent, and what takes effect when the event is DONE."""

    notices: list[Notice]
    deltas: list[Delta]


class Rules:
    """A set of rules, their notice types and the user's own senders. `Rules(these, those)` has those of both."""

    def __init__(self, *included: Rules) -> None:
        # Each with whether it can give critical notices, as far as that is declared.
        self._rules: defaultdict[str, list[tuple[Rule, bool | None]]] = defaultdict(list)
        self._critical: set[str] = set()
        self._types: dict[str, NoticeType] = {}
        self._senders: dict[str, Sender] = {}
        self._concurrency: dict[str, int] = {}
        self._jobs: dict[str, Job] = {}
        self._counters: set[str] = set()
        for other in included:
            for event_type, rules in other._rules.items():
                self._rules[event_type].extend(rules)
            self._critical |= other._critical
            self._counters |= other._counters
            for declared in other._types.values():
                self._declare(declared)
            for channel, sender in other._senders.items():
                self._set_sender(channel, sender, other._concurrency.get(channel))
            for job in other._jobs.values():
                self._schedule(job)

    def rule(self, event_type: str, *, critical: bool | None = None) -> Callable[[_Rule], _Rule]:
        """`@app.rule("order.shipped")`: call this function for every event of that type.

        `critical=True`: it can give critical notices, so events of that type are decided before others. Not declared: from
        the first critical notice it gives on.
        """
        if not isinstance(event_type, str):
            raise BadApp('@rule stands without an event type: write @app.rule("order.shipped")')

        def add(function: _Rule) -> _Rule:
            if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
                raise BadApp(f"Rule {_name(function)} is async: a rule is a plain function of the event, without I/O")
            self._rules[event_type].append((function, critical))
            if critical:
                self._critical.add(event_type)
            return function

        return add

    def type(
        self,
        name: str,
        *,
        channels: Iterable[str],
        priority: Priority | str = Priority.NORMAL,
        guarantee: Guarantee | str = Guarantee.AT_MOST_ONCE,
        critical: bool = False,
        duplicate_hours: float | None = None,
        expires_hours: float | None = None,
        pace_per_minute: int | None = None,
        digest: Digest | None = None,
        capped: bool = True,
    ) -> NoticeType:
        """Declare a notice type, under the name that preferences, history and texts know it by.

        `capped=False`: it is sent however many the member had that day, and does not count for others.
        A channel of your own must be declared before the types that name it.
        """
        if not TYPE_NAME.fullmatch(name):
            raise BadApp(f"{name!r} cannot name a notice type: take letters, digits, - and _, at most 64")
        try:
            declared = NoticeType(
                name,
                channels_of([channels] if isinstance(channels, str) else list(channels), "channels", self._senders),
                member_of(Priority, priority, "priority"),
                member_of(Guarantee, guarantee, "guarantee"),
                critical,
                hours_of(duplicate_hours, "duplicate_hours", least=0),
                hours_of(expires_hours, "expires_hours", least=LEAST_EXPIRY),
                pace_of(pace_per_minute, "pace_per_minute"),
                _checked_digest(digest, expires_hours, critical=critical, is_paced=pace_per_minute is not None),
                capped,
            )
        except ValueError as error:
            raise BadApp(f"Notice type {name}: {error}") from None
        self._declare(declared)
        return declared

    def _declare(self, declared: NoticeType) -> None:
        # Two meanings of one name would make the member's preference for it ambiguous.
        if self._types.setdefault(declared.name, declared) != declared:
            raise BadApp(f"Notice type {declared.name} is declared twice, and differently: give yours another name")

    def _set_sender(self, channel: str, sender: Sender, concurrency: int | None) -> None:
        if self._senders.setdefault(channel, sender) is not sender:
            raise BadApp(f"Channel {channel} has two senders: a message goes out once, so choose one")
        if concurrency is not None:
            self._concurrency[channel] = concurrency

    def _schedule(self, job: Job) -> None:
        if self._jobs.setdefault(job.name, job) is not job:
            raise BadApp(f"Job {job.name} is declared twice: give one of them another name")

    @property
    def jobs(self) -> Sequence[Job]:
        """The user's own jobs."""
        return tuple(self._jobs.values())

    @property
    def counters(self) -> frozenset[str]:
        """The counters that are declared."""
        return frozenset(self._counters)

    @property
    def types(self) -> Mapping[str, NoticeType]:
        """The declared notice types by name."""
        return MappingProxyType(self._types)

    @property
    def senders(self) -> Mapping[str, Sender]:
        """The user's own senders by their channels."""
        return MappingProxyType(self._senders)

    @property
    def concurrency(self) -> Mapping[str, int]:
        """How many deliveries the user's own senders may have under way, where that was given."""
        return MappingProxyType(self._concurrency)

    @property
    def declared_channels(self) -> frozenset[str]:
        """The channels that are not built in."""
        return frozenset(self._senders) - {spec.name for spec in BUILT_IN}

    def knows(self, event_type: str) -> bool:
        """Whether any rule handles this event type. It may still give no notice for an event."""
        return event_type in self._rules

    @property
    def critical_types(self) -> Sequence[str]:
        """Event types that can give critical notices: those declared so, and those that have given one."""
        return sorted(self._critical)

    def is_critical(self, event_type: str) -> bool:
        return event_type in self._critical

    def detect(self, event: Event) -> list[Notice]:
        """The notices that the rules give for this event; none if no rule handles its type."""
        return self.evaluate(event).notices

    def evaluate(self, event: Event) -> Effects:
        """Everything that the rules give for this event."""
        effects = Effects([], [])
        for rule, critical in self._rules.get(event.event_type, ()):
            given = list(_effects_of(rule, event))
            notices = [effect for effect in given if isinstance(effect, Notice)]
            if critical is None and any(notice.type.is_critical for notice in notices):
                self._critical.add(event.event_type)
            effects.notices.extend(notices)
            effects.deltas.extend(effect for effect in given if isinstance(effect, Delta))
        return effects


class App(Rules):
    """Your own rules, notice types, senders and jobs: `bongsu serve --app package.module:app` adds them to the built-in."""

    def channel(self, name: str, sender: Sender, *, concurrency: int | None = None) -> None:
        """Send on a channel with a sender of your own.

        `app.channel("SMS", OurGateway())` replaces the sender of a built-in channel. Any other name declares a new channel,
        which types, members' addresses, preferences and the history then know by that name. `concurrency` is how many
        deliveries of it a process may have under way.
        """
        _check_channel_name(name)
        if isinstance(sender, type):
            raise BadApp(f"The sender of {name} is a class: pass an instance, {sender.__name__}()")
        for verb in ("send", "close"):
            if not inspect.iscoroutinefunction(getattr(sender, verb, None)):
                raise BadApp(f"The sender of {name} has no async {verb}")
        # Also finds a misspelt name, which would declare a channel that nothing is ever sent on.
        if (declared := getattr(sender, "channel", None)) != name:
            raise BadApp(f"The sender of {name} has channel = {declared!r}: write channel = {str(name)!r} in its class")
        if concurrency is not None and concurrency < 1:
            raise BadApp(f"Channel {name} has concurrency={concurrency}: give 1 or more, or leave it out")
        self._set_sender(str(name), sender, concurrency)

    def counter(self, name: str) -> None:
        """Declare a counter, so that calls may count it before a rule has: `app.counter("likes")`."""
        if not isinstance(name, str) or not is_counter_name(name):
            raise BadApp(f"{name!r} cannot name a counter: take letters, digits, - and _, at most 64, a letter first")
        self._counters.add(name)

    def job(
        self,
        name: str,
        *,
        cron: str,
        misfire_grace: timedelta = Job.misfire_grace,
        at_most_for: timedelta = Job.at_most_for,
        at_least_for: timedelta = Job.at_least_for,
    ) -> Callable[[_Work], _Work]:
        """`@app.job("weekly-report", cron="0 9 * * 1")`: run this async function at these times (BONGSU_TIMEZONE), by one
        process at a time. It is given a Run and returns in a few words what it did.

        A slot missed by more than `misfire_grace` is skipped. A run longer than `at_most_for` is ended with an error. Slots
        within `at_least_for` of a run's start are skipped.
        """
        _check_schedule(name, cron)
        _check_time(name, "misfire_grace", misfire_grace, least=timedelta(0))
        _check_time(name, "at_most_for", at_most_for, least=timedelta.resolution)
        _check_time(name, "at_least_for", at_least_for, least=timedelta(0))

        def add(function: _Work) -> _Work:
            is_async: bool = inspect.iscoroutinefunction(function)
            if not is_async:
                raise BadApp(f"Job {name}: {_name(function)} is not an async function")
            does = (inspect.getdoc(function) or f"{_name(function)} of your app.").partition("\n")[0]
            self._schedule(
                Job(
                    name,
                    does,
                    function,
                    cron,
                    misfire_grace=misfire_grace,
                    at_most_for=at_most_for,
                    at_least_for=at_least_for,
                )
            )
            return function

        return add


def _check_schedule(job: str, cron: str) -> None:
    """The clock would find out at the first slot, and stop at it."""
    if not isinstance(job, str) or not TYPE_NAME.fullmatch(job):
        raise BadApp(f"{job!r} cannot name a job: take letters, digits, - and _, at most 64, a letter first")
    try:
        check_cron(cron)
    except ValueError as error:
        raise BadApp(f"Job {job}: cron {cron!r} {error}") from None


def _check_time(job: str, option: str, given: object, *, least: timedelta) -> None:
    if not isinstance(given, timedelta) or given < least:
        wanted = "more than 0" if least else "0 or more"
        raise BadApp(f"Job {job}: {option} is {given!r}: give a timedelta of {wanted}, such as timedelta(minutes=5)")


def _checked_digest(digest: Digest | None, expires_hours: float | None, *, critical: bool, is_paced: bool) -> Digest | None:
    if digest is None:
        return None
    if not isinstance(digest, Digest):
        raise ValueError(f"digest must be a Digest, not {digest!r:.100}: write digest=Digest(seconds=300)")
    if critical:
        raise ValueError("it is critical and has a digest: what is critical does not wait for others, so leave out one")
    if is_paced:
        raise ValueError("it has a pace and a digest: a digest is pushed at its window's end, so leave out one")
    seconds = seconds_of(digest.seconds, "digest seconds")
    if seconds and expires_hours is not None and expires_hours * 3600 <= seconds:
        raise ValueError("it expires before its digest is pushed: give expires_hours of more than the digest's seconds")
    return digest


def _check_channel_name(name: str) -> None:
    if not isinstance(name, str) or not CHANNEL_NAME.fullmatch(name):
        raise BadApp(f"{name!r} cannot name a channel: take letters, digits and _, at most 32, a letter first")
    built_in = {spec.name: spec for spec in BUILT_IN}
    if name.upper() in built_in and name not in built_in:
        raise BadApp(f"Channel {name} is too much like {name.upper()}: write that, or take another name")
    if name in built_in and built_in[name].address is Address.NONE:
        others = ", ".join(other for other in built_in if other != name)
        raise BadApp(f"{name} is the inbox itself and has no sender: choose one of {others}, or a name of your own")


def _effects_of(rule: Rule, event: Event) -> Iterator[Effect]:
    """The effects of one rule, checked. Without a subject of its own, a notice is about its ref_id or its event; with a
    digest about its event, or all but the first of a digest would be duplicates."""
    given = rule(event)
    if given is None:
        return
    effects = [given] if isinstance(given, Effect) else given
    if not isinstance(effects, Iterable):
        raise TypeError(f"rule {_name(rule)} gave {effects!r:.100} instead of notices")
    for effect in effects:
        if isinstance(effect, Delta):
            yield effect
            continue
        if not isinstance(effect, Notice):
            raise TypeError(f"rule {_name(rule)} gave {effect!r:.100} instead of a Notice or a Delta")
        if not isinstance(effect.audience, Audience):
            found = f"rule {_name(rule)} names {effect.audience!r:.100} as its audience"
            raise TypeError(f"{found}: write Listed, Interested, Everyone or Selected")
        if not effect.subject:
            own = None if effect.type.digest else effect.ref_id
            effect = replace(effect, subject=own or str(event.event_id))  # noqa: PLW2901
        yield effect


def _name(rule: object) -> str:
    return str(getattr(rule, "__qualname__", repr(rule)))
