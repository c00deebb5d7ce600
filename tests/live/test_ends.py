"""How streams end, and what keeps them from harming each other."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from bongsu.errors import StoreUnreachable
from bongsu.live import connection, encode, serving
from bongsu.runtime import loop
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.inbox import live as live_statements
from tests.live.client import PATH, ask
from tests.live.harness import Live, bearer, increasing, live_on, write

Embedded = tuple[Store, Settings]
both_wires = pytest.mark.parametrize("wire", ["sse", "ws"])


def with_settings(embedded: Embedded, **changes: float) -> tuple[Store, Settings]:
    store, settings = embedded
    return store, settings.model_copy(update={"sse_ping_seconds": 600, **changes})


@both_wires
async def test_pings_come_without_an_id_and_find_what_no_signal_told(embedded: Embedded, wire: str) -> None:
    async with live_on(*with_settings(embedded, sse_ping_seconds=0.1), wire) as live, live.open() as page:
        await page.until_seen("ping", 3)
        ids, _ = await write(live.store, "m-1")
        await page.until_told(ids)
        before = page.last_id
        await page.until_seen("ping", len(page.seen("ping")) + 2)
        assert page.last_id == before == str(ids[0])


@both_wires
async def test_after_its_time_a_stream_says_goodbye_and_goes_on_where_it_was(embedded: Embedded, wire: str) -> None:
    async with live_on(*with_settings(embedded, sse_timeout_seconds=0.2), wire) as live, live.open() as page:
        seen: list[int] = []
        for _ in range(4):
            seen += await live.ring()
            await page.until_seen("bye", len(page.seen("bye")) + 1)
        await page.until_told(seen)
        assert page.seen("bye")[0] == {"reason": "timeout"}
        assert 1000 <= page.retry <= 3000


@both_wires
async def test_a_stream_ends_with_its_token(embedded: Embedded, wire: str) -> None:
    store, settings = with_settings(embedded)
    # The token is made when everything is up: it has to last until the page is open.
    async with live_on(store, settings, wire) as live, live.open(headers=bearer(settings, "m-1", seconds=3)) as page:
        assert await page.until_seen("bye") == [{"reason": "expired"}]
        # And a browser that comes back with it is told not to.
        await page.until(lambda page: page.status == 401)


@both_wires
async def test_the_fourth_page_closes_the_first(embedded: Embedded, wire: str) -> None:
    async with live_on(*with_settings(embedded), wire) as live:
        pages = [live.open(stays_away=True) for _ in range(4)]
        for page in pages:
            await page.__aenter__()
            await page.until_live()
        assert await pages[0].until_seen("bye") == [{"reason": "replaced"}]
        ids = await live.ring()
        for page in pages[1:]:
            await page.until_told(ids)
        assert pages[0].told == []
        # One that does not know what that means comes back, but not so soon that pages would chase each other.
        assert pages[0].retry >= 60_000
        for page in pages:
            await page.close()


@both_wires
async def test_a_reader_who_does_not_read_is_cut_and_the_others_go_on(
    embedded: Embedded, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STALLED_BYTES", 256 * 1024)
    async with live_on(*with_settings(embedded), wire) as live:
        stalled = await ask(live.address, bearer(live.settings, "m-1"))
        stalled.writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with live.open() as page, live.open("m-2") as other:
            await page.until_live()
            await other.until_live()
            ids: list[int] = []
            while len(live.gateway.open_streams.of("m-1")) == 2:
                ids += await live.ring("m-1", 10, body="가" * 20_000)
                await page.until_told(ids)
            await other.until_told(await live.ring("m-2"))
            # When it reads again it comes back, and has missed nothing.
            back = live.open()
            back.last_id = str(ids[0])
            async with back:
                await back.until_told(ids[1:])
        stalled.writer.transport.abort()


@both_wires
async def test_who_is_slow_is_not_pinged_and_who_missed_much_gets_it_at_its_own_pace(
    embedded: Embedded, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a reader may be behind with: it is not cut for what it could not have read yet."""
    monkeypatch.setattr(connection, "STALLED_BYTES", 1024 * 1024)
    store, settings = with_settings(embedded, sse_ping_seconds=0.05)
    ids, _ = await write(store, "m-1", 301, body="가" * 5_000)
    async with live_on(store, settings, wire) as live:
        page = live.open()
        page.last_id = str(ids[0])
        async with page:
            await page.until_told(ids[1:])
        assert page.connections == 1


@both_wires
async def test_what_was_missed_is_written_in_pieces_that_cut_nobody(
    embedded: Embedded, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large each one is: a ping that finds so much waiting would cut a reader who is only slow."""
    store, settings = with_settings(embedded)
    written: list[int] = []
    write_frame = connection.Connection.write

    def recording(self: connection.Connection, frame: bytes) -> bool:
        written.append(len(frame))
        return write_frame(self, frame)

    monkeypatch.setattr(connection.Connection, "write", recording)
    ids, _ = await write(store, "m-1", 101, body="가" * 10_000)
    async with live_on(store, settings, wire) as live:
        page = live.open()
        page.last_id = str(ids[0])
        async with page:
            await page.until_told(ids[1:])
    assert sum(written) > 2 * connection.STALLED_BYTES
    assert max(written) < connection.STALLED_BYTES / 2


@both_wires
async def test_on_the_way_out_everybody_hears_goodbye_and_comes_back_to_the_next(embedded: Embedded, wire: str) -> None:
    store, settings = with_settings(embedded)
    async with live_on(store, settings, wire) as live:
        pages = [live.open(f"m-{number}") for number in range(20)]
        for page in pages:
            await page.__aenter__()
            await page.until_live()
    ids = {page: (await write(store, f"m-{number}"))[0] for number, page in enumerate(pages)}
    for page in pages:
        assert {one["reason"] for one in page.seen("bye")} == {"restart"}
    # Not all after the same time.
    assert len({page.retry for page in pages}) > 1
    async with live_on(store, settings, wire) as after:
        for page in pages:
            page.addresses = [after.address]
        for page in pages:
            await page.until_told(ids[page])
            await page.close()


@both_wires
async def test_while_it_goes_a_newcomer_is_sent_away_kindly(embedded: Embedded, wire: str) -> None:
    async with live_on(*with_settings(embedded), wire) as live:
        await live.gateway.drain()
        async with live.open() as page:
            assert await page.until_seen("bye") == [{"reason": "restart"}]
            assert page.status == 200


@both_wires
async def test_who_was_sent_away_in_a_crowd_and_comes_too_early_takes_as_long_again(
    embedded: Embedded, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_on(*with_settings(embedded), wire) as live:
        async with live.open("m-1") as one:
            await one.until_live()
            # As if the one were very many.
            monkeypatch.setattr(encode, "SPREAD_SECONDS", 1e9)
            await live.gateway.drain()
            await one.until_seen("bye")
        async with live.open("m-2") as early:
            await early.until_seen("bye")
            assert early.retry > 3000


@both_wires
async def test_who_cannot_be_brought_up_to_date_in_time_is_told_to_come_back(
    embedded: Embedded, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many at once, or a store that hangs: no fault of the reader's."""

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async with live_on(*with_settings(embedded), wire) as live:
        there = live_statements.find_inbox_state
        monkeypatch.setattr(live_statements, "find_inbox_state", hang)
        monkeypatch.setattr(serving, "ATTACH_SECONDS", 0.1)
        async with live.open() as page:
            await page.until_seen("unavailable")
            monkeypatch.setattr(serving, "ATTACH_SECONDS", 30.0)
            monkeypatch.setattr(live_statements, "find_inbox_state", there)
            await page.until_told(await live.ring())


@both_wires
async def test_with_the_store_away_a_stream_says_so_and_is_back_when_it_is(
    embedded: Embedded, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnreachable

    async with live_on(*with_settings(embedded), wire) as live:
        there = live_statements.find_inbox_state
        monkeypatch.setattr(live_statements, "find_inbox_state", away)
        async with live.open() as page:
            await page.until_seen("unavailable")
            assert page.status == 200
            monkeypatch.setattr(live_statements, "find_inbox_state", there)
            await page.until_live()
            await page.until_told(await live.ring())


@both_wires
async def test_a_page_refused_while_the_store_is_away_does_not_wait_for_those_that_stay(
    embedded: Embedded, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open streams stay open and do not come back with it: only pages that are being opened share the retry time."""

    async def away(*_: object) -> None:
        raise StoreUnreachable

    async with live_on(*with_settings(embedded), wire) as live, live.open("m-1") as one:
        await one.until_live()
        # As if the one were very many.
        monkeypatch.setattr(encode, "SPREAD_SECONDS", 1e9)
        monkeypatch.setattr(live_statements, "find_inbox_state", away)
        async with live.open("m-2") as refused:
            await refused.until_seen("unavailable")
            assert 1000 <= refused.retry <= 3000


@both_wires
async def test_after_the_store_was_away_open_pages_are_sent_what_they_missed(
    embedded: Embedded, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LAST_BACKOFF", 0.2)
    find_recipients, find_new = live_statements.find_recipients, live_statements.find_new
    is_away, failures = True, Counter[str]()

    async def recipients_or_fail(*arguments: Any) -> Any:
        if is_away:
            failures["recipients"] += 1
            raise StoreUnreachable
        return await find_recipients(*arguments)

    async def new_or_fail(*arguments: Any) -> Any:
        if is_away:
            failures["new"] += 1
            raise StoreUnreachable
        return await find_new(*arguments)

    async with live_on(*with_settings(embedded), wire) as live, live.open() as page:
        await page.until_live()
        monkeypatch.setattr(live_statements, "find_recipients", recipients_or_fail)
        monkeypatch.setattr(live_statements, "find_new", new_or_fail)
        # One that was not announced, so that those after it show a gap and the store has to be read.
        ids, _ = await write(live.store, "m-1")
        ids += await live.ring()
        live.gateway.catch_up.mark(["m-1"])
        # Until both loops have backed off as far as they do: then each tries again within the last backoff.
        async with asyncio.timeout(60):
            while min(failures["recipients"], failures["new"]) < 4:
                await asyncio.sleep(0.01)
        is_away = False
        await page.until_told(ids)


@both_wires
async def test_streams_that_come_and_go_leave_nothing_behind(embedded: Embedded, wire: str) -> None:
    async with live_on(*with_settings(embedded), wire) as live:
        await asyncio.gather(*(_visit(live, number) for number in range(30)))
        async with asyncio.timeout(20):
            while len(live.gateway.open_streams):
                await asyncio.sleep(0)
        signals = live.signals
        assert [topic for topic in signals._listeners if "member" in topic] == []  # type: ignore[attr-defined]
        assert not any(live.gateway._pings._slots)
        assert not live.gateway._pings._ends
        assert live.gateway._registry._members == {}  # type: ignore[attr-defined]


async def _visit(live: Live, number: int) -> None:
    async with live.open(f"m-{number % 7}") as page:
        if number % 2:
            await page.until_live()
            assert increasing(page.told)


# --- other requests on its connection ---------------------------------------------------------------------------------

BEHIND = {
    "a request": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "many requests": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000,
    "half a request": b"POST /api/events HTTP/1.1\r\nHost: x\r\nContent-Le",
    "garbage": b"\x00\xff" * 100_000,
}


@pytest.mark.parametrize("is_together", [True, False], ids=["together", "later"])
@pytest.mark.parametrize("behind", BEHIND)
async def test_a_stream_ends_with_its_connection_whatever_else_was_sent_on_it(
    embedded: Embedded, behind: str, is_together: bool
) -> None:
    async with live_on(*with_settings(embedded)) as live:
        host, _, port = live.address.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        authorization = bearer(live.settings, "m-1")["Authorization"]
        request = f"GET {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\n\r\n".encode()
        writer.write(request + BEHIND[behind] if is_together else request)
        await reader.readuntil(b"\nid: 0\n\n")
        if not is_together:
            writer.write(BEHIND[behind])
        # It is a stream like any other meanwhile.
        [told] = await live.ring()
        await reader.readuntil(b"id: %d\n" % told)
        assert len(live.gateway.open_streams) == 1
        writer.close()
        async with asyncio.timeout(20):
            while len(live.gateway.open_streams):
                await asyncio.sleep(0.01)
