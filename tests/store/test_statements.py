"""Every statement of the store, found by looking through its modules, is understood by the database it is for."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bongsu.store
from bongsu.store import Statement, Store
from bongsu.store.core.query import OTHER_DATABASE
from bongsu.store.decisions.decide import CREATE_DECIDED

ROOT = Path(bongsu.store.__file__).parent
SOURCES = sorted(path for path in ROOT.rglob("*.py") if "migrations" not in path.parts)
MAKERS = {"Statement", "in_both", "only_postgres", "only_sqlite", "same"}


def _statements() -> Iterator[tuple[str, Statement]]:
    for module in pkgutil.walk_packages(bongsu.store.__path__, "bongsu.store."):
        if ".migrations" in module.name:
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            yield from _within(f"{module.name.removeprefix('bongsu.store.')}.{name}", value)


def _within(name: str, value: Any) -> Iterator[tuple[str, Statement]]:
    match value:
        case Statement():
            yield name, value
        case dict():
            for key, one in value.items():
                yield from _within(f"{name}[{key}]", one)
        case list() | tuple() if not hasattr(value, "_fields"):
            for place, one in enumerate(value):
                yield from _within(f"{name}[{place}]", one)


# Each once, under the name it was first found by.
STATEMENTS = {statement: name for name, statement in reversed(list(_statements()))}


async def test_every_statement_can_be_prepared(store: Store) -> None:
    """Names, types and parameters are right on both databases, also of what no other test runs."""
    assert len(STATEMENTS) > 60
    failed = {}
    async with store.single() as tx:
        # Statements of a step read its temporary table, which belongs to the connection.
        await tx.execute(CREATE_DECIDED())
        for statement, name in STATEMENTS.items():
            try:
                await _prepare(store, tx, statement)
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"
    assert failed == {}


async def _prepare(store: Store, tx: Any, statement: Statement) -> None:
    """Parsed and planned, not run."""
    if store.dialect.name == "postgresql":
        if statement.postgres != OTHER_DATABASE:
            await tx._driver.prepare(statement.postgres)
    elif statement.sqlite != OTHER_DATABASE:
        await tx.fetch(Statement("", f"EXPLAIN {statement.sqlite}")(*[None] * 40))


@pytest.mark.parametrize("path", SOURCES, ids=[str(path.relative_to(ROOT)) for path in SOURCES])
def test_every_statement_says_what_it_promises(path: Path) -> None:
    """A comment stands above each statement, or above the group of statements it belongs to."""
    lines = path.read_text().splitlines()
    silent = [
        f"{path.name}:{node.lineno}"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and _is_statement(node.value, path) and not _has_comment(lines, node.lineno - 1)
    ]
    assert silent == []


def _is_statement(value: ast.expr, path: Path) -> bool:
    """Of those written in the postgres.py and sqlite.py of a package, the texts there have the comment."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in MAKERS:
        return not any(isinstance(one, ast.Attribute) for one in [*value.args, *(named.value for named in value.keywords)])
    return path.stem in ("postgres", "sqlite") and path.parent != ROOT and isinstance(value, ast.JoinedStr)


def _has_comment(lines: list[str], place: int) -> bool:
    while place > 0 and lines[place - 1].strip():
        place -= 1
        if lines[place].startswith("#"):
            return True
    return False


def test_statements_are_constants() -> None:
    """No text is put together while the service runs, but around a user's statement (publish makes a text, no Statement)."""
    allowed = {"user_select.py", "user_targets.py", "query.py"}
    found = []
    for path in SOURCES:
        if path.name in allowed:
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                found += [
                    f"{path.name}:{node.lineno}"
                    for node in ast.walk(function)
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS
                ]
    assert found == []
