"""The ledger: every send by message, and its reply. It shows what was lost or sent twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Try(NamedTuple):
    """One send of a message: when, the reply, and how long the sender was asked to wait."""

    second: float
    answer: str
    is_accepted: bool
    asked_seconds: float | None = None


@dataclass(slots=True)
class Entry:
    """All sends of one notification to one token."""

    key: str
    token: str
    tries: list[Try] = field(default_factory=list)
    collapse_ids: list[str] = field(default_factory=list)
    # The notification of the first send.
    text: dict[str, Any] = field(default_factory=dict)
    expiry: float | None = None
    after_unregistered: int = 0
    after_expiry: int = 0

    @property
    def accepted(self) -> int:
        return sum(attempt.is_accepted for attempt in self.tries)

    @property
    def gaps(self) -> list[dict[str, Any]]:
        """The time between each send and the next, and the time that was asked for."""
        return [
            {
                "after": before.answer,
                "seconds": round(after.second - before.second, 6),
                "askedSeconds": before.asked_seconds,
                "isTooSoon": _is_too_soon(before, after),
            }
            for before, after in zip(self.tries, self.tries[1:], strict=False)
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "message": self.key,
            "token": self.token,
            "text": self.text,
            "accepted": self.accepted,
            "answers": [attempt.answer for attempt in self.tries],
            "collapseIds": self.collapse_ids,
            "isSameCollapseId": len(self.collapse_ids) <= 1,
            "gaps": self.gaps,
            "sendsAfterUnregistered": self.after_unregistered,
            "sendsAfterExpiry": self.after_expiry,
        }


def _is_too_soon(before: Try, after: Try) -> bool:
    # Allow 10 ms for the difference of two clocks and a network.
    return before.asked_seconds is not None and after.second - before.second < before.asked_seconds - 0.01


class Ledger:
    """Entries by notification and token, so that a repeat with another collapse id is recognised."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._unregistered: set[str] = set()
        self._accepted_by_token: dict[str, int] = {}

    def entry(self, key: str, token: str) -> Entry:
        found = self._entries.get((key, token))
        if found is None:
            found = self._entries[key, token] = Entry(key, token)
        return found

    def arrived(self, entry: Entry, collapse_ids: list[str], expiry: float | None, epoch: float) -> None:
        """Record that a send has arrived, whatever the reply."""
        for collapse_id in collapse_ids:
            if collapse_id not in entry.collapse_ids:
                entry.collapse_ids.append(collapse_id)
        if entry.token in self._unregistered:
            entry.after_unregistered += 1
        if entry.expiry is None:
            entry.expiry = expiry
        # Durations are whole seconds, rounded down: a send within the last second is in time.
        if entry.expiry is not None and epoch > entry.expiry + 1:
            entry.after_expiry += 1

    def answered(self, entry: Entry, attempt: Try) -> None:
        entry.tries.append(attempt)
        if attempt.is_accepted:
            self._accepted_by_token[entry.token] = self.accepted_by(entry.token) + 1
        elif attempt.answer == "UNREGISTERED":
            self._unregistered.add(entry.token)

    def accepted_by(self, token: str) -> int:
        return self._accepted_by_token.get(token, 0)

    def to_json(self, message: str | None = None, token: str | None = None) -> dict[str, Any]:
        entries = [
            entry
            for entry in self._entries.values()
            if (message is None or message == entry.key or message in entry.collapse_ids)
            and (token is None or token == entry.token)
        ]
        return {"totals": totals(entries), "messages": [entry.to_json() for entry in entries]}

    def totals(self) -> dict[str, Any]:
        return totals(list(self._entries.values()))


def totals(entries: list[Entry]) -> dict[str, Any]:
    answers = Counter(attempt.answer for entry in entries for attempt in entry.tries)
    return {
        "messages": len(entries),
        "sends": answers.total(),
        "accepted": sum(entry.accepted for entry in entries),
        "acceptedOnce": sum(entry.accepted == 1 for entry in entries),
        "acceptedOften": sum(entry.accepted > 1 for entry in entries),
        "neverAccepted": sum(entry.accepted == 0 for entry in entries),
        "differentCollapseIds": sum(len(entry.collapse_ids) > 1 for entry in entries),
        "retriesTooSoon": sum(gap["isTooSoon"] for entry in entries for gap in entry.gaps),
        "sendsAfterUnregistered": sum(entry.after_unregistered for entry in entries),
        "sendsAfterExpiry": sum(entry.after_expiry for entry in entries),
        "answers": dict(sorted(answers.items())),
    }
