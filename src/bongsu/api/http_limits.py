"""The limits on what one HTTP connection sends, from the settings."""

from __future__ import annotations

from dataclasses import dataclass

from bongsu.settings import Settings

# A message from a WebSocket client: a chat message fits several times. With a larger BONGSU_CHAT_MAX_BYTES one fits in which
# every byte is escaped (\u0001), with ids around it.
FRAME_BYTES = 65_536
ESCAPED = 6


@dataclass(frozen=True)
class HttpLimits:
    """The defaults are those of the settings."""

    head_bytes: int = 32_768
    headers: int = 100
    request_seconds: float = 30
    keep_alive_seconds: float = 5
    connections_per_address: int = 1000
    # The largest message that a WebSocket takes.
    frame_bytes: int = FRAME_BYTES

    @classmethod
    def of(cls, settings: Settings) -> HttpLimits:
        return cls(
            settings.max_header_bytes,
            settings.max_headers,
            settings.request_timeout_seconds,
            settings.keep_alive_seconds,
            settings.max_connections_per_address,
            max(FRAME_BYTES, ESCAPED * settings.chat_max_bytes + FRAME_BYTES // 4),
        )
