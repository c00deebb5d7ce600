"""A small crowd with overlapping events, and what must hold for it whatever crashes and concurrent workers do."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable

from bongsu.model import Action, Audience, Channel, Event, Everyone, Interested, Listed, Notice, NoticeType, Selected
from bongsu.rules import Rules
from bongsu.store import Store
from tests.support.decisions import NOON, add_behaviors, add_members, rows, set_preferences, unread_is_exact

CROWD = [f"m{number:02}" for number in range(40)]
PRODUCTS = ["p1", "p2"]
DAILY_LIMIT = 10
# One moment for a whole test, whatever process it is in: its events are all of one day.
QUIET_DAY = NOON

PLAIN = NoticeType("PLAIN", (Channel.PUSH, Channel.IN_APP))
ALARM = NoticeType("ALARM", (Channel.PUSH, Channel.IN_APP), is_critical=True)
PUSHED = NoticeType("PUSHED", (Channel.PUSH,), duplicate_hours=0)
TYPES = {one.name: one for one in (PLAIN, ALARM, PUSHED)}

rules = Rules()


@rules.rule("crowd")
def notices_of(event: Event) -> Iterable[Notice]:
    for number, (kind, audience) in enumerate(event.payload["notices"]):
        subject = f"{event.ref_id}-{number}" if kind != "PUSHED" else ""
        yield Notice(TYPES[kind], _audience(audience), subject, title="t", body="b")


def _audience(described: list[str]) -> Audience:
    match described:
        case ["all"]:
            return Everyone()
        case ["product", product_id]:
            return Interested(product_id, frozenset({Action.VIEW}), 7)
        case ["select", below]:
            return Selected("SELECT member_id FROM bongsu_members WHERE member_id < :below", {"below": below})
        case [_, *member_ids]:
            return Listed(tuple(member_ids))
    raise AssertionError(described)


def random_event(dice: random.Random) -> Event:
    def described() -> list[str]:
        return dice.choice(
            [
                ["all"],
                ["product", dice.choice(PRODUCTS)],
                ["select", dice.choice(CROWD)],
                ["ids", *dice.sample(CROWD, dice.randint(1, 12))],
                ["ids", *dice.sample(CROWD, dice.randint(1, 3))],
            ]
        )

    notices = [(dice.choice(["PLAIN", "PLAIN", "ALARM", "PUSHED"]), described()) for _ in range(dice.randint(1, 2))]
    return Event(event_type="crowd", ref_id=str(dice.randrange(8)), payload={"notices": notices})


async def add_crowd(store: Store) -> None:
    """Half of them have a device, one has opted out of everything, one of PLAIN."""
    await add_members(store, *CROWD[::2], device=True)
    await add_members(store, *CROWD)
    await set_preferences(store, CROWD[0], enabled=False)
    await set_preferences(store, CROWD[1], types={"PLAIN": {"enabled": False}})
    for place, product_id in enumerate(PRODUCTS):
        await add_behaviors(store, product_id, *CROWD[place::3], at=QUIET_DAY)


def expected_decisions(events: Iterable[Event]) -> Counter[tuple[str, int, str]]:
    """Every recipient of each notice, once."""
    counted: Counter[tuple[str, int, str]] = Counter()
    for event in events:
        for number, (_, described) in enumerate(event.payload["notices"]):
            match described:
                case ["all"]:
                    recipients = CROWD
                case ["product", product_id]:
                    recipients = CROWD[PRODUCTS.index(product_id) :: 3]
                case ["select", below]:
                    recipients = [one for one in CROWD if one < below]
                case _:
                    recipients = described[1:]
            counted.update((str(event.event_id), number, one) for one in recipients)
    return counted


async def check_decisions(store: Store, events: Iterable[Event]) -> None:
    """No recipient is lost or decided twice, no limit is exceeded, and every count is exact."""
    found = await rows(
        store,
        """SELECT m.event_id, m.notice_index, m.type, m.subject, f.member_id, f.fate FROM (
               SELECT message_id, member_id, 'NOTIFIED' AS fate FROM bongsu_notifications
               UNION ALL SELECT message_id, member_id, reason FROM bongsu_suppressions) AS f
           JOIN bongsu_messages m USING (message_id)""",
    )
    assert Counter((str(row[0]), row[1], row[4]) for row in found) == expected_decisions(events)
    plain: Counter[str] = Counter()
    by_subject: Counter[tuple[str, str, str]] = Counter()
    reasons: defaultdict[str, set[str]] = defaultdict(set)
    for _, _, kind, subject, member_id, fate in found:
        reasons[fate].add(kind)
        if fate == "NOTIFIED":
            plain[member_id] += kind != "ALARM"
            if kind != "PUSHED":
                by_subject[member_id, kind, subject] += 1
    assert max(plain.values()) <= DAILY_LIMIT
    assert max(by_subject.values()) == 1, "a duplicate got through"
    assert plain[CROWD[0]] == 0
    assert "ALARM" not in reasons["RATE_LIMITED"] | reasons["USER_OPTED_OUT"] | reasons["NO_ADDRESS"]
    counted = await rows(store, "SELECT member_id, capped_count FROM bongsu_members WHERE capped_count > 0")
    assert {row[0]: row[1] for row in counted} == {one: count for one, count in plain.items() if count}
    assert await unread_is_exact(store)
    assert await rows(store, "SELECT event_id FROM bongsu_audience_snapshots") == [], "a snapshot was left over"
    pushed = await rows(
        store,
        """SELECT (SELECT count(*) FROM bongsu_deliveries) AS deliveries,
                  (SELECT count(*) FROM bongsu_notifications n JOIN bongsu_devices USING (member_id)) AS expected,
                  (SELECT count(DISTINCT (notification_id)) FROM bongsu_deliveries) AS notifications""",
    )
    assert len(set(pushed[0])) == 1, "each notification of a member with a device has one delivery"
