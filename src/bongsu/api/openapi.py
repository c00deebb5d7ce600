"""The OpenAPI document, and the page that shows it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from bongsu.api.bodies import BODY_MODELS
from bongsu.api.problems import Problem


def install(app: FastAPI) -> None:
    _complete_document(app)
    _add_pages(app)


def _complete_document(app: FastAPI) -> None:
    """Add what FastAPI cannot infer: the bodies, because endpoints read them themselves."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        document = describe()
        components = document.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        models: list[type[BaseModel]] = [Problem, *sorted(BODY_MODELS, key=lambda model: model.__name__)]
        bodies = [(model, "validation") for model in models]
        _, described = models_json_schema(bodies, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
        schemas.update(described["$defs"])
        _drop_null_parameters(document)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _drop_null_parameters(document: dict[str, Any]) -> None:
    """A parameter is given or left out. `null` is a value of the models behind it, which a URL has no way to write."""
    operations = (operation for path in document["paths"].values() for operation in path.values())
    for parameter in (each for operation in operations for each in operation.get("parameters", ())):
        schema = parameter["schema"]
        given = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
        if len(given) == 1:
            del schema["anyOf"]
            parameter["schema"] = given[0] | schema
        elif given:
            schema["anyOf"] = given


def _add_pages(app: FastAPI) -> None:
    """Serve the page's scripts from here: FastAPI's own page would load them from another site."""
    app.mount("/docs/assets", StaticFiles(packages=[("fastapi_swagger", "resources")]))

    @app.get("/", include_in_schema=False)
    async def root() -> RedirectResponse:
        return RedirectResponse("/docs")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Bongsu",
            swagger_js_url="/docs/assets/swagger-ui-bundle.js",
            swagger_css_url="/docs/assets/swagger-ui.css",
            swagger_favicon_url="/docs/assets/favicon-32x32.png",
        )
