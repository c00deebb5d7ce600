"""Which databases there are."""

from __future__ import annotations

from bongsu.store.dialect import Dialect
from bongsu.store.postgres import POSTGRES
from bongsu.store.sqlite import SQLITE

_BY_NAME: dict[str, Dialect] = {one.name: one for one in (POSTGRES, SQLITE)}


def dialect_named(name: str) -> Dialect:
    return _BY_NAME[name]
