"""Sends raw requests of one shape to a server, and measures its process. `bench.peers` has the command.

The loads replay raw requests (bench.support.replay) and never decode records. The server's CPU is the user +
system time of its process during the load.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.support.process_figures import cpu_seconds, free_memory_mib, total_memory_mib
from bench.support.raw_fetch import RawFetcher
from bench.support.replay import RawRequest, RequestsFailed, replayed, write_script
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.kafka import ApiKey, encode_request
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace_cli.connections.kafka_client import KafkaClient

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
    """A shape of batches, the number of clients that send it, and the requests in flight of each. With several `topics`
    each client sends to them in turn."""

    name: str
    records: int
    record_bytes: int
    connections: int
    in_flight: int
    is_idempotent: bool = False
    topics: int = 1

    def names(self, topic: str) -> list[str]:
        """Return the names of its topics, the first of which is `topic`."""
        return [topic, *(f"{topic}-{number}" for number in range(1, self.topics))]


@dataclass(frozen=True, slots=True)
class Server:
    """A broker under load."""

    name: str
    bootstrap: str
    pid: int


def fill_page_cache(path: Path) -> None:
    """Write a file until little memory or disk space is free; at most as much as the machine's memory.

    The page cache of a machine that has run for a day is as full. Otherwise the first server pays for pages that a
    virtual machine has never used: 2.3 ms of system time per MiB.
    """
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

    def produced(
        self, load: Load, topic: str, kind: str = "produce", *, rate: float = 0, seconds: float | None = None
    ) -> dict[str, Any]:
        """Produce to an existing topic, at `rate` requests per second or as fast as they are answered."""
        requests = produce_requests(topic, load)
        self._begin(load, requests, self._warm_up, rate)
        row = self._measured(kind, load, seconds or self._seconds, load.in_flight, requests, rate)
        row["mib"] = row["requests"] * len(requests[0][0].frame) / MIB
        return row

    def fill(self, load: Load, topic: str, mib: int) -> None:
        """Produce until the topic has at least `mib` MiB."""
        requests = produce_requests(topic, load)
        self._begin(load, requests, 0)
        written = 0.0
        while written < mib:
            written += self._replay(0.5, load.in_flight, requests)["sent_bytes"] / MIB

    def _begin(
        self, load: Load, requests: list[list[RawRequest]], warm_up_seconds: float, rate: float = 0
    ) -> None:
        """Start a load and warm up. Kafka refuses requests for some time after it has created a topic."""
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
        """Fetch the topic's end again and again. `whole`: one consumer fetches the whole topic."""
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
        """Replay the requests. `fresh`: requests of idempotent producers, which get new ids each time, because their
        sequences begin at 0."""
        if fresh is not None and fresh[0][0].batch_at >= 0:
            write_script(self._script, asyncio.run(with_new_ids(self._server.bootstrap, fresh)))
        return replayed(
            self._driver, self._script, self._server.bootstrap,
            seconds=seconds, in_flight=in_flight, rate=rate, sums=self._sums,
        )  # fmt: skip


# --- requests ---------------------------------------------------------------------------------------------

FETCH_ERROR_AT = 41
"""Position of the first partition's error code in a response of version 16: after sizes, throttle time, error, session
and topic id."""
PRODUCER_ID_AT = 43


def produce_requests(topic: str, load: Load) -> list[list[RawRequest]]:
    """Return each connection's requests: one per topic, with one batch to one partition."""
    now = int(time.time() * 1000)
    made: list[list[RawRequest]] = []
    for number in range(load.connections):
        records = [NewRecord(None, os.urandom(load.record_bytes)) for _ in range(load.records)]
        ids = (0, 0, 0) if load.is_idempotent else (-1, -1, -1)
        batch = encode_batch(
            records, timestamps=[now] * load.records,
            producer_id=ids[0], producer_epoch=ids[1], base_sequence=ids[2],
        )  # fmt: skip
        data = PartitionProduceData(index=number % PARTITIONS, records=memoryview(batch))
        requests = []
        for name in load.names(topic):
            request = ProduceRequest(
                acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=name, partition_data=[data])]
            )
            frame = b"".join(encode_request(1, ApiKey.PRODUCE, PRODUCE_VERSION, request, "bench"))
            batch_at = frame.index(batch) if load.is_idempotent else -1
            error_at = 4 + 4 + 1 + 1 + 1 + len(name) + 1 + 4
            requests.append(RawRequest(frame, error_at, batch_at, load.records))
        made.append(requests)
    return made


async def with_new_ids(bootstrap: str, requests: list[list[RawRequest]]) -> list[list[RawRequest]]:
    """Return the same requests with a new producer for each connection."""
    renewed: list[list[RawRequest]] = []
    async with KafkaClient(bootstrap) as client:
        for (request,) in requests:
            asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            while (grant := await client.ask(asked)).error_code:
                await asyncio.sleep(0.1)  # Kafka loads its coordinator after its start
            frame = bytearray(request.frame)
            at = request.batch_at + PRODUCER_ID_AT
            frame[at : at + 10] = grant.producer_id.to_bytes(8, "big") + grant.producer_epoch.to_bytes(
                2, "big"
            )
            renewed.append([RawRequest(bytes(frame), request.error_at, request.batch_at, request.records)])
    return renewed
