"""Every topic that signals are sent on."""

from __future__ import annotations

from uuid import UUID

# Events were stored. Event workers listen.
EVENTS_TOPIC = "events"
# Deliveries were written or became due. The data names their channels, comma separated; without data it is all channels.
# Dispatchers listen.
DELIVERIES_TOPIC = "deliveries"
# An event was cancelled that has more rows than its request has changed. Cancel workers listen.
CANCELLATIONS_TOPIC = "cancellations"
# Names messages with many recipients, by id; or between which members something was changed for many. Every gateway listens.
MESSAGES_TOPIC = "live:messages"
# A connection has to be closed in favour of a newer one of its member: {"memberId", "connectionId"}. Every gateway listens.
DISCONNECT_TOPIC = "sse:notification:disconnect"


def member_topic(member_id: str) -> str:
    """News for one member, also that they have joined a chat room. Gateways with an open stream of the member listen."""
    return f"live:member:{member_id}"


def room_topic(room_id: UUID) -> str:
    """What happens in a chat room. Gateways with a reader of the room listen."""
    return f"chat:room:{room_id}"
