"""Deliver: claim due deliveries, send them on their channels, record the outcomes."""
