"""What a run leaves behind: a table on the terminal, and JSON, Markdown and pictures that can be committed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.measure import Comparison, Measure
from bench.plot import bars

RESULTS = Path(__file__).parent / "results"
_VERDICTS = {True: "met", False: "missed", None: "—"}
_COLOURS = {True: "green", False: "bold red", None: "dim"}
_HEAD = ("", "against", "baseline", "ours", "ratio", "min-max", "budget", "")


@dataclass(frozen=True)
class Report:
    """One benchmark's findings."""

    name: str
    title: str
    machine: dict[str, str]
    comparisons: tuple[Comparison, ...]
    notes: dict[str, str]

    def save(self) -> None:
        found = {
            "name": self.name,
            "title": self.title,
            "machine": self.machine,
            "rows": [one.as_json() for one in self.comparisons],
            "notes": self.notes,
        }
        (RESULTS / f"{self.name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
        (RESULTS / f"{self.name}.svg").write_text(bars(self.title, self.comparisons), "utf-8")

    @classmethod
    def load(cls, path: Path) -> Report:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        rows = tuple(Comparison.from_json(row) for row in found["rows"])
        return cls(found["name"], found["title"], found["machine"], rows, found["notes"])

    def table(self) -> Table:
        table = Table(*_HEAD, title=self.title, title_justify="left", title_style="bold")
        for column in table.columns[2:7]:
            column.justify = "right"
            column.no_wrap = True
        for one in self.comparisons:
            colour = _COLOURS[one.is_met]
            *cells, verdict = _cells(one)
            table.add_row(*cells, f"[{colour}]{verdict}[/]")
        return table

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", f"![{self.title}]({self.name}.svg)", ""]
        lines += [_line(_HEAD), "|---|---|--:|--:|--:|--:|--:|---|"]
        lines += [_line(_cells(one)) for one in self.comparisons]
        lines += ["", f"Measured in {self._rounds()} on {self._machine()}."]
        for title, note in self.notes.items():
            lines += ["", f"### {title}", "", note]
        return "\n".join(lines) + "\n"

    def _rounds(self) -> str:
        counts = {len(one.seconds) for one in self.comparisons}
        return f"{min(counts)} rounds" if len(counts) == 1 else f"{min(counts)} to {max(counts)} rounds"

    def _machine(self) -> str:
        return ", ".join(f"{value} {name}" if name == "cores" else f"{name} {value}" for name, value in self.machine.items())


_PREFACE = """\
# What was measured

Written by `python -m bench`. Each row compares ours with a named baseline in the same run: the two take turns, a ratio is
formed within each round, and the table shows the middle one of all rounds and the least and greatest. A ratio of *time*
or *memory* is better when lower (budget ≤), a ratio of *speed* when higher (budget ≥). The rounds are in the JSON files.
"""


def write_readme() -> None:
    """From all results there are, so that one benchmark can be run again without the others."""
    reports = [Report.load(path) for path in sorted(RESULTS.glob("*.json"))]
    (RESULTS / "README.md").write_text("\n".join([_PREFACE, *(report.markdown() for report in reports)]), "utf-8")


def _cells(one: Comparison) -> tuple[str, ...]:
    sign = "≤" if one.measure.is_cost else "≥"
    low, high = one.spread
    return (
        one.name,
        one.against,
        _cost(one, one.baseline_seconds),
        _cost(one, one.our_seconds),
        f"{one.ratio:.2f}",
        f"{low:.2f}-{high:.2f}",
        "—" if one.budget is None else f"{sign} {one.budget:.2f}",
        _VERDICTS[one.is_met],
    )


def _cost(one: Comparison, seconds: float) -> str:
    match one.measure:
        case Measure.TIME:
            return f"{seconds * 1e6:,.0f} µs"
        case Measure.MEMORY:
            return f"{seconds / 1024:,.1f} KiB"
    return f"{1 / seconds:,.0f}/s"


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
