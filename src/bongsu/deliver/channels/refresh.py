"""Keeps a process informed of the channels that the apps of other processes declare."""

from __future__ import annotations

from bongsu.runtime.loop import Loop
from bongsu.store import Store
from bongsu.store.members.channels import load_channels

# A process that was started before a channel was declared knows it after this time.
REFRESH_SECONDS = 10.0


class ChannelRefresh(Loop):
    """Loads the declared channels from the store, again and again."""

    def __init__(self, store: Store) -> None:
        super().__init__("channels", REFRESH_SECONDS)
        self._store = store

    async def tick(self) -> int:
        await load_channels(self._store)
        return 0
