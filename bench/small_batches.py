"""The server's cost of a request, and of a MiB, with small batches; Apache Kafka in the same run for comparison.

    python -m bench.small_batches [--seconds 5] [--rounds 3] [--json FILE] [--only NAME ...] [--no-kafka] [--sums]
    python -m bench.small_batches --page FILE      the tables of docs/performance.md

    produce   batches of 1 record of 1 KiB; of 10 x 100 B by 100 idempotent producers; of 16 KiB; of 480 KiB
    fetch     repeatedly the newest HOT_MIB of these: the tail, from memory

The bench replays raw requests (bench.replay) and never decodes records. The server's CPU is user + system time of its
process while the load ran. On a shared machine, compare **requests and MiB per server CPU-second**; the loads of
Tailrace and Kafka run in turns, so both see the same other load. Kafka runs if Java and Maven are installed.

First, a file fills the machine's free memory, as the page cache of a machine that has run for a day does. Otherwise the
server that runs first pays for pages that a virtual machine has never used: 2.3 ms of system time per MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench import kafka_peer
from bench.broker import machine
from bench.process_figures import cpu_seconds, free_memory_mib, total_memory_mib
from bench.raw_fetch import RawFetcher
from bench.replay import RawRequest, RequestsFailed, compiled, replayed, write_script
from tailrace.kafka import ApiKey, encode_request
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.records import NewRecord, encode_batch
from tailrace_cli.connections.kafka_client import KafkaClient
from tailrace_cli.demo.embedded import serving

MIB = 2**20
PARTITIONS = 16
HOT_MIB = 48
PRODUCE_VERSION = 9
WARM_UP_SECONDS = 3.0
MAX_REFUSALS = 60
LEFT_FREE_MIB = 1024
LEFT_ON_DISK_MIB = 40 * 1024


@dataclass(frozen=True, slots=True)
class Load:
    """A shape of batches, and how many clients send it, with how many requests in flight each."""

    name: str
    records: int
    record_bytes: int
    connections: int
    in_flight: int
    is_idempotent: bool = False


LOADS = (
    Load("1 x 1 KiB", 1, 1024, 16, 5),
    Load("10 x 100 B idempotent", 10, 100, 100, 5, is_idempotent=True),
    Load("16 x 1 KiB", 16, 1024, 16, 5),
    Load("480 x 1 KiB", 480, 1024, 8, 4),
)
"""Two of the largest fit into the fetch size per partition; otherwise Kafka would send a part of the next batch, and it
would count."""


@dataclass(frozen=True, slots=True)
class Server:
    """A broker under load."""

    name: str
    bootstrap: str
    pid: int


def main() -> None:
    """Run the loads and print a line for each, or print the page's tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each load (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each load runs (default 3)")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--only", nargs="+", choices=[load.name for load in LOADS], help="default: all")
    parser.add_argument("--no-kafka", action="store_true", help="without Kafka beside it")
    parser.add_argument(
        "--sums", action="store_true", help="the driver adds up what it fetches, in place of dropping it"
    )
    parser.add_argument(
        "--page", type=Path, nargs="+", help="print the tables of these results, first to last"
    )
    options = parser.parse_args()
    if options.page:
        print(page([json.loads(path.read_text()) for path in options.page]))
        return
    missing = "not wanted" if options.no_kafka else kafka_peer.unavailable()
    loads = [load for load in LOADS if not options.only or load.name in options.only]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder, ExitStack() as stack:
        place = Path(folder)
        fill_page_cache(place / "filler")
        driver = compiled(place)
        ours = stack.enter_context(serving(place / "tailrace"))
        servers = [Server("Tailrace", ours.bootstrap, ours.pid)]
        if missing is None:
            peer = stack.enter_context(kafka_peer.kafka(place / "kafka"))
            servers.append(Server("Kafka", peer.bootstrap, peer.pid))
        else:
            print(f"without Kafka: {missing}")
        for load in loads:
            for round_number in range(options.rounds):
                for server in servers:
                    bench = Bench(server, driver, place, options.seconds, sums=options.sums)
                    rows += bench.run(load, f"b{len(rows)}-{round_number}")
    result = {
        "machine": machine(), "seconds": options.seconds, "hot_mib": HOT_MIB, "sums": options.sums, "rows": rows
    }  # fmt: skip
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(page([result]))


def fill_page_cache(path: Path) -> None:
    """Write a file until little memory is free, or disk; at most as much as there is memory."""
    piece = bytes(64 * MIB)
    room = min(total_memory_mib(), shutil.disk_usage(path.parent).free // MIB - LEFT_ON_DISK_MIB)
    with path.open("wb") as file:
        while room > 0 and free_memory_mib() > LEFT_FREE_MIB:
            room -= file.write(piece) // MIB
        file.flush()
        os.fsync(file.fileno())


class Bench:
    """The loads on one server."""

    def __init__(
        self,
        server: Server,
        driver: Path,
        folder: Path,
        seconds: float,
        *,
        sums: bool,
        warm_up: float = WARM_UP_SECONDS,
    ) -> None:
        self._server = server
        self._driver = driver
        self._script = folder / "script"
        self._seconds = seconds
        self._sums = sums
        self._warm_up = warm_up

    def run(self, load: Load, topic: str) -> list[dict[str, Any]]:
        """Produce to a new topic, then fetch its end repeatedly; one row of figures for each."""
        admin = AdminClient({"bootstrap.servers": self._server.bootstrap})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        rows = [self.produced(load, topic), self.fetched(load, topic)]
        admin.delete_topics([topic])[topic].result(30)
        return [_per_cpu_second(row) for row in rows]

    def produced(
        self, load: Load, topic: str, kind: str = "produce", *, rate: float = 0, seconds: float | None = None
    ) -> dict[str, Any]:
        """Produce to a topic that exists, at `rate` requests a second or as fast as they are answered."""
        requests = produce_requests(topic, load)
        self._begin(load, requests, self._warm_up, rate)
        row = self._measured(kind, load, seconds or self._seconds, load.in_flight, requests, rate)
        row["mib"] = row["requests"] * len(requests[0][0].frame) / MIB
        return row

    def fill(self, load: Load, topic: str, mib: int) -> None:
        """Produce until the topic has so many MiB at least."""
        requests = produce_requests(topic, load)
        self._begin(load, requests, 0)
        written = 0.0
        while written < mib:
            written += self._replay(0.5, load.in_flight, requests)["sent_bytes"] / MIB

    def _begin(
        self, load: Load, requests: list[list[RawRequest]], warm_up_seconds: float, rate: float = 0
    ) -> None:
        """A Kafka that has just created a topic refuses requests for some time."""
        write_script(self._script, requests)
        for _ in range(MAX_REFUSALS):
            try:
                self._replay(0.5, load.in_flight, requests, rate)
            except RequestsFailed:
                time.sleep(0.5)
            else:
                break
        else:
            raise RuntimeError(f"{self._server.name} refuses requests to a new topic")
        if warm_up_seconds:
            self._replay(warm_up_seconds, load.in_flight, requests, rate)

    def fetched(self, load: Load, topic: str, kind: str = "fetch", *, whole: bool = False) -> dict[str, Any]:
        """Fetch the topic's end, again and again; `whole`: the topic, by one consumer."""
        fetcher = RawFetcher(self._server.bootstrap, topic, max_bytes=50 * MIB, partition_max_bytes=MIB)
        ends = fetcher.ends(PARTITIONS)
        size = load.records * load.record_bytes + 100
        batches = int(HOT_MIB * MIB / size / PARTITIONS)
        starts = {
            partition: 0 if whole else max(0, end - batches * load.records) for partition, end in ends.items()
        }
        frames = [frame for frame, _, _ in fetcher.walk(starts, ends)]
        fetcher.close()
        script = [[RawRequest(frame, FETCH_ERROR_AT) for frame in frames]] * (1 if whole else 2)
        write_script(self._script, script)
        if not whole:
            self._replay(self._warm_up, 1)
        row = self._measured(kind, load, self._seconds, 1)
        row["mib"] = row["received_bytes"] / MIB
        return row

    def _measured(
        self, kind: str, load: Load, seconds: float, in_flight: int, fresh: Any = None, rate: float = 0
    ) -> dict[str, Any]:
        before = cpu_seconds(self._server.pid)
        counted = self._replay(seconds, in_flight, fresh, rate)
        used = cpu_seconds(self._server.pid) - before
        return {
            "server": self._server.name, "load": kind, "batch": load.name, **counted, "server_cpu_seconds": used
        }  # fmt: skip

    def _replay(self, seconds: float, in_flight: int, fresh: Any = None, rate: float = 0) -> dict[str, Any]:
        """`fresh`: requests of idempotent producers, which get new ids each time: their sequences begin at 0."""
        if fresh is not None and fresh[0][0].batch_at >= 0:
            write_script(self._script, asyncio.run(with_new_ids(self._server.bootstrap, fresh)))
        return replayed(
            self._driver, self._script, self._server.bootstrap,
            seconds=seconds, in_flight=in_flight, rate=rate, sums=self._sums,
        )  # fmt: skip


def _per_cpu_second(row: dict[str, Any]) -> dict[str, Any]:
    used = max(row["server_cpu_seconds"], 0.01)
    row["requests_per_cpu_second"] = row["requests"] / used
    row["mib_per_cpu_second"] = row["mib"] / used
    row["mib_per_second"] = row["mib"] / row["seconds"]
    print(
        f"{row['server']:9} {row['load']:8} {row['batch']:22} {row['requests'] / row['seconds']:9,.0f} req/s "
        f"{row['mib_per_second']:7,.0f} MiB/s {row['requests_per_cpu_second']:9,.0f} req/CPU-s "
        f"{row['mib_per_cpu_second']:7,.0f} MiB/CPU-s  p50 {row['p50_ms']:.1f} p99 {row['p99_ms']:.1f} ms",
        flush=True,
    )
    return row


# --- requests ---------------------------------------------------------------------------------------------

FETCH_ERROR_AT = 41
"""Position of the first partition's error code in an answer of version 16: after sizes, throttle time, error, session
and topic id."""
PRODUCER_ID_AT = 43


def produce_requests(topic: str, load: Load) -> list[list[RawRequest]]:
    """One request per connection: one batch, to one partition."""
    now = int(time.time() * 1000)
    made: list[list[RawRequest]] = []
    error_at = 4 + 4 + 1 + 1 + 1 + len(topic) + 1 + 4
    for number in range(load.connections):
        records = [NewRecord(None, os.urandom(load.record_bytes)) for _ in range(load.records)]
        ids = (0, 0, 0) if load.is_idempotent else (-1, -1, -1)
        batch = encode_batch(
            records, timestamps=[now] * load.records,
            producer_id=ids[0], producer_epoch=ids[1], base_sequence=ids[2],
        )  # fmt: skip
        data = PartitionProduceData(index=number % PARTITIONS, records=memoryview(batch))
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        frame = b"".join(encode_request(1, ApiKey.PRODUCE, PRODUCE_VERSION, request, "bench"))
        batch_at = frame.index(batch) if load.is_idempotent else -1
        made.append([RawRequest(frame, error_at, batch_at, load.records)])
    return made


async def with_new_ids(bootstrap: str, requests: list[list[RawRequest]]) -> list[list[RawRequest]]:
    """The same requests; each connection has its own producer, which has sent nothing yet."""
    renewed: list[list[RawRequest]] = []
    async with KafkaClient(bootstrap) as client:
        for (request,) in requests:
            asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            while (grant := await client.ask(ApiKey.INIT_PRODUCER_ID, asked)).error_code:
                await asyncio.sleep(0.1)  # a Kafka that has just started loads its coordinator
            frame = bytearray(request.frame)
            at = request.batch_at + PRODUCER_ID_AT
            frame[at : at + 10] = grant.producer_id.to_bytes(8, "big") + grant.producer_epoch.to_bytes(
                2, "big"
            )
            renewed.append([RawRequest(bytes(frame), request.error_at, request.batch_at, request.records)])
    return renewed


# --- the page ---------------------------------------------------------------------------------------------


def page(results: list[dict[str, Any]]) -> str:
    """Markdown: a line per load with the medians of its rounds; several results side by side, in order."""
    lines: list[str] = []
    for result in results:
        about = result["machine"]
        lines.append(
            f"{about['cpus']} cores ({about['cpu']}), {about['memory_gib']} GiB, {about['system']}, Python "
            f"{about['python']}; commit {about['commit']}, {about['measured_at']}, "
            f"load average {about['load_average_1m']:.1f}.\n"
        )
        lines += _table(result["rows"])
        lines.append("")
    return "\n".join(lines)


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| load | batches | figure per server CPU-second | Tailrace | Kafka | ratio |"
    yield "|---|---|---|---|---|---|"
    for load, batch in dict.fromkeys((row["load"], row["batch"]) for row in rows):
        figure = "requests_per_cpu_second" if load == "produce" else "mib_per_cpu_second"
        ours, theirs = (
            [row[figure] for row in rows if (row["load"], row["batch"], row["server"]) == (load, batch, name)]
            for name in ("Tailrace", "Kafka")
        )
        mine = statistics.median(ours)
        kafkas = statistics.median(theirs) if theirs else None
        yield (
            f"| {load} | {batch} | {'requests' if load == 'produce' else 'MiB'} | {mine:,.0f} | "
            f"{f'{kafkas:,.0f}' if kafkas else '-'} | {f'{mine / kafkas:.2f}' if kafkas else '-'} |"
        )


if __name__ == "__main__":
    main()
