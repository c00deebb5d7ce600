"""Counters: calls that count, the flush that applies deltas, targets, and the pending sums in Redis."""
