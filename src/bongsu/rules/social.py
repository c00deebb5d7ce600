"""Rules for what members do to each other. Members are not notified of their own acts."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from bongsu.model import Channel, Delta, Digest, Event, Listed, Notice, NoticeType
from bongsu.model.counter import COMMENTS
from bongsu.rules import fields
from bongsu.rules.engine import Effect, Rules

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
def commented(event: Event) -> Iterable[Effect]:
    """One notice per comment: a second comment of the same member is not a duplicate. And the comment is counted."""
    return [
        *_notify_target(event, POST_COMMENT, event.ref_id, str(event.event_id)),
        *_count_comment(event, 1, _created_by(event.event_id)),
    ]


@social.rule("comment.deleted")
def comment_deleted(event: Event) -> Iterable[Effect]:
    """No notification. The comment it names is not counted any more."""
    created = fields.text(event.payload, "createdEventId")
    if created is None:
        return _count_comment(event, -1)
    try:
        event_id = UUID(created)
    except ValueError:
        raise ValueError(f"payload.createdEventId must be the id of an event, not {created!r:.100}") from None
    return _count_comment(event, -1, _created_by(event_id))


def _created_by(event_id: UUID) -> str:
    return f"event:{event_id}"


def _count_comment(event: Event, delta: int, *names: str) -> Iterable[Delta]:
    """A comment is counted once, by the event that created it and by its own id. Without a name, or a post, it is not."""
    comment_id = event.payload.get("commentId")
    if comment_id is not None:
        if not isinstance(comment_id, str | int) or isinstance(comment_id, bool) or comment_id == "":
            raise ValueError(f"payload.commentId must be a text or a whole number, not {comment_id!r:.100}")
        names = (*names, f"comment:{comment_id}")
    if event.ref_id is None or not names:
        return ()
    return (Delta(COMMENTS, event.ref_id, delta, item=names),)


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
