"""How the broker behaves above its capacity, and with clients that behave badly.

    python -m bench.overload [--seconds 6] [--only NAME,NAME] [--small] [--postgresql] [--json FILE]

The server is a `tailrace serve` process. The bench first measures its capacity with produce requests in a closed loop.
Then it offers twice as much: as many connections again send without waiting for responses. It prints goodput, the
server's memory and the probe's latency, compared with those at capacity, and how soon after the load the probe is as
fast as before. Then each bad neighbour in turn runs with a steady load (a probe that produces and reads its own
records): consumers that don't read their responses, idle connections, a consumer that reads everything, a producer that
sends each 1-byte record in a separate request.

Then it runs the cases of `bench.support.memory_cases`, each with its own processes: a sequencer that is stopped for two
minutes, connections that stop within a request, requests of 60 KiB from a thousand connections, metadata of 100,000
partitions for a thousand connections at once, and a consumer and a compactor with a million runs to read (created in a
minute or two; the compactor is a real one and must leave none). Ten thousand connections need `ulimit -n` of 10,500 or
more, here and in the server.

Server and load share one machine's cores, so compare only rows of the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.broker import machine
from bench.support.kafka_socket import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    Connection,
    batch_of,
    fetch_request,
    produce_request,
)
from bench.support.memory_cases import CASES, SMALL, Sizes, run_case, show
from bench.support.process_figures import cpu_seconds, rss_mib
from tailrace.background_tasks import cancel_and_wait
from tailrace.kafka import ApiKey
from tailrace.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tailrace_cli.connections.kafka_client import KafkaClient
from tailrace_cli.demo.embedded_cluster import serving
from tailrace_cli.running.loop import allow_open_files

MIB = 2**20
LOADS = "loads"
"""The name under which `--only` selects everything before the cases."""
PARTITIONS = 16
BATCH_RECORDS = 512
RECORD_BYTES = 1024
SENDERS = 8
WINDOW = 4
IDLE_CONNECTIONS = 5_000
SLOW_CONSUMERS = 100


@dataclass
class Outcome:
    """The result of one load. `latencies` in seconds."""

    acknowledged_bytes: int = 0
    errors: dict[int, int] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)


async def send_batches(
    bootstrap: str, topic: str, partition: int, batch: bytes, window: int, until: float, outcome: Outcome
) -> None:
    """Keep `window` produce requests in flight until the end, and count the acknowledged ones."""
    connection = await Connection.open(bootstrap)
    request = produce_request(topic, partition, batch)
    room = asyncio.Semaphore(window)
    sent: asyncio.Queue[float | None] = asyncio.Queue()

    async def sending() -> None:
        while time.monotonic() < until:
            await room.acquire()
            await sent.put(time.monotonic())
            await connection.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)
        await sent.put(None)

    async def receiving() -> None:
        while (at := await sent.get()) is not None:
            response = await connection.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
            room.release()
            code = response.responses[0].partition_responses[0].error_code
            if code:
                outcome.errors[code] = outcome.errors.get(code, 0) + 1
            elif time.monotonic() < until:
                outcome.acknowledged_bytes += len(batch)
                outcome.latencies.append(time.monotonic() - at)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(sending())
            group.create_task(receiving())
    finally:
        connection.close()


async def offered(bootstrap: str, topic: str, senders: int, window: int, seconds: float) -> Outcome:
    """Run many senders concurrently."""
    outcome = Outcome()
    batch = batch_of(BATCH_RECORDS, RECORD_BYTES)
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for number in range(senders):
            group.create_task(
                send_batches(bootstrap, topic, number % PARTITIONS, batch, window, until, outcome)
            )
    return outcome


async def probe(bootstrap: str, topic: str, until: float, outcome: Outcome, pause: float = 0.02) -> None:
    """Repeatedly produce a record and read it back. The latency is that of both together."""
    writing, reading = await Connection.open(bootstrap), await Connection.open(bootstrap)
    batch = batch_of(1, 100)
    try:
        while time.monotonic() < until:
            at = time.monotonic()
            await writing.send(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(topic, 0, batch))
            response = await writing.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
            row = response.responses[0].partition_responses[0]
            if row.error_code:
                outcome.errors[row.error_code] = outcome.errors.get(row.error_code, 0) + 1
                await asyncio.sleep(pause)
                continue
            await reading.send(
                ApiKey.FETCH, FETCH_VERSION, fetch_request(topic, 0, row.base_offset, MIB, 1_000)
            )
            found = (await reading.answer(ApiKey.FETCH, FETCH_VERSION)).responses[0].partitions[0]
            if found.error_code or not found.records:
                outcome.errors[found.error_code] = outcome.errors.get(found.error_code, 0) + 1
            outcome.latencies.append(time.monotonic() - at)
            outcome.acknowledged_bytes += len(batch)
            await asyncio.sleep(pause)
    finally:
        writing.close()
        reading.close()


# --- bad neighbours --------------------------------------------------------------------------------------


@asynccontextmanager
async def nobody(bootstrap: str, topic: str) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def idle_connections(bootstrap: str, topic: str) -> AsyncIterator[None]:
    """Connections that send nothing."""
    held: list[Connection] = []
    try:
        for _ in range(IDLE_CONNECTIONS // 100):
            held += await asyncio.gather(*(Connection.open(bootstrap) for _ in range(100)))
        yield
    finally:
        for connection in held:
            connection.close()


@asynccontextmanager
async def slow_consumers(bootstrap: str, topic: str) -> AsyncIterator[None]:
    """Consumers that each send several requests for 50 MiB, and read 1 KiB twice a second."""

    async def consume(number: int) -> None:
        connection = await Connection.open(bootstrap, buffer=4096)
        try:
            for _ in range(4):
                request = fetch_request(topic, number % PARTITIONS, 0, 50 * MIB, 500)
                await connection.send(ApiKey.FETCH, FETCH_VERSION, request)
            while await connection.read_some(1024):
                await asyncio.sleep(0.5)
        finally:
            connection.close()

    async with _beside(consume(number) for number in range(SLOW_CONSUMERS)):
        yield


@asynccontextmanager
async def greedy_consumer(bootstrap: str, topic: str) -> AsyncIterator[None]:
    """A consumer that repeatedly reads everything from the start, as fast as it can."""

    async def consume(number: int) -> None:
        connection = await Connection.open(bootstrap, buffer=8 * MIB)
        try:
            while True:
                request = fetch_request(topic, number, 0, 100 * MIB, 500)
                await connection.send(ApiKey.FETCH, FETCH_VERSION, request)
                size = int.from_bytes(await connection.read_some(4), "big")
                while size > 0:
                    size -= len(await connection.read_some(min(size, MIB)))
        finally:
            connection.close()

    async with _beside([consume(0)]):
        yield


@asynccontextmanager
async def tiny_batches(bootstrap: str, topic: str) -> AsyncIterator[None]:
    """A producer that sends each record of 1 byte in a separate request, 64 in flight."""
    batch = batch_of(1, 1)
    until = time.monotonic() + 3600
    async with _beside([send_batches(bootstrap, topic, 1, batch, 64, until, Outcome())]):
        yield


@asynccontextmanager
async def _beside(coroutines: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.sleep(1)
        yield
    finally:
        await cancel_and_wait(*tasks)


NEIGHBOURS: dict[str, Callable[[str, str], Any]] = {
    "nobody": nobody,
    f"{IDLE_CONNECTIONS} idle connections": idle_connections,
    f"{SLOW_CONSUMERS} slow consumers": slow_consumers,
    "a consumer of everything": greedy_consumer,
    "a producer of 1-byte batches": tiny_batches,
}


# --- the run -----------------------------------------------------------------------------------------------


class Watch:
    """The server's memory and CPU while a load runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.peak_rss_mib = 0.0
        self.cpu_seconds = 0.0

    async def during(self, work: Coroutine[Any, Any, Any]) -> Any:
        before = cpu_seconds(self._pid)
        task = asyncio.create_task(work)
        while not task.done():
            self.peak_rss_mib = max(self.peak_rss_mib, rss_mib(self._pid))
            await asyncio.wait([task], timeout=0.1)
        self.cpu_seconds = cpu_seconds(self._pid) - before
        return task.result()


def _row(name: str, outcome: Outcome, seconds: float, watch: Watch) -> dict[str, Any]:
    latencies = sorted(outcome.latencies) or [0.0]
    return {
        "load": name,
        "mib_per_second": outcome.acknowledged_bytes / MIB / seconds,
        "latency_p50_ms": 1000 * statistics.median(latencies),
        "latency_p99_ms": 1000 * latencies[min(len(latencies) - 1, int(len(latencies) * 0.99))],
        "answers": len(outcome.latencies),
        "errors": {str(code): count for code, count in outcome.errors.items()},
        "peak_rss_mib": watch.peak_rss_mib,
        "server_cpu_seconds": watch.cpu_seconds,
    }


def _show(row: dict[str, Any]) -> None:
    print(
        f"{row['load']:34} {row['mib_per_second']:7.1f} MiB/s  p50 {row['latency_p50_ms']:6.0f} ms  "
        f"p99 {row['latency_p99_ms']:6.0f} ms  peak rss {row['peak_rss_mib']:5.0f} MiB  "
        f"cpu {row['server_cpu_seconds']:5.1f} s  errors {row['errors'] or 'none'}",
        flush=True,
    )


async def run(bootstrap: str, pid: int, seconds: float) -> list[dict[str, Any]]:
    """Run all loads one after another. Return a row for each."""
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> dict[str, Any]:
        rows.append(row)
        _show(row)
        return row

    async with KafkaClient(bootstrap) as client:
        topics = [
            CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=1)
            for name in ("load", "probe")
        ]
        await client.ask(CreateTopicsRequest(topics=topics, timeout_ms=10_000))

    async def probed(length: float) -> Outcome:
        outcome = Outcome()
        await probe(bootstrap, "probe", time.monotonic() + length, outcome)
        return outcome

    await offered(bootstrap, "load", SENDERS, WINDOW, 2)  # warm
    watch = Watch(pid)
    before = keep(_row("probe alone", await watch.during(probed(seconds / 2)), seconds / 2, watch))
    watch = Watch(pid)
    capacity = keep(
        _row(
            "capacity",
            await watch.during(offered(bootstrap, "load", SENDERS, WINDOW, seconds)),
            seconds,
            watch,
        )
    )
    watch = Watch(pid)
    overload = await watch.during(offered(bootstrap, "load", 2 * SENDERS, 16 * WINDOW, seconds))
    row = keep(_row("twice the senders, 16x the window", overload, seconds, watch))
    row["goodput_of_capacity"] = row["mib_per_second"] / max(capacity["mib_per_second"], 1e-9)
    row["recovery_seconds"] = await recovery_seconds(probed, before["latency_p50_ms"] / 1000)
    print(
        f"  goodput {100 * row['goodput_of_capacity']:.0f} % of capacity; "
        f"the probe is as fast as before after {row['recovery_seconds']:.1f} s"
    )
    for name, neighbour in NEIGHBOURS.items():
        async with AsyncExitStack() as stack:
            watch = Watch(pid)
            await watch.during(stack.enter_async_context(neighbour(bootstrap, "load")))
            outcome = await watch.during(probed(seconds))
            keep(_row(f"probe beside {name}", outcome, seconds, watch))
    return rows


async def recovery_seconds(probed: Callable[[float], Awaitable[Outcome]], before: float) -> float:
    """Return how long it takes until the probe's median is at most twice that before the load; at most a minute."""
    began = time.monotonic()
    while True:
        outcome = await probed(0.5)
        taken = time.monotonic() - began
        if statistics.median(outcome.latencies or [9.0]) <= 2 * before or taken > 60:
            return taken


def main() -> None:
    """Run, print a line per load and case, then JSON if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each load")
    parser.add_argument(
        "--only", default="", help=f"of {LOADS}, {', '.join(CASES)}: those, with commas between"
    )
    parser.add_argument("--small", action="store_true", help="the cases as the tests run them, in seconds")
    parser.add_argument("--postgresql", action="store_true", help="the cases on PostgreSQL, not on SQLite")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name] or [LOADS, *CASES]
    if unknown := set(names) - {LOADS, *CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    allow_open_files()
    figures: dict[str, Any] = {"machine": machine()}
    if LOADS in names:
        with (
            tempfile.TemporaryDirectory(prefix="tailrace-overload-") as folder,
            serving(Path(folder)) as server,
        ):
            figures["rows"] = asyncio.run(run(server.bootstrap, server.pid, options.seconds))
    results = []
    for name in (name for name in names if name != LOADS):
        result = run_case(name, SMALL if options.small else Sizes(), is_on_postgresql=options.postgresql)
        show(result)
        results.append(asdict(result))
    figures["cases"] = results
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if not all(result["is_served"] and result["is_within"] for result in results):
        sys.exit("not everybody was served, or memory was above what is allowed: see !! above")


if __name__ == "__main__":
    main()
