"""An SMS gateway, run as a script: `http_gateway.py LEDGER`. Written on bare sockets, so that it can misbehave.

What it does with a message, its number tells: `+8210` and then one of the digits below.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from urllib.parse import parse_qs, unquote

ANSWERS = {
    "1": (201, {}, {"sid": "SM4711", "status": "queued"}),
    "2": (400, {}, {"code": 21610, "message": "unsubscribed", "status": 400}),
    "5": (429, {"Retry-After": "7"}, {"code": 20429, "message": "too many", "status": 429}),
    "6": (400, {}, {"code": 21211, "message": "no number", "status": 400}),
    "7": (302, {"Location": "http://127.0.0.1:1/"}, {}),
    "8": (503, {}, {"message": "later"}),
}
HANG, CLOSE, CUT = "3", "4", "9"


class Gateway:
    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                message = _read(headers, body)
                self._write({"line": head[0], "headers": headers, "message": message})
                wish = _wish(head[0], message)
                if wish == HANG:
                    await asyncio.Event().wait()
                if wish == CLOSE:
                    return
                if wish == CUT:
                    writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 1000\r\n\r\n{")
                    await writer.drain()
                    return
                writer.write(_answer(*ANSWERS[wish]))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _write(self, row: object) -> None:
        with self._ledger.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _read(headers: dict[str, str], body: bytes) -> dict[str, str]:
    if "json" in headers.get("content-type", ""):
        message: dict[str, str] = json.loads(body)
        return message
    return {name: values[0] for name, values in parse_qs(body.decode()).items()}


def _wish(line: str, message: dict[str, str]) -> str:
    number = message.get("To") or message.get("to") or unquote(line.split()[1]).rpartition("/")[2]
    return number.removeprefix("+8210")[0]


def _answer(status: int, headers: dict[str, str], answer: object) -> bytes:
    body = json.dumps(answer).encode()
    lines = [f"{name}: {value}" for name, value in {**headers, "Content-Length": str(len(body))}.items()]
    return "\r\n".join([f"HTTP/1.1 {status} Said", "Content-Type: application/json", *lines, "", ""]).encode() + body


async def main(ledger: Path) -> None:
    gateway = Gateway(ledger)
    server = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
    print("ready", server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
