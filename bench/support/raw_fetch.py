"""A fetch client that only reads, so that the limit is the broker and not the client.

Like a Kafka consumer per broker, it has one connection with one request in flight for all partitions. It reads batch
headers to count records and to find the next offset; it never decodes records.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from tailrace.batches.record_batch import HEADER_BYTES, read_header
from tailrace.kafka import ApiKey, decode_response, encode_request
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic

FETCH_VERSION = 16
METADATA_VERSION = 12
LIST_OFFSETS_VERSION = 7
MIB = 2**20


class RawFetcher:
    """Reads the partitions of one topic over one socket."""

    def __init__(self, bootstrap: str, topic: str, *, max_bytes: int, partition_max_bytes: int) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._max_bytes, self._partition_max_bytes = max_bytes, partition_max_bytes
        self._buffer = bytearray(max_bytes + 64 * MIB)
        self._topic, self._topic_id = topic, self._find(topic)

    def read(self, positions: Mapping[int, int], ends: Mapping[int, int]) -> tuple[int, int]:
        """Read from `positions` up to `ends` (offsets by partition). Return the received bytes and records."""
        total = records = 0
        for _, came, of_them in self.walk(positions, ends):
            total += came
            records += of_them
        return total, records

    def walk(self, positions: Mapping[int, int], ends: Mapping[int, int]) -> Iterator[tuple[bytes, int, int]]:
        """Read request by request. Yield each request's frame, and the received bytes and records."""
        at = {partition: offset for partition, offset in positions.items() if offset < ends[partition]}
        while at:
            total = records = 0
            request = self._request(at)
            for partition, data in self._fetch(request):
                place = 0
                while len(data) - place >= HEADER_BYTES:  # Kafka truncates the last batch at the byte limit
                    header = read_header(data, place)
                    if place + header.length > len(data):
                        break
                    at[partition] = header.end_offset
                    records += header.record_count
                    place += header.length
                total += place
                if at[partition] >= ends[partition]:
                    del at[partition]
                else:  # as clients do: a served partition goes to the end of the queue
                    at[partition] = at.pop(partition)
            yield b"".join(encode_request(1, ApiKey.FETCH, FETCH_VERSION, request, "bench")), total, records

    def ends(self, partitions: int) -> dict[int, int]:
        """Return the end offset of each partition."""
        asked = [ListOffsetsPartition(partition_index=number, timestamp=-1) for number in range(partitions)]
        topics = [ListOffsetsTopic(name=self._topic, partitions=asked)]
        answer = self._ask(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, ListOffsetsRequest(topics=topics))
        return {found.partition_index: found.offset for found in answer.topics[0].partitions}

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _request(self, positions: Mapping[int, int]) -> FetchRequest:
        partitions = [
            FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=self._partition_max_bytes)
            for partition, offset in positions.items()
        ]  # fmt: skip
        return FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=self._max_bytes,
            topics=[FetchTopic(topic_id=self._topic_id, partitions=partitions)],
        )

    def _fetch(self, request: FetchRequest) -> list[tuple[int, memoryview]]:
        response = self._ask(ApiKey.FETCH, FETCH_VERSION, request)
        found: list[tuple[int, memoryview]] = []
        for topic in response.responses:
            for partition in topic.partitions:
                if partition.error_code:
                    raise RuntimeError(f"fetch of {partition.partition_index}: error {partition.error_code}")
                if len(partition.records):
                    found.append((partition.partition_index, memoryview(partition.records)))
        return found

    def _find(self, topic: str) -> UUID:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        found: UUID = self._ask(ApiKey.METADATA, METADATA_VERSION, request).topics[0].topic_id
        return found

    def _ask(self, api: ApiKey, version: int, request: object) -> Any:
        self._socket.sendall(b"".join(encode_request(1, api, version, request, "bench")))
        size = int.from_bytes(self._receive(4), "big")
        return decode_response(api, version, self._receive(size))[1]

    def _receive(self, size: int) -> memoryview:
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        whole = memoryview(self._buffer)[:size]
        filled = 0
        while filled < size:
            came = self._socket.recv_into(whole[filled:])
            if not came:
                raise ConnectionError("the broker hung up")
            filled += came
        return whole
