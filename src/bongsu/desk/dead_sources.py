"""Which systems of this deployment hold dead letters."""

from __future__ import annotations

from collections.abc import Mapping

from bongsu.desk.dead_filter import System
from bongsu.desk.dead_letters import DeadLetterSource
from bongsu.desk.outbox_dead_letters import OutboxDeadLetters
from bongsu.desk.stored_dead_letters import StoreDeadLetters
from bongsu.ingress.rabbitmq import require_driver
from bongsu.runtime.signals import Signals
from bongsu.settings import Settings
from bongsu.store import Store


def dead_letter_sources(settings: Settings, store: Store, signals: Signals) -> Mapping[System, DeadLetterSource]:
    """The store and those that the settings name. Nothing is connected until it is used."""
    sources: dict[System, DeadLetterSource] = {System.STORE: StoreDeadLetters(store, signals)}
    if settings.rabbitmq_url:
        require_driver()
        from bongsu.desk.rabbitmq_dead_letters import RabbitDeadLetters  # noqa: PLC0415 (the driver is an extra)

        sources[System.RABBITMQ] = RabbitDeadLetters(settings)
    if settings.outboxes:
        sources[System.OUTBOX] = OutboxDeadLetters(settings.outboxes)
    return sources
