"""docs/howto/simulator.md names everything there is, and its example is taken."""

from __future__ import annotations

import re
from pathlib import Path

from bongsu.simulator.config import Config, Fault, read_config
from bongsu.simulator.provider import DYING, FAULTY, TOKEN_CLASSES

PAGE = (Path(__file__).parents[2] / "docs/howto/simulator.md").read_text()


def test_every_fault_setting_and_kind_of_token_is_on_the_page() -> None:
    named = set(re.findall(r"^\| `([A-Za-z-]+)", PAGE, re.MULTILINE))
    aliases = {field.alias or name for name, field in Config.model_fields.items()}
    assert {*Fault, *aliases} <= named
    assert {prefix for prefix in named if prefix.endswith("-")} == {*TOKEN_CLASSES, DYING, f"{FAULTY}NAME-"}


def test_the_config_shown_is_taken_and_shows_every_setting() -> None:
    (example,) = re.findall(r"```json config\n(.+?)```", PAGE, re.DOTALL)
    config = read_config(example.encode())
    assert config.model_fields_set == set(Config.model_fields)
    assert config.behaviour(45).faults == {Fault.UNAVAILABLE: 1}
