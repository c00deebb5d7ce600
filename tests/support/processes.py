"""Bongsu as a user runs it: a process of its own, waited for by what it says."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue
from typing import Any

import httpx

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(
    [
        "tests.support.processes",
        "tests.decide.killed_worker",
        "tests.deliver.killed_dispatcher",
        "tests.chat.killed_push",
        "tests.desk.killed_campaign",
        "tests.ingress.relay.killed_relay",
        "tests.simulator.running",
        "bongsu.service",
        "bongsu.simulator",
        "bongsu.cli.main",
        "bongsu.cli.publish",
        "bongsu.cli.doctor_view",
        "bongsu.cli.why_view",
        "bongsu.cli.dead_view",
        "bongsu.cli.events_view",
        "bongsu.cli.jobs_view",
        "tests.support.preloaded",
    ]
)

# Of a server call.
KEY = {"X-API-Key": "server-key-of-the-tests"}
BONGSU = [sys.executable, "-c", "from bongsu.cli.main import main; main()"]
# A process takes seconds to start, and more than half a minute where ten others want the same core.
WAIT_SECONDS = 90
# What Kubernetes allows by default before it kills.
STOP_SECONDS = 30


def bongsu(*arguments: str, environment: Mapping[str, str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a process of its own: forked from one that has imported everything already."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(stdin or "")
        process = forks.Process(target=_run, args=(arguments, dict(environment), streams))
        process.start()
        process.join(WAIT_SECONDS)
        assert process.exitcode is not None, f"still running: bongsu {' '.join(arguments)}"
        return subprocess.CompletedProcess(arguments, process.exitcode, streams[1].read_text(), streams[2].read_text())


def _run(arguments: tuple[str, ...], environment: dict[str, str], streams: list[Path]) -> None:
    _become_bongsu(arguments, environment, [os.open(path, os.O_RDWR | os.O_CREAT) for path in streams])


def _become_bongsu(arguments: Sequence[str], environment: dict[str, str], streams: Sequence[int]) -> None:
    """Be as a process started with this command line, this environment and these descriptors for its standard streams."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["bongsu", *arguments]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    # The consoles were made when the module was imported, around the streams of the process we were forked from.
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    from bongsu.cli import main as cli

    cli.main()


class ForkedProcess:
    """Bongsu in a process forked from one that has imported everything: an import takes more CPU than most tests that
    need a process. It has those members of subprocess.Popen that the tests use."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        outputs = [forks.Pipe(duplex=False) for _ in range(2)]
        writers = [writer for _, writer in outputs]
        self._process = forks.Process(
            target=_run_piped, args=(arguments, dict(environment), Path.cwd(), *writers), daemon=True
        )
        self._process.start()
        for writer in writers:
            writer.close()
        self.stdout, self.stderr = (os.fdopen(os.dup(reader.fileno())) for reader, _ in outputs)
        for reader, _ in outputs:
            reader.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("bongsu", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run_piped(
    arguments: Sequence[str], environment: dict[str, str], folder: Path, stdout: Connection, stderr: Connection
) -> None:
    # A user's own modules are found in the folder where the service is started.
    os.chdir(folder)
    sys.path.insert(0, "")
    nothing = os.open(os.devnull, os.O_RDONLY)
    streams = [nothing, os.dup(stdout.fileno()), os.dup(stderr.fileno())]
    stdout.close()
    stderr.close()
    _become_bongsu(arguments, environment, streams)


class Served:
    """A running `bongsu serve`."""

    def __init__(self, process: subprocess.Popen[str] | ForkedProcess) -> None:
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

    def until_ready(self) -> None:
        self.address = self.wait_for("ready").get("address") or ""

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.address, headers=headers, timeout=WAIT_SECONDS)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)


@contextlib.contextmanager
def serving(
    environment: Mapping[str, str], *arguments: str, program: Sequence[str] | None = None, is_ready: bool = True
) -> Iterator[Served]:
    """Serve on a free port until the block ends. Ready when it begins, or only started. With a program of its own, or with
    an environment for the interpreter or the loader, it is started as a user would; else it is forked."""
    arguments = ("serve", "--port", "0", *arguments)
    environment = {"PATH": os.environ["PATH"], **environment}
    process: subprocess.Popen[str] | ForkedProcess
    if program is None and not any(name.startswith(("LD_", "PYTHON")) for name in environment):
        process = ForkedProcess(arguments, environment)
    else:
        command = [*(program or BONGSU), *arguments]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    served = Served(process)
    try:
        if is_ready:
            served.until_ready()
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
