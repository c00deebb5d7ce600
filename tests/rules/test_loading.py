"""`--app package.module:app`: what works, and one line for everything that does not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bongsu.errors import BadApp
from bongsu.rules import load_app
from tests.support.processes import bongsu

GOOD = 'from bongsu import App\nours = App()\nSHIPPED = ours.type("SHIPPED", channels=["PUSH"])\n'


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, and no memory of the modules in it."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != ""])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refusal(reference: str) -> str:
    with pytest.raises(BadApp) as caught:
        load_app(reference)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_app_in_the_current_directory_is_found(shop: Path) -> None:
    (shop / "shop").mkdir()
    (shop / "shop" / "rules.py").write_text(GOOD)
    assert list(load_app("shop.rules:ours").types) == ["SHIPPED"]


@pytest.mark.parametrize("reference", ["", "shop", "shop:", ":app", "shop/rules.py:app", "shop:app()", "a..b:app"])
def test_a_reference_of_another_form_is_refused(reference: str) -> None:
    assert f"--app {reference} is not of the form package.module:app" in refusal(reference)


def test_a_missing_module_is_distinguished_from_one_that_it_imports(shop: Path) -> None:
    assert refusal("shop.rules:app").startswith(f"There is no module shop in {shop} or among the installed packages.")
    (shop / "shop.py").write_text("x = 1\nimport no_such_thing\n")
    assert "shop cannot be imported: ModuleNotFoundError: No module named 'no_such_thing' (" in refusal("shop:app")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("x = 1\nx = y\n", "shop cannot be imported: NameError: name 'y' is not defined ({file}, line 2). Correct"),
        ("def (:\n", "shop cannot be imported: SyntaxError: invalid syntax ({file}, line 1)"),
        ("raise SystemExit('no\\nway')", "shop cannot be imported: SystemExit: no way ({file}, line 1)"),
        ('from bongsu import App\nApp().type("X", channels=["FAX"])\n', "shop: Notice type X: channels takes PUSH"),
        ("", "shop has no app: write app = App()"),
        (GOOD, "shop has no app: did you mean shop:ours?"),
        ("app = print", "shop:app is a builtin_function_or_method, not an App: write app = App()"),
        ("app = 7", "shop:app is an int, not an App"),
    ],
)
def test_a_broken_app_is_one_line_that_says_where(shop: Path, source: str, says: str) -> None:
    (shop / "shop.py").write_text(source)
    assert says.format(file=shop / "shop.py") in refusal("shop:app")


def test_serve_with_a_broken_app_does_not_start(tmp_path: Path) -> None:
    done = bongsu("serve", "--app", "no_such_shop:app", environment={"BONGSU_DATA_DIR": str(tmp_path)})
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("bongsu: There is no module no_such_shop in ")
