"""When the lease of a loop's claims is renewed."""

from __future__ import annotations

import time

from bongsu.runtime.lease import Lease


def test_it_is_renewed_after_a_third_of_it_and_again_after_another() -> None:
    lease = Lease(60)
    began = time.monotonic()
    lease.renewed(began)
    assert not lease.is_renewal_due(began + 19.9)
    assert lease.is_renewal_due(began + 20)
    lease.renewed(began + 25)
    assert not lease.is_renewal_due(began + 44.9)
    assert lease.is_renewal_due(began + 45)


def test_it_is_never_shorter_than_twice_what_a_claim_may_be_worked_on() -> None:
    assert [Lease(60).seconds, Lease(60, 16).seconds, Lease(60, 40).seconds] == [60, 60, 80]
