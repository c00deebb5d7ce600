"""Products, and what members do with them (behaviors), over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter

from bongsu.api.auth import Gate
from bongsu.api.bodies import described, read_as
from bongsu.api.ingest import RequestBodies
from bongsu.api.problems import PROBLEMS, ProblemError
from bongsu.ingress.decode import decode_behavior
from bongsu.model import Behavior, Id, Product
from bongsu.store import Store
from bongsu.store.members import products

behaviors_in = RequestBodies(Behavior)
_product = TypeAdapter(Product)
_EXAMPLE = {"userId": "member-7", "productId": "sku-1", "action": "ADD_TO_CART"}


async def keep_behaviors(store: Store, behaviors: Sequence[Behavior]) -> list[bool]:
    """Store them in one transaction. Each counts as accepted; of several alike the newest is kept."""
    await store.run(lambda tx: products.add_behaviors(tx, behaviors))
    return [True] * len(behaviors)


def router(gate: Gate, store: Store) -> APIRouter:
    routes = APIRouter(tags=["products"], dependencies=[Depends(gate.server)], responses=PROBLEMS)

    async def keep(behaviors: Sequence[Behavior]) -> list[bool]:
        return await keep_behaviors(store, behaviors)

    @routes.post(
        "/api/behaviors",
        status_code=202,
        openapi_extra=behaviors_in.described(_EXAMPLE),
        summary="Store what members did",
    )
    async def accept_behaviors(request: Request) -> Response:
        if behaviors_in.is_lines(request):
            return await behaviors_in.ingest_lines(request, keep, decode_behavior)
        behaviors = await behaviors_in.read(request)
        if behaviors:
            await keep(behaviors)
        return JSONResponse({"accepted": len(behaviors)}, status_code=202)

    @routes.put("/api/products/{product_id}", openapi_extra=described(Product), summary="Create or update a product")
    async def put_product(product_id: Id, request: Request) -> Response:
        product = await read_as(request, _product)
        async with store.single() as tx:
            await products.put_product(tx, product_id, product)
        return JSONResponse({"productId": product_id, **product.model_dump(mode="json", by_alias=True)})

    @routes.get("/api/products/{product_id}", summary="Find a product")
    async def find_product(product_id: Id) -> Response:
        async with store.read() as tx:
            product = await products.find_product(tx, product_id)
        if product is None:
            raise ProblemError(404, f"There is no product {product_id}")
        return JSONResponse({"productId": product_id, **product.model_dump(mode="json", by_alias=True)})

    return routes
