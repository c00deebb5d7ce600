"""Bongsu's terms as values. Frozen, no I/O."""

from bongsu.model.audience import Action, Audience, Everyone, Interested, Listed, Selected
from bongsu.model.base import DOTS, ID_LIMIT, NAME_LIMIT, Id, Name, Wire, Zone, has_plausible_date, utc_now
from bongsu.model.channels import Channel
from bongsu.model.counter import Delta
from bongsu.model.event import Event, EventStatus, new_id
from bongsu.model.member import (
    Behavior,
    Device,
    DeviceStatus,
    Member,
    Platform,
    Preferences,
    Product,
    QuietHours,
    TypePreference,
)
from bongsu.model.notice import Digest, Guarantee, Notice, NoticeType, Priority, Reason

__all__ = [
    "DOTS",
    "ID_LIMIT",
    "NAME_LIMIT",
    "Action",
    "Audience",
    "Behavior",
    "Channel",
    "Delta",
    "Device",
    "DeviceStatus",
    "Digest",
    "Event",
    "EventStatus",
    "Everyone",
    "Guarantee",
    "Id",
    "Interested",
    "Listed",
    "Member",
    "Name",
    "Notice",
    "NoticeType",
    "Platform",
    "Preferences",
    "Priority",
    "Product",
    "QuietHours",
    "Reason",
    "Selected",
    "TypePreference",
    "Wire",
    "Zone",
    "has_plausible_date",
    "new_id",
    "utc_now",
]
