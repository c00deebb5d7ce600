"""Detect: rules, plain functions from an Event to the Notices it gives rise to."""

from bongsu.rules.engine import Rule, Rules

__all__ = ["Rule", "Rules"]
