"""`/bongsu-bell.js`: the bell, for a script tag on any page."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from bongsu.web.files import File

# A new version reaches every page within five minutes; a browser requests it a few times an hour.
CACHE_CONTROL = "public, max-age=300"


def router() -> APIRouter:
    routes = APIRouter()
    script = File.read("bell/bongsu-bell.js")

    @routes.api_route("/bongsu-bell.js", methods=["GET", "HEAD"], include_in_schema=False)
    async def bell(request: Request) -> Response:
        return script.answer(request, CACHE_CONTROL)

    return routes
