"""A raw connection to a broker for loads, which sends and receives frames, and the requests that loads send."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from tailrace.batches.records import NewRecord, encode_batch
from tailrace.kafka import decode_response, encode_request
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE_VERSION = 9
FETCH_VERSION = 12


class Connection:
    """A raw connection, which sends and receives frames."""

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

    def write(self, data: bytes) -> None:
        """Send raw bytes."""
        self._writer.write(data)

    async def read_some(self, size: int) -> bytes:
        return await self._reader.read(size)

    def close(self) -> None:
        self._writer.close()


def batch_of(records: int, size: int) -> bytes:
    """Return one record batch of incompressible records."""
    now = int(time.time() * 1000)
    made = [NewRecord(None, os.urandom(size)) for _ in range(records)]
    return encode_batch(made, timestamps=[now] * records)


def produce_request(topic: str, partition: int, batch: bytes) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=memoryview(batch))
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def fetch_request(topic: str, partition: int, offset: int, max_bytes: int, wait_ms: int) -> FetchRequest:
    asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=[asked])],
    )
