"""An HTTP proxy that injects failures in front of an object store: a process of its own, controlled over HTTP.

`python -m tests.faults.store_proxy LISTEN_PORT UPSTREAM_PORT`; `GET /__mode__/NAME/SHARE` sets what happens to that
share of the following requests:

- `pass`: nothing;
- `503`: the store answers that it is overloaded;
- `hang`: no answer; half of these requests take effect anyway;
- `cut`: the connection ends before the request, after it took effect, or in the middle of the answer;
- `slow`: two seconds late.

A change of the mode cuts off requests that hang. Each request has its own connection to the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tailrace_cli.demo.ports import free_port
from tests.support.servers import end_with_parent

Mode = Literal["pass", "503", "hang", "cut", "slow"]
SLOW_SECONDS = 2.0
_HEAD_BYTES = 64 * 1024
_BLOCK = 64 * 1024
_BUSY = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code>"
    b"<Message>Please reduce your request rate.</Message></Error>"
)


@dataclass
class _Proxy:
    upstream: int
    mode: str = "pass"
    share: float = 1.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    serving: set[asyncio.Task[None]] = field(default_factory=set)
    luck: random.Random = field(default_factory=lambda: random.Random(1))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)  # the loop holds only a weak reference
        task.add_done_callback(self.serving.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while await self._serve_one(reader, writer):
                pass
        writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        words = head.split(b" ", 2)
        if words[1].startswith(b"/__mode__/"):
            _, _, mode, share = words[1].decode().split("/")
            self.mode, self.share = mode, float(share)
            self.changed.set()
            self.changed = asyncio.Event()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
            return True
        if b"expect: 100-continue" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(_content_length(head))
        mode = self.mode if self.luck.random() < self.share else "pass"
        if mode == "503":
            writer.write(
                b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"
                % len(_BUSY)
            )
            writer.write(b"" if words[0] == b"HEAD" else _BUSY)
            await writer.drain()
            return True
        if mode == "hang":
            changed = self.changed
            if self.luck.random() < 0.5:
                await self._forward(head, body, None)
            await changed.wait()
            return False
        if mode == "cut":
            where = self.luck.randrange(3)
            if where:
                await self._forward(head, body, writer if where == 2 else None, most=200)
            writer.transport.abort()
            return False
        if mode == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        await self._forward(head, body, writer)
        return False  # the request asked the store to close, and its answer says so

    async def _forward(
        self, head: bytes, body: bytes, answer: asyncio.StreamWriter | None, most: int | None = None
    ) -> None:
        """Forward a request; send the first `most` bytes of its answer to `answer`, if given."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream, limit=_HEAD_BYTES)
        try:
            lines = [
                line
                for line in head[:-4].split(b"\r\n")
                if not line.lower().startswith((b"connection:", b"expect:"))
            ]
            writer.write(b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body)
            await writer.drain()
            passed = 0
            while block := await reader.read(_BLOCK):
                if answer is not None and (most is None or passed < most):
                    answer.write(block[: None if most is None else most - passed])
                    await answer.drain()
                passed += len(block)
        finally:
            writer.close()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


class StoreProxy:
    """Controls the proxy."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def be(self, mode: Mode, share: float = 1.0) -> None:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"{self.endpoint}/__mode__/{mode}/{share}", timeout=10) as response:
            response.read()


@contextmanager
def store_proxy(upstream: int, log: Path) -> Iterator[StoreProxy]:
    """Run a proxy for the port `upstream` of loopback; it ends with the block."""
    import os
    import subprocess
    import time

    port = free_port()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.store_proxy", str(port), str(upstream)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=Path(__file__).parents[2],
            preexec_fn=end_with_parent(signal.SIGKILL, os.getpid()),
        )
    proxy = StoreProxy(port)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                proxy.be("pass")
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield proxy
    finally:
        process.kill()
        process.wait()


async def _main(port: int, upstream: int) -> None:
    proxy = _Proxy(upstream)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", port, limit=_HEAD_BYTES)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
