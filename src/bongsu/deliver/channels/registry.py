"""Which sender speaks on which channel: the user's own, the configured one, or one that only pretends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bongsu import telemetry
from bongsu.deliver.channels.email import Email
from bongsu.deliver.channels.in_app import InApp
from bongsu.deliver.channels.limits.guard import Guarded
from bongsu.deliver.channels.push import Push
from bongsu.deliver.channels.simulated import Simulated
from bongsu.deliver.channels.sms import Sms
from bongsu.model import Channel
from bongsu.outcome import Sender
from bongsu.settings import Settings
from bongsu.store import Store

_log = telemetry.log("bongsu.deliver")


@dataclass(frozen=True)
class _Way:
    """What has to be set for a channel to be real, and what speaks on it then."""

    build: Callable[[Settings, Store | None], Sender]
    is_set: Callable[[Settings], bool]
    cure: str


_WAYS = {
    Channel.PUSH: _Way(lambda settings, store: Push(settings, store=store), Push.is_configured, "BONGSU_FCM_CREDENTIALS"),
    Channel.SMS: _Way(
        lambda settings, _store: Guarded(Sms(settings)), lambda settings: bool(settings.sms_url), "BONGSU_SMS_URL"
    ),
    Channel.EMAIL: _Way(
        lambda settings, _store: Guarded(Email(settings)), lambda settings: bool(settings.smtp_url), "BONGSU_SMTP_URL"
    ),
    Channel.IN_APP: _Way(lambda _settings, _store: InApp(), lambda _settings: True, ""),
}


def senders(
    settings: Settings, extra: Mapping[Channel, Sender] | None = None, store: Store | None = None
) -> dict[Channel, Sender]:
    """A sender for every channel. Those given win; what is not configured is simulated, and says so.

    Processes that are given the same store keep a provider's quota together.
    """
    return {channel: _sender(channel, settings, extra or {}, store) for channel in Channel}


def is_simulated(sender: Sender) -> bool:
    return isinstance(sender, Simulated)


def _sender(channel: Channel, settings: Settings, extra: Mapping[Channel, Sender], store: Store | None) -> Sender:
    if channel in extra:
        return Guarded(extra[channel])
    way = _WAYS[channel]
    if way.is_set(settings):
        return way.build(settings, store)
    _log.info("channel is simulated: nothing leaves the house on it", channel=channel.value, set=way.cure)
    return Simulated(channel)
