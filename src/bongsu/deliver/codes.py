"""Codes of deliveries that were not sent: what each means, and what an operator can do about it."""

from __future__ import annotations

from dataclasses import dataclass

_AGAIN = "Nothing need be done: the recovery job gives it further rounds. Replay it to have it go now."
_MAY_HAVE_ARRIVED = "It may have arrived. Ask the member or look with the provider; replay it if a second one does no harm."
_ADDRESS = "A replay goes nowhere until the member has registered again."
_OURS = "Correct the setting that the detail names (`bongsu doctor` looks at them), then replay."
_NOT_NEEDED = "Nothing to do: there is nothing left to push, and what comes next is pushed again."
_CONTENT = "As it stands it will never go: correct the text or data at its source and send a new one."


@dataclass(frozen=True)
class Meaning:
    means: str
    cure: str


_BUSY = Meaning("the provider was out of order or too busy", _AGAIN)
_DOUBT = Meaning("it was sent and the answer was lost", _MAY_HAVE_ARRIVED)
_CREDENTIALS = Meaning("the provider does not accept our credentials", _OURS)

MEANINGS = {
    "ABANDONED": Meaning("its lease ended without an outcome", _MAY_HAVE_ARRIVED),
    "POISONED": Meaning("every process that claimed it has crashed", "Find the crash in the log, fix it, then replay."),
    "EXPIRED": Meaning("it expired before it could be sent", "It is of no use to the member any more: leave it."),
    "NO_ADDRESS": Meaning("the device or address was missing, invalid or without consent when its turn came", _ADDRESS),
    "READ": Meaning("the member read it before the push was sent", _NOT_NEEDED),
    "DELETED": Meaning("it was deleted before the push was sent", _NOT_NEEDED),
    "MUTED": Meaning("the member muted the chat room before the push was sent", "The member wants no pushes of this room."),
    "LEFT_ROOM": Meaning("the member was no longer in the chat room when the push was due", "The member has left the room."),
    "UNREGISTERED": Meaning("the app was removed from the device, or its token was replaced", _ADDRESS),
    "SENDER_ID_MISMATCH": Meaning("the token belongs to another Firebase project", _ADDRESS),
    "ADDRESS_INVALID": Meaning("the provider does not take it for an address", _ADDRESS),
    "NO_TOKEN": Meaning("the device has no token", _ADDRESS),
    "INVALID_ARGUMENT": Meaning("FCM takes the message or the token for malformed", _CONTENT),
    "PAYLOAD_TOO_LARGE": Meaning("text and data are larger than the provider takes", _CONTENT),
    "UNENCODABLE": Meaning("text or data cannot be written as JSON", _CONTENT),
    "BAD_COLLAPSE_ID": Meaning("its collapse id is not valid", "This is a fault in Bongsu: report it."),
    "NO_TEXT": Meaning("the message has no text", _CONTENT),
    "QUOTA_EXCEEDED": Meaning("the provider's quota was used up", _AGAIN),
    "QUOTA_SHARED": Meaning("all our processes together used up the provider's quota", _AGAIN),
    "QUOTA_UNKNOWN": Meaning("the store did not answer what is left of the provider's quota", _AGAIN),
    "NO_TURN": Meaning("connections or quota were short: its turn did not come in time", _AGAIN),
    "NO_THREAD": Meaning("all threads were busy: it was not sent", _AGAIN),
    "QUARTER_HOUR": Meaning("priority LOW waits while FCM is busiest, around the quarter hours", _AGAIN),
    "UNAVAILABLE": _BUSY,
    "INTERNAL": _BUSY,
    "PROVIDER_BUSY": _BUSY,
    "CIRCUIT_OPEN": _BUSY,
    "UNREACHABLE": Meaning("the provider could not be reached", _AGAIN),
    "CONNECT": Meaning("the provider could not be reached", _AGAIN),
    "OAUTH_UNAVAILABLE": Meaning("Google gave out no access token", _AGAIN),
    "OAUTH_REFUSED": Meaning("Google refuses the service account", _OURS),
    "UNAUTHENTICATED": _CREDENTIALS,
    "PERMISSION_DENIED": _CREDENTIALS,
    "THIRD_PARTY_AUTH_ERROR": Meaning("the APNs or web-push key in the Firebase project is wrong", _OURS),
    "NOT_FOUND": Meaning("there is no such Firebase project", _OURS),
    "TLS_CERTIFICATE": Meaning("the server's certificate is not trusted", _OURS),
    "SMTP_NOT_OFFERED": Meaning("the mail server does not offer what the settings ask for", _OURS),
    "APPRISE_URL": Meaning("BONGSU_SMS_URL is not a URL that Apprise understands", _OURS),
    "TIMEOUT": _DOUBT,
    "CONNECTION_LOST": _DOUBT,
    "BAD_ANSWER": Meaning("the provider's answer could not be read", _MAY_HAVE_ARRIVED),
    "APPRISE": Meaning("Apprise did not report what became of it", _MAY_HAVE_ARRIVED),
    "CRASHED": Meaning("the channel's own code crashed", "Find the traceback in the log, fix it, then replay."),
}
# Codes that carry the provider's own number.
_FAMILIES = (
    ("SMTP_4", Meaning("the mail server put it off", _AGAIN)),
    ("SMTP_", Meaning("the mail server refused it", "The detail has its answer: act on it, then replay.")),
    ("TWILIO_", Meaning("Twilio refused it", "See Twilio's error page for that number, correct the cause, then replay.")),
    ("HTTP_5", _BUSY),
    ("HTTP_", Meaning("the gateway refused it", "The detail has its answer: act on it, then replay.")),
)
_UNKNOWN = Meaning("the channel's own code", "The detail has what the channel returned: act on it, then replay.")


def meaning(code: str) -> Meaning:
    if code in MEANINGS:
        return MEANINGS[code]
    return next((found for beginning, found in _FAMILIES if code.startswith(beginning)), _UNKNOWN)


def in_words(code: str) -> str:
    """The code and what it means, if it is one of ours to know."""
    found = meaning(code)
    return code if found is _UNKNOWN else f"{code}: {found.means}"
