"""What the lists of an operator share: filters by time, and pages that are filled by several bounded searches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)

_Row = TypeVar("_Row")
_Cursor = TypeVar("_Cursor")


def _moment(given: str) -> datetime:
    try:
        moment = datetime.fromisoformat(given)
        if moment.tzinfo is not None and _EARLIEST <= moment < _LATEST:
            return moment
    except (TypeError, ValueError):
        pass
    raise PydanticCustomError("moment", "must be a time with offset, as 2026-03-01T09:00:00Z; a + in a URL is written %2B")


Moment = Annotated[datetime, BeforeValidator(_moment, json_schema_input_type=datetime)]


class ListFilter(BaseModel):
    """Base of the filters. An unknown name is refused: a misspelt filter would match everything."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    since: Moment | None = Field(None, alias="from", description="At this moment or later")
    until: Moment | None = Field(None, alias="to", description="Before this moment")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise PydanticCustomError("order", "`from` must lie before `to`")
        return self


async def fill_page(
    find: Callable[[_Cursor | None, int], Awaitable[tuple[Sequence[_Row], _Cursor | None]]],
    after: _Cursor | None,
    limit: int,
) -> tuple[list[_Row], _Cursor | None]:
    """A page that is full unless no more rows match. Where few match, that takes several bounded searches."""
    rows: list[Any] = []
    while True:
        found, after = await find(after, limit - len(rows))
        rows += found
        if after is None or len(rows) >= limit:
            return rows, after
