"""Providers that do as they are told, each in a process of its own, with a ledger of what they were handed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Any

HERE = Path(__file__).parent
CERTIFICATE = HERE / "localhost.pem"
WAIT_SECONDS = 30


class Scripted:
    """A running provider. What it is handed is in the ledger before it answers, so who has the answer can look."""

    def __init__(self, script: str, *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._ledger = Path(self._folder.name, "ledger")
        self._ledger.touch()
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / script), str(self._ledger), *arguments],
            stdin=subprocess.PIPE,  # its end is the sign to leave, however we end
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = int(self.wait_for("ready"))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line.strip())

    def wait_for(self, event: str) -> str:
        """What it says with the next event of that name."""
        while True:
            name, _, rest = self._said.get(timeout=WAIT_SECONDS).partition(" ")
            if name == event:
                return rest

    def ledger(self) -> list[dict[str, Any]]:
        """The rows written to their end: a long one may be read while it is being written."""
        *rows, _unfinished = self._ledger.read_text().split("\n")
        return [json.loads(row) for row in rows]

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(WAIT_SECONDS)
        self._reader.join()
        self._process.stdout.close()
        self._folder.cleanup()
