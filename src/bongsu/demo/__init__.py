"""The demo: a small shop in which something happens every two seconds, so that a newcomer has inboxes to look at."""

from collections.abc import Sequence

from bongsu.demo.buttons import BUTTONS, PRESSED, with_buttons
from bongsu.demo.fill import Traffic, fill, refuse_other_members, with_daily_limit
from bongsu.demo.people import ABROAD, NAMES, STAR, people
from bongsu.demo.shop import NOTICES, PRODUCTS, Shop

__all__ = [
    "ABROAD",
    "BUTTONS",
    "NAMES",
    "NOTICES",
    "PRESSED",
    "PRODUCTS",
    "STAR",
    "Shop",
    "Traffic",
    "fill",
    "hints",
    "people",
    "refuse_other_members",
    "with_buttons",
    "with_daily_limit",
]


def hints(program: str, address: str, token: str) -> Sequence[tuple[str, str]]:
    """What to try first, as pairs of description and command. Without a token, the command obtains one."""
    bearer = token or f"$({program} token {STAR})"
    inbox = f'curl "{address}/api/notifications?limit=3" -H "Authorization: Bearer {bearer}"'
    return (
        ("The shop, with the bell: open it in two tabs", f"{address}/demo"),
        (f"The inbox of {STAR}, growing every few seconds", inbox),
        (f"What {STAR} got and did not get, and why", f"{program} why {STAR}"),
        ("A token to call with, for any member", f"{program} token {STAR}"),
    )
