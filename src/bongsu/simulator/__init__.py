"""An FCM simulator that fails on purpose and keeps a ledger of what it was sent."""

from bongsu.simulator.config import Config, Fault
from bongsu.simulator.server import serve

__all__ = ["Config", "Fault", "serve"]
