"""Smaller limits for a share of the store's connections."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bongsu.store import Share
from bongsu.store.core.shares import SHARES


def limit(monkeypatch: pytest.MonkeyPatch, share: Share, **limits: float) -> None:
    monkeypatch.setitem(SHARES, share, replace(SHARES[share], **limits))  # type: ignore[arg-type]
