"""The relay: brings events from the outbox tables of other services' databases into the store."""

from bongsu.ingress.relay.databases import open_outbox, open_relay
from bongsu.ingress.relay.outbox import OutboxDatabase, RejectedFilter, RejectedRow
from bongsu.ingress.relay.source import Relay

__all__ = ["OutboxDatabase", "RejectedFilter", "RejectedRow", "Relay", "open_outbox", "open_relay"]
