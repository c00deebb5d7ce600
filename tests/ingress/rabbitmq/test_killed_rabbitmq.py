"""kill -9 of consumers and of the broker: what was confirmed arrives once. And the whole way, as a user runs it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import pytest

from bongsu.chat.fanout import Fanout
from bongsu.chat.history import History
from bongsu.chat.rooms import Rooms
from bongsu.ingress.consumer import Consumer
from bongsu.ingress.intake import Intake
from bongsu.ingress.rabbitmq.connection import Broker
from bongsu.ingress.rabbitmq.envelope import decode_message
from bongsu.ingress.rabbitmq.queue import PREFETCH, QueueSource
from bongsu.ingress.rabbitmq.topology import AGGREGATES, NOTIFICATIONS, QUEUES
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.query import as_uuid, same
from tests.ingress.rabbitmq.killed_rabbit_consumer import consume_and_die, has_stored
from tests.simulator.running import Simulator
from tests.support.killed_processes import kill_at_random
from tests.support.long_runs import seeds
from tests.support.processes import KEY, bongsu, serving
from tests.support.rabbit_caller import calling, chat_event, event
from tests.support.rabbitmq import RabbitServer
from tests.support.waiting import eventually, until


async def stored_ids(store: Store) -> list[str]:
    async with store.read() as tx:
        return [str(as_uuid(row["event_id"])) for row in await tx.fetch(same("SELECT event_id FROM bongsu_events")())]


@pytest.mark.parametrize("seed", seeds(1))
async def test_killed_consumers_store_each_message_once_and_chat_in_order(
    rabbitmq_url: str, store: Store, settings: Settings, seed: int
) -> None:
    dice = random.Random(seed)
    settings = settings.model_copy(update={"rabbitmq_url": rabbitmq_url})
    room = (await Rooms(store, Fanout(LocalSignals())).create(None, "room", ["a"])).room_id
    events = [event(dice.choice(["post.liked", "comment.created"]), refId=str(number)) for number in range(150)]
    messages = [chat_event(room, "a", f"text {number}") for number in range(100)]
    published = sorted([*events, *messages], key=lambda _: dice.random())
    async with calling(rabbitmq_url) as caller:
        await caller.declare()
        await caller.publish(*published)

        def kill_some() -> None:
            for _ in kill_at_random(
                partial(consume_and_die, len(published)), settings, dice, processes=2, deaths=5, pause=(0.3, 1.0)
            ):
                pass

        await asyncio.to_thread(kill_some)
        for queue in QUEUES:
            assert await caller.read(queue.dead_letters) == []
    assert sorted(await stored_ids(store)) == sorted(one["eventId"] for one in events)
    history = await History(store).after("a", room, 0, 200)
    assert [message.message for message in history] == [one["payload"]["message"] for one in published if one in messages]


@pytest.mark.parametrize("seed", seeds(1))
async def test_what_the_broker_had_confirmed_before_it_was_killed_is_stored_once(
    rabbit_server: RabbitServer, store: Store, seed: int
) -> None:
    rabbitmq_url = rabbit_server.fresh_url()
    dice = random.Random(seed)
    events = [event(dice.choice(["post.liked", "comment.created"]), refId=str(number)) for number in range(400)]
    confirmed: list[str] = []
    is_half = asyncio.Event()

    async def publish_until_confirmed(one: dict[str, Any]) -> None:
        while True:
            with contextlib.suppress(Exception):
                async with calling(rabbitmq_url) as caller:
                    for later in events[len(confirmed) :]:
                        await caller.publish(later)
                        confirmed.append(later["eventId"])
                        if len(confirmed) == kill_after:
                            is_half.set()
                return
            await asyncio.sleep(0.05)

    kill_after = dice.randrange(50, 350)
    broker = Broker(rabbitmq_url)
    async with (
        running(Intake(store, LocalSignals(), "rabbitmq")) as intake,
        running(Consumer(QueueSource(broker, NOTIFICATIONS), decode_message, intake.accept_in_turn, limit=20)),
        running(Consumer(QueueSource(broker, AGGREGATES), decode_message, intake.accept_in_turn, limit=20)),
    ):
        async with calling(rabbitmq_url) as caller:
            await caller.declare()
        publishing = asyncio.create_task(publish_until_confirmed(events[0]))
        await is_half.wait()
        await asyncio.to_thread(rabbit_server.restart)
        await publishing

        await until(lambda: has_stored(store, len(events)))
        async with calling(rabbitmq_url) as caller:
            for queue in (NOTIFICATIONS, AGGREGATES):
                assert await caller.read(queue.dead_letters) == []
    await broker.close()
    assert sorted(await stored_ids(store)) == sorted(one["eventId"] for one in events)


async def test_of_a_long_backlog_a_consumer_holds_only_what_it_prefetches(rabbitmq_url: str, store: Store) -> None:
    count = 4 * PREFETCH
    async with calling(rabbitmq_url) as caller:
        await caller.declare()
        bodies = [json.dumps(event("x", refId=str(number))).encode() for number in range(count)]
        for start in range(0, count, 500):
            await asyncio.gather(*(caller.put(body, "", NOTIFICATIONS.name) for body in bodies[start : start + 500]))
        broker = Broker(rabbitmq_url)
        source = QueueSource(broker, NOTIFICATIONS)
        held: list[int] = []
        async with running(Intake(store, LocalSignals(), "rabbitmq")) as intake:

            async def accept(items: Any) -> list[bool]:
                held.append(len(items) + len(source._delivered))
                return await intake.accept_in_turn(items)

            async with running(Consumer(source, decode_message, accept)):
                await until(lambda: has_stored(store, count))
        await broker.close()
    assert len(await stored_ids(store)) == count
    assert max(held) <= PREFETCH


# --- as a user runs it ------------------------------------------------------------------------------------------------


async def publish(url: str, *bodies: Any, key: str | None = None) -> None:
    async with calling(url) as caller:
        await caller.declare()
        await caller.publish(*bodies, key=key)


def test_what_is_published_reaches_devices_and_rooms_and_poison_is_replayed(
    migrated: dict[str, str], settings: Settings, simulator: Simulator, rabbitmq_url: str
) -> None:
    environment = {
        **migrated,
        "BONGSU_FCM_URL": simulator.address,
        "BONGSU_FCM_PROJECT": "demo",
        "BONGSU_RABBITMQ_URL": rabbitmq_url,
        "BONGSU_DIGEST_SECONDS": "0",
    }
    with serving(environment) as served, served.client(**KEY) as client:
        device = {"token": "token-mina", "platform": "ANDROID", "pushConsent": True}
        assert client.put("/api/members/mina/devices/phone", json=device).status_code == 200
        room = client.post("/api/chat/rooms", json={"name": "room", "memberIds": ["mina", "jun"]}).json()["roomId"]
        liked = event("post.liked", actorId="jun", targetId="mina", refId="p1")
        asyncio.run(publish(rabbitmq_url, liked, liked, *(chat_event(room, "jun", str(number)) for number in range(20))))
        eventually(lambda: len(simulator.ledger(token="token-mina")["messages"]), 1)
        token = Keys.load(settings).member_token("mina", timedelta(hours=1))
        eventually(lambda: room_texts(client, room, token), [str(number) for number in range(20)])
        comments = [event("comment.created", actorId="jun", targetId="mina", refId="p1") for _ in range(3)]
        asyncio.run(publish(rabbitmq_url, *comments, comments[0]))
        eventually(lambda: client.get("/api/counters/comments/p1").json().get("value"), 3)

        poison = str(uuid4())
        asyncio.run(publish(rabbitmq_url, json.dumps({"eventId": poison, "eventType": "x", "no": 1}).encode(), key="x"))
        eventually(lambda: dead_events(client), [poison])
        (letter,) = client.get("/api/admin/dead", params={"source": "rabbitmq"}).json()["items"]
        assert (letter["queue"], letter["kind"], letter["state"]) == ("notification_queue", "message", "REJECTED")
        assert "no" in letter["error"]
        listed = bongsu("dead", "list", "--source", "rabbitmq", environment=environment)
        assert poison in listed.stdout and "notification_queue" in listed.stdout
        shown = bongsu("dead", "show", poison, "--source", "rabbitmq", environment=environment)
        assert '"no": 1' in shown.stdout and "notification_queue" in shown.stdout, shown.stderr
        details = client.get(f"/api/admin/dead/{letter['id']}", params={"source": "rabbitmq"}).json()
        assert {name: details[name] for name in letter} == letter
        assert json.loads(details["body"]) == {"eventId": poison, "eventType": "x", "no": 1}
        dry = bongsu("dead", "replay", "--source", "rabbitmq", "--dry-run", environment=environment)
        assert dry.stdout == "1 matched, 0 replayed\n", dry.stderr
        answer = client.post("/api/admin/dead/replay", json={"filter": {"source": "rabbitmq"}})
        assert answer.json() == {"matched": 1, "replayed": 1}
        eventually(lambda: dead_events(client), [poison])  # it is as wrong as before
        replayed = bongsu("dead", "replay", "--source", "rabbitmq", "--queue", "notification_dlq", environment=environment)
        assert replayed.stdout == "1 matched, 1 replayed\n", replayed.stderr
        eventually(lambda: dead_events(client), [poison])
        runs = client.get("/api/admin/jobs/replay").json()["runs"]
        assert [(run["requestedBy"].partition(":")[0], run["input"]["filter"], run["counts"]) for run in runs] == [
            ("cli", {"source": "rabbitmq", "queue": "notification_dlq"}, {"matched": 1, "replayed": 1}),
            ("key", {"source": "rabbitmq"}, {"matched": 1, "replayed": 1}),
        ]
        metrics = client.get("/metrics").text
        assert 'bongsu_source_up{source="notification_queue"} 1.0' in metrics
        assert 'bongsu_source_rejected_total{source="notification_queue"} 3.0' in metrics
        bad = client.get("/api/admin/dead", params={"source": "rabbitmq", "cursor": "WyJ4Il0"})
        assert bad.status_code == 422
        assert served.terminate() == 0


def room_texts(client: httpx.Client, room: str, token: str) -> list[str]:
    headers = {"Authorization": f"Bearer {token}"}
    items = httpx.get(f"{client.base_url}/api/chat/rooms/{room}/messages?afterSeq=0&limit=100", headers=headers).json()[
        "items"
    ]
    return [item["message"] for item in items]


def dead_events(client: httpx.Client) -> list[str]:
    return [item["eventId"] for item in client.get("/api/admin/dead", params={"source": "rabbitmq"}).json()["items"]]


async def test_a_service_starts_without_its_broker_and_heals(migrated: dict[str, str], rabbit_server: RabbitServer) -> None:
    rabbitmq_url = rabbit_server.fresh_url()
    environment = {**migrated, "BONGSU_RABBITMQ_URL": rabbitmq_url}
    rabbit_server.crash()
    try:
        with serving(environment) as served, served.client(**KEY) as client:
            away = await asyncio.to_thread(served.wait_for, "source is away")
            assert "guest" not in str(away)
            accepted = client.post("/api/events", json={"eventType": "x"})
            assert accepted.status_code == 202, "other work goes on"
            assert client.get("/readyz").status_code == 200
            found = bongsu("doctor", environment=environment)
            assert "RabbitMQ at 127.0.0.1" in found.stdout + found.stderr
            assert client.get("/api/admin/dead", params={"source": "rabbitmq"}).status_code == 503
            await asyncio.to_thread(rabbit_server.start)
            await asyncio.to_thread(served.wait_for, "source is back")
            one = event("post.liked", actorId="a", targetId="b", refId="1")
            await publish(rabbitmq_url, one)
            await asyncio.to_thread(eventually, lambda: status(client, one["eventId"]), 200)
            found = bongsu("doctor", environment=environment)
            assert "notification_queue answers: 0 waiting" in found.stdout
            assert served.terminate() == 0
            assert [line["event"] for line in served.lines].count("source is away") == 1
    finally:
        await asyncio.to_thread(rabbit_server.start)


def status(client: httpx.Client, event_id: str) -> int:
    return client.get(f"/api/admin/events/{event_id}").status_code


def test_a_login_that_is_refused_is_one_line_without_the_password(migrated: dict[str, str], rabbitmq_url: str) -> None:
    environment = {**migrated, "BONGSU_RABBITMQ_URL": rabbitmq_url.replace("guest:guest", "guest:a-secret")}
    with serving(environment) as served:
        line = served.wait_for("source is away")
        assert "Correct the user and password" in line["error"]
        assert served.terminate() == 0
        assert "a-secret" not in str(served.lines)
    found = bongsu("doctor", environment=environment)
    assert "Correct the user and password" in found.stdout
    assert "a-secret" not in found.stdout + found.stderr


def test_a_url_that_cannot_be_used_stops_the_start_with_one_line(migrated: dict[str, str]) -> None:
    refused = bongsu(
        "serve", "--port", "0", environment={**migrated, "BONGSU_RABBITMQ_URL": "amqp://u:a-secret@h/?heartbeat=x"}
    )
    assert refused.returncode != 0
    assert "BONGSU_RABBITMQ_URL cannot be used" in refused.stderr
    assert "a-secret" not in refused.stderr
