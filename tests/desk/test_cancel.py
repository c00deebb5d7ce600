"""Cancelling through the running service: open pages, and a dispatcher in another process."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest

from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from bongsu.store import Store, migrate
from tests.live.client import EventSource
from tests.simulator.running import Simulator
from tests.support.cancellations import add_members_with_devices, counts_are_exact, in_inboxes, statuses
from tests.support.decisions import rows
from tests.support.processes import KEY, bongsu, serving
from tests.support.waiting import eventually

MANY = 4_000
# Each way once, each database once: tests/api and tests/cli have the others without other processes.
WAYS = [("sqlite", "cli"), ("postgresql", "http")]


def send(client: httpx.Client, members: list[str], **more: Any) -> str:
    body = {"type": "MARKETING", "userIds": members, "title": "봄 할인", "body": "오늘만 반값", **more}
    response = client.post("/api/notifications", json=body)
    assert response.status_code == 202, response.text
    return str(response.json()["eventId"])


def progress(client: httpx.Client, event_id: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/api/admin/events/{event_id}").json()
    return found


# --- open pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "way"), WAYS, indirect=["settings"])
async def test_what_is_withdrawn_leaves_the_open_page_the_inbox_and_the_count(
    migrated: dict[str, str], settings: Settings, way: str
) -> None:
    """The command is another process, and there is no Redis: the next ping finds it in the store."""
    token = Keys.load(settings).member_token("mina", timedelta(hours=1))
    bearer = {"Authorization": f"Bearer {token}"}
    pinging = {**migrated, "BONGSU_SSE_PING_SECONDS": "1"}
    with serving(pinging) as served, served.client(**KEY) as client, served.client(**bearer) as member:
        event_id = await asyncio.to_thread(send, client, ["mina", "jun"], channels=["IN_APP"])
        kept_id = await asyncio.to_thread(send, client, ["mina"], channels=["IN_APP"], title="그대로")
        async with EventSource([served.address], bearer) as page:
            await page.until(lambda page: {"unread": 2} in page.seen("badge"))
            [withdrawn] = await asyncio.to_thread(ids_of, member, "봄 할인")
            if way == "http":
                path = f"/api/admin/events/{event_id}/cancel"
                answer = await asyncio.to_thread(client.post, path, json={"withdraw": True})
                assert (answer.status_code, answer.json()["withdrawn"]) == (200, 2)
            else:
                command = ("event", "cancel", event_id, "--withdraw")
                printed = await asyncio.to_thread(bongsu, *command, environment=migrated)
                assert printed.stdout == "0 deliveries cancelled, 0 already sent, 2 inbox rows withdrawn\n"
            assert await page.until_seen("withdrawn") == [{"id": withdrawn}]
            await page.until(lambda page: page.seen("badge")[-1] == {"unread": 1})
        assert (await asyncio.to_thread(member.get, "/api/notifications/unread-count")).json() == {"unread": 1}
        assert await asyncio.to_thread(ids_of, member, "봄 할인") == []
        assert len(await asyncio.to_thread(ids_of, member, "그대로")) == 1
        assert (await asyncio.to_thread(progress, client, kept_id))["status"] == "DONE"
        # A page that is opened now does not know of it.
        async with EventSource([served.address], bearer) as later:
            await later.until_live()
            assert (later.seen("withdrawn"), later.seen("badge")[-1]) == ([], {"unread": 1})


def ids_of(member: httpx.Client, title: str) -> list[str]:
    return [item["id"] for item in member.get("/api/notifications").json()["items"] if item["title"] == title]


# --- another process ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "way"), WAYS, indirect=["settings"])
async def test_a_cancel_in_one_process_stops_the_dispatcher_of_another_without_redis(
    environment: dict[str, str], settings: Settings, simulator: Simulator, way: str
) -> None:
    """It finds out by looking at the store."""
    # Long enough that a campaign is not over before a command has started.
    simulator.configure(latency={"medianMs": 2_000})
    store = Store.open(settings)
    await migrate(store)
    members = await add_members_with_devices(store, MANY)
    sending = {**environment, "BONGSU_FCM_URL": simulator.address, "BONGSU_FCM_PROJECT": "demo"}
    with (
        serving(environment, "--role", "api") as api,
        serving(sending, "--role", "worker") as worker,
        api.client(**KEY) as client,
    ):
        event_id = send(client, members)
        eventually(lambda: simulator.stats()["sends"] > 0, True)
        if way == "http":
            done = client.post(f"/api/admin/events/{event_id}/cancel", json={"withdraw": True}).json()
        else:
            printed = bongsu("event", "cancel", event_id, "--withdraw", environment=environment)
            assert printed.returncode == 0, printed.stderr
            done = progress(client, event_id)["cancellation"]
        eventually(lambda: progress(client, event_id)["deliveries"].get("PUSH", {}).keys() <= {"SUCCESS", "CANCELLED"}, True)
        async with asyncio.timeout(30):
            while await rows(store, "SELECT 1 FROM bongsu_cancellations WHERE finished_at IS NULL"):
                await asyncio.sleep(0.02)
        ended = await statuses(store)
        # What was claimed and waited for the quota is dropped; what was on the wire has arrived.
        assert ended["CANCELLED"] >= done["cancelled"] > 0
        assert ended["SUCCESS"] == simulator.stats()["accepted"] <= done["sent"]
        assert ended.total() == done["cancelled"] + done["sent"] <= MANY
        assert [one.terminate() for one in (worker, api)] == [0, 0]
    assert simulator.stats()["accepted"] == ended["SUCCESS"]
    assert await in_inboxes(store) == 0
    assert await counts_are_exact(store)
    await store.close()
