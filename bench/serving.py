"""Servers in processes of their own: a real `bongsu serve`, with a profiler if asked, and what it is compared with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pstats
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bongsu.settings import Settings

# It takes about a second; a machine that is busy with other tests has needed ten.
START_SECONDS = 60.0
READINESS_POLL = 0.05
# As an orchestrator would: told to stop, given time to drain, then ended.
STOP_SECONDS = 30.0
PROFILE_LINES = 15
ROOT = Path(__file__).parents[1]


class ServerDidNotStart(RuntimeError):
    """A server ended or never became ready. The message is the end of its log."""


@dataclass(frozen=True)
class Server:
    port: int
    pid: int


@contextlib.asynccontextmanager
async def serving(
    settings: Settings, profile: Path | None = None, role: str = "api", app: str | None = None
) -> AsyncIterator[Server]:
    """A `bongsu serve` of these roles on the settings' store, with a user's app if given, which ends with the block."""
    given = {f"BONGSU_{name.upper()}": str(value) for name, value in settings.model_dump(exclude_defaults=True).items()}
    program = ["-m", "bench.profiled", str(profile)] if profile else [str(Path(sys.executable).with_name("bongsu"))]
    # In the data dir, where no bongsu.toml of a developer's lies.
    options = ["--role", role, *(["--app", app] if app else [])]
    async with listening([*program, "serve", *options], settings.data_dir, given) as server:
        yield server


@contextlib.asynccontextmanager
async def listening(
    program: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Server]:
    """A Python program that takes `--port` and answers `/readyz`; its log lies in the folder, and it ends with the block."""
    port = _free_port()
    log = folder / f"serve-{port}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, *program, "--port", str(port)],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **(environment or {})},
            stdout=subprocess.DEVNULL,
            stderr=stream,
        )
    try:
        await _until_ready(process, port, log)
        yield Server(port, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    try:
        async with asyncio.timeout(START_SECONDS):
            while process.poll() is None:
                if await _is_ready(port):
                    return
                await asyncio.sleep(READINESS_POLL)
    except TimeoutError:
        pass
    raise ServerDidNotStart(log.read_text(errors="replace")[-2000:])


async def _is_ready(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
    answer = await reader.readline()
    writer.close()
    return answer.startswith(b"HTTP/1.1 200 ")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def busiest(profile: Path) -> str:
    """Where the time went, by each function's own, as a Markdown table. Paths are cut to what names the module."""
    # pstats' own summary knows functions by name alone and would mix up all that are called __call__.
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = vars(pstats.Stats(str(profile)))["stats"]
    total = sum(own for _, _, own, _, _ in stats.values())
    ordered = sorted(stats.items(), key=lambda item: item[1][2], reverse=True)
    lines = ["| function | where | calls | own time | share |", "|---|---|--:|--:|--:|"]
    for (file, _, name), (_, calls, own, _, _) in ordered[:PROFILE_LINES]:
        where = "/".join(Path(file).parts[-2:]) if file.endswith(".py") else "C"
        lines.append(f"| `{name}` | {where} | {calls:,} | {own:.2f} s | {own / total:.0%} |")
    return "\n".join(lines)
