"""The text of a digest after some of what it had gathered was cancelled, or one of its actors was erased."""

from __future__ import annotations

from dataclasses import replace

from bongsu.decide.messages import as_json, digest_data
from bongsu.errors import BadTemplate
from bongsu.model import Digest, Listed, Notice, NoticeType
from bongsu.render.templates import Templates
from bongsu.runtime import telemetry
from bongsu.store.decisions.digests import DigestText
from bongsu.store.desk.digest_remainders import Remainder, Rewrite

_log = telemetry.log("bongsu.cancel")


def rewrite_with(templates: Templates) -> Rewrite:
    """As deciding renders it, from the newest that is left. A product's name is not looked up again."""

    def rewrite(left: Remainder) -> DigestText | None:
        left = _without_erased(left)
        data = as_json(digest_data(left.data, left.size, left.actors))
        if not left.locale:  # its rule gave the text
            return DigestText(left.title, left.body, data)
        kind = NoticeType(left.type, (), digest=Digest())
        notice = Notice(kind, Listed(()), ref_id=left.ref_id, data=left.data)
        names = [actor.name for actor in left.actors]
        try:
            text = templates.phrase(notice, left.event, left.locale, gathered=(left.size, names))
        except BadTemplate as error:
            # The digest keeps its text: a template that was broken since must not keep an event from being cancelled.
            _log.error("digest keeps its text", type=left.type, error=error.detail)
            return None
        return DigestText(text.title, text.body, data)

    return rewrite


# Where a rule's data and an event's payload name the actor (docs/howto/digest.md).
_OF_ACTOR = ("actorId", "actorName")


def _without_erased(left: Remainder) -> Remainder:
    """Without the actor of the newest, if nothing is known of that member: erased since, or never named."""
    if left.actors and any(left.actors[0]):
        return left
    data = {name: value for name, value in left.data.items() if name not in _OF_ACTOR}
    payload = {name: value for name, value in left.event.payload.items() if name not in _OF_ACTOR}
    return replace(left, data=data, event=left.event.model_copy(update={"actor_id": None, "payload": payload}))
