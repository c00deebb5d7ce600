"""Reading a request's body without trusting its size."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter
from starlette.requests import ClientDisconnect, Request

from bongsu.api.problems import ProblemError
from bongsu.ingress.decode import Rejected, decode_apart, decode_json

# A JSON body is held whole, parsed whole and stored whole. What is larger comes as NDJSON, which is streamed.
BODY_LIMIT = 10 * 1024 * 1024
# What is about one member, device or request: the longest preferences take less.
SMALL_BODY_LIMIT = 256 * 1024

# A body without a content type is read as JSON.
JSON = {"application/json", ""}


async def read_body(request: Request, limit: int = BODY_LIMIT) -> bytes:
    """The whole body, or 413 as soon as it is known to be too large."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in stream_body(request):
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


async def stream_body(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise ProblemError(400, "The connection closed before the body was complete") from None


_T = TypeVar("_T")


async def read_as(request: Request, shape: TypeAdapter[_T], default: _T | None = None, limit: int = SMALL_BODY_LIMIT) -> _T:
    """The JSON body as what it should be, or the problem that names what is wrong with it. `default` if there is no body."""
    kind = content_type(request)
    if kind not in JSON:
        raise ProblemError(415, f"Send application/json, not {kind}")
    body = await read_body(request, limit)
    return default if not body and default is not None else await parse(body, shape)


# Models of the bodies that endpoints read themselves, which FastAPI cannot find. `schema_of` collects them.
BODY_MODELS: set[type[BaseModel]] = set()


def schema_of(model: type[BaseModel]) -> dict[str, str]:
    """A reference to the model's schema, which the API's document will have."""
    BODY_MODELS.add(model)
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def described(model: type[BaseModel], *, example: Mapping[str, Any], is_required: bool = True) -> dict[str, Any]:
    """The request body for the API's document. Checks the example."""
    model.model_validate_json(json.dumps(example))
    content = {"application/json": {"schema": schema_of(model), "example": example}}
    return {"requestBody": {"required": is_required, "content": content}}


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def parse(body: bytes, shape: TypeAdapter[_T]) -> _T:
    """Raises the problem that names every mistake and where it is."""
    decoded = await decode_apart(partial(decode_json, shape), body)
    if not isinstance(decoded, Rejected):
        return decoded
    if not decoded.is_json:
        why = decoded.mistakes[0].message.removeprefix("Invalid JSON: ")
        raise ProblemError(400, f"The body cannot be read as JSON: {why}. Nothing was stored.")
    count = len(decoded.mistakes)
    raise ProblemError(
        422,
        f"{count} mistake{'s' * (count != 1)}: correct what `errors` names. Nothing was stored.",
        [{"loc": mistake.location, "msg": mistake.message} for mistake in decoded.mistakes],
    )


def _too_large(limit: int) -> ProblemError:
    cure = "send application/x-ndjson, or fewer at a time" if limit == BODY_LIMIT else "send less"
    return ProblemError(413, f"The body is larger than {limit} bytes: {cure}")
