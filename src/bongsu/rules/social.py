"""Rules for what members do to each other. Members are not notified of their own acts."""

from __future__ import annotations

from collections.abc import Iterable

from bongsu.model import Channel, Digest, Event, Listed, Notice, NoticeType
from bongsu.rules import fields
from bongsu.rules.engine import Rules

social = Rules()
_CHANNELS = (Channel.IN_APP, Channel.PUSH)
FOLLOW = social.type("FOLLOW", channels=_CHANNELS)
# Gathered by post: "A and 3 others liked your post".
POST_LIKE = social.type("POST_LIKE", channels=_CHANNELS, digest=Digest())
POST_COMMENT = social.type("POST_COMMENT", channels=_CHANNELS)
VOTE_CLOSED = social.type("VOTE_CLOSED", channels=_CHANNELS)


@social.rule("follow.created")
def followed(event: Event) -> Iterable[Notice]:
    """One notice per follower within the dedup window, also if they unfollow and follow again."""
    return _notify_target(event, FOLLOW, event.actor_id)


@social.rule("post.liked")
def liked(event: Event) -> Iterable[Notice]:
    """One notice per post and actor within the dedup window, also if a like is withdrawn and given again."""
    return _notify_target(event, POST_LIKE, event.ref_id, event.actor_id)


@social.rule("comment.created")
def commented(event: Event) -> Iterable[Notice]:
    """One notice per comment: a second comment of the same member is not a duplicate."""
    return _notify_target(event, POST_COMMENT, event.ref_id, str(event.event_id))


@social.rule("comment.deleted")
def comment_deleted(_event: Event) -> None:
    """No notification, and no dead letter either."""


@social.rule("vote.closed")
def vote_closed(event: Event) -> Iterable[Notice]:
    recipients = fields.member_ids(event.payload, "memberIds") or ()
    return _notify(event, VOTE_CLOSED, recipients, event.ref_id)


def _notify_target(event: Event, kind: NoticeType, *about: str | None) -> Iterable[Notice]:
    return _notify(event, kind, (event.target_id,) if event.target_id else (), *about)


def _notify(event: Event, kind: NoticeType, recipients: tuple[str, ...], *about: str | None) -> Iterable[Notice]:
    others = tuple(member for member in recipients if member != event.actor_id)
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
