"""What queries, operators' requests and answers are made of: base models, times, pages."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """Base of the answers. The names on the wire are camelCase."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class QueryModel(BaseModel):
    """Base of the queries. An unknown name is refused: without its cursor every page would be the first."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class RequestModel(QueryModel):
    """Base of the bodies that operators send. Nothing is converted."""

    model_config = ConfigDict(strict=True)


# With the offset as a number, as the stream and stored texts have it; pydantic would write Z for UTC.
Timestamp = Annotated[
    datetime,
    PlainSerializer(datetime.isoformat, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}, mode="serialization"),
]

_Item = TypeVar("_Item")


class Page(ApiModel, Generic[_Item]):
    items: list[_Item] = Field(description="May be fewer than `limit`, or none, although there is a next page")
    next: str | None = Field(description="The cursor of the next page, if there is one")
