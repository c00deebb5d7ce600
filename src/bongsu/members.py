"""Members: who they are, what they want, how they are reached. Servers ask about anyone, members about themselves."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter

from bongsu.http.auth import Gate
from bongsu.http.body import described, read_as
from bongsu.http.problems import PROBLEMS, ProblemError
from bongsu.model import Channel, Device, Id, Member, Preferences
from bongsu.store import Store, people
from bongsu.store.people import DeviceRow

_member = TypeAdapter(Member)
_device = TypeAdapter(Device)
_preferences = TypeAdapter(Preferences)


def router(gate: Gate, store: Store) -> APIRouter:
    """Both doors lead to the same functions; they differ in who says which member it is about."""
    routes = APIRouter(tags=["members"], responses=PROBLEMS)
    desk = Desk(store)
    _add_server_routes(routes, gate, desk)
    _add_own_routes(routes, gate, desk)
    return routes


class Desk:
    """What can be asked and told about one member."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put_member(self, member_id: str, request: Request) -> Response:
        member = await read_as(request, _member)
        async with self._store.write() as tx:
            await people.put_member(tx, member_id, member)
        return JSONResponse({"memberId": member_id, **member.model_dump(mode="json")})

    async def find_member(self, member_id: str) -> Response:
        async with self._store.read() as connection:
            member = await people.find_member(connection, member_id)
        if member is None:
            raise ProblemError(404, f"There is no member {member_id}")
        return JSONResponse({"memberId": member_id, **member.model_dump(mode="json")})

    async def put_preferences(self, member_id: str, request: Request) -> Response:
        wish = await read_as(request, _preferences)
        async with self._store.write() as tx:
            await people.put_preferences(tx, member_id, wish)
        return JSONResponse(_preferences_out(wish))

    async def find_preferences(self, member_id: str) -> Response:
        async with self._store.read() as connection:
            return JSONResponse(_preferences_out(await people.find_preferences(connection, member_id)))

    async def put_device(self, member_id: str, device_id: str, request: Request) -> Response:
        device = await read_as(request, _device)
        async with self._store.write() as tx:
            await people.put_device(tx, member_id, device_id, device)
            rows = await people.find_devices(tx, member_id)
        return JSONResponse(next(_device_out(row) for row in rows if row.device_id == device_id))

    async def find_devices(self, member_id: str) -> Response:
        async with self._store.read() as connection:
            rows = await people.find_devices(connection, member_id)
        return JSONResponse({"devices": [_device_out(row) for row in rows]})

    async def remove_device(self, member_id: str, device_id: str) -> Response:
        """Removing what is not there is no mistake: it is not there afterwards either."""
        async with self._store.write() as tx:
            await people.remove_device(tx, member_id, device_id)
        return Response(status_code=204)


def _preferences_out(wish: Preferences) -> dict[str, Any]:
    """Channels in the order they are declared, so that the same wish always reads the same."""
    types: dict[str, Any] = {}
    for name, one in wish.types.items():
        types[name] = {"enabled": one.enabled}
        if one.channels is not None:
            types[name]["channels"] = [channel.value for channel in Channel if channel in one.channels]
    quiet = wish.quiet_hours
    return {"enabled": wish.enabled, "types": types, "quietHours": quiet and {"start": quiet.start, "end": quiet.end}}


def _device_out(row: DeviceRow) -> dict[str, Any]:
    return {
        "deviceId": row.device_id,
        **row.device.model_dump(mode="json", by_alias=True),
        "status": row.status.value,
        "updatedAt": row.updated_at.isoformat(),
    }


def _add_server_routes(routes: APIRouter, gate: Gate, desk: Desk) -> None:
    server = [Depends(gate.server)]
    one = "/api/members/{member_id}"

    @routes.put(one, dependencies=server, openapi_extra=described(Member), summary="Tell of a member")
    async def put_member(member_id: Id, request: Request) -> Response:
        return await desk.put_member(member_id, request)

    @routes.get(one, dependencies=server, summary="What is known of a member")
    async def find_member(member_id: Id) -> Response:
        return await desk.find_member(member_id)

    @routes.put(
        one + "/preferences", dependencies=server, openapi_extra=described(Preferences), summary="Set a member's wishes"
    )
    async def put_preferences(member_id: Id, request: Request) -> Response:
        return await desk.put_preferences(member_id, request)

    @routes.get(one + "/preferences", dependencies=server, summary="A member's wishes")
    async def find_preferences(member_id: Id) -> Response:
        return await desk.find_preferences(member_id)

    @routes.put(
        one + "/devices/{device_id}", dependencies=server, openapi_extra=described(Device), summary="Register a device"
    )
    async def put_device(member_id: Id, device_id: Id, request: Request) -> Response:
        return await desk.put_device(member_id, device_id, request)

    @routes.get(one + "/devices", dependencies=server, summary="A member's devices")
    async def find_devices(member_id: Id) -> Response:
        return await desk.find_devices(member_id)

    @routes.delete(one + "/devices/{device_id}", dependencies=server, status_code=204, summary="Forget a device")
    async def remove_device(member_id: Id, device_id: Id) -> Response:
        return await desk.remove_device(member_id, device_id)


def _add_own_routes(routes: APIRouter, gate: Gate, desk: Desk) -> None:
    @routes.put("/api/preferences", openapi_extra=described(Preferences), summary="Set your wishes")
    async def put_preferences(request: Request, member_id: str = Depends(gate.member)) -> Response:
        return await desk.put_preferences(member_id, request)

    @routes.get("/api/preferences", summary="Your wishes")
    async def find_preferences(member_id: str = Depends(gate.member)) -> Response:
        return await desk.find_preferences(member_id)

    @routes.put("/api/devices/{device_id}", openapi_extra=described(Device), summary="Register your device")
    async def put_device(device_id: Id, request: Request, member_id: str = Depends(gate.member)) -> Response:
        return await desk.put_device(member_id, device_id, request)

    @routes.delete("/api/devices/{device_id}", status_code=204, summary="Forget your device")
    async def remove_device(device_id: Id, member_id: str = Depends(gate.member)) -> Response:
        return await desk.remove_device(member_id, device_id)
