"""Deciding: events become notifications, deliveries and suppressions, in bounded steps."""
