"""Speak: one small file per channel, one verb, and an outcome as the answer."""
