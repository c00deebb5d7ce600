"""RabbitMQ as a Source: what is routed where, what is stored, what is set aside, and what happens when a part is away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import AMQPError
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic
from structlog.testing import capture_logs

from bongsu.chat.fanout import Fanout
from bongsu.chat.intake import ChatAnnouncer, ChatIntake, decode_chat_message
from bongsu.desk.dead_filter import DeadFilter, System
from bongsu.desk.dead_letters import DeadLetters, MessageCursor, RejectedMessage
from bongsu.desk.rabbitmq_dead_letters import RabbitDeadLetters
from bongsu.errors import BadSettings, NoSuchDeadLetter, SourceAway, SourceDiffers, SourceLoginRefused, StoreUnreachable
from bongsu.ingress.consumer import Accept, Consumer
from bongsu.ingress.decode import Decode, Rejected
from bongsu.ingress.intake import Intake
from bongsu.ingress.rabbitmq import topology
from bongsu.ingress.rabbitmq.connection import Broker
from bongsu.ingress.rabbitmq.envelope import decode_message, peek, with_event_id
from bongsu.ingress.rabbitmq.queue import QueueSource
from bongsu.ingress.rabbitmq.topology import AGGREGATES, CHAT_FANOUT, CHAT_PERSIST, NOTIFICATIONS, WorkQueue
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.query import as_uuid, same
from tests.support.chat import Chat, chatting
from tests.support.debian import find_or_install
from tests.support.forwarder import Forwarder
from tests.support.rabbit_caller import Caller, calling, chat_event, event, publish_with_aio_pika
from tests.support.rabbitmq import SHORT_LENGTH, RabbitServer
from tests.support.waiting import until
from tests.test_howto import blocks


@pytest.fixture
async def caller(rabbitmq_url: str) -> AsyncIterator[Caller]:
    async with calling(rabbitmq_url) as caller:
        await caller.declare()
        yield caller


class Recorder:
    """Accepts what it is given, or fails as it is told to."""

    def __init__(self, *failures: Exception | None) -> None:
        self.accepted: list[dict[str, Any]] = []
        self.failures = list(failures)
        self.got = asyncio.Event()

    async def accept(self, items: Sequence[dict[str, Any]]) -> list[bool | Rejected]:
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        self.accepted += items
        self.got.set()
        return [True] * len(items)

    def refs(self) -> list[str]:
        return [item["refId"] for item in self.accepted]

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.accepted) < count:
                self.got.clear()
                await self.got.wait()


class Counted:
    """Counts what another accepts."""

    def __init__(self, accept: Accept[Any]) -> None:
        self._accept = accept
        self.count = 0

    async def accept(self, items: Sequence[Any]) -> Sequence[bool | Rejected]:
        answers = await self._accept(items)
        self.count += len(items)
        return answers

    async def until(self, count: int) -> None:
        async def is_reached() -> bool:
            return self.count >= count

        await until(is_reached)


def decode_strictly(data: bytes) -> dict[str, Any] | Rejected:
    decoded = decode_message(data)
    return decoded if isinstance(decoded, Rejected) else json.loads(data)


@contextlib.asynccontextmanager
async def consuming(
    url: str, queue: WorkQueue, accept: Accept[Any], decode: Decode[Any] = decode_strictly, **options: Any
) -> AsyncIterator[Consumer[Any]]:
    """As a worker consumes it."""
    broker = Broker(url)
    try:
        async with running(Consumer(QueueSource(broker, queue, **options), decode, accept)) as consumer:
            yield consumer
    finally:
        await broker.close()


async def stored_events(store: Store) -> list[tuple[str, str]]:
    async with store.read() as tx:
        rows = await tx.fetch(same("SELECT event_id, event_type FROM bongsu_events ORDER BY event_type, event_id")())
    return [(str(as_uuid(row["event_id"])), row["event_type"]) for row in rows]


# --- what is routed where ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "queues"),
    [
        ("post.liked", {NOTIFICATIONS}),
        ("a.type.of.the.callers.own", {NOTIFICATIONS}),
        ("comment.created", {NOTIFICATIONS, AGGREGATES}),
        ("comment.deleted", {NOTIFICATIONS, AGGREGATES}),
        ("chat.message_sent", {CHAT_PERSIST, CHAT_FANOUT}),
    ],
)
async def test_a_message_is_routed_to_the_queues_it_is_for(caller: Caller, key: str, queues: set[WorkQueue]) -> None:
    await caller.publish({"eventType": key})
    for queue in topology.QUEUES:
        assert await caller.depth(queue.name) == (queue in queues), queue.name


async def test_a_queue_of_somebody_else_on_the_exchange_takes_nothing_away(caller: Caller) -> None:
    await caller.channel.queue_declare("somebody-else", exclusive=True)
    await caller.channel.queue_bind("somebody-else", topology.EXCHANGE, "#")
    await caller.publish(event("post.liked"))
    assert len(await caller.read(NOTIFICATIONS.name)) == 1


async def test_a_caller_that_declares_the_exchange_as_the_page_shows_agrees_with_us(
    rabbitmq_url: str, caller: Caller
) -> None:
    await publish_with_aio_pika(rabbitmq_url, event("post.liked"))
    assert len(await caller.read(NOTIFICATIONS.name)) == 1


async def test_the_publishers_that_the_page_shows_reach_the_queue(rabbitmq_url: str, caller: Caller, tmp_path: Path) -> None:
    shown = blocks("rabbitmq.md")
    find_or_install("amqp-publish", "amqp-tools", lambda: shutil.which("amqp-publish"))
    for name, interpreter in (("publish.py", sys.executable), ("publish.sh", "/bin/sh")):
        (tmp_path / name).write_text(shown[name])
        environment = {**os.environ, "BONGSU_RABBITMQ_URL": rabbitmq_url.rstrip("/")}
        done = await asyncio.create_subprocess_exec(interpreter, tmp_path / name, env=environment)
        assert await done.wait() == 0

    async def are_both_there() -> bool:
        return await caller.depth(NOTIFICATIONS.name) == 2

    await until(are_both_there)
    for message in await caller.read(NOTIFICATIONS.name):
        assert not isinstance(decode_message(message.body), Rejected)


# --- consuming --------------------------------------------------------------------------------------------------------


async def test_poison_is_set_aside_by_the_broker_and_the_others_stand(rabbitmq_url: str, caller: Caller) -> None:
    recorder = Recorder()
    poison = (
        b"{", b"", b"[]", b"\xff\xfe", b'{"eventType":"x","unknown":1}', b'{"eventType":1}',
        b'{"eventType":"x","payload":[]}', b'{"eventType":"x","eventId":"no uuid"}',
    )  # fmt: skip
    await caller.publish(event("x", refId="a"))
    await caller.publish(*poison, key="x")
    await caller.publish(event("x", refId="b"))
    with capture_logs() as lines:
        async with consuming(rabbitmq_url, NOTIFICATIONS, recorder.accept):
            await recorder.until(2)
            await caller.until(NOTIFICATIONS.dead_letters, len(poison))
    dead = await caller.read(NOTIFICATIONS.dead_letters)
    assert [message.body for message in dead] == list(poison)
    headers = dead[0].header.properties.headers
    assert headers is not None
    assert headers["x-first-death-reason"] == "rejected"
    assert await caller.read(NOTIFICATIONS.name) == []
    assert recorder.refs() == ["a", "b"]
    assert sum(line["count"] for line in lines if line["event"] == "messages rejected") == len(poison)


class RawProperties(Basic.Properties):
    """Persistent, with a header, a message_id and a timestamp, whose bytes are given as they are."""

    raw: tuple[bytes, bytes, bytes] = (b"n", b"id", bytes(8))

    def marshal(self) -> bytes:
        name, message_id, time = self.raw
        table = bytes([len(name)]) + name + b"T" + time
        flags = 1 << 13 | 1 << 12 | 1 << 7 | 1 << 6
        return struct.pack(">HI", flags, len(table)) + table + b"\x02" + bytes([len(message_id)]) + message_id + time


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param((b"n", b"id", struct.pack(">Q", 1_772_323_200_000_000)), id="microseconds"),
        pytest.param((b"n", b"id", b"\xff" * 8), id="the last moment"),
        pytest.param((b"n", b"\xff\xfe", bytes(8)), id="an id that is not UTF-8"),
        pytest.param((b"\xff\xfe", b"id", bytes(8)), id="a header that is not UTF-8"),
        pytest.param((b"\xff" * 100, b"\xff" * 255, b"\xff" * 8), id="all of it"),
    ],
)
async def test_properties_that_cannot_be_read_harm_no_message(
    rabbitmq_url: str, caller: Caller, dead_letters: DeadLetters, raw: tuple[bytes, bytes, bytes]
) -> None:
    recorder = Recorder()
    properties = RawProperties()
    properties.raw = raw
    for body in (event("x", refId="known by its eventId"), {"eventType": "x", "nothing": "identifies it"}):
        data = json.dumps(body).encode()
        await caller.channel.basic_publish(data, exchange=topology.EXCHANGE, routing_key="x", properties=properties)
    await caller.publish(event("x", refId="after"))
    with capture_logs() as lines:
        async with consuming(rabbitmq_url, NOTIFICATIONS, recorder.accept):
            await recorder.until(2)
            await caller.until(NOTIFICATIONS.dead_letters, 1)
    assert recorder.refs() == ["known by its eventId", "after"]
    assert not [line for line in lines if "away" in line["event"]]
    (letter,) = (await dead_letters.list(of_rabbitmq(), None, 10)).rows
    assert "nothing" in str(letter.error)
    assert (await dead_letters.replay(of_rabbitmq(), "cli:tester")).matched == 1


async def test_while_the_store_is_away_nothing_is_rejected_or_delivered_again(rabbitmq_url: str, caller: Caller) -> None:
    recorder = Recorder(*[StoreUnreachable("gone")] * 3)
    await caller.publish(*(event("x", refId=str(number)) for number in range(5)))
    batches: list[Any] = []

    async def accept(items: Sequence[Any]) -> Sequence[bool | Rejected]:
        batches.append(items)
        return await recorder.accept(items)

    async with consuming(rabbitmq_url, NOTIFICATIONS, accept):
        await recorder.until(5)
    assert recorder.refs() == [str(number) for number in range(5)]
    assert batches[0] == batches[3][: len(batches[0])], "the broker was not asked again"
    assert await caller.read(NOTIFICATIONS.dead_letters) == []


async def test_while_the_store_is_away_channels_that_end_use_up_one_delivery(
    rabbitmq_url: str, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the broker's consumer_timeout ends them: every half hour, as long as the store is away."""
    monkeypatch.setattr("bongsu.ingress.consumer.LAST_BACKOFF", 0.01)
    recorder = Recorder(*[StoreUnreachable("gone")] * (topology.DELIVERY_LIMIT + 5))
    await caller.publish(event("x", refId="1"))
    async with Forwarder(rabbitmq_url) as forwarder:

        async def accept(items: Sequence[Any]) -> Sequence[bool | Rejected]:
            if recorder.failures:
                await forwarder.cut()
                await forwarder.mend()
            return await recorder.accept(items)

        async with consuming(forwarder.url, NOTIFICATIONS, accept):
            # Once what the first channel had delivered, which cannot be acknowledged any more, and once what the next has.
            await recorder.until(2)
    assert recorder.refs() == ["1", "1"]
    assert await caller.read(NOTIFICATIONS.dead_letters) == []


async def test_two_consumers_share_a_queue_and_take_each_message_once(rabbitmq_url: str, caller: Caller) -> None:
    first, second = Recorder(), Recorder()
    async with (
        consuming(rabbitmq_url, NOTIFICATIONS, first.accept, prefetch=5),
        consuming(rabbitmq_url, NOTIFICATIONS, second.accept, prefetch=5),
    ):
        await caller.publish(*(event("x", refId=str(number)) for number in range(200)))
        await until(lambda: len(first.accepted) + len(second.accepted) >= 200)
    assert sorted(first.refs() + second.refs(), key=int) == [str(number) for number in range(200)]
    assert first.accepted and second.accepted


async def test_an_ordered_queue_has_one_consumer_and_another_takes_over_in_order(rabbitmq_url: str, caller: Caller) -> None:
    first, second = Recorder(), Recorder()
    chat = [chat_event(uuid4(), "a", str(number)) for number in range(40)]
    async with contextlib.AsyncExitStack() as later:
        async with consuming(rabbitmq_url, CHAT_PERSIST, first.accept, json.loads):
            await caller.publish(*chat[:20])
            await first.until(20)
            await later.enter_async_context(consuming(rabbitmq_url, CHAT_PERSIST, second.accept, json.loads))
            await caller.publish(*chat[20:30])
            await first.until(30)
            assert second.accepted == []
        await caller.publish(*chat[30:])
        await second.until(10)
    assert first.accepted + second.accepted == chat


async def test_after_a_crash_of_the_broker_the_consumer_goes_on_and_says_so_once(rabbit_server: RabbitServer) -> None:
    rabbitmq_url = rabbit_server.fresh_url()
    recorder, after = Recorder(), event("x", refId="after")
    with capture_logs() as lines:
        async with contextlib.AsyncExitStack() as stack:
            broker = Broker(rabbitmq_url)
            stack.push_async_callback(broker.close)
            consumers = [
                Consumer(QueueSource(broker, queue), decode_strictly, recorder.accept)
                for queue in (NOTIFICATIONS, AGGREGATES)
            ]
            for consumer in consumers:
                await stack.enter_async_context(running(consumer))
            async with calling(rabbitmq_url) as caller:
                await caller.declare()
                await caller.publish(event("x", refId="before"))
                await recorder.until(1)
            rabbit_server.crash()
            await until(lambda: any(line["event"] == "source is away" for line in lines))
            await asyncio.to_thread(rabbit_server.start)
            # A queue that has no leader yet refuses it.
            await until(lambda: is_confirmed(rabbitmq_url, after))
            await until(lambda: "after" in recorder.refs())
    # Where the broker crashed before it had the acknowledgement, it delivers the first again.
    assert list(dict.fromkeys(recorder.refs())) == ["before", "after"]
    said = [line["event"] for line in lines if line["event"].endswith(("is away", "is back"))]
    # While its queues have no leaders the broker may refuse a consumer once more.
    assert said[::2] == ["source is away"] * (len(said) // 2) and said[1::2] == ["source is back"] * (len(said) // 2)


async def is_confirmed(url: str, message: dict[str, Any]) -> bool:
    with contextlib.suppress(AMQPError, OSError):
        async with calling(url) as caller:
            await caller.publish(message)
            return True
    return False


async def test_a_message_that_ends_the_process_each_time_reaches_its_limit(rabbitmq_url: str, caller: Caller) -> None:
    await caller.publish(event("x", refId="killer"))
    for _ in range(topology.DELIVERY_LIMIT + 1):
        channel = await caller.channel.connection.channel()
        delivered = await channel.basic_get(NOTIFICATIONS.name)
        assert delivered.body
        await channel.close()
    await caller.until(NOTIFICATIONS.dead_letters, 1)
    letters = await RabbitDeadLetters(Settings(rabbitmq_url=rabbitmq_url)).list(of_rabbitmq(), None, 10)
    (letter,) = letters.rows
    assert isinstance(letter, RejectedMessage)
    assert letter.error is not None and "delivery limit" in letter.error


async def test_a_deleted_queue_is_declared_again(rabbitmq_url: str, caller: Caller) -> None:
    recorder = Recorder()
    async with consuming(rabbitmq_url, NOTIFICATIONS, recorder.accept):
        await caller.publish(event("x", refId="1"))
        await recorder.until(1)
        await caller.channel.queue_delete(NOTIFICATIONS.name)

        async def is_there() -> bool:
            channel = await caller.channel.connection.channel()
            with contextlib.suppress(Exception):
                await channel.queue_declare(NOTIFICATIONS.name, passive=True)
                await channel.close()
                return True
            return False

        await until(is_there)
        await caller.put(event("x", refId="2"), "", NOTIFICATIONS.name)
        await recorder.until(2)


# --- what is wrong is said with its cure ------------------------------------------------------------------------------


async def test_a_queue_with_other_arguments_is_named_and_the_others_go_on(rabbitmq_url: str) -> None:
    async with calling(rabbitmq_url) as caller:
        await caller.channel.queue_declare(NOTIFICATIONS.name, durable=True)
        recorder = Recorder()
        with capture_logs() as lines:
            async with (
                consuming(rabbitmq_url, NOTIFICATIONS, recorder.accept),
                consuming(rabbitmq_url, AGGREGATES, recorder.accept),
            ):
                await caller.channel.exchange_declare(topology.EXCHANGE, exchange_type="topic", durable=True)

                async def is_bound() -> bool:
                    await caller.publish(event("comment.created", refId="p"))
                    return bool(recorder.accepted)

                await until(is_bound)
                await until(lambda: any(line["event"] == "source is away" for line in lines))
        (line,) = [line for line in lines if line["event"] == "source is away"]
        assert line["source"] == NOTIFICATIONS.name
        assert "inequivalent arg" in line["error"] and "rabbitmqctl delete_queue" in line["error"]
        await caller.channel.queue_delete(NOTIFICATIONS.name)


async def test_a_refused_login_names_the_cure_and_not_the_password(rabbitmq_url: str) -> None:
    url = (
        urlsplit(rabbitmq_url)._replace(netloc=f"guest:a-secret@{urlsplit(rabbitmq_url).netloc.rpartition('@')[2]}").geturl()
    )
    broker = Broker(url)
    with capture_logs() as lines, pytest.raises(SourceLoginRefused) as refused:
        await broker.channel()
    assert "Correct the user and password" in str(refused.value)
    assert "a-secret" not in f"{refused.value}{lines}"
    assert [line["event"] for line in lines] == ["source is away"]


async def test_an_unknown_virtual_host_is_named(rabbitmq_url: str) -> None:
    with pytest.raises(SourceLoginRefused, match="no such virtual host"):
        await Broker(urlsplit(rabbitmq_url)._replace(path="/nowhere").geturl()).channel()


async def test_a_broker_that_is_away_is_one_clear_line() -> None:
    with pytest.raises(SourceAway, match=r"127\.0\.0\.1:1/"):
        await Broker("amqp://guest:guest@127.0.0.1:1/").channel()


@pytest.mark.parametrize("url", ["amqp://", "amqp://u:a-secret@h:port/", "amqp://u:a-secret@h/?heartbeat=often"])
def test_a_url_that_cannot_be_used_is_refused_before_anything_is_connected(url: str) -> None:
    with pytest.raises(BadSettings, match="BONGSU_RABBITMQ_URL") as refused:
        Broker(url)
    assert "a-secret" not in str(refused.value)


async def test_an_exchange_of_another_kind_is_named(rabbitmq_url: str) -> None:
    async with calling(rabbitmq_url) as caller:
        await caller.channel.exchange_declare(topology.EXCHANGE, exchange_type="fanout", durable=True)
        broker = Broker(rabbitmq_url)
        with pytest.raises(SourceDiffers, match=topology.EXCHANGE):
            await QueueSource(broker, NOTIFICATIONS).check()
        await broker.close()


# --- the envelope -----------------------------------------------------------------------------------------------------


_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        1,
        "x",
        "\ud800",
        [],
        {"message": "m", "clientMessageId": "c"},
        "6a1f0a0e-8d3c-4c53-9d5b-0d7b0c5a1e11",
        "chat.message_sent",
    ]
)
_NAMES = st.sampled_from(["eventId", "eventType", "refId", "actorId", "payload", "message", "unknown"])
json_values = st.dictionaries(_NAMES, _VALUES)


def json_bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def test_an_event_without_an_id_takes_that_of_its_message() -> None:
    named = uuid4()
    for message_id in (str(named), named.hex):
        assert peek(with_event_id(b'{"eventType":"x"}', message_id)) == (str(named), "x")
    assert json.loads(with_event_id(b' {"eventType":"x"}', "order-1")) == json.loads(
        with_event_id(b'{"eventType":"x"}', "order-1")
    )
    assert with_event_id(b"{}", "m") != with_event_id(b"{}", "n")
    for unchanged in (b"[]", b"", b'{"eventId":null}'):
        assert with_event_id(unchanged, "m") == unchanged
    assert with_event_id(b"{}", "a byte that is not UTF-8: \ufffd") == b"{}"


def test_a_message_that_nothing_identifies_is_refused() -> None:
    refused = decode_message(b'{"eventType":"x","payload":{"eventId":"of something else"}}')
    assert isinstance(refused, Rejected)
    assert "message_id" in refused.reason
    assert not isinstance(decode_message(json.dumps(event("x")).encode()), Rejected)


@given(st.one_of(st.binary(max_size=60), st.builds(json_bytes, json_values)))
def test_no_bytes_make_decoding_fail(data: bytes) -> None:
    for decode in (decode_message, decode_chat_message):
        decode(data)
    peek(with_event_id(data, "m"))


@pytest.mark.parametrize(
    "change",
    [
        {"refId": "no room"}, {"refId": None}, {"actorId": None}, {"eventType": "chat.typing"}, {"payload": {}},
        {"payload": {"message": 1, "clientMessageId": "c"}}, {"payload": {"message": "m", "clientMessageId": "c" * 256}},
        {"payload": {"message": "m", "clientMessageId": ""}},
    ],
)  # fmt: skip
def test_a_chat_message_that_lacks_something_is_refused(change: dict[str, Any]) -> None:
    good = chat_event(uuid4(), "a", "hello")
    assert not isinstance(decode_chat_message(json.dumps(good).encode()), Rejected)
    assert isinstance(decode_chat_message(json.dumps({**good, **change}).encode()), Rejected)


# --- into the store ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def intake(store: Store) -> AsyncIterator[Intake]:
    async with running(Intake(store, LocalSignals(), "rabbitmq")) as intake:
        yield intake


async def test_an_event_that_comes_through_two_queues_is_stored_once(
    rabbitmq_url: str, caller: Caller, store: Store, intake: Intake
) -> None:
    comment = event("comment.created", refId="p1")
    without_id = {"eventType": "comment.deleted", "refId": "p1"}
    await caller.publish(comment)
    await caller.publish(comment)
    message_id = str(uuid4())
    await caller.publish(without_id, message_id=message_id)
    counted = Counted(intake.accept_in_turn)
    async with (
        consuming(rabbitmq_url, NOTIFICATIONS, counted.accept, decode_message),
        consuming(rabbitmq_url, AGGREGATES, counted.accept, decode_message),
    ):
        await counted.until(6)
    assert await stored_events(store) == [(comment["eventId"], "comment.created"), (message_id, "comment.deleted")]


@pytest.fixture
async def chat(store: Store, settings: Settings) -> AsyncIterator[Chat]:
    async with chatting(store, settings) as chat:
        yield chat


def chat_intake(chat: Chat) -> ChatIntake:
    return ChatIntake(chat.store, Fanout(chat.signals), 4096)


async def test_chat_messages_have_their_seqs_in_the_order_of_publishing(
    rabbitmq_url: str, caller: Caller, chat: Chat
) -> None:
    rooms = [await chat.room("a", "b"), await chat.room("a", "b")]
    sent = [(rooms[number % 2], f"text {number}") for number in range(60)]
    await caller.publish(*(chat_event(room, "ab"[number % 3 % 2], text) for number, (room, text) in enumerate(sent)))
    await caller.publish(chat_event(rooms[0], "a", "text 0"))  # the clientMessageId is known

    counted = Counted(chat_intake(chat).accept)
    async with consuming(rabbitmq_url, CHAT_PERSIST, counted.accept, decode_chat_message):
        await counted.until(61)
    for room in rooms:
        assert await texts(chat, room) == [text for where, text in sent if where == room]
    assert [frame["seq"] for frame in chat.frames if frame["roomId"] == str(rooms[0])] == list(range(1, 31))


async def texts(chat: Chat, room: UUID) -> list[str | None]:
    return [message.message for message in await chat.history.after("a", room, 0, 100)]


async def test_a_message_of_a_non_member_is_set_aside_and_the_others_stand(
    rabbitmq_url: str, caller: Caller, chat: Chat, settings: Settings
) -> None:
    room = await chat.room("a")
    long = "x" * 5_000
    await caller.publish(
        chat_event(room, "a", "1"), chat_event(room, "stranger", "2"), chat_event(uuid4(), "a", "3"), chat_event(room, "a",
        long), chat_event(room, "a", "4"),
    )  # fmt: skip
    async with consuming(rabbitmq_url, CHAT_PERSIST, chat_intake(chat).accept, decode_chat_message):
        await caller.until(CHAT_PERSIST.dead_letters, 3)
    assert await texts(chat, room) == ["1", "4"]
    page = await RabbitDeadLetters(replace_url(settings, rabbitmq_url)).list(of_rabbitmq(), None, 10)
    errors = [letter.error for letter in page.rows]
    assert errors[0] == f"stranger was not in room {room}"
    assert "BONGSU_CHAT_MAX_BYTES" in str(errors[2])


async def test_fan_out_announces_rooms_and_does_not_wait_for_the_store(
    rabbitmq_url: str, caller: Caller, chat: Chat
) -> None:
    room = await chat.room("a")
    await caller.publish(chat_event(room, "a", "1"), chat_event(room, "a", "2"))
    counted = Counted(ChatAnnouncer(Fanout(chat.signals)).accept)
    async with consuming(rabbitmq_url, CHAT_FANOUT, counted.accept, decode_chat_message):
        await counted.until(2)
    assert chat.reads >= 1
    assert chat.frames == []
    assert await caller.depth(CHAT_PERSIST.name) == 2


# --- dead letters -----------------------------------------------------------------------------------------------------


def of_rabbitmq(**fields: Any) -> DeadFilter:
    return DeadFilter.model_validate({"source": System.RABBITMQ, **fields})


def replace_url(settings: Settings, url: str) -> Settings:
    return settings.model_copy(update={"rabbitmq_url": url})


@pytest.fixture
def dead_letters(store: Store, settings: Settings, rabbitmq_url: str) -> DeadLetters:
    return DeadLetters(store, {System.RABBITMQ: RabbitDeadLetters(replace_url(settings, rabbitmq_url))})


async def let_die(caller: Caller, queue: WorkQueue, *bodies: dict[str, Any] | bytes, **properties: Any) -> None:
    """Rejected as a consumer rejects them."""
    before = await caller.depth(queue.dead_letters)
    for body in bodies:
        await caller.put(body, "", queue.name, **properties)
    channel = await caller.channel.connection.channel()

    async def reject(delivered: DeliveredMessage) -> None:
        assert delivered.delivery_tag is not None
        await channel.basic_nack(delivered.delivery_tag, requeue=False)

    await channel.basic_consume(queue.name, reject)
    await caller.until(queue.dead_letters, before + len(bodies))
    await channel.close()


async def test_all_four_queues_are_listed_and_listing_removes_nothing(caller: Caller, dead_letters: DeadLetters) -> None:
    known = event("post.liked", refId="1")
    await let_die(caller, NOTIFICATIONS, known, b"no json")
    for queue in (AGGREGATES, CHAT_PERSIST, CHAT_FANOUT):
        await let_die(caller, queue, b"{}")
    for _ in range(2):
        rows = (await dead_letters.list(of_rabbitmq(), None, 50)).rows
        assert [row.queue for row in rows if isinstance(row, RejectedMessage)] == [
            NOTIFICATIONS.name, NOTIFICATIONS.name, AGGREGATES.name, CHAT_PERSIST.name, CHAT_FANOUT.name
        ]  # fmt: skip
    first, second = rows[:2]
    assert isinstance(first, RejectedMessage) and isinstance(second, RejectedMessage)
    assert (first.event_id, first.type, first.rejected_at is None) == (known["eventId"], "post.liked", False)
    assert (second.event_id, second.type) == (None, None)
    assert second.error
    shown = await dead_letters.show(first.id, System.RABBITMQ)
    assert isinstance(shown, RejectedMessage)
    assert json.loads(shown.body) == known
    assert await dead_letters.show(known["eventId"], System.RABBITMQ) == first
    with pytest.raises(NoSuchDeadLetter):
        await dead_letters.show("notification_dlq:0123456789abcdef", System.RABBITMQ)


async def test_a_message_that_is_too_long_is_set_aside_and_the_list_finds_that_reason(
    rabbitmq_url: str, caller: Caller, dead_letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bongsu.ingress.consumer.LINE_LIMIT", 1_000)
    recorder = Recorder()
    await caller.publish(event("x", refId="1", payload={"long": "x" * 1_000}), event("x", refId="2"))
    async with consuming(rabbitmq_url, NOTIFICATIONS, recorder.accept):
        await recorder.until(1)
        await caller.until(NOTIFICATIONS.dead_letters, 1)
    (letter,) = (await dead_letters.list(of_rabbitmq(), None, 10)).rows
    assert (recorder.refs(), letter.error) == (["2"], "is longer than 1000 bytes")


async def test_a_message_that_has_expired_is_not_said_to_be_wrong(caller: Caller, dead_letters: DeadLetters) -> None:
    await caller.publish(chat_event(uuid4(), "a", "late"), expiration="1")
    await caller.until(CHAT_PERSIST.dead_letters, 1)
    (letter,) = (await dead_letters.list(of_rabbitmq(queue=CHAT_PERSIST.name), None, 10)).rows
    assert str(letter.error).startswith("expired: it waited")


async def test_pages_follow_each_other_over_the_queues(caller: Caller, dead_letters: DeadLetters) -> None:
    events = [event("x", refId=str(number)) for number in range(5)]
    await let_die(caller, NOTIFICATIONS, *events[:3])
    await let_die(caller, AGGREGATES, *events[3:])
    found: list[str | None] = []
    after: Any = None
    while True:
        page = await dead_letters.list(of_rabbitmq(), after, 2)
        found += [row.event_id for row in page.rows if isinstance(row, RejectedMessage)]
        if (after := page.end) is None:
            break
        assert isinstance(after, MessageCursor)
    assert found == [one["eventId"] for one in events]


async def test_a_replay_returns_what_matches_to_its_own_queue_once(caller: Caller, dead_letters: DeadLetters) -> None:
    wanted, other = event("comment.created", refId="1"), event("x", refId="2")
    await let_die(caller, AGGREGATES, other, wanted, b"no json", headers={"own": "header"})
    asked = of_rabbitmq(eventId=wanted["eventId"])
    assert await dead_letters.count(asked) == 1
    assert await caller.depth(AGGREGATES.dead_letters) == 3
    assert await dead_letters.replay(asked, "cli:tester") == (1, 1)
    (back,) = await caller.read(AGGREGATES.name)
    assert json.loads(back.body) == wanted
    headers = back.header.properties.headers
    assert headers is not None
    assert headers["own"] == "header" and "x-death" not in headers
    assert await caller.read(NOTIFICATIONS.name) == []
    left = (await dead_letters.list(of_rabbitmq(), None, 50)).rows
    assert [row.event_id for row in left if isinstance(row, RejectedMessage)] == [other["eventId"], None]
    assert await dead_letters.replay(asked, "cli:tester") == (0, 0)


async def test_a_replay_into_a_full_queue_leaves_what_does_not_fit_among_the_dead_letters(
    rabbit_server: RabbitServer, store: Store, settings: Settings
) -> None:
    url = rabbit_server.short_url()
    dead_letters = DeadLetters(store, {System.RABBITMQ: RabbitDeadLetters(replace_url(settings, url))})
    recorder, events = Recorder(), [event("x", refId=str(number)) for number in range(4 * SHORT_LENGTH)]
    first, rest = events[: 2 * SHORT_LENGTH], events[2 * SHORT_LENGTH :]
    async with calling(url) as caller:
        await caller.declare()

        async def die(some: Sequence[dict[str, Any]]) -> None:
            for one in some:
                await caller.put(one, "", NOTIFICATIONS.dead_letters)

        await die(first)
        # The limit holds for what is published after the publishers know that it was reached.
        some = await dead_letters.replay(of_rabbitmq(), "cli:tester")
        assert some.matched == len(first) and some.replayed >= SHORT_LENGTH
        await die(rest)
        more = await dead_letters.replay(of_rabbitmq(), "cli:tester")
        assert more.matched == len(events) - some.replayed
        assert more.replayed < more.matched
        await caller.until(NOTIFICATIONS.dead_letters, more.matched - more.replayed)
        async with consuming(url, NOTIFICATIONS, recorder.accept):
            await recorder.until(some.replayed + more.replayed)

            async def is_empty() -> bool:
                await dead_letters.replay(of_rabbitmq(), "cli:tester")
                return await caller.depth(NOTIFICATIONS.dead_letters) == 0

            await until(is_empty)
            await recorder.until(len(events))
    assert sorted(recorder.refs(), key=int) == [one["refId"] for one in events]


async def test_a_replay_of_everything_visits_each_message_once(
    rabbitmq_url: str, caller: Caller, dead_letters: DeadLetters
) -> None:
    recorder = Recorder()
    await let_die(caller, NOTIFICATIONS, *(event("x", refId=str(number)) for number in range(150)), b"poison")
    seen: list[int] = []
    async with consuming(rabbitmq_url, NOTIFICATIONS, recorder.accept):
        done = await dead_letters.replay(of_rabbitmq(queue=NOTIFICATIONS.dead_letters), "cli:tester", progress=seen.append)
        await recorder.until(150)
        await caller.until(NOTIFICATIONS.dead_letters, 1)
    assert done == (151, 151)
    assert seen[-1] == 151
    assert sorted(recorder.refs(), key=int) == [str(number) for number in range(150)]


async def test_lists_and_replays_take_turns(caller: Caller, dead_letters: DeadLetters) -> None:
    await let_die(caller, NOTIFICATIONS, *(event("x", refId=str(number)) for number in range(30)))
    pages = await asyncio.gather(*(dead_letters.list(of_rabbitmq(), None, 50) for _ in range(4)))
    assert [len(page.rows) for page in pages] == [30] * 4
    assert pages[1:] == pages[:-1], "the order stays as it was"


async def test_without_queues_there_are_no_dead_letters(dead_letters: DeadLetters) -> None:
    assert await dead_letters.list(of_rabbitmq(), None, 50) == ([], None)
    assert await dead_letters.replay(of_rabbitmq(), "cli:tester") == (0, 0)
