"""`serve --app package.module:app`: import the user's rules, or fail with one line."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from types import ModuleType

from bongsu.errors import BadApp
from bongsu.rules.engine import Rules


def load_app(reference: str) -> Rules:
    """The App that `package.module:name` refers to. Modules in the current directory can be named too."""
    module_name, colon, name = reference.partition(":")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module_name.split("."))):
        raise BadApp(f"--app {reference} is not of the form package.module:app")
    app = _attribute(_import(module_name), name)
    if not isinstance(app, Rules):
        raise BadApp(f"{reference} is {_article(app)}, not an App: write {name} = App()")
    return app


def _import(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:  # noqa: PTH109  (sys.path holds texts)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise BadApp(f"There is no module {error.name} in {os.getcwd()} or among the installed packages") from None  # noqa: PTH109
        raise BadApp(f"{name} cannot be imported: {_where(error)}") from error
    except BadApp as error:
        raise BadApp(f"{name}: {error.detail}") from error
    except (Exception, SystemExit) as error:
        raise BadApp(f"{name} cannot be imported: {_where(error)}") from error


def _attribute(module: ModuleType, name: str) -> object:
    try:
        return getattr(module, name)
    except AttributeError:
        apps = [key for key, value in vars(module).items() if isinstance(value, Rules)]
        near = apps or difflib.get_close_matches(name, vars(module), n=1)
        hint = f": did you mean {module.__name__}:{near[0]}?" if near else f": write {name} = App()"
        raise BadApp(f"{module.__name__} has no {name}{hint}") from None


def _where(error: BaseException) -> str:
    """The error in one line, with the file and line that raised it."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{' '.join(f'{type(error).__name__}: {error}'.split())} ({last.filename}, line {last.lineno})"


def _article(value: object) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"
