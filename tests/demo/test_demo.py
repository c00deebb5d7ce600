"""The demo: a shop filled once, in which things happen that members hear of, and which keeps away from real people."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from bongsu import demo
from bongsu.decide.step import Decider
from bongsu.decide.worker import EventWorker
from bongsu.demo import NAMES, PRODUCTS, STAR, Shop, Traffic, fill, refuse_other_members, refuse_public_host
from bongsu.demo.chat import ROOMS
from bongsu.errors import BadKey, DemoExposed, NotForDemo
from bongsu.ingress.intake import Intake
from bongsu.model import Preferences, utc_now
from bongsu.render.templates import Templates
from bongsu.rules import catalogue
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import EVENTS_TOPIC
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.chat.rooms import find_rooms
from bongsu.store.members import find_preferences
from bongsu.web.shop.routes import VISITORS
from tests.support.decisions import Clock, add_members, notified_counts, rows, run_sql, set_preferences
from tests.support.processes import bongsu, serving
from tests.support.waiting import eventually

# Nobody does anything in the future.
PAST = utc_now() - timedelta(days=10)
KINDS = {
    "product.price_changed", "product.stock_changed", "post.liked", "comment.created", "follow.created",
    "reservation.confirmed", "notice.published",
}  # fmt: skip


# --- what happens -----------------------------------------------------------------------------------------------------


def story(seed: int, length: int = 60) -> list[tuple[Any, ...]]:
    shop = Shop(seed, Clock())
    happenings = [(happening.event, happening.summary) for happening in (shop.next() for _ in range(length))]
    return [(event.event_type, event.ref_id, event.target_id, event.payload, summary) for event, summary in happenings]


def test_the_same_seed_gives_the_same_events() -> None:
    assert story(1) == story(1)
    assert story(1) != story(2)


def test_everything_that_happens_is_of_use_to_somebody_and_all_kinds_do() -> None:
    shop, rules = Shop(1), catalogue(Settings())
    kinds = Counter[str]()
    for _ in range(300):
        happening = shop.next()
        assert rules.detect(happening.event), happening.summary
        kinds[happening.event.event_type] += 1
    assert set(kinds) == KINDS


def test_the_first_things_happen_to_the_member_whom_the_greeting_names() -> None:
    shop = Shop(3)
    first = [shop.next().event for _ in range(5)]
    assert [one.event_type for one in first[:3]] == ["product.price_changed", "comment.created", "product.stock_changed"]
    assert {one.target_id for one in first} == {None, STAR}


def test_a_product_is_news_again_after_an_hour_and_rarely_before() -> None:
    clock = Clock()
    shop = Shop(1, clock)

    def falls() -> Counter[str]:
        events = [shop.next().event for _ in range(400)]
        return Counter(str(one.ref_id) for one in events if one.event_type == "product.price_changed")

    first = falls()
    assert set(first) == set(PRODUCTS)
    assert len(PRODUCTS) < first.total() < 3 * len(PRODUCTS)
    clock.forward(hours=1, seconds=1)
    assert falls().total() >= len(PRODUCTS)


def test_the_people_are_of_many_kinds() -> None:
    people = list(demo.people())
    assert len(people) == 40
    assert Counter(one.member.locale for one in people) == {"ko": 26, "en": 14}
    assert len({one.member.timezone for one in people}) > 10
    for some in (
        [one for one in people if one.devices],
        [one for one in people if one.preferences.quiet_hours],
        [one for one in people if one.preferences.types],
        [one for one in people if one.member.phone],
    ):
        assert 3 < len(some) < 40


# --- the limit --------------------------------------------------------------------------------------------------------


def test_the_limits_are_wide_unless_the_user_has_set_them() -> None:
    raised = demo.with_demo_limits(Settings.load({}))
    assert (raised.daily_limit, raised.sse_max_connections) == (1_000, 12)
    raised = demo.with_demo_limits(Settings.load({"BONGSU_DAILY_LIMIT": "10"}))
    assert (raised.daily_limit, raised.sse_max_connections) == (10, 12)


# --- into the store ---------------------------------------------------------------------------------------------------


async def counted(store: Store) -> Sequence[int]:
    tables = ("members", "devices", "preferences", "products", "behaviors")
    (found,) = await rows(store, f"SELECT {', '.join(f'(SELECT count(*) FROM bongsu_{one})' for one in tables)}")
    return tuple(found)


async def newest_interest(store: Store) -> Any:
    return (await rows(store, "SELECT max(acted_at) AS newest FROM bongsu_behaviors"))[0]["newest"]


async def test_filled_twice_is_filled_once_and_interest_is_fresh(store: Store) -> None:
    assert await fill(store, PAST)
    before = await counted(store)
    assert before[0] == len(NAMES)
    assert min(before) > 3
    interest = await newest_interest(store)
    await set_preferences(store, STAR, enabled=False)
    assert not await fill(store, PAST + timedelta(days=1))
    async with store.read() as tx:
        assert await find_preferences(tx, STAR) == Preferences(enabled=False), "a newcomer's own change stays"
    after = await counted(store)
    assert (after[0], after[1], after[3], after[4]) == (before[0], before[1], before[3], before[4])
    assert await newest_interest(store) > interest


async def test_two_at_once_fill_it_once(store: Store) -> None:
    assert sorted(await asyncio.gather(fill(store), fill(store))) == [False, True]


async def test_the_traffic_leads_to_notifications(store: Store, settings: Settings) -> None:
    await fill(store)
    decided = asyncio.Event()
    signals = LocalSignals()
    decider = Decider(store, Templates.load(), settings)
    worker = EventWorker(store, catalogue(settings), settings, decider, lambda _decision: decided.set())
    async with running(signals), running(Intake(store, signals, "demo")) as intake:
        with signals.listen(EVENTS_TOPIC, lambda _data: worker.wake()):
            async with running(worker), running(Traffic(store, intake, Shop(1), pace_seconds=0.01)):
                # The first is about a product that she has looked at, and the next are about her.
                for _ in range(20):
                    await decided.wait()
                    decided.clear()
                    if (await notified_counts(store)).get(STAR, 0) >= 3:
                        break
    inboxes = await notified_counts(store)
    assert inboxes[STAR] >= 3
    assert len(inboxes) > 5
    assert set(inboxes) <= set(NAMES)
    assert await rows(store, "SELECT 1 FROM bongsu_events WHERE status = 'FAILED'") == []


async def test_chat_rooms_are_added_once_also_to_a_store_that_had_none(store: Store) -> None:
    await fill(store)
    await run_sql(store, *(f"DELETE FROM bongsu_chat_{table}" for table in ("messages", "members", "rooms")))
    for _ in range(2):
        assert not await fill(store)
        (counted,) = await rows(store, "SELECT count(*), sum(last_seq) FROM bongsu_chat_rooms")
        assert tuple(map(int, counted)) == (len(ROOMS), sum(len(room.messages) for room in ROOMS))
    async with store.read() as tx:
        unread = {room.name: room.unread for room in await find_rooms(tx, STAR)}
    assert sorted(unread.values()) == [4, 4, 7]


def test_any_two_visitors_share_a_room_and_senders_are_in_theirs() -> None:
    assert any(set(VISITORS) <= set(room.member_ids) for room in ROOMS)
    for room in ROOMS:
        assert {sender_id for sender_id, _ in room.messages} | set(room.read) <= set(room.member_ids) <= set(NAMES)


async def test_interest_is_kept_fresh_however_long_it_runs(store: Store) -> None:
    clock = Clock(PAST)
    await fill(store, clock())
    signals = LocalSignals()
    async with running(signals), running(Intake(store, signals, "demo")) as intake:
        traffic = Traffic(store, intake, Shop(1, clock), clock=clock)
        interest = await newest_interest(store)
        clock.forward(hours=1)
        await traffic.tick()
        assert await newest_interest(store) == interest
        clock.forward(days=3)
        await traffic.tick()
        assert await newest_interest(store) > interest


async def test_a_shared_database_with_strangers_is_refused(store: Store, settings: Settings) -> None:
    await refuse_other_members(store, settings)
    await fill(store)
    await refuse_other_members(store, settings)
    await add_members(store, "a-real-person")
    if settings.is_embedded:
        await refuse_other_members(store, settings)  # the newcomer's own file, and what they have tried out in it
        return
    with pytest.raises(NotForDemo, match="such as a-real-person.* an empty database"):
        await refuse_other_members(store, settings)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_the_demo_is_served_to_this_machine(host: str) -> None:
    refuse_public_host(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.7", "10.0.0.1", "shop.example", "127.0.0.1.example"])
def test_the_demo_is_not_served_to_other_machines(host: str) -> None:
    with pytest.raises(DemoExposed, match="add --demo-public"):
        refuse_public_host(host)


# --- as a newcomer runs it --------------------------------------------------------------------------------------------


def test_a_newcomer_sees_an_inbox_fill_by_what_the_greeting_says(migrated: dict[str, str]) -> None:
    with serving(migrated, "--demo") as served:
        assert served.process.stdout is not None
        greeting = iter(served.process.stdout.readline, "")
        curl = shlex.split(next(line for line in greeting if line.startswith("curl ")))
        name, _, value = curl[3].partition(": ")
        assert value == f"Bearer $(bongsu token {STAR})"
        value = "Bearer " + bongsu("token", STAR, environment=migrated).stdout.strip()
        with served.client(**{name: value}) as client:
            eventually(lambda: bool(client.get(curl[1]).json()["items"]), True)
            (item, *_) = client.get(curl[1]).json()["items"]
            assert item["title"]
        line = next(line for line in greeting if " why " in line)
        assert STAR in bongsu(*line.split()[1:], environment=migrated).stdout
        assert served.terminate() == 0
        served.wait_for("stopped")
    assert any(line["event"] == "demo event" and " falls from " in line["summary"] for line in served.lines)
    assert any(line["event"] == "demo raises a limit" and line["limit"] == 1_000 for line in served.lines)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "--demo on 0.0.0.0 can be reached from other machines"),
        (["--role", "api"], "--demo needs the roles api and gateway in one process"),
    ],
)
def test_a_demo_that_would_hand_out_tokens_wrongly_does_not_start(tmp_path: Path, arguments: list[str], says: str) -> None:
    environment = {"BONGSU_DATA_DIR": str(tmp_path / "data")}
    done = bongsu("serve", "--demo", "--port", "0", *arguments, environment=environment)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert says in line
    assert list(tmp_path.iterdir()) == []


def test_asked_for_the_demo_is_public_and_its_tokens_are_not_the_installations(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    environment = {"BONGSU_DATA_DIR": str(folder)}
    with serving(environment, "--demo", "--demo-public", "--host", "0.0.0.0") as served:
        address = served.address.replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(base_url=address, timeout=60) as client:
            token = client.post("/demo/visits", json={"memberId": STAR}).json()["token"]
            visitor = {"Authorization": f"Bearer {token}"}
            assert client.get("/api/notifications", headers=visitor).status_code == 200
    with pytest.raises(BadKey):
        asyncio.run(Keys.load(Settings(data_dir=folder)).member_of(token))
    (warning,) = [line for line in served.lines if line["event"] == "readable by other users"]
    assert warning["cure"] == f"chmod 700 {folder}"


def test_beside_real_people_only_the_embedded_store_is_served(migrated: dict[str, str]) -> None:
    behavior = '{"userId": "a-real-person", "productId": "sku-1", "action": "VIEW"}'
    assert bongsu("load", "behaviors", "--file", "-", environment=migrated, stdin=behavior).returncode == 0
    if not migrated["BONGSU_DATABASE_URL"]:
        with serving(migrated, "--demo") as served:
            assert served.terminate() == 0
        return
    done = bongsu("serve", "--demo", "--port", "0", environment=migrated)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert line.startswith("bongsu: ")
    assert "a-real-person" in line
    assert "an empty database" in line
