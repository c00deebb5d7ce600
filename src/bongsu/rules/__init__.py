"""Rules: pure functions from an Event to its effects: the Notices to be sent, and the Deltas to be counted."""

from bongsu.rules.booking import booking
from bongsu.rules.chat import chat
from bongsu.rules.commerce import commerce
from bongsu.rules.counting import counting
from bongsu.rules.direct import CRITICAL_DIRECT, DIRECT, direct
from bongsu.rules.engine import App, Effect, Effects, Rule, Rules
from bongsu.rules.loading import load_app
from bongsu.rules.recommend import recommend
from bongsu.rules.social import social
from bongsu.settings import Settings

__all__ = ["CRITICAL_DIRECT", "DIRECT", "App", "Effect", "Effects", "Rule", "Rules", "catalogue", "load_app"]


def catalogue(settings: Settings, app: Rules | None = None) -> Rules:
    """All rules: the built-in ones and those of the user's app."""
    known = Rules(commerce(settings), social, booking, recommend, counting, chat, app or Rules())
    return Rules(known, direct(known.types))
