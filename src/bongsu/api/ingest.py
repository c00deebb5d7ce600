"""Bodies of POST /api/events and /api/behaviors: one item, an array of them, or NDJSON of any length."""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

from fastapi import Request
from pydantic import BaseModel, Field, TypeAdapter

from bongsu.api.bodies import JSON, content_type, parse, read_body, schema_of, stream_body
from bongsu.api.models import ApiModel
from bongsu.api.problems import ProblemError
from bongsu.ingress import ndjson
from bongsu.ingress.decode import Decode

ARRAY_LIMIT = 1_000
NDJSON = {"application/x-ndjson", "application/ndjson", "application/jsonl"}


class Accepted(ApiModel):
    """What every such request is answered; the routes leave out what is None."""

    accepted: int
    duplicates: int | None = None
    rejected: int | None = Field(None, description="NDJSON only: lines that were not stored")
    errors: list[dict[str, Any]] | None = Field(None, description="NDJSON only: the first bad lines, by number")


_M = TypeVar("_M", bound=BaseModel)
_A = TypeVar("_A", bound=Accepted)


class RequestBodies(Generic[_M]):
    """Reads bodies of one model. One item is an array of one."""

    def __init__(self, model: type[_M]) -> None:
        self._model = model
        self._one = TypeAdapter(model)
        self._many: TypeAdapter[list[_M]] = TypeAdapter(list[model])  # type: ignore[valid-type]

    @staticmethod
    def is_lines(request: Request) -> bool:
        return content_type(request) in NDJSON

    async def read(self, request: Request) -> list[_M]:
        """All of a JSON body, or the problem that says what is wrong with it and where."""
        kind = content_type(request)
        if kind not in JSON:
            raise ProblemError(415, f"Send application/json or application/x-ndjson, not {kind}")
        body = await read_body(request)
        if body.lstrip()[:1] == b"[":
            return self._bounded(await parse(body, self._many))
        return [await parse(body, self._one)]

    @staticmethod
    def _bounded(things: list[_M]) -> list[_M]:
        if len(things) > ARRAY_LIMIT:
            most = f"An array may hold {ARRAY_LIMIT}, not {len(things)}"
            raise ProblemError(422, f"{most}: send more as application/x-ndjson. Nothing was stored.")
        return things

    @staticmethod
    async def ingest_lines(request: Request, accept: ndjson.Accept[Any], decode: Decode[Any], answer: type[_A]) -> _A:
        """Accept line by line; the answer says how many, and which were rejected."""
        try:
            tally = await ndjson.ingest_lines(stream_body(request), accept, decode)
        except ndjson.Interrupted as error:
            raise ProblemError(503, _how_far(error)) from error
        if tally.rejected and not tally.accepted + tally.duplicates:
            raise ProblemError(
                422,
                f"None of the {tally.rejected} lines is right; `errors` names the first by line. Nothing was stored.",
                [{"loc": [error["line"], *error["loc"]], "msg": error["msg"]} for error in tally.errors],
            )
        return answer(
            accepted=tally.accepted,
            duplicates=tally.duplicates,
            rejected=tally.rejected or None,
            errors=tally.errors or None,
        )

    def described(self, example: dict[str, Any]) -> dict[str, Any]:
        """The request body for the API's document."""
        schema = schema_of(self._model)
        return {
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {"oneOf": [schema, {"type": "array", "items": schema, "maxItems": ARRAY_LIMIT}]},
                        "example": example,
                    },
                    "application/x-ndjson": {
                        "schema": {"type": "string", "description": "one object per line, any number of lines"},
                        "example": json.dumps(example),
                    },
                },
            }
        }


def _how_far(error: ndjson.Interrupted) -> str:
    tally = error.tally
    stored = f"{tally.accepted} accepted and {tally.duplicates} duplicates up to line {tally.stored_to}"
    return f"The store went away in the middle, after {stored}: send the lines after it again. ({error})"
