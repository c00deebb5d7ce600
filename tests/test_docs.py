"""The documents name things that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

from bongsu import errors
from bongsu.runtime import telemetry
from bongsu.settings import Settings

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_the_tour_takes_eight_files_or_fewer_to_a_phone_and_to_a_page() -> None:
    sections = (ROOT / "docs/TOUR.md").read_text().split("\n## ")
    for section in sections[1:3]:
        files = re.findall(r"^\d\. \*\*\[(\S+)\]\(\.\./src/bongsu/(\S+)\)\*\*", section, re.M)
        assert 4 < len(files) <= 8
        assert len(set(files)) == len(files)
        assert all(shown == linked for shown, linked in files)


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS])
def test_a_name_that_is_a_link_is_defined_in_the_file_it_leads_to(document: Path) -> None:
    for name, target in re.findall(r"\[`(\w+)`\]\(([^)#]+\.py)\)", document.read_text()):
        source = (document.parent / target).read_text()
        defined = rf"^ *(class|def|async def) {name}\b|^{name}\b.* = "
        # A package may take it from one of its modules.
        exported = rf'^    "{name}",$|import .*\b{name}\b' if target.endswith("__init__.py") else defined
        assert re.search(f"{defined}|{exported}", source, re.M), f"{name} in {target}"


def test_guarantees_and_decisions_are_complete() -> None:
    guarantees = (ROOT / "docs/GUARANTEES.md").read_text().split("\n## ")[1:]
    for guarantee in guarantees:
        assert re.search(r"\[`test_\w+`\]\(\.\./tests/", guarantee), guarantee.splitlines()[0]
        assert "\n**Limits.** " in guarantee, guarantee.splitlines()[0]
    index = (ROOT / "docs/decisions/README.md").read_text()
    records = sorted((ROOT / "docs/decisions").glob("0*.md"))
    for number, record in enumerate(records, 1):
        assert record.name.startswith(f"{number:04}-")
        title = record.read_text().splitlines()[0].removeprefix(f"# {number}. ")
        assert f"| [{number}]({record.name}) | {title} |" in index
    assert len(re.findall(r"^\| \[", index, re.M)) == len(records)


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS])
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", document.read_text()):
        if "://" in target:
            continue
        file = document.parent / target if target else document
        assert file.exists(), target
        assert not anchor or anchor in _anchors(file), f"{target}#{anchor}"


def _anchors(file: Path) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_settings_page_names_every_setting_and_its_default() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    for name, field in Settings.model_fields.items():
        row = re.search(rf"^\| `BONGSU_{name.upper()}` \| (.*?) \|", page, re.M)
        assert row, name
        default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        assert row[1].strip("`") == default.removesuffix(".0") or (default in ("", "None") and row[1] == "–"), name
    assert set(re.findall(r"^\| `BONGSU_(\w+)`", page, re.M)) == {name.upper() for name in Settings.model_fields}


def test_the_metrics_page_names_every_metric_and_no_other() -> None:
    page = (ROOT / "docs/howto/metrics.md").read_text()
    ours = {metric._name for metric in vars(telemetry).values() if isinstance(metric, MetricWrapperBase)}
    assert len(ours) >= 20
    assert ours == {name.removesuffix("_total") for name in re.findall(r"\bbongsu_\w+", page)}


def test_every_error_has_a_cure_for_a_docstring() -> None:
    ours = [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, errors.BongsuError)]
    assert len(ours) > 10
    for error in ours:
        text = str(error("What was found"))
        assert text.startswith("What was found. ")
        assert text.endswith(".")
        assert len(str(error())) > 20
