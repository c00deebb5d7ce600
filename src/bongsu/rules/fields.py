"""Reading a payload: what is missing is None, what has the wrong shape is a ValueError that names the field."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from bongsu.model.channels import channels

_Enum = TypeVar("_Enum", bound=StrEnum)

# More a minute is no pace: no provider takes as many.
MOST_A_MINUTE = 10_000_000

# As model.Id has it: what passes here can be a member's key on either database.
_ID = re.compile(r"[^\x00-\x1f\x7f]{1,255}")


def text(payload: Mapping[str, Any], key: str) -> str | None:
    value = payload.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"payload.{key} must be a text, not {value!r:.100}")
    return value


def needed_text(payload: Mapping[str, Any], key: str) -> str:
    value = text(payload, key)
    if value is None:
        raise ValueError(f"payload.{key} is missing: give a text")
    return value


def title_of(payload: Mapping[str, Any]) -> str:
    title = needed_text(payload, "title")
    if not title.strip():
        raise ValueError("payload.title is empty: say what it is about")
    return title


def member_ids(payload: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """Each member once, in the order given."""
    value = payload.get(key)
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise ValueError(f"payload.{key} must be a list of member ids, not {value!r:.100}")
    for place, one in enumerate(value):
        if not (isinstance(one, str) and _ID.fullmatch(one)):
            raise ValueError(f"payload.{key}[{place}] must be a member id (a text of 1 to 255 characters), not {one!r:.100}")
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


def mapping(payload: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = payload.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"payload.{key} must be an object, not {value!r:.100}")
    return value


def member_of(kind: type[_Enum], value: object, name: str) -> _Enum:
    known = {one.value: one for one in kind}
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} takes {', '.join(known)}, not {value!r:.100}")
    return known[value]


def channels_of(values: object, name: str, declared: Collection[str] = ()) -> tuple[str, ...]:
    """Each channel once, in the order given. `declared` are those that an app adds to the ones this process knows."""
    known = list(dict.fromkeys([*(one.name for one in channels()), *declared]))
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(f"{name} must be a list of some of {', '.join(known)}, not {values!r:.100}")
    for one in values:
        if one not in known:
            raise ValueError(f"{name} takes {', '.join(known)}, not {one!r:.100}")
    return tuple(dict.fromkeys(values))
