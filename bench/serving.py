"""A real `bongsu serve --role api` in a process of its own; with a profiler around it if asked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pstats
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
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
    """`bongsu serve` ended or never became ready. The message is the end of its log."""


@contextlib.asynccontextmanager
async def serving(settings: Settings, profile: Path | None = None) -> AsyncIterator[int]:
    """The port of a server on the settings' store, which ends with the block."""
    port = _free_port()
    log = settings.data_dir / f"serve-{port}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            _command(profile),
            cwd=settings.data_dir,  # where no bongsu.toml of a developer's lies
            env=_environment(settings, port),
            stdout=subprocess.DEVNULL,
            stderr=stream,
        )
    try:
        await _until_ready(process, port, log)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _command(profile: Path | None) -> list[str]:
    program = ["-m", "bench.profiled", str(profile)] if profile else [str(Path(sys.executable).with_name("bongsu"))]
    return [sys.executable, *program, "serve", "--role", "api"]


def _environment(settings: Settings, port: int) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "BONGSU_DATA_DIR": str(settings.data_dir),
        "BONGSU_DATABASE_URL": settings.database_url,
        "BONGSU_API_KEYS": settings.api_keys,
        "BONGSU_JWT_SECRET": settings.jwt_secret,
        "BONGSU_PORT": str(port),
    }


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
