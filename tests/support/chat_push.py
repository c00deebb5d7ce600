"""Pushes about chat for tests: each part of the way is run when the test says so, and what the provider got is kept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from bongsu.chat.push import ChatPush
from bongsu.decide.step import Decider
from bongsu.decide.worker import EventWorker
from bongsu.model.outcome import Outgoing
from bongsu.render.templates import Templates
from bongsu.rules import catalogue
from bongsu.settings import Settings
from tests.support.chat import Chat
from tests.support.decisions import run_worker
from tests.support.rows import add_device, add_member, set_columns
from tests.support.senders import dispatch_due


class Present:
    """A presence that the test sets. None: it is not known."""

    def __init__(self) -> None:
        self.connected: set[str] | None = set()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def online(self, member_ids: Sequence[str]) -> set[str] | None:
        return None if self.connected is None else self.connected & set(member_ids)


class Pushing:
    """The way of a push, step by step, without its waits."""

    def __init__(self, chat: Chat, settings: Settings) -> None:
        self.chat = chat
        self.store = chat.store
        self.settings = settings.model_copy(update={"chat_push_seconds": 0.0})
        self.presence = Present()
        self.push = self.another()

    def another(self) -> ChatPush:
        return ChatPush(self.store, self.chat.signals, self.presence, self.settings)

    async def add_members(self, *member_ids: str, locale: str = "en") -> None:
        """Members who can be pushed to."""
        async with self.store.transaction() as tx:
            for member_id in member_ids:
                await add_member(tx, member_id, locale=locale)
                await add_device(tx, member_id)

    async def look(self) -> None:
        """At all rooms that are marked, once, whatever they wait for."""
        await set_columns(self.store, "chat_rooms", "push_due IS NOT NULL", push_due=timedelta(seconds=-1))
        while await self.push.tick():
            pass

    async def decide(self) -> None:
        decider = Decider(self.store, Templates.load(), self.settings)
        await run_worker(EventWorker(self.store, catalogue(self.settings), self.settings, decider))

    async def deliver(self, *, ends_quiet_hours: bool = True) -> list[Outgoing]:
        """What a new process sends of what is due; whatever it waits for is over."""
        if ends_quiet_hours:
            await set_columns(self.store, "deliveries", {"status": "READY"}, due=timedelta(seconds=-1))
            await set_columns(self.store, "digests", ends_at=timedelta(seconds=-1))
        return await dispatch_due(self.store, self.settings)

    async def pushed(self) -> dict[str, str]:
        """Look, decide and deliver; what each member was pushed. Nobody is pushed twice."""
        await self.look()
        await self.decide()
        sent = await self.deliver()
        bodies = {outgoing.member_id: outgoing.body for outgoing in sent}
        assert len(bodies) == len(sent)
        return bodies


async def room_of(pushing: Pushing, *member_ids: str, name: str = "trip") -> UUID:
    """A room of members who can be pushed to."""
    await pushing.add_members(*member_ids)
    return await pushing.chat.room(*member_ids, name=name)
