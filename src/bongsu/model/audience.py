"""Audience: who is to be notified, as a list, a query over behaviors, everyone, or a SELECT of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Action(StrEnum):
    """What a member did with a product."""

    VIEW = "VIEW"
    CLICK = "CLICK"
    ADD_TO_CART = "ADD_TO_CART"
    PURCHASE = "PURCHASE"


@dataclass(frozen=True)
class Interested:
    """Members who did one of these actions with the product within so many days."""

    product_id: str
    actions: frozenset[Action]
    days: int


@dataclass(frozen=True)
class Listed:
    """Exactly these members."""

    member_ids: tuple[str, ...]


@dataclass(frozen=True)
class Everyone:
    """All members."""


@dataclass(frozen=True)
class Selected:
    """The members that a SELECT of the user's own finds: one column of member ids, parameters by name (`:name`)."""

    sql: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


Audience = Interested | Listed | Everyone | Selected
