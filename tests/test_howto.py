"""Rules, templates, digests and jobs in docs/howto: the very files they show, put where they say, do what they say."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bongsu import Event
from bongsu.render import particles
from bongsu.render.templates import Rendered, Templates
from bongsu.rules import catalogue, load_app
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.query import same
from tests.support.decisions import decide, notified_counts
from tests.support.runs import run_by_hand

HOWTO = Path(__file__).parents[1] / "docs" / "howto"


def blocks(page: str) -> dict[str, str]:
    """A page's blocks by what is written beside their language."""
    found = re.findall(r"^```\w+ (\S+)\n(.+?)^```$", (HOWTO / page).read_text(), re.MULTILINE | re.DOTALL)
    return dict(found)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__spec__", "")):
            del sys.modules[name]


def put(house: Path, shown: dict[str, str]) -> None:
    for name, text in shown.items():
        if "/" in name:
            (house / name).parent.mkdir(parents=True, exist_ok=True)
            (house / name).write_text(text)


def test_the_rule_shown_is_loaded_tested_and_put_into_words(house: Path) -> None:
    shown = blocks("rules.md")
    put(house, shown)
    rules = catalogue(Settings(), load_app("shop.rules:app"))
    exec(shown["test"], {})
    event = Event(event_type="order.shipped", target_id="member-1", ref_id="1024", payload={"carrier": "봉수택배"})
    (notice,) = rules.detect(event)
    templates = Templates.load()
    assert templates.check() == []
    assert templates.phrase(notice, event, "ko") == Rendered(
        "상품이 출발했어요", "봉수택배가 배송을 시작했습니다. 주문 번호: 1024"
    )


async def test_followers_are_whoever_the_table_shown_names(house: Path, store: Store, settings: Settings) -> None:
    put(house, blocks("rules.md"))
    rules = catalogue(settings, load_app("shop.live:app"))
    async with store.transaction() as tx:
        await tx.execute(
            same("CREATE TABLE follows (followee_id text, follower_id text)")(),
            same("INSERT INTO follows VALUES ('star', 'fan-1'), ('star', 'fan-2'), ('another', 'fan-3')")(),
        )
    await decide(store, settings, rules, Event(event_type="broadcast.started", actor_id="star", ref_id="b-1"), chunk=1)
    assert await notified_counts(store) == {"fan-1": 1, "fan-2": 1}


def test_the_texts_shown_read_as_shown(house: Path) -> None:
    shown = blocks("templates.md")
    put(house, shown)
    templates = Templates.load()
    assert templates.check() == []
    payload = {"previousPrice": 12000, "currentPrice": 9900}
    event = Event(event_type="product.price_changed", ref_id="p", payload=payload)
    (notice,) = catalogue(Settings()).detect(event)
    title, _, body = shown["result"].strip().partition("\n\n")
    assert templates.phrase(notice, event, "ko-KR", "무선 이어폰") == Rendered(title, body)
    assert templates.render("BACK_IN_STOCK", "ja-JP", {}).body == "商品が再入荷しました!"


def test_the_particles_shown_are_those_we_add() -> None:
    rows = re.findall(r"^\| (?:write|`\{\{ product\\\|(\w+) \}\}`) \| (.+) \|$", (HOWTO / "templates.md").read_text(), re.M)
    (_, words), *particle_rows = rows
    assert len(particle_rows) == 5
    for name, cells in particle_rows:
        assert [getattr(particles, name)(word) for word in words.split(" | ")] == cells.split(" | ")


async def test_the_job_shown_runs_and_goes_on_where_it_was(house: Path, store: Store) -> None:
    put(house, blocks("jobs.md"))
    (job,) = catalogue(Settings(), load_app("shop.jobs:app")).jobs
    run = await run_by_hand(store, job)
    assert (run.result, run.done, run.total) == ("3 shops", 3, 3)
    async with store.read() as tx:
        rows = await tx.fetch(same("SELECT ref_id FROM bongsu_events WHERE event_type = 'report.ready' ORDER BY ref_id")())
    assert [row["ref_id"] for row in rows] == ["shop-1", "shop-2", "shop-3"]


async def test_the_visits_shown_are_gathered_and_put_into_words(house: Path, store: Store, settings: Settings) -> None:
    put(house, blocks("digest.md"))
    rules = catalogue(settings, load_app("club.rules:app"))
    visits = [
        Event(event_type="page.visited", actor_id=name, target_id="m", ref_id="page", payload={"actorName": name})
        for name in ("Ann", "Bob", "Cho")
    ]
    await decide(store, settings, rules, *visits)
    async with store.read() as tx:
        (row,) = await tx.fetch(same("SELECT title, body FROM bongsu_digests")())
    assert tuple(row) == ("3 visits", "Cho and 2 others looked at your page.")
