"""What the models share: the JSON base class, names and ids, and times that are plausible."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

# A clock that is a day ahead is a clock that is wrong; a day covers every time zone mistake short of that.
FUTURE_SECONDS = 86_400
DAYS_TO_1970 = date(1970, 1, 1).toordinal()

# Control characters (NUL among them, which PostgreSQL refuses) are not allowed in a name or an id.
PRINTABLE = r"^[^\x00-\x1f\x7f]+$"
NAME_LIMIT, ID_LIMIT = 200, 255
# An id may stand in a URL's path. Clients and proxies resolve `.` and `..` there, encoded or not, so these two are not ids.
_ANY = r"[^\x00-\x1f\x7f]"
_NO_DOT = r"[^\x00-\x1f\x7f.]"
ID_PATTERN = rf"^({_NO_DOT}{_ANY}*|\.{_NO_DOT}{_ANY}*|\.\.{_ANY}+)$"
DOTS = frozenset({".", ".."})
Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_LIMIT, pattern=PRINTABLE)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=ID_LIMIT, pattern=ID_PATTERN)]


class Wire(BaseModel):
    """Base of everything that is read or written as JSON: camelCase, unknown fields refused, nothing silently converted."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True, hide_input_in_errors=True
    )


def utc_now() -> datetime:
    return datetime.now(UTC)


def has_plausible_date(moment: datetime) -> bool:
    """Whether its date is after 1970 and no later than today's. Cheaper than an exact check, and true of nearly all."""
    return DAYS_TO_1970 + 1 < moment.toordinal() <= DAYS_TO_1970 + time.time() // 86_400


def _plausible(moment: datetime) -> datetime:
    if has_plausible_date(moment):
        return moment
    seconds = moment.timestamp()
    if seconds < 0:
        raise PydanticCustomError("too_early", "lies before 1970: send the moment it happened")
    if seconds > time.time() + FUTURE_SECONDS:
        raise PydanticCustomError("too_late", "lies more than a day in the future: check the sender's clock")
    return moment


# A time at which something happened.
PastTime = Annotated[
    AwareDatetime,
    Field(json_schema_extra={"description": "With offset; from 1970 to a day from now"}),
    AfterValidator(_plausible),
]


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a folder, such as Asia
        raise PydanticCustomError("timezone", "must be a time zone such as Asia/Seoul or UTC") from None
    return name


Zone = Annotated[str, Field(json_schema_extra={"format": "time-zone"}), AfterValidator(_zone)]


def check_cron(text: str) -> str:
    """The text, if it is a schedule. Raises ValueError."""
    try:
        CronSim(text, utc_now())
        is_good = len(text.split()) == 5  # cronsim also takes a sixth, for seconds
    except (CronSimError, AttributeError, TypeError):  # the last two: not a text
        is_good = False
    if not is_good:
        raise ValueError("must be five cron fields: minute hour day month weekday, on a day that exists")
    return text


def _cron(text: str) -> str:
    try:
        return check_cron(text)
    except ValueError as error:
        raise PydanticCustomError("cron", "{reason}", {"reason": str(error)}) from None


Cron = Annotated[str, AfterValidator(_cron)]
