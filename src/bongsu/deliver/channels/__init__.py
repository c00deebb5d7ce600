"""Channels: one sender each. registry.py lists them."""
