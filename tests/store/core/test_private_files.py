"""The files of the embedded store: readable by their owner only, and reported where they are not."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from bongsu.desk import doctor
from bongsu.errors import FilesExposed
from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from bongsu.store import Store, migrate
from bongsu.store.core.private_files import exposed_files
from bongsu.store.core.query import same


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    """Under which a file that nobody thought of is readable by all."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("is_migrated_first", [True, False])
async def test_every_file_is_its_owners_alone(tmp_path: Path, is_migrated_first: bool) -> None:
    settings = Settings(data_dir=tmp_path / "new" / "data")
    Keys.load(settings)
    store = Store.open(settings)
    try:
        if is_migrated_first:
            await migrate(store)
        async with store.transaction() as tx:
            await tx.execute(same("CREATE TABLE t (x INTEGER)")())
        modes = {path.name: mode_of(path) for path in settings.data_dir.iterdir()}
        assert modes == dict.fromkeys(("api-key", "jwt-secret", "bongsu.db", "bongsu.db-wal", "bongsu.db-shm"), 0o600)
        assert mode_of(settings.data_dir) == 0o700
        assert list(exposed_files(settings)) == []
        assert await doctor._files(settings) == "readable by their owner only"
    finally:
        await store.close()


async def test_a_file_named_in_the_url_is_too(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", database_url=f"sqlite:///{tmp_path}/shop.db")
    store = Store.open(settings)
    await migrate(store)
    await store.close()
    assert mode_of(tmp_path / "shop.db") == 0o600


async def test_what_others_can_read_is_named_with_the_cure_and_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    folder.mkdir(mode=0o755)
    for name in ("bongsu.db", "api-key"):
        (folder / name).write_text("")
        (folder / name).chmod(0o644)
    settings = Settings(data_dir=folder)
    assert list(exposed_files(settings)) == [(folder, 0o700), (folder / "api-key", 0o600), (folder / "bongsu.db", 0o600)]
    with pytest.raises(FilesExposed) as found:
        await doctor._files(settings)
    assert f"chmod 700 '{folder}' && chmod 600 '{folder}/api-key' && chmod 600 '{folder}/bongsu.db'" in str(found.value)
    assert (mode_of(folder), mode_of(folder / "bongsu.db")) == (0o755, 0o644)
