"""Members, their preferences and devices over HTTP: servers act for any member, a member for themselves."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter

from bongsu.api.auth import Gate
from bongsu.api.bodies import described, read_as
from bongsu.api.problems import PROBLEMS, ProblemError
from bongsu.model import Device, Id, Member, Preferences
from bongsu.model.channels import in_order
from bongsu.store import Store, Transaction, members
from bongsu.store.members import devices
from bongsu.store.members.devices import DeviceRow

_member = TypeAdapter(Member)
_device = TypeAdapter(Device)
_preferences = TypeAdapter(Preferences)


def router(gate: Gate, store: Store) -> APIRouter:
    """The routes for servers and those for members call the same functions; they differ in where the member id is from."""
    routes = APIRouter(tags=["members"], responses=PROBLEMS)
    calls = MemberCalls(store)
    _add_server_routes(routes, gate, calls)
    _add_own_routes(routes, gate, calls)
    return routes


class MemberCalls:
    """The calls about one member."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put_member(self, member_id: str, request: Request) -> Response:
        member = await read_as(request, _member)
        await self._store.run(lambda tx: members.put_member(tx, member_id, member))
        return JSONResponse(_member_out(member_id, member))

    async def find_member(self, member_id: str) -> Response:
        async with self._store.read() as tx:
            member = await members.find_member(tx, member_id)
        if member is None:
            raise ProblemError(404, f"There is no member {member_id}")
        return JSONResponse(_member_out(member_id, member))

    async def put_preferences(self, member_id: str, request: Request) -> Response:
        preferences = await read_as(request, _preferences)
        await self._store.run(lambda tx: members.put_preferences(tx, member_id, preferences))
        return JSONResponse(_preferences_out(preferences))

    async def find_preferences(self, member_id: str) -> Response:
        async with self._store.read() as tx:
            return JSONResponse(_preferences_out(await members.find_preferences(tx, member_id)))

    async def put_device(self, member_id: str, device_id: str, request: Request) -> Response:
        device = await read_as(request, _device)

        async def put(tx: Transaction) -> list[DeviceRow]:
            await devices.put_device(tx, member_id, device_id, device)
            return await devices.find_devices(tx, member_id)

        rows = await self._store.run(put)
        return JSONResponse(next(_device_out(row) for row in rows if row.device_id == device_id))

    async def find_devices(self, member_id: str) -> Response:
        async with self._store.read() as tx:
            rows = await devices.find_devices(tx, member_id)
        return JSONResponse({"devices": [_device_out(row) for row in rows]})

    async def remove_device(self, member_id: str, device_id: str) -> Response:
        """Removing a device that is not there succeeds: a repeated call must."""
        async with self._store.single() as tx:
            await devices.remove_device(tx, member_id, device_id)
        return Response(status_code=204)


def _member_out(member_id: str, member: Member) -> dict[str, Any]:
    """Addresses are shown if there are any: most installations declare no channel of their own."""
    left_out = None if member.addresses else {"addresses"}
    return {"memberId": member_id, **member.model_dump(mode="json", exclude=left_out)}


def _preferences_out(preferences: Preferences) -> dict[str, Any]:
    """Channels in the order of the table, so that equal preferences always read the same."""
    types: dict[str, Any] = {}
    for name, one in preferences.types.items():
        types[name] = {"enabled": one.enabled}
        if one.channels is not None:
            types[name]["channels"] = list(in_order(one.channels))
    quiet = preferences.quiet_hours
    return {"enabled": preferences.enabled, "types": types, "quietHours": quiet and {"start": quiet.start, "end": quiet.end}}


def _device_out(row: DeviceRow) -> dict[str, Any]:
    return {
        "deviceId": row.device_id,
        **row.device.model_dump(mode="json", by_alias=True),
        "status": row.status.value,
        "updatedAt": row.updated_at.isoformat(),
    }


def _add_server_routes(routes: APIRouter, gate: Gate, calls: MemberCalls) -> None:
    server = [Depends(gate.server)]
    one = "/api/members/{member_id}"

    @routes.put(one, dependencies=server, openapi_extra=described(Member), summary="Create or update a member")
    async def put_member(member_id: Id, request: Request) -> Response:
        return await calls.put_member(member_id, request)

    @routes.get(one, dependencies=server, summary="Find a member")
    async def find_member(member_id: Id) -> Response:
        return await calls.find_member(member_id)

    @routes.put(
        one + "/preferences", dependencies=server, openapi_extra=described(Preferences), summary="Set a member's preferences"
    )
    async def put_preferences(member_id: Id, request: Request) -> Response:
        return await calls.put_preferences(member_id, request)

    @routes.get(one + "/preferences", dependencies=server, summary="A member's preferences")
    async def find_preferences(member_id: Id) -> Response:
        return await calls.find_preferences(member_id)

    @routes.put(
        one + "/devices/{device_id}", dependencies=server, openapi_extra=described(Device), summary="Register a device"
    )
    async def put_device(member_id: Id, device_id: Id, request: Request) -> Response:
        return await calls.put_device(member_id, device_id, request)

    @routes.get(one + "/devices", dependencies=server, summary="A member's devices")
    async def find_devices(member_id: Id) -> Response:
        return await calls.find_devices(member_id)

    @routes.delete(one + "/devices/{device_id}", dependencies=server, status_code=204, summary="Remove a device")
    async def remove_device(member_id: Id, device_id: Id) -> Response:
        return await calls.remove_device(member_id, device_id)


def _add_own_routes(routes: APIRouter, gate: Gate, calls: MemberCalls) -> None:
    @routes.put("/api/preferences", openapi_extra=described(Preferences), summary="Set your preferences")
    async def put_preferences(request: Request, member_id: str = Depends(gate.member)) -> Response:
        return await calls.put_preferences(member_id, request)

    @routes.get("/api/preferences", summary="Your preferences")
    async def find_preferences(member_id: str = Depends(gate.member)) -> Response:
        return await calls.find_preferences(member_id)

    @routes.put("/api/devices/{device_id}", openapi_extra=described(Device), summary="Register your device")
    async def put_device(device_id: Id, request: Request, member_id: str = Depends(gate.member)) -> Response:
        return await calls.put_device(member_id, device_id, request)

    @routes.delete("/api/devices/{device_id}", status_code=204, summary="Remove your device")
    async def remove_device(device_id: Id, member_id: str = Depends(gate.member)) -> Response:
        return await calls.remove_device(member_id, device_id)
