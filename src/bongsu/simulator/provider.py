"""The simulated provider: decides the reply to each request by config, token, quota and chance. No I/O.

Random numbers are a hash of (seed, message, token, attempt), not of the order of arrival: the same run has the same faults,
however its sends overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qs

import orjson

from bongsu.simulator import replies
from bongsu.simulator.config import Behaviour, Config, Fault
from bongsu.simulator.ledger import Entry, Ledger, Try
from bongsu.simulator.replies import Manner, Reply
from bongsu.simulator.rules import Message

# Replies by the prefix of the token. All other tokens are valid.
TOKEN_CLASSES: dict[str, Reply] = {
    "unregistered-": replies.UNREGISTERED,
    "bad-": replies.BAD_TOKEN,
    "other-project-": replies.SENDER_ID_MISMATCH,
    "third-party-": replies.THIRD_PARTY_AUTH_ERROR,
    "apns-gone-": replies.APNS_GONE,
    "refused-": replies.REFUSED,
}
DYING = "dying-"
# Every send to a token such as fault-silence-1 has the fault that it names.
FAULTY = "fault-"
_PREFIXES = tuple(TOKEN_CLASSES)

# Faults that occur before the message is read, each with a constant reply.
_BEFORE: dict[Fault, Reply] = {
    Fault.INTERNAL: replies.INTERNAL,
    Fault.BAD_GATEWAY: replies.BAD_GATEWAY,
    Fault.TRUNCATED: replies.TRUNCATED,
    Fault.UNAUTHORIZED: replies.UNAUTHENTICATED,
    Fault.FORBIDDEN: replies.FORBIDDEN,
    Fault.NOT_FOUND: replies.NOT_FOUND,
    Fault.RESET: Reply(0, b"", "RESET", manner=Manner.RESET),
    Fault.SILENCE: Reply(0, b"", "SILENCE", manner=Manner.SILENCE),
}
_FAULTS = frozenset(Fault)
_MINUTE = 60.0
_NO_CHANCE = (1.0, 1.0, 1.0)


class Provider:
    """FCM and its token endpoint. `clock` is monotonic, `epoch` is seconds since 1970."""

    def __init__(self, config: Config, clock: Callable[[], float], epoch: Callable[[], float]) -> None:
        self._clock = clock
        self._epoch = epoch
        self.reset()
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Use this config from now on. The ledger stays."""
        self.config = config
        self._since = self._clock()

    def reset(self) -> None:
        """Clear the ledger and the access tokens. The config stays, its outages start again."""
        self.ledger = Ledger()
        self._started = self._since = self._clock()
        self._issued: dict[str, float] = {}
        self._minute = self._started
        self._this_minute: Counter[str] = Counter()
        self._malformed = 0

    def stats(self) -> dict[str, Any]:
        seconds = round(self._clock() - self._started, 3)
        return {**self.ledger.totals(), "malformed": self._malformed, "seconds": seconds, "tokensIssued": len(self._issued)}

    # --- /token -------------------------------------------------------------------------------------------------------

    def token(self, body: bytes) -> Reply:
        match self.config.oauth.fault:
            case "refused":
                return replies.no_access_token(400, "invalid_grant")
            case "unavailable":
                return replies.no_access_token(503, "temporarily_unavailable")
            case "garbage":
                return replies.GARBAGE
        form = parse_qs(body.decode("latin-1"))
        if form.get("grant_type") != ["urn:ietf:params:oauth:grant-type:jwt-bearer"] or "assertion" not in form:
            return replies.no_access_token(400, "unsupported_grant_type")
        name = blake2b(f"{self.config.seed}|{self._clock()}|{len(self._issued)}".encode(), digest_size=16).hexdigest()
        self._issued[name] = self._clock() + self.config.oauth.seconds
        return replies.access_token(name, self.config.oauth.seconds)

    def _is_authorized(self, authorization: str) -> bool:
        if not self.config.oauth.is_required:
            return True
        ends = self._issued.get(authorization.removeprefix("Bearer "))
        return ends is not None and self._clock() < ends

    # --- messages:send ------------------------------------------------------------------------------------------------

    def send(self, project: str, authorization: str, body: bytes) -> Reply:
        """Decide the reply to one send, and record it in the ledger."""
        try:
            request = orjson.loads(body)
        except ValueError as error:
            self._malformed += 1
            return replies.bad_json(str(error))
        given = request.get("message") if isinstance(request, dict) else None
        if not isinstance(given, dict):
            self._malformed += 1
            return replies.bad_json('There is no "message"')
        message = Message(given, len(body))
        if message.violations:
            return self._refuse(message, authorization)
        if request.get("validate_only") is True:
            return replies.accepted(project, "fake_message_id")
        return self._answer(project, authorization, message)

    def _refuse(self, message: Message, authorization: str) -> Reply:
        self._malformed += 1
        is_authorized = self._is_authorized(authorization)
        reply = replies.bad_request(message.violations) if is_authorized else replies.UNAUTHENTICATED
        entry = self.ledger.entry(f"malformed {self._malformed}", message.target)
        self.ledger.answered(entry, Try(self._clock() - self._started, reply.code, False))
        return reply

    def _answer(self, project: str, authorization: str, message: Message) -> Reply:
        now, epoch = self._clock(), self._epoch()
        ids = message.collapse_ids
        entry = self.ledger.entry(str(message.data.get("notificationId") or (ids[0] if ids else "")), message.target)
        entry.text = entry.text or message.notification
        self.ledger.arrived(entry, ids, message.expiry(epoch), epoch)
        behaviour = self.config.behaviour(now - self._since)
        chances = self._chances(entry) if behaviour.is_random else _NO_CHANCE
        fault = self._fault(entry, behaviour, chances[0])
        reply = self._choose_reply(project, authorization, entry, fault)
        is_accepted = reply.code == "ACCEPTED"
        if is_accepted and fault is not Fault.NONE:
            reply = self._break(reply, fault)
        self.ledger.answered(entry, Try(now - self._started, reply.code, is_accepted, reply.asked_seconds))
        delay = _delay(behaviour, chances[1], chances[2])
        return reply._replace(delay=delay) if delay else reply

    def _chances(self, entry: Entry) -> tuple[float, float, float]:
        hashed = f"{self.config.seed}|{entry.key}|{entry.token}|{len(entry.tries)}".encode("utf-8", "replace")
        digest = blake2b(hashed, digest_size=12).digest()
        first, second, third = (int.from_bytes(digest[at : at + 4], "big") / 2**32 for at in (0, 4, 8))
        return first, second, third

    def _fault(self, entry: Entry, behaviour: Behaviour, chance: float) -> Fault:
        if entry.token.startswith(FAULTY):
            name = entry.token.removeprefix(FAULTY).partition("-")[0]
            return Fault(name) if name in _FAULTS else Fault.NONE
        if len(entry.tries) < len(self.config.attempts):
            return self.config.attempts[len(entry.tries)]
        for fault, share in behaviour.faults.items():
            if chance < share:
                return fault
            chance -= share
        return Fault.NONE

    def _choose_reply(self, project: str, authorization: str, entry: Entry, fault: Fault) -> Reply:
        if fault is not Fault.NONE and fault in _BEFORE:
            return _BEFORE[fault]
        if not self._is_authorized(authorization):
            return replies.UNAUTHENTICATED
        if fault is Fault.UNAVAILABLE:
            return replies.unavailable(self.config.retry_after, self._epoch())
        if subject := self._over_quota(project, entry.token, fault):
            return replies.quota(self.config.retry_after, self._epoch(), subject)
        return self._by_token(project, entry)

    def _by_token(self, project: str, entry: Entry) -> Reply:
        if entry.token.startswith(_PREFIXES):
            return next(reply for prefix, reply in TOKEN_CLASSES.items() if entry.token.startswith(prefix))
        if entry.token.startswith(DYING) and self.ledger.accepted_by(entry.token) >= self.config.dies_after:
            return replies.UNREGISTERED
        return replies.accepted(project, f"{entry.key}-{len(entry.tries)}")

    def _over_quota(self, project: str, token: str, fault: Fault) -> str:
        """Whose quota is used up; empty if none. Refused sends do not count."""
        quota, now = self.config.quota, self._clock()
        if fault is Fault.QUOTA:
            return f"project:{project}"
        if fault is Fault.DEVICE_QUOTA:
            return f"device:{token}"
        if quota.per_minute is None and quota.per_device is None:
            return ""
        if now - self._minute >= _MINUTE:
            self._minute = now
            self._this_minute.clear()
        if quota.per_minute is not None and self._this_minute["all"] >= quota.per_minute:
            return f"project:{project}"
        if quota.per_device is not None and self._this_minute["token " + token] >= quota.per_device:
            return f"device:{token}"
        self._this_minute["all"] += 1
        self._this_minute["token " + token] += 1
        return ""

    def _break(self, reply: Reply, fault: Fault) -> Reply:
        """The message is accepted, but its reply may be lost."""
        match fault:
            case Fault.ACCEPTED_RESET:
                return reply._replace(manner=Manner.RESET, code="ACCEPTED_RESET")
            case Fault.ACCEPTED_SILENCE:
                return reply._replace(manner=Manner.SILENCE, code="ACCEPTED_SILENCE")
            case Fault.ACCEPTED_UNAVAILABLE:
                reply = replies.unavailable(self.config.retry_after, self._epoch(), code="")
                return reply._replace(code="ACCEPTED_UNAVAILABLE")
            case Fault.GARBAGE:
                return replies.GARBAGE
            case Fault.DRIP:
                return reply._replace(manner=Manner.DRIP)
        return reply


def _delay(behaviour: Behaviour, which: float, how_long: float) -> float:
    """Seconds, between half and one and a half of the median or, for a share of them, of the tail."""
    latency = behaviour.latency
    around = latency.tail_ms if which < latency.tail_share else latency.median_ms
    return around * (0.5 + how_long) / 1000
