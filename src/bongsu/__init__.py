"""Bongsu: an event goes in, the right people hear about it, once."""

from bongsu.ingress.transaction import Published, publish
from bongsu.model import Event

__all__ = ["Event", "Published", "publish"]
