"""Rules: pure functions from an Event to the Notices to be sent."""

from bongsu.rules.booking import booking
from bongsu.rules.chat import chat
from bongsu.rules.commerce import commerce
from bongsu.rules.direct import CRITICAL_DIRECT, DIRECT, direct
from bongsu.rules.engine import App, Rule, Rules
from bongsu.rules.loading import load_app
from bongsu.rules.recommend import recommend
from bongsu.rules.social import social
from bongsu.settings import Settings

__all__ = ["CRITICAL_DIRECT", "DIRECT", "App", "Rule", "Rules", "catalogue", "load_app"]


def catalogue(settings: Settings, app: Rules | None = None) -> Rules:
    """All rules: the built-in ones and those of the user's app."""
    known = Rules(commerce(settings), social, booking, recommend, chat, app or Rules())
    return Rules(known, direct(known.types))
