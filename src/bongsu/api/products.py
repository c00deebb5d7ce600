"""Products, and what members do with them (behaviors), over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Depends, Request
from pydantic import Field, TypeAdapter

from bongsu.api.auth import Authenticator
from bongsu.api.bodies import described, read_as
from bongsu.api.ingest import Accepted, RequestBodies
from bongsu.api.path_ids import PathId
from bongsu.api.problems import ProblemError, problems
from bongsu.ingress.behaviors import keep_behaviors
from bongsu.ingress.decode import decode_behavior
from bongsu.model import Behavior, Id, Product
from bongsu.store import Store
from bongsu.store.members import products

behaviors_in = RequestBodies(Behavior)
_product = TypeAdapter(Product)
_EXAMPLE = {"userId": "member-7", "productId": "sku-1", "action": "ADD_TO_CART"}


class AcceptedBehaviors(Accepted):
    duplicates: int | None = Field(None, description="NDJSON only: always 0, a behaviour is never a duplicate")


class ProductItem(Product):
    product_id: Id


def router(auth: Authenticator, store: Store) -> APIRouter:
    routes = APIRouter(tags=["products"], dependencies=[Depends(auth.server)], responses=problems(401, 403, 422, 503))
    _add_behaviors(routes, store)
    _add_products(routes, store)
    return routes


def _add_behaviors(routes: APIRouter, store: Store) -> None:
    async def keep(behaviors: Sequence[Behavior]) -> list[bool]:
        return await keep_behaviors(store, behaviors)

    @routes.post(
        "/api/behaviors",
        status_code=202,
        response_model_exclude_none=True,
        openapi_extra=behaviors_in.described(_EXAMPLE),
        responses=problems(400, 413, 415),
        summary="Record behaviours",
    )
    async def accept_behaviors(request: Request) -> AcceptedBehaviors:
        """What members did with products, for audiences: one behaviour, an array of at most 1,000, or NDJSON of any length.
        Of several with the same member, product and action the newest is kept."""
        if behaviors_in.is_lines(request):
            return await behaviors_in.ingest_lines(request, keep, decode_behavior, AcceptedBehaviors)
        behaviors = await behaviors_in.read(request)
        if behaviors:
            await keep(behaviors)
        return AcceptedBehaviors(accepted=len(behaviors))


def _add_products(routes: APIRouter, store: Store) -> None:
    @routes.put(
        "/api/products/{product_id}",
        openapi_extra=described(Product, example={"name": "사과 1 kg", "price": 8000, "stock": 12}),
        responses=problems(400, 413, 415),
        summary="Create or update a product",
    )
    async def put_product(product_id: PathId, request: Request) -> ProductItem:
        """Replaces the whole product: fields that are left out are empty."""
        product = await read_as(request, _product)
        async with store.single() as tx:
            await products.put_product(tx, product_id, product)
        return ProductItem.model_construct(product_id=product_id, **product.__dict__)

    @routes.get("/api/products/{product_id}", responses=problems(404), summary="Find a product")
    async def find_product(product_id: PathId) -> ProductItem:
        """The product as it was last written."""
        async with store.read() as tx:
            product = await products.find_product(tx, product_id)
        if product is None:
            raise ProblemError(404, f"There is no product {product_id}")
        return ProductItem.model_construct(product_id=product_id, **product.__dict__)
