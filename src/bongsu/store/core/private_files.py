"""The files of the embedded store: where they are, and that only their owner can read them.

They hold members' addresses and messages, and beside them lie the keys.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bongsu.settings import Settings

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
_ANYBODY_ELSE = 0o077


def sqlite_path(settings: Settings) -> Path:
    if settings.database_url:
        # sqlite:///relative.db, sqlite:////absolute.db
        return Path(unquote(urlsplit(settings.database_url).path.removeprefix("/")) or "bongsu.db")
    return settings.create_data_dir() / "bongsu.db"


def create_private(path: Path) -> None:
    """Create the database's file if it is missing, for its owner only. SQLite gives its -wal and -shm the same mode.

    An empty file is an empty database. What cannot be created is left to SQLite, which says why.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
    except OSError:
        return


def exposed_files(settings: Settings) -> Iterator[tuple[Path, int]]:
    """What other users of this machine may read, and the mode it should have. Nothing is changed: a shared data dir may be
    intended, and only its owner knows."""
    if not settings.is_embedded or os.name != "posix":
        return
    database, folder = sqlite_path(settings), settings.data_dir
    files = [database.with_name(database.name + ending) for ending in ("", "-wal", "-shm")]
    for path, mode in (
        (folder, DIRECTORY_MODE),
        *((path, FILE_MODE) for path in (folder / "api-key", folder / "jwt-secret", *files)),
    ):
        try:
            is_exposed = stat.S_IMODE(path.stat().st_mode) & _ANYBODY_ELSE
        except OSError:
            continue
        if is_exposed:
            yield path, mode
