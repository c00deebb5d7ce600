"""What `bongsu doctor` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bongsu.desk.doctor import Finding


def show_findings(findings: Sequence[Finding], console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for finding in findings:
        mark = "[green]✓[/]" if finding.is_good else "[bold red]✗[/]"
        table.add_row(mark, f"[bold]{finding.name}[/]", escape(finding.message))
    console.print(table, highlight=False)
