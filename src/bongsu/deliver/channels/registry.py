"""The sender of each channel: the user's own, the configured one, or a simulated one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from bongsu.deliver.channels.callback import CallbackSender, GuardedSender
from bongsu.deliver.channels.checks import check_email, check_push, check_sms
from bongsu.deliver.channels.email.sender import Email
from bongsu.deliver.channels.push.sender import Push
from bongsu.deliver.channels.simulated import Simulated
from bongsu.deliver.channels.sms.sender import Sms
from bongsu.model import Channel
from bongsu.model.channels import ChannelSpec, find_channel
from bongsu.model.outcome import Sender
from bongsu.runtime import telemetry
from bongsu.settings import Settings
from bongsu.store import Store

_log = telemetry.log("bongsu.deliver")


@dataclass(frozen=True)
class _Builder:
    """How a built-in channel's sender is built, whether its settings are there, and how they are checked."""

    build: Callable[[Settings, Store | None], CallbackSender]
    is_configured: Callable[[Settings], bool]
    check: Callable[[Settings], Awaitable[str]]


def _guarded(sender: Sms | Email) -> CallbackSender:
    return GuardedSender(sender, semaphore=sender.semaphore)


_BUILDERS: dict[str, _Builder] = {
    Channel.PUSH: _Builder(lambda settings, store: Push(settings, store=store), Push.is_configured, check_push),
    Channel.SMS: _Builder(
        lambda settings, _store: _guarded(Sms(settings)), lambda settings: bool(settings.sms_url), check_sms
    ),
    Channel.EMAIL: _Builder(
        lambda settings, _store: _guarded(Email(settings)), lambda settings: bool(settings.smtp_url), check_email
    ),
}


def senders(
    settings: Settings, own: Mapping[str, Sender] | None = None, store: Store | None = None
) -> dict[str, CallbackSender]:
    """The senders of this process. The user's own win; a built-in channel that is not configured is simulated, and logs so.

    A channel of an app that this process was not started with has no sender here: its deliveries wait for one that was.
    Processes on one store share a provider's quota.
    """
    channels = dict.fromkeys([*_BUILDERS, *(own or {})])
    return {channel: _sender(channel, settings, own or {}, store) for channel in channels}


async def check_channel(spec: ChannelSpec, settings: Settings) -> str:
    """What `bongsu doctor` reports of a built-in channel; raises what is wrong with it."""
    builder = _BUILDERS[spec.name]
    if not builder.is_configured(settings):
        return f"not configured: {spec.label} is simulated, nothing is sent"
    return await builder.check(settings)


def is_simulated(sender: CallbackSender) -> bool:
    return isinstance(sender, GuardedSender) and isinstance(sender.sender, Simulated)


def _sender(channel: str, settings: Settings, own: Mapping[str, Sender], store: Store | None) -> CallbackSender:
    if channel in own:
        return GuardedSender(own[channel])
    builder = _BUILDERS[channel]
    if builder.is_configured(settings):
        return builder.build(settings, store)
    _log.info("channel simulated, nothing is sent", channel=channel, setting=find_channel(channel).setting)
    return GuardedSender(Simulated(channel))
