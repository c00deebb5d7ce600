"""What Bongsu declares in RabbitMQ: the exchange that callers publish to, four work queues with a dead-letter queue each,
and what is routed where.

A topic exchange cannot route "everything but". So all messages also go through `bongsu.filter`, which drops those of chat
and hands the others to its alternate exchange, and that one to `notification_queue`. A queue of another program that is
bound to `domain_events` changes nothing in it. See docs/decisions/0028-rabbitmq.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from aiormq.abc import AbstractChannel

EXCHANGE = "domain_events"
# Between it and notification_queue: which messages are for rules.
_FILTER, _FOR_RULES, _DROPPED = "bongsu.filter", "bongsu.for_rules", "bongsu.dropped"
_CHAT = "chat.#"

# name → type, arguments
EXCHANGES: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        EXCHANGE: ("topic", {}),
        _FOR_RULES: ("fanout", {}),
        _DROPPED: ("fanout", {}),
        _FILTER: ("topic", {"alternate-exchange": _FOR_RULES}),
    }
)


class _Binding(NamedTuple):
    """From one exchange to another."""

    to: str
    source: str
    pattern: str


_EXCHANGE_BINDINGS = (_Binding(_FILTER, EXCHANGE, "#"), _Binding(_DROPPED, _FILTER, _CHAT))

# After so many deliveries without an answer, each ended by a crash, a message goes to the dead-letter queue. What cannot be
# stored is rejected at once, so only what kills the process counts; and each kill counts for all that were prefetched.
DELIVERY_LIMIT = 20
# For dead letters: looking at one returns it, which counts as a delivery. RabbitMQ 4 has a limit of 20 where none is given,
# and then drops the message.
NO_DELIVERY_LIMIT = 2_000_000_000


@dataclass(frozen=True)
class WorkQueue:
    name: str
    dead_letters: str
    # Exchange and pattern.
    bindings: Sequence[tuple[str, str]]
    # One process consumes at a time, in the order of publishing; another takes over when it ends.
    is_ordered: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "x-queue-type": "quorum",
            "x-delivery-limit": DELIVERY_LIMIT,
            # The default exchange, which routes by the name of the queue.
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.dead_letters,
            # A rejected message leaves the queue when the dead-letter queue has confirmed it. Needs the overflow.
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
        if self.is_ordered:
            arguments["x-single-active-consumer"] = True
        return arguments

    @property
    def dead_letter_arguments(self) -> dict[str, Any]:
        return {"x-queue-type": "quorum", "x-delivery-limit": NO_DELIVERY_LIMIT}


NOTIFICATIONS = WorkQueue("notification_queue", "notification_dlq", ((_FOR_RULES, ""),))
AGGREGATES = WorkQueue("aggregate_queue", "aggregate_dlq", ((EXCHANGE, "comment.created"), (EXCHANGE, "comment.deleted")))
CHAT_PERSIST = WorkQueue("chat_persist_queue", "chat_persist_dlq", ((EXCHANGE, _CHAT),), is_ordered=True)
CHAT_FANOUT = WorkQueue("chat_fanout_queue", "chat_fanout_dlq", ((EXCHANGE, _CHAT),))
QUEUES = (NOTIFICATIONS, AGGREGATES, CHAT_PERSIST, CHAT_FANOUT)


async def declare(channel: AbstractChannel, queue: WorkQueue) -> None:
    """Declare the queue with all that leads to it. What is there already stays as it is; what is there with other arguments
    closes the channel with PRECONDITION_FAILED."""
    for name, (kind, arguments) in EXCHANGES.items():
        await channel.exchange_declare(
            name, exchange_type=kind, durable=True, internal=name != EXCHANGE, arguments=dict(arguments)
        )
    for binding in _EXCHANGE_BINDINGS:
        await channel.exchange_bind(destination=binding.to, source=binding.source, routing_key=binding.pattern)
    await channel.queue_declare(queue.dead_letters, durable=True, arguments=queue.dead_letter_arguments)
    await channel.queue_declare(queue.name, durable=True, arguments=queue.arguments)
    for exchange, pattern in queue.bindings:
        await channel.queue_bind(queue.name, exchange, routing_key=pattern)
