"""The simulator's configuration: one frozen Config, from a file at the start or over HTTP at any time."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from bongsu.errors import BadCommand


class Fault(StrEnum):
    """What can go wrong with one send. The message is accepted only where the name or the comment says so."""

    NONE = "none"
    UNAVAILABLE = "unavailable"  # 503
    INTERNAL = "internal"  # 500
    BAD_GATEWAY = "badGateway"  # 502 with a page of HTML
    TRUNCATED = "truncated"  # 500 whose JSON ends half-way
    GARBAGE = "garbage"  # accepted, 200, and an unreadable body
    RESET = "reset"  # the connection breaks
    SILENCE = "silence"  # no answer, ever
    ACCEPTED_RESET = "acceptedReset"
    ACCEPTED_UNAVAILABLE = "acceptedUnavailable"
    ACCEPTED_SILENCE = "acceptedSilence"
    DRIP = "drip"  # accepted, and the reply comes byte by byte
    UNAUTHORIZED = "unauthorized"  # 401 without FcmError: the OAuth token is not accepted
    FORBIDDEN = "forbidden"  # 403 without FcmError: the account has no right to send
    NOT_FOUND = "notFound"  # 404 with a page of HTML: no such project or path
    QUOTA = "quota"  # 429 for the whole project
    DEVICE_QUOTA = "deviceQuota"  # 429 for this device


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, strict=False)


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, le=600_000, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


class Latency(_Part):
    """How long a reply takes: around the median, and a share of them around the tail."""

    median_ms: Milliseconds = 0
    tail_ms: Milliseconds = 0
    tail_share: Share = 0


class RetryAfter(_Part):
    """The Retry-After header of a 429 or a 503."""

    form: Literal["seconds", "date", "absent", "nonsense"] = "absent"
    seconds: Seconds = 30


class Quota(_Part):
    """Sends a minute before a 429; null means no limit."""

    per_minute: Annotated[int, Field(ge=1)] | None = None
    per_device: Annotated[int, Field(ge=1)] | None = None


class OAuth(_Part):
    """Whether a send needs an access token from /token, how long one lasts, and how /token fails."""

    is_required: bool = Field(False, alias="required")
    seconds: Annotated[float, Field(gt=0, le=86_400)] = 3600
    fault: Literal["none", "refused", "unavailable", "garbage"] = "none"


class Behaviour(_Part):
    """The settings that an outage replaces while it lasts."""

    faults: dict[Fault, Share] = Field(default_factory=dict)
    latency: Latency = Latency()

    @field_validator("faults")
    @classmethod
    def _at_most_all(cls, faults: dict[Fault, float]) -> dict[Fault, float]:
        total = sum(faults.values())
        if total > 1.000_001:
            raise PydanticCustomError(
                "shares", "the shares add up to {total}: make them 1 or less in all", {"total": round(total, 3)}
            )
        return faults

    @cached_property
    def is_random(self) -> bool:
        """Whether chance decides anything."""
        return bool(self.faults) or self.latency != Latency()


class Outage(Behaviour):
    """Between two times, in seconds after the config was given: these faults and this latency instead."""

    from_second: Seconds = 0
    to_second: Seconds

    @field_validator("to_second")
    @classmethod
    def _ends_later(cls, to_second: float, info: Any) -> float:
        if to_second <= info.data.get("from_second", 0):
            raise PydanticCustomError("order", "must be more than fromSecond")
        return to_second


class Config(Behaviour):
    """The whole configuration. The default is no faults, no latency, no quota."""

    seed: int = 0
    # The faults of the first, second, … attempt of every message; further attempts go by the shares.
    attempts: list[Fault] = Field(default_factory=list, max_length=100)
    retry_after: RetryAfter = RetryAfter()
    quota: Quota = Quota()
    oauth: OAuth = Field(OAuth(), alias="oauth")
    # A token that begins with dying- is unregistered after so many messages.
    dies_after: Annotated[int, Field(ge=0)] = 1
    drip_ms: Milliseconds = 100
    outages: list[Outage] = Field(default_factory=list, max_length=1000)

    @field_validator("outages")
    @classmethod
    def _one_at_a_time(cls, outages: list[Outage]) -> list[Outage]:
        outages = sorted(outages, key=lambda outage: outage.from_second)
        if any(before.to_second > after.from_second for before, after in pairwise(outages)):
            raise PydanticCustomError("overlap", "two outages overlap: let one end before the next begins")
        return outages

    def behaviour(self, second: float) -> Behaviour:
        """The behaviour so many seconds after the config was given."""
        for outage in self.outages:
            if outage.from_second <= second < outage.to_second:
                return outage
        return self


class BadConfig(Exception):
    """What is wrong with a config, as a problem's `errors` lists it: location and message."""

    def __init__(self, mistakes: list[dict[str, Any]]) -> None:
        located = [(".".join(map(str, mistake["loc"])) or "config", mistake["msg"]) for mistake in mistakes]
        super().__init__("; ".join(f"{location}: {message}" for location, message in located))
        self.mistakes = mistakes


def read_config(text: bytes) -> Config:
    """Raises BadConfig."""
    try:
        given = orjson.loads(text)
    except ValueError as error:
        raise BadConfig([{"loc": [], "msg": f"is not JSON: {error}"}]) from None
    try:
        return Config.model_validate(given)
    except ValidationError as error:
        mistakes = [{"loc": list(found["loc"]), "msg": _message(found)} for found in error.errors(include_url=False)]
        raise BadConfig(mistakes) from None


def read_config_file(file: Path) -> Config:
    try:
        return read_config(file.read_bytes())
    except OSError as error:
        raise BadCommand(f"--faults {file} cannot be read: {error.strerror}") from None
    except BadConfig as error:
        raise BadCommand(f"--faults {file}: {error}") from None


def _message(error: Any) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "there is no such setting: remove it, or look it up in docs/howto/simulator.md"
        case "enum":
            return f"there is no such fault: take one of {', '.join(Fault)}"
    return str(error["msg"]).removeprefix("Input ").replace("should be", "must be", 1)
