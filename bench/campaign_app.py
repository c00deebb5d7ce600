"""The user's app of bench/campaign: an event that notifies everybody, and is not critical."""

from __future__ import annotations

from bongsu import App, Channel, Event, Everyone, Notice

CAMPAIGN = "bench.campaign"

app = App()
# Every campaign reaches every member: without a dedup window.
_TYPE = app.type("BENCH_CAMPAIGN", channels=[Channel.PUSH, Channel.IN_APP], duplicate_hours=0)


@app.rule(CAMPAIGN)
def campaign(event: Event) -> Notice:
    """The title names the campaign: it is what the simulator counts by."""
    return Notice(_TYPE, Everyone(), title=event.ref_id, body="Everything must go.")
