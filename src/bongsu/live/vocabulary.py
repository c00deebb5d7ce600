"""The words of the messages told last, each made into bytes once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.live import frames
from bongsu.store import live as statements
from bongsu.store.decisions import Message
from bongsu.store.live import News, Standing, Words

# A message is told to all its readers within seconds; at about a kilobyte each these are nothing.
KEPT = 1_000


@dataclass(frozen=True)
class Phrase:
    end: bytes
    is_critical: bool


Known = Mapping[int, Phrase]


class Vocabulary:
    def __init__(self) -> None:
        self._kept: OrderedDict[int, Phrase] = OrderedDict()

    async def learn(self, connection: AsyncConnection, wanted: Set[int]) -> Known:
        """The phrases of these messages. Words that are gone from the store are left out, with all that was said in them."""
        found = {one: self._kept[one] for one in wanted if one in self._kept}
        missing = [one for one in wanted if one not in found]
        if missing:
            words = await statements.find_words(connection, missing)
            found |= {one: Phrase(frames.tail(said), said.is_critical) for one, said in words.items()}
        self._keep(found)
        return found

    def know(self, messages: Iterable[Message]) -> None:
        """Just written: they need not be read."""
        words = (Words(m.message_id, m.type, m.title, m.body, m.ref_id, m.data, m.is_critical) for m in messages)
        self._keep({said.message_id: Phrase(frames.tail(said), said.is_critical) for said in words})

    def _keep(self, phrases: Known) -> None:
        for message_id, phrase in phrases.items():
            self._kept[message_id] = phrase
            self._kept.move_to_end(message_id)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)


def as_frames(news: Iterable[News], words: Known, standing: Standing | None) -> list[tuple[int, bytes]]:
    """What is told of these, with their ids. Who wants nothing gets only what is critical."""
    told = []
    for one in news:
        phrase = words.get(one.message_id)
        if phrase is not None and (standing is None or standing.is_enabled or phrase.is_critical):
            rest = frames.rest(one.created_at, phrase.end)
            told.append((one.notification_id, frames.notification(one.notification_id, rest)))
    return told
