"""What the queries of list endpoints share."""

from __future__ import annotations

from fastapi import Request
from pydantic import Field

from bongsu.api.problems import ProblemError

CURSOR = Field(None, description="The `next` of the previous page")


def refuse_repeats(request: Request) -> None:
    """Refuse a parameter that is given twice: one of the values would be ignored silently."""
    names = [name for name, _ in request.query_params.multi_items()]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        mistakes = [{"loc": ["query", name], "msg": "is given more than once: give it once"} for name in repeated]
        raise ProblemError(422, "Each parameter takes one value: correct what `errors` names.", mistakes)
