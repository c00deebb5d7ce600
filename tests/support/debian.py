"""Programs from Debian's packages, installed when we may. What cannot be had says what was tried and how to get it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

# A few hundred megabytes from a mirror near by; longer only delays the report that there is none.
INSTALL_SECONDS = 300


class PackageMissing(RuntimeError):
    """The message says what was tried and how to get it. Fixtures skip on this."""


def find_or_install(what: str, package: str, find: Callable[[], str | None]) -> str:
    """What `find` finds, before or after the package was installed."""
    if found := find():
        return found
    # The processes of a test run look at the same time: one installs, and the others find what it has installed.
    with Path(tempfile.gettempdir(), "bongsu-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        why_not = "" if find() else _install(package)
    if found := find():
        return found
    raise PackageMissing(f"No {what}: it was not found, and {why_not}. `apt install {package}` gives you one.")


def _install(package: str) -> str:
    """Why it is not there afterwards."""
    if os.geteuid() != 0:
        return "only root may install it"
    if shutil.which("apt-get") is None:
        return "there is no apt-get to install it with"
    for command in ("apt-get update", f"apt-get install -y --no-install-recommends {package}"):
        if why_not := _run(command):
            return why_not
    return "the package that was installed has other files"


def _run(command: str) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command.split(), env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"`{command}` did not end within {INSTALL_SECONDS} s"
    said = (done.stderr or done.stdout).strip().splitlines()
    return f"`{command}` failed: {said[-1] if said else done.returncode}" if done.returncode else ""
