"""The lease of claimed deliveries, and when abandoned ones are claimed."""

from __future__ import annotations

from bongsu.runtime.lease import Lease
from bongsu.runtime.loop import LAST_BACKOFF
from bongsu.settings import Settings
from bongsu.store.deliveries import ClaimContinuity

# After an outage of the store in which leases may have ended, abandoned deliveries are claimed only after this time: by then
# every live process has tried to record what it knows and to renew its leases. One that has just started knows nothing of
# outages, and waits as long.
GRACE_SECONDS = 2 * LAST_BACKOFF
# A claim is waited for no longer than this: one that the store begins later may have lost its sender.
CLAIM_SECONDS = 30.0


def lease_of(settings: Settings) -> Lease:
    """Longer than a send may take."""
    return Lease(settings.lease_seconds, busy_seconds=settings.send_timeout_seconds + settings.poll_seconds)


def continuity_of(settings: Settings) -> ClaimContinuity:
    """What decides whether abandoned deliveries are claimed.

    Leases are renewed after a third of their time: in a gap shorter than half of it none ends. Claims are a poll interval
    apart, which is shorter than that.
    """
    return ClaimContinuity(min(lease_of(settings).seconds / 2, settings.poll_seconds + CLAIM_SECONDS), GRACE_SECONDS)
