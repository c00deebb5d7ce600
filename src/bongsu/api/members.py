"""Members, their preferences and devices over HTTP: servers act for any member, a member for themselves."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field, TypeAdapter

from bongsu.api.auth import Authenticator, key_ending
from bongsu.api.bodies import described, read_as
from bongsu.api.models import ApiModel, Timestamp
from bongsu.api.path_ids import PathId
from bongsu.api.problems import ProblemError, problems
from bongsu.desk.erase import Erasures
from bongsu.model import Device, DeviceStatus, Member, Platform, Preferences, QuietHours
from bongsu.model.channels import in_order
from bongsu.store import Store, Transaction, members
from bongsu.store.members import devices
from bongsu.store.members.devices import DeviceRow

_member = TypeAdapter(Member)
_device = TypeAdapter(Device)
_preferences = TypeAdapter(Preferences)

_A_MEMBER = {"locale": "ko", "timezone": "Asia/Seoul", "email": "min-ji@example.com", "phone": "010-1234-5678"}
_OF_MEMBER = "/api/members/{member_id}"
_SOME_PREFERENCES = {
    "enabled": True,
    "types": {"PRICE_DROP": {"enabled": True, "channels": ["PUSH", "IN_APP"]}},
    "quietHours": {"start": "22:00", "end": "08:00"},
}
_A_DEVICE = {"token": "fcm-registration-token", "platform": "ANDROID", "pushConsent": True}
_OF_A_BODY = problems(400, 413, 415)
_OF_A_MEMBER = problems(429)


class MemberItem(ApiModel):
    member_id: str
    locale: str | None
    timezone: str | None
    email: str | None
    phone: str | None
    addresses: dict[str, str] = Field({}, description="By channel that an app declares. Left out if there are none")


class TypePreferenceItem(ApiModel):
    enabled: bool
    channels: list[str] = Field([], description="Left out if they are those of the type")


class PreferencesItem(ApiModel):
    enabled: bool
    types: dict[str, TypePreferenceItem]
    quiet_hours: QuietHours | None


class DeviceItem(ApiModel):
    device_id: str
    token: str
    platform: Platform
    push_consent: bool
    status: DeviceStatus
    updated_at: Timestamp


class DeviceList(ApiModel):
    devices: list[DeviceItem]


def router(auth: Authenticator, store: Store, max_devices: int, erasures: Erasures) -> APIRouter:
    """The routes for servers and those for members call the same functions; they differ in where the member id is from."""
    routes = APIRouter(tags=["members"], responses=problems(401, 403, 422, 503))
    calls = MemberCalls(store, max_devices, erasures)
    _add_profile_routes(routes, auth, calls)
    _add_preference_routes(routes, auth, calls)
    _add_device_routes(routes, auth, calls)
    _add_own_routes(routes, auth, calls)
    return routes


class MemberCalls:
    """The calls about one member."""

    def __init__(self, store: Store, max_devices: int, erasures: Erasures) -> None:
        self._store = store
        self._max_devices = max_devices
        self._erasures = erasures

    async def put_member(self, member_id: str, request: Request) -> MemberItem:
        member = await read_as(request, _member)
        await self._store.run(lambda tx: members.put_member(tx, member_id, member))
        return _member_item(member_id, member)

    async def find_member(self, member_id: str) -> MemberItem:
        async with self._store.read() as tx:
            member = await members.find_member(tx, member_id)
        if member is None:
            raise ProblemError(404, f"There is no member {member_id}")
        return _member_item(member_id, member)

    async def erase_member(self, member_id: str, requested_by: str) -> Response:
        await self._erasures.erase(member_id, requested_by)
        return Response(status_code=204)

    async def put_preferences(self, member_id: str, request: Request) -> PreferencesItem:
        preferences = await read_as(request, _preferences)
        await self._store.run(lambda tx: members.put_preferences(tx, member_id, preferences))
        return _preferences_item(preferences)

    async def find_preferences(self, member_id: str) -> PreferencesItem:
        async with self._store.read() as tx:
            return _preferences_item(await members.find_preferences(tx, member_id))

    async def put_device(self, member_id: str, device_id: str, request: Request) -> DeviceItem:
        device = await read_as(request, _device)

        async def put(tx: Transaction) -> list[DeviceRow]:
            await devices.put_device(tx, member_id, device_id, device, self._max_devices)
            return await devices.find_devices(tx, member_id)

        rows = await self._store.run(put)
        return next(_device_item(row) for row in rows if row.device_id == device_id)

    async def find_devices(self, member_id: str) -> DeviceList:
        async with self._store.read() as tx:
            rows = await devices.find_devices(tx, member_id)
        return DeviceList(devices=[_device_item(row) for row in rows])

    async def remove_device(self, member_id: str, device_id: str) -> Response:
        """Removing a device that is not there succeeds: a repeated call must."""
        async with self._store.single() as tx:
            await devices.remove_device(tx, member_id, device_id)
        return Response(status_code=204)


# Fields that are not set are left out of the answer.


def _member_item(member_id: str, member: Member) -> MemberItem:
    """Addresses are shown if there are any: most installations declare no channel of their own."""
    addresses = {"addresses": dict(member.addresses)} if member.addresses else {}
    return MemberItem(
        member_id=member_id,
        locale=member.locale,
        timezone=member.timezone,
        email=member.email,
        phone=member.phone,
        **addresses,
    )


def _preferences_item(preferences: Preferences) -> PreferencesItem:
    """Channels in the order of the table, so that equal preferences always read the same."""
    types = {}
    for name, own in preferences.types.items():
        channels = {} if own.channels is None else {"channels": list(in_order(own.channels))}
        types[name] = TypePreferenceItem(enabled=own.enabled, **channels)
    return PreferencesItem(enabled=preferences.enabled, types=types, quiet_hours=preferences.quiet_hours)


def _device_item(row: DeviceRow) -> DeviceItem:
    return DeviceItem(
        device_id=row.device_id,
        token=row.device.token,
        platform=row.device.platform,
        push_consent=row.device.push_consent,
        status=row.status,
        updated_at=row.updated_at,
    )


def _add_profile_routes(routes: APIRouter, auth: Authenticator, calls: MemberCalls) -> None:
    server, path = [Depends(auth.server)], _OF_MEMBER

    @routes.put(
        path,
        dependencies=server,
        openapi_extra=described(Member, example=_A_MEMBER),
        responses=_OF_A_BODY,
        response_model_exclude_unset=True,
        summary="Create or update a member",
    )
    async def put_member(member_id: PathId, request: Request) -> MemberItem:
        """Replaces the profile. A field that is left out becomes unknown."""
        return await calls.put_member(member_id, request)

    @routes.get(
        path,
        dependencies=server,
        responses=problems(404),
        response_model_exclude_unset=True,
        summary="Find a member",
    )
    async def find_member(member_id: PathId) -> MemberItem:
        """The profile as it was last written."""
        return await calls.find_member(member_id)

    @routes.delete(path, dependencies=server, status_code=204, summary="Erase a member")
    async def erase_member(member_id: PathId, request: Request) -> Response:
        """Deletes everything stored about the member: profile, devices, preferences, behaviours, inbox and history. Answers
        when it is done, and succeeds also if there is no such member. If the call is interrupted, a clock finishes it."""
        return await calls.erase_member(member_id, key_ending(request))


def _add_preference_routes(routes: APIRouter, auth: Authenticator, calls: MemberCalls) -> None:
    server, path = [Depends(auth.server)], _OF_MEMBER + "/preferences"

    @routes.put(
        path,
        dependencies=server,
        openapi_extra=described(Preferences, example=_SOME_PREFERENCES),
        responses=_OF_A_BODY,
        response_model_exclude_unset=True,
        summary="Set a member's preferences",
    )
    async def put_preferences(member_id: PathId, request: Request) -> PreferencesItem:
        """Replaces all of them: which types on which channels, and the quiet hours."""
        return await calls.put_preferences(member_id, request)

    @routes.get(
        path,
        dependencies=server,
        response_model_exclude_unset=True,
        summary="Show a member's preferences",
    )
    async def find_preferences(member_id: PathId) -> PreferencesItem:
        """The defaults for a member who has set none."""
        return await calls.find_preferences(member_id)


def _add_device_routes(routes: APIRouter, auth: Authenticator, calls: MemberCalls) -> None:
    server, path = [Depends(auth.server)], _OF_MEMBER + "/devices"

    @routes.put(
        path + "/{device_id}",
        dependencies=server,
        openapi_extra=described(Device, example=_A_DEVICE),
        responses=_OF_A_BODY,
        summary="Register a member's device",
    )
    async def put_device(member_id: PathId, device_id: PathId, request: Request) -> DeviceItem:
        """A token belongs to one device: another device that had it loses it. A device too many replaces the one
        that was registered longest ago."""
        return await calls.put_device(member_id, device_id, request)

    @routes.get(path, dependencies=server, summary="List a member's devices")
    async def find_devices(member_id: PathId) -> DeviceList:
        """Also those whose token has become invalid."""
        return await calls.find_devices(member_id)

    @routes.delete(path + "/{device_id}", dependencies=server, status_code=204, summary="Remove a member's device")
    async def remove_device(member_id: PathId, device_id: PathId) -> Response:
        """Succeeds also if there is no such device."""
        return await calls.remove_device(member_id, device_id)


def _add_own_routes(routes: APIRouter, auth: Authenticator, calls: MemberCalls) -> None:
    @routes.put(
        "/api/preferences",
        openapi_extra=described(Preferences, example=_SOME_PREFERENCES),
        responses=_OF_A_BODY | _OF_A_MEMBER,
        response_model_exclude_unset=True,
        summary="Set your preferences",
    )
    async def put_preferences(request: Request, member_id: str = Depends(auth.member)) -> PreferencesItem:
        """Replaces all of them: which types on which channels, and the quiet hours."""
        return await calls.put_preferences(member_id, request)

    @routes.get(
        "/api/preferences", responses=_OF_A_MEMBER, response_model_exclude_unset=True, summary="Show your preferences"
    )
    async def find_preferences(member_id: str = Depends(auth.member)) -> PreferencesItem:
        """The defaults if you have set none."""
        return await calls.find_preferences(member_id)

    @routes.put(
        "/api/devices/{device_id}",
        openapi_extra=described(Device, example=_A_DEVICE),
        responses=_OF_A_BODY | _OF_A_MEMBER,
        summary="Register your device",
    )
    async def put_device(device_id: PathId, request: Request, member_id: str = Depends(auth.member)) -> DeviceItem:
        """A token belongs to one device: another device that had it loses it. A device too many replaces the one
        that was registered longest ago."""
        return await calls.put_device(member_id, device_id, request)

    @routes.delete("/api/devices/{device_id}", responses=_OF_A_MEMBER, status_code=204, summary="Remove your device")
    async def remove_device(device_id: PathId, member_id: str = Depends(auth.member)) -> Response:
        """Succeeds also if there is no such device."""
        return await calls.remove_device(member_id, device_id)
