"""For tests of faults: the simulator, and the means to skew a clock or fill a disk."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.debian import PackageMissing, find_or_install

# Outages of a provider last longer than its breaker, half a minute each: only `make chaos` has them. tests/deliver has
# the same behaviour without real time.
collect_ignore = [] if "CHAOS_FAULT_SECONDS" in os.environ else ["test_deliver_faults.py"]


@pytest.fixture(scope="session")
def libfaketime() -> str:
    def find() -> str | None:
        return next(map(str, Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)

    try:
        return find_or_install("libfaketime", "faketime", find)
    except PackageMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of its own with little room, in memory. Not below tmp_path, where a database's user may not go."""
    place = Path(tempfile.mkdtemp(prefix="bongsu-small-"))
    place.chmod(0o755)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "none", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here, which takes root: {mounted.stderr.strip()}")
    place.chmod(0o755)
    yield place
    subprocess.run(["umount", "-l", place], check=True)
    place.rmdir()
