"""`/bongsu-bell.js`: the bell, for a script tag on any page. One script, made of the files beside this one."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from bongsu.web.files import File

# A new version reaches every page within five minutes; a browser requests it a few times an hour.
CACHE_CONTROL = "public, max-age=300"

# In the order in which they stand in the script: each uses what comes before it.
PARTS = ("words.js", "server.js", "live.js", "look.js", "notifications.js", "menu.js", "rows.js", "panel.js", "bell.js")
# In a scope of its own, so that the page sees nothing but the element.
HEAD = """\
/* <bongsu-bell>: a member's notifications, on any page. docs/howto/bell.md says what can be set.
 *
 *   <script src="https://notify.example/bongsu-bell.js" defer></script>
 *   <bongsu-bell></bongsu-bell>
 */
(() => {
"use strict";
if (customElements.get("bongsu-bell")) return;

"""
TAIL = "\n})();\n"


def script() -> File:
    return File.join([f"bell/{name}" for name in PARTS], HEAD, TAIL)


def router() -> APIRouter:
    routes = APIRouter()
    bell_script = script()

    @routes.api_route("/bongsu-bell.js", methods=["GET", "HEAD"], include_in_schema=False)
    async def bell(request: Request) -> Response:
        return bell_script.answer(request, CACHE_CONTROL)

    return routes
