"""Which sender speaks on which channel: the user's own, the configured one, or one that only pretends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bongsu import telemetry
from bongsu.channels.email import Email
from bongsu.channels.guarded import Guarded
from bongsu.channels.in_app import InApp
from bongsu.channels.outcome import Sender
from bongsu.channels.push import Push
from bongsu.channels.simulated import Simulated
from bongsu.channels.sms import Sms
from bongsu.model import Channel
from bongsu.settings import Settings

_log = telemetry.log("bongsu.channels")


@dataclass(frozen=True)
class _Way:
    """What has to be set for a channel to be real, and what speaks on it then."""

    build: Callable[[Settings], Sender]
    is_set: Callable[[Settings], bool]
    cure: str


_WAYS = {
    Channel.PUSH: _Way(Push, Push.is_configured, "BONGSU_FCM_CREDENTIALS"),
    Channel.SMS: _Way(lambda settings: Guarded(Sms(settings)), lambda settings: bool(settings.sms_url), "BONGSU_SMS_URL"),
    Channel.EMAIL: _Way(
        lambda settings: Guarded(Email(settings)), lambda settings: bool(settings.smtp_url), "BONGSU_SMTP_URL"
    ),
    Channel.IN_APP: _Way(lambda _settings: InApp(), lambda _settings: True, ""),
}


def senders(settings: Settings, extra: Mapping[Channel, Sender] | None = None) -> dict[Channel, Sender]:
    """A sender for every channel. Those given win; what is not configured is simulated, and says so."""
    return {channel: _sender(channel, settings, extra or {}) for channel in Channel}


def is_simulated(sender: Sender) -> bool:
    return isinstance(sender, Simulated)


def _sender(channel: Channel, settings: Settings, extra: Mapping[Channel, Sender]) -> Sender:
    if channel in extra:
        return Guarded(extra[channel])
    way = _WAYS[channel]
    if way.is_set(settings):
        return way.build(settings)
    _log.info("channel is simulated: nothing leaves the house on it", channel=channel.value, set=way.cure)
    return Simulated(channel)
