"""What a broker does with more than it can carry, and with clients that behave badly.

    python -m bench.overload [--seconds 6] [--json FILE]

The server is `tailrace serve` in a process of its own. First its capacity is measured: produce requests in a closed
loop. Then twice as much is offered, by as many connections again that send without waiting for answers: goodput,
the server's memory and the probe's latency are shown beside the capacity's, and how soon after the load the probe is
as fast as before. Then each bad neighbour in turn lives beside a steady load (a probe that produces and reads its
own records): consumers that don't take what they asked for, idle connections, a consumer that asks for everything,
a producer of 1-byte records in requests of their own.

Everything runs on one machine's cores, the load too: compare the rows of one run with each other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.protocol import ApiKey, decode_response, encode_request
from agent.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from agent.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from agent.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from bench.broker import machine
from bench.process_figures import cpu_seconds, rss_mib
from tailrace.cli.demo.embedded import serving
from tailrace.cli.kafka_client import KafkaClient
from tailrace.cli.loop import allow_open_files
from tailrace.records import NewRecord, encode_batch

MIB = 2**20
PARTITIONS = 16
PRODUCE_VERSION = 9
FETCH_VERSION = 12
BATCH_RECORDS = 512
RECORD_BYTES = 1024
SENDERS = 8
WINDOW = 4
IDLE_CONNECTIONS = 5_000
SLOW_CONSUMERS = 100


@dataclass
class Outcome:
    """What one load achieved. `latencies` in seconds."""

    acknowledged_bytes: int = 0
    errors: dict[int, int] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)


class Connection:
    """A raw connection: frames out, frames in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sent = 0

    @classmethod
    async def open(cls, bootstrap: str, buffer: int = 64 * 1024) -> Connection:
        host, port = bootstrap.rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port), limit=buffer))

    async def send(self, api: int, version: int, request: Any) -> None:
        self._sent += 1
        self._writer.writelines(encode_request(self._sent, api, version, request, "overload"))
        await self._writer.drain()

    async def answer(self, api: int, version: int) -> Any:
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        _, response = decode_response(api, version, await self._reader.readexactly(size))
        return response

    async def read_some(self, size: int) -> bytes:
        return await self._reader.read(size)

    def close(self) -> None:
        self._writer.close()


def batch_of(records: int, size: int) -> bytes:
    """One record batch of incompressible records."""
    now = int(time.time() * 1000)
    made = [NewRecord(None, os.urandom(size)) for _ in range(records)]
    return encode_batch(made, timestamps=[now] * records)


def produce_request(topic: str, partition: int, batch: bytes) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=memoryview(batch))
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def fetch_request(topic: str, partition: int, offset: int, max_bytes: int, wait_ms: int) -> FetchRequest:
    wish = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=[wish])],
    )


async def send_batches(
    bootstrap: str, topic: str, partition: int, batch: bytes, window: int, until: float, outcome: Outcome
) -> None:
    """Keep `window` produce requests in flight until the time; count what was acknowledged."""
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
    """Many senders side by side."""
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
    """Produce a record and read it back, again and again; the latency is of both together."""
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
    """Connections that say nothing."""
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
    """Consumers that ask for 50 MiB, several times over, and take 1 KiB twice a second."""

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
    """A consumer that reads everything there is from the start, as fast as it comes, over and over."""

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
    """A producer that sends each record of 1 byte in a request of its own, 64 in flight."""
    batch = batch_of(1, 1)
    until = time.monotonic() + 3600
    async with _beside([send_batches(bootstrap, topic, 1, batch, 64, until, Outcome())]):
        yield


@asynccontextmanager
async def _beside(coroutines: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        await asyncio.sleep(1)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


NEIGHBOURS: dict[str, Callable[[str, str], Any]] = {
    "nobody": nobody,
    f"{IDLE_CONNECTIONS} idle connections": idle_connections,
    f"{SLOW_CONSUMERS} slow consumers": slow_consumers,
    "a consumer of everything": greedy_consumer,
    "a producer of 1-byte batches": tiny_batches,
}


# --- the run -----------------------------------------------------------------------------------------------


class Watch:
    """The server's memory and CPU while something runs."""

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
    """All loads, one after another; a row each."""
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
        await client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=topics, timeout_ms=10_000))

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
    recovery = time.monotonic()
    while True:
        outcome = await probed(0.5)
        settled = statistics.median(outcome.latencies or [9.0])
        if settled <= 2 * before["latency_p50_ms"] / 1000 or time.monotonic() - recovery > 60:
            break
    row["recovery_seconds"] = time.monotonic() - recovery
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


def main() -> None:
    """Run, print a line per load, then JSON if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each load")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    allow_open_files()
    with tempfile.TemporaryDirectory(prefix="tailrace-overload-") as folder, serving(Path(folder)) as server:
        rows = asyncio.run(run(server.bootstrap, server.pid, options.seconds))
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
