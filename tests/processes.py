"""Bongsu as a user runs it: a process of its own, waited for by what it says."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import Queue
from typing import Any

import httpx

BONGSU = [sys.executable, "-c", "from bongsu.cli import main; main()"]
WAIT_SECONDS = 30


def bongsu(
    *arguments: str, environment: Mapping[str, str], cwd: Path | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*BONGSU, *arguments],
        env=dict(environment),
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Served:
    """A running `bongsu serve`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._queue: Queue[dict[str, Any] | None] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = ""

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with contextlib.suppress(ValueError):
                self._queue.put(json.loads(line))
        self._queue.put(None)

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next log line of that name."""
        while (line := self._queue.get(timeout=WAIT_SECONDS)) is not None:
            self.lines.append(line)
            if line["event"] == event:
                return line
        raise AssertionError(f"the process ended without saying {event!r}: {self.lines[-5:]}")

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.address, headers=headers, timeout=WAIT_SECONDS)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)


@contextlib.contextmanager
def serving(environment: Mapping[str, str], *arguments: str) -> Iterator[Served]:
    """Serve on a free port until the block ends."""
    process = subprocess.Popen(
        [*BONGSU, "serve", "--port", "0", *arguments],
        env={"PATH": os.environ["PATH"], **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    served = Served(process)
    try:
        served.address = served.wait_for("ready").get("address") or ""
        yield served
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        served._reader.join()
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()
