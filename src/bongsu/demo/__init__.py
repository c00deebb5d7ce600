"""The demo: a small shop in which something happens every two seconds, so that a newcomer has inboxes to look at."""

from collections.abc import Sequence
from ipaddress import ip_address

from bongsu.demo.buttons import BUTTONS, PRESSED, with_buttons
from bongsu.demo.fill import Traffic, fill, refuse_other_members, with_demo_limits
from bongsu.demo.people import ABROAD, NAMES, STAR, people
from bongsu.demo.shop import NOTICES, PRODUCTS, Shop
from bongsu.errors import DemoExposed

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
    "refuse_public_host",
    "with_buttons",
    "with_demo_limits",
]


def hints(program: str, address: str) -> Sequence[tuple[str, str]]:
    """What to try first, as pairs of description and command. The command obtains its token: it is not to stand in a log."""
    inbox = f'curl "{address}/api/notifications?limit=3" -H "Authorization: Bearer $({program} token {STAR})"'
    return (
        ("The shop, with the bell and a chat: open it in two tabs", f"{address}/demo"),
        (f"The inbox of {STAR}, growing every few seconds", inbox),
        (f"What {STAR} got and did not get, and why", f"{program} why {STAR}"),
        ("A token to call with, for any member", f"{program} token {STAR}"),
    )


def refuse_public_host(host: str) -> None:
    """Raise DemoExposed unless only this machine can reach that host."""
    try:
        is_loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name, which may mean any address
        is_loopback = False
    if not is_loopback:
        raise DemoExposed(f"--demo on {host or 'all addresses'} can be reached from other machines")
