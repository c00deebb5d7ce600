"""`/demo`: the demo's page. Its buttons publish events through the intake, like any other caller.

Anyone who reaches the port may act as any of the demo's members, who are invented: the tokens issued here are signed
with a secret of the demo's own, which is valid for these members and ends with the process.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.alias_generators import to_camel

from bongsu.api.bodies import read_as
from bongsu.api.problems import ProblemError
from bongsu.demo import ABROAD, NAMES, NOTICES, PRESSED, PRODUCTS
from bongsu.ingress.intake import Intake
from bongsu.model import Action, Behavior, Event, utc_now
from bongsu.model.counter import COMMENTS
from bongsu.runtime.keys import Keys
from bongsu.store import Store
from bongsu.store.counters.deltas import find_totals
from bongsu.store.members.products import add_behaviors
from bongsu.web.files import File

# The members a visitor can be: some read Korean, some English, and every button notifies all of them.
VISITORS = ("mina", "seoyeon", "haeun", "minjae", "emma", "liam", "lucas", "jack")
# Long enough for a visit; the page requests a new one when it expires.
TOKEN_LIFETIME = timedelta(hours=1)
# In per cent, at least BONGSU_PRICE_DROP_THRESHOLD (10).
DROPS = range(10, 45, 5)
FILES = (
    "shop.css", "shop.js", "products.svg", "chat.css", "chat.svg", "chat.js", "chat-connection.js", "chat-room.js",
    "chat-texts.js", "chat-view.js",
)  # fmt: skip
# The page loads nothing from elsewhere. It also shows that the bell works under a strict policy.
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


class Button(StrEnum):
    DROP = "drop"
    RESTOCK = "restock"
    CART = "cart"
    LIKE = "like"
    COMMENT = "comment"
    RESERVE = "reserve"
    NOTICE = "notice"


class Pressed(BaseModel):
    """A pressed button, the member who pressed it, and the product or member it is about."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    button: Button
    member_id: str
    product_id: str = ""
    target_id: str = ""


class Visit(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    member_id: str


_pressed = TypeAdapter(Pressed)
_visit = TypeAdapter(Visit)


def router(keys: Keys, store: Store, intake: Intake) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    _add_reads(routes, store)
    _add_acts(routes, keys, store, intake)
    _add_files(routes)
    return routes


def _add_reads(routes: APIRouter, store: Store) -> None:
    @routes.get("/demo/shelf")
    async def shelf() -> Response:
        visitors = [{"id": key, "name": NAMES[key], "locale": "en" if key in ABROAD else "ko"} for key in VISITORS]
        products = [{"id": key, "name": product.name, "price": product.price} for key, product in PRODUCTS.items()]
        return JSONResponse({"visitors": visitors, "products": products, "names": NAMES})

    @routes.get("/demo/counts")
    async def counts() -> Response:
        """How many comments the post of each visitor has."""
        async with store.read() as tx:
            totals = await find_totals(tx, [(COMMENTS, _post_of(visitor)) for visitor in VISITORS])
        return JSONResponse({visitor: totals[COMMENTS, _post_of(visitor)].value for visitor in VISITORS})


def _add_acts(routes: APIRouter, keys: Keys, store: Store, intake: Intake) -> None:
    @routes.post("/demo/visits")
    async def visit(request: Request) -> Response:
        """Act as one of the demo's members, who has now viewed every product. Returns a token."""
        _refuse_cross_site(request)
        member_id = _person((await read_as(request, _visit)).member_id)
        viewed = [Behavior(user_id=member_id, product_id=key, action=Action.VIEW, at=utc_now()) for key in PRODUCTS]
        async with store.transaction() as tx:
            await add_behaviors(tx, viewed)
        return JSONResponse({"token": keys.guest_token(member_id, TOKEN_LIFETIME)})

    @routes.post("/demo/buttons")
    async def press(request: Request) -> Response:
        _refuse_cross_site(request)
        pressed = await read_as(request, _pressed)
        _person(pressed.member_id)
        if pressed.button is Button.CART:
            carted = Behavior(
                user_id=pressed.member_id, product_id=_product(pressed.product_id), action=Action.ADD_TO_CART, at=utc_now()
            )
            async with store.transaction() as tx:
                await add_behaviors(tx, [carted])
            return JSONResponse({}, status_code=202)
        event = event_of(pressed)
        await intake.accept([event])
        return JSONResponse({"eventId": str(event.event_id), **event.payload}, status_code=202)


def _add_files(routes: APIRouter) -> None:
    page = File.read("shop/shop.html")
    files = {name: File.read(f"shop/{name}") for name in FILES}

    @routes.get("/demo")
    async def shop(request: Request) -> Response:
        return page.answer(request, "no-cache", **{"Content-Security-Policy": POLICY})

    @routes.get("/demo/{name}")
    async def file(name: str, request: Request) -> Response:
        if name not in files:
            raise ProblemError(404, f"There is no GET /demo/{name} here: /demo is the shop")
        return files[name].answer(request, "no-cache")


def event_of(pressed: Pressed, choose: Callable[[range], int] = random.choice) -> Event:
    """The event that a pressed button publishes."""
    match pressed.button:
        case Button.DROP:
            before = int(PRODUCTS[_product(pressed.product_id)].price or 0)
            fields: dict[str, Any] = {
                "ref_id": pressed.product_id,
                "payload": {"previousPrice": before, "currentPrice": before * (100 - choose(DROPS)) // 100},
            }
            return _event("product.price_changed", **fields)
        case Button.RESTOCK:
            stock = {"previousStock": 0, "currentStock": choose(range(3, 31))}
            return _event("product.stock_changed", ref_id=_product(pressed.product_id), payload=stock)
        case Button.LIKE:
            return _act("post.liked", pressed)
        case Button.COMMENT:
            return _act("comment.created", pressed)
        case Button.RESERVE:
            number = f"R-{choose(range(1_000_000)):06}"
            return _event("reservation.confirmed", target_id=_person(pressed.target_id), ref_id=number)
        case _:
            title, body = NOTICES[choose(range(len(NOTICES)))]
            return _event("notice.published", payload={"title": title, "body": body, "memberIds": list(NAMES)})


def _act(event_type: str, pressed: Pressed) -> Event:
    target, actor = _person(pressed.target_id), pressed.member_id
    payload = {"actorName": NAMES[actor]}
    return _event(event_type, actor_id=actor, target_id=target, ref_id=_post_of(target), payload=payload)


def _post_of(member_id: str) -> str:
    return f"post-{member_id}-1"


def _event(event_type: str, **fields: Any) -> Event:
    return Event(event_type=PRESSED + event_type, **fields)


def _person(member_id: str) -> str:
    if member_id not in NAMES:
        raise ProblemError(422, f"{member_id!r:.50} is not a member of the demo: use one of {', '.join(VISITORS)}")
    return member_id


def _product(product_id: str) -> str:
    if product_id not in PRODUCTS:
        raise ProblemError(422, f"{product_id!r:.50} is not a product of the demo: use one of {', '.join(PRODUCTS)}")
    return product_id


def _refuse_cross_site(request: Request) -> None:
    """The buttons need no key, so pages of other sites must not press them. Programs do not send this header."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise ProblemError(403, "The demo's buttons work on its own page only, /demo")
