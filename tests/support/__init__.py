"""Helpers of the tests: servers, processes, and rows in any state."""
