"""`python -m bench` runs every benchmark, `python -m bench claim` one. A missed budget is shown, not raised."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import (
    campaign,
    chat,
    claim,
    counters,
    dispatch,
    event,
    fanout,
    ground,
    ingest,
    live,
    publish,
    rabbitmq,
    recommend,
    sources,
)
from bench.ground import Ground
from bench.measure import QUICK_ROUNDS, ROUNDS, Contest
from bench.report import RESULTS, Report, write_readme
from bongsu.cli.main import run
from bongsu.runtime.process import tune_gc

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
# Where no terminal says how wide it is, as wide as the table.
console = Console() if Console().is_terminal else Console(width=150)


async def no_notes(_ground: Ground) -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class Bench:
    title: str
    contests: Callable[[Ground], AsyncGenerator[Contest, None]]
    notes: Callable[[Ground], Awaitable[dict[str, str]]] = no_notes


BENCHES = {
    "publish": Bench(publish.TITLE, publish.contests),
    "ingest": Bench(ingest.TITLE, ingest.contests, ingest.notes),
    "sources": Bench(sources.TITLE, sources.contests, sources.notes),
    "claim": Bench(claim.TITLE, claim.contests),
    "fanout": Bench(fanout.TITLE, fanout.contests, fanout.notes),
    "dispatch": Bench(dispatch.TITLE, dispatch.contests, dispatch.notes),
    "event": Bench(event.TITLE, event.contests),
    "campaign": Bench(campaign.TITLE, campaign.contests, campaign.notes),
    "recommend": Bench(recommend.TITLE, recommend.contests),
    "rabbitmq": Bench(rabbitmq.TITLE, rabbitmq.contests),
    "counters": Bench(counters.TITLE, counters.contests),
    "live": Bench(live.TITLE, live.contests, live.notes),
    "chat": Bench(chat.TITLE, chat.contests, chat.notes),
}


@app.command()
def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Some of {', '.join(BENCHES)}; all if none is named.")] = None,
    quick: Annotated[bool, typer.Option(help="Fewer rounds: a first impression, not a result.")] = False,
) -> None:
    """Measure, show, and write bench/results."""
    chosen = names or list(BENCHES)
    if unknown := set(chosen) - set(BENCHES):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are {', '.join(BENCHES)}")
    rounds = QUICK_ROUNDS if quick else ROUNDS
    RESULTS.mkdir(exist_ok=True)
    with ground.prepared(quick) as prepared:
        for name in chosen:
            report = run(_measure(name, prepared, rounds))
            report.save()
            write_readme()
            console.print(report.table())
    console.print(f"Written to {RESULTS.relative_to(RESULTS.parents[1])}.", style="dim", highlight=False)


async def _measure(name: str, prepared: Ground, rounds: int) -> Report:
    bench = BENCHES[name]
    # As our service does, for whatever of both sides runs in this process.
    tune_gc()
    with _progress() as progress:
        async with contextlib.aclosing(bench.contests(prepared)) as contests:
            comparisons = [await contest.hold(progress, rounds) async for contest in contests]
        notes = await bench.notes(prepared)
    return Report(name, bench.title, prepared.machine(), tuple(comparisons), notes)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


if __name__ == "__main__":
    app()
