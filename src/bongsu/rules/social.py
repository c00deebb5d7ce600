"""Rules among members: one does something, another hears of it. Nobody is told of their own act."""

from __future__ import annotations

from collections.abc import Iterable

from bongsu.model import Channel, Event, Listed, Notice, NoticeType
from bongsu.rules import fields
from bongsu.rules.engine import Rules

social = Rules()
_CHANNELS = (Channel.IN_APP, Channel.PUSH)
FOLLOW = social.type("FOLLOW", channels=_CHANNELS)
POST_LIKE = social.type("POST_LIKE", channels=_CHANNELS)
POST_COMMENT = social.type("POST_COMMENT", channels=_CHANNELS)
VOTE_CLOSED = social.type("VOTE_CLOSED", channels=_CHANNELS)


@social.rule("follow.created")
def followed(event: Event) -> Iterable[Notice]:
    """Following, leaving and following again within the window is said once; another's follow is another matter."""
    return _tell_target(event, FOLLOW, event.actor_id)


@social.rule("post.liked")
def liked(event: Event) -> Iterable[Notice]:
    """A like taken back and given again is said once; the same post liked by another member is said again."""
    return _tell_target(event, POST_LIKE, event.ref_id, event.actor_id)


@social.rule("comment.created")
def commented(event: Event) -> Iterable[Notice]:
    """Each comment is one: the second by the same member says something else than the first."""
    return _tell_target(event, POST_COMMENT, event.ref_id, str(event.event_id))


@social.rule("comment.deleted")
def comment_deleted(_event: Event) -> None:
    """Counted, and told nobody."""


@social.rule("vote.closed")
def vote_closed(event: Event) -> Iterable[Notice]:
    told = fields.member_ids(event.payload, "memberIds") or ()
    return _tell(event, VOTE_CLOSED, told, event.ref_id)


def _tell_target(event: Event, kind: NoticeType, *about: str | None) -> Iterable[Notice]:
    return _tell(event, kind, (event.target_id,) if event.target_id else (), *about)


def _tell(event: Event, kind: NoticeType, told: tuple[str, ...], *about: str | None) -> Iterable[Notice]:
    others = tuple(member for member in told if member != event.actor_id)
    if not others:
        return ()
    actor_name = fields.text(event.payload, "actorName")
    given = {"actorId": event.actor_id, "actorName": actor_name}
    return [
        Notice(
            kind,
            Listed(others),
            subject=":".join(part for part in about if part),
            ref_id=event.ref_id,
            data={key: value for key, value in given.items() if value},
        )
    ]
