"""Record what real clients send and get: `python -m tests.tailrace.kafka.record [CLIENT ...]` writes `recorded/`.

Each client of tests/compat runs its checks against `tailrace serve` through a proxy on loopback, which is what the
broker advertises. Of what passes, a small request and a long one of each API and version are kept, with the answers.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tailrace_cli.demo.ports import free_port
from tests.compat.broker import STOP_SECONDS, Broker, _wait_until_it_listens
from tests.tailrace.kafka.recordings import FOLDER, RecordedFrame, written

MOST_BYTES = 3000
"""Frames longer than this are not kept."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response, both without their size; no response to acks=0."""

    request: bytes
    response: bytes | None

    @property
    def api(self) -> tuple[int, int]:
        return int.from_bytes(self.request[:2], "big"), int.from_bytes(self.request[2:4], "big")


@dataclass(slots=True)
class RecordingProxy:
    """Passes bytes between clients and a broker, and remembers whole frames. Runs on a thread of its own."""

    port: int
    broker_port: int
    exchanges: list[Exchange] = field(default_factory=list)

    def serve(self, ready: threading.Event, stop: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        """The thread's work."""
        asyncio.set_event_loop(loop)

        async def main() -> None:
            server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=64 << 20)
            ready.set()
            await stop.wait()
            server.close()

        loop.run_until_complete(main())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting: dict[int, bytes] = {}
        try:
            theirs, ours = await asyncio.open_connection("127.0.0.1", self.broker_port, limit=64 << 20)
        except OSError:
            writer.close()
            return

        async def requests() -> None:
            with suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    frame = await _frame(reader)
                    waiting[int.from_bytes(frame[4:8], "big")] = frame
                    ours.write(len(frame).to_bytes(4, "big") + frame)
                    await ours.drain()
            ours.close()

        async def responses() -> None:
            with suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    frame = await _frame(theirs)
                    asked = waiting.pop(int.from_bytes(frame[:4], "big"), None)
                    if asked is not None:
                        self.exchanges.append(Exchange(asked, frame))
                    writer.write(len(frame).to_bytes(4, "big") + frame)
                    await writer.drain()
            writer.close()

        await asyncio.gather(requests(), responses())


async def _frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


@contextmanager
def recorded_broker() -> Iterator[tuple[Broker, RecordingProxy]]:
    """A broker whose clients come through the proxy."""
    with tempfile.TemporaryDirectory(prefix="tailrace-recorded-") as folder:
        log, port, http = Path(folder) / "log", free_port(), free_port()
        proxy = RecordingProxy(free_port(), port)
        command = [sys.executable, "-m", "tailrace_cli.app", "serve", "--data", str(Path(folder) / "data")]
        command += ["--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{http}"]
        command += ["--advertise", f"127.0.0.1:{proxy.port}"]
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={key: value for key, value in os.environ.items() if not key.startswith("TAILRACE_")},
            )
        loop = asyncio.new_event_loop()
        ready, stop = threading.Event(), asyncio.Event()
        thread = threading.Thread(target=proxy.serve, args=(ready, stop, loop), daemon=True)
        try:
            _wait_until_it_listens(process, port, log)
            thread.start()
            ready.wait(10)
            yield Broker(proxy.port, http, process, log), proxy
            loop.call_soon_threadsafe(stop.set)
            thread.join(10)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def chosen(exchanges: Iterable[Exchange]) -> list[Exchange]:
    """Of each API and version the shortest exchange and the one with the longest request, small ones only."""
    found: dict[tuple[int, int], list[Exchange]] = {}
    for exchange in exchanges:
        if len(exchange.request) + len(exchange.response or b"") <= MOST_BYTES:
            found.setdefault(exchange.api, []).append(exchange)
    kept: list[Exchange] = []
    for api in sorted(found):
        by_length = sorted(found[api], key=lambda each: (len(each.request), len(each.response or b"")))
        kept.append(by_length[0])
        if len(by_length[-1].request) > len(by_length[0].request):
            kept.append(by_length[-1])
    return kept


def frames(client: str, exchanges: Iterable[Exchange]) -> Iterator[RecordedFrame]:
    """Request, response, request, response, ..."""
    for exchange in exchanges:
        key, version = exchange.api
        yield RecordedFrame(client, True, key, version, exchange.request)
        if exchange.response is not None:
            yield RecordedFrame(client, False, key, version, exchange.response)


def main(words: list[str]) -> int:
    """Record; 1 if a client's check failed."""
    from tests.compat.run import all_clients

    failures = 0
    FOLDER.mkdir(exist_ok=True)
    for client in all_clients():
        if words and not any(word in client.name for word in words):
            continue
        if client.skipped:
            print(f"{client.name}: skipped: {client.skipped}")
            continue
        with recorded_broker() as (broker, proxy):
            for area, check in client.checks.items():
                try:
                    check(broker)
                except Exception:
                    failures += 1
                    print(f"{client.name}: {area} fails\n{traceback.format_exc()}")
        name = client.name.split()[0].lower() + ("-java" if "Java" in client.name else "")
        kept = chosen(proxy.exchanges)
        data = written(frames(name, kept))
        (FOLDER / f"{name}.frames").write_bytes(data)
        print(f"{name}: {len(proxy.exchanges)} exchanges, {len(kept)} kept, {len(data)} bytes", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
