"""A picture of ratios: a bar for each row, a whisker from the least to the greatest round, a mark where the budget is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bench.measure import Comparison

WIDTH, LABELS, ROW, TOP = 860, 330, 30, 44
_BARS = {True: "met", False: "missed", None: "told"}
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #222 } .title { font-weight: 600 } .label { text-anchor: end }
.met { fill: #3a9d5d } .missed { fill: #d0483e } .told { fill: #8796a5 }
.whisker { stroke: #222; stroke-width: 1.5 } .budget { stroke: #1d4ed8; stroke-width: 2; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .whisker { stroke: #ddd } .budget { stroke: #7da2ff } }
"""


def bars(title: str, comparisons: Sequence[Comparison]) -> str:
    longest = max(max(one.spread[1], one.budget or 0) for one in comparisons)
    scale = (WIDTH - LABELS - 60) / longest
    height = TOP + ROW * len(comparisons) + 10
    rows = [_bar(one, TOP + ROW * place, scale) for place, one in enumerate(comparisons)]
    caption = f"{title}: ratio to the baseline (bar: median, whisker: min-max, dashes: budget)"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<style>{_STYLE}</style>",
            f'<text class="title" x="10" y="24">{escape(caption)}</text>',
            *rows,
            "</svg>\n",
        ]
    )


def _bar(one: Comparison, top: int, scale: float) -> str:
    low, high = (LABELS + scale * ratio for ratio in one.spread)
    middle, length = top + ROW / 2, scale * one.ratio
    parts = [
        f'<text class="label" x="{LABELS - 8}" y="{middle + 4}">{escape(one.name)}</text>',
        f'<rect class="{_BARS[one.is_met]}" x="{LABELS}" y="{top + 5}" width="{length:.1f}" height="{ROW - 10}"/>',
        f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>',
        f'<text x="{max(high, LABELS + length) + 8:.1f}" y="{middle + 4}">{one.ratio:.2f}</text>',
    ]
    if one.budget is not None:
        place = LABELS + scale * one.budget
        parts.append(f'<line class="budget" x1="{place:.1f}" x2="{place:.1f}" y1="{top + 1}" y2="{top + ROW - 1}"/>')
    return "\n".join(parts)
