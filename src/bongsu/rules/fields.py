"""Reading a payload: a missing field is None, a wrong one is a ValueError that names the field."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from bongsu.model.channels import channels

_Enum = TypeVar("_Enum", bound=StrEnum)

# Faster than any provider, so a higher pace would have no effect.
MOST_A_MINUTE = 10_000_000

MOST_HOURS = 876_000
# A week, as for BONGSU_DIGEST_SECONDS. What is gathered for longer is no news.
MOST_SECONDS = 604_800
# What both databases store, with a margin for any offset.
FIRST_TIME = datetime(1970, 1, 2, tzinfo=UTC)
LAST_TIME = datetime(9999, 12, 30, tzinfo=UTC)

# The same as model.Id: valid as a member's key on both databases.
_ID = re.compile(r"[^\x00-\x1f\x7f]{1,255}")


def text(payload: Mapping[str, Any], key: str) -> str | None:
    value = payload.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"payload.{key} must be a text, not {value!r:.100}")
    return value


def required_text(payload: Mapping[str, Any], key: str) -> str:
    value = text(payload, key)
    if value is None:
        raise ValueError(f"payload.{key} is missing: give a text")
    return value


def title_of(payload: Mapping[str, Any]) -> str:
    title = required_text(payload, "title")
    if not title.strip():
        raise ValueError("payload.title is empty: give a title")
    return title


def member_ids(payload: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """Each member once, in the order given."""
    value = payload.get(key)
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise ValueError(f"payload.{key} must be a list of member ids, not {value!r:.100}")
    for index, member_id in enumerate(value):
        if not (isinstance(member_id, str) and _ID.fullmatch(member_id)):
            shown = f"{member_id!r:.100}"
            raise ValueError(f"payload.{key}[{index}] must be a member id (a text of 1 to 255 characters), not {shown}")
    return tuple(dict.fromkeys(value))


def flag(payload: Mapping[str, Any], key: str) -> bool | None:
    value = payload.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"payload.{key} must be true or false, not {value!r:.100}")
    return value


def pace_of(value: object, name: str) -> int | None:
    """Members a minute."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_A_MINUTE):
        raise ValueError(f"{name} must be a whole number of members a minute, 1 to {MOST_A_MINUTE}, not {value!r:.100}")
    return value


def hours_of(value: object, name: str, *, least: float) -> float | None:
    """Hours, up to a century: more would overflow a date. Not a number is neither more nor less than anything."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and least <= value <= MOST_HOURS):  # type: ignore[operator]
        raise ValueError(f"{name} must be a number of hours, {least:g} to {MOST_HOURS}, not {value!r:.100}")
    return value  # type: ignore[return-value]


def seconds_of(value: object, name: str) -> float | None:
    """The window of a digest, up to a week."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 <= value <= MOST_SECONDS):  # type: ignore[operator]
        raise ValueError(f"{name} must be a number of seconds, 0 to {MOST_SECONDS}, not {value!r:.100}")
    return value  # type: ignore[return-value]


def time_of(payload: Mapping[str, Any], key: str) -> datetime | None:
    """A time with offset, as ISO 8601."""
    value = text(payload, key)
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None or not FIRST_TIME <= moment < LAST_TIME:
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError(f"payload.{key} must be a time with offset from 1970 on, not {value!r:.100}") from None
    return moment


def mapping(payload: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = payload.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"payload.{key} must be an object, not {value!r:.100}")
    return value


def member_of(kind: type[_Enum], value: object, name: str) -> _Enum:
    known = {member.value: member for member in kind}
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} takes {', '.join(known)}, not {value!r:.100}")
    return known[value]


def channels_of(values: object, name: str, declared: Collection[str] = ()) -> tuple[str, ...]:
    """Each channel once, in the order given. `declared` are those that an app adds to the ones this process knows."""
    known = list(dict.fromkeys([*(spec.name for spec in channels()), *declared]))
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(f"{name} must be a list of some of {', '.join(known)}, not {values!r:.100}")
    for value in values:
        if value not in known:
            raise ValueError(f"{name} takes {', '.join(known)}, not {value!r:.100}")
    return tuple(dict.fromkeys(values))
