"""The documents speak of things that exist."""

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


def test_every_name_on_the_tour_is_in_the_file_it_is_named_with() -> None:
    tour = (ROOT / "docs/TOUR.md").read_text()
    stops = re.split(r"(?=`src/[^`]+\.py`)", tour)[1:]
    assert len(stops) > 10
    for stop in stops:
        file = ROOT / stop[1 : stop.index(".py`") + 3]
        source = file.read_text()
        for name in re.findall(r"`([A-Za-z_]+)`", stop.split("\n\n")[0]):
            assert re.search(rf"\b(class|def|async def) {name}\b", source), f"{name} in {file}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS])
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_the_settings_page_names_every_setting_and_its_default() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    for name, field in Settings.model_fields.items():
        row = re.search(rf"^\| `BONGSU_{name.upper()}` \| (.*?) \|", page, re.M)
        assert row, name
        default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        assert row[1].strip("`") == default.removesuffix(".0") or (not default and row[1] == "–"), name
    assert set(re.findall(r"^\| `BONGSU_(\w+)`", page, re.M)) == {name.upper() for name in Settings.model_fields}


def test_the_metrics_page_names_every_metric_and_no_other() -> None:
    page = (ROOT / "docs/howto/metrics.md").read_text()
    ours = {one._name for one in vars(telemetry).values() if isinstance(one, MetricWrapperBase)}
    assert len(ours) >= 20
    assert ours == {name.removesuffix("_total") for name in re.findall(r"\bbongsu_\w+", page)}


def test_every_error_has_a_cure_for_a_docstring() -> None:
    ours = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.BongsuError)]
    assert len(ours) > 10
    for error in ours:
        text = str(error("What was found"))
        assert text.startswith("What was found. ")
        assert text.endswith(".")
        assert len(str(error())) > 20
