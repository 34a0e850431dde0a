"""Compares the compiled codecs with kio's: microseconds per message, and their ratio in one run.

python -m bench.protocol_codec
"""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Callable
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from rich.console import Console
from rich.table import Table

from tailrace.kafka import ApiKey, request_codec, response_codec
from tailrace.kafka.compiler import Codec
from tailrace.kafka.encoder_source import Parts
from tailrace.kafka.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tailrace.kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tailrace.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)


def cases() -> list[tuple[str, Any, Codec, Any]]:
    """Return (name, message, our codec, kio's class) of each case."""
    topic_id = uuid.UUID(int=2**100 + 7)
    produce_response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                topic_id=topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=p, base_offset=p * 99) for p in range(50)
                ],
            )
        ]
    )
    produce_request = ProduceRequest(
        acks=-1,
        timeout_ms=30000,
        topic_data=[
            TopicProduceData(
                topic_id=topic_id,
                partition_data=[PartitionProduceData(p, memoryview(bytes(16384))) for p in range(50)],
            )
        ],
    )
    fetch_request = FetchRequest(
        topics=[
            FetchTopic(
                topic_id=topic_id,
                partitions=[FetchPartition(partition=p, partition_max_bytes=2**20) for p in range(200)],
            )
        ]
    )
    fetch_response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic_id=topic_id,
                partitions=[PartitionData(partition_index=p, records=b"") for p in range(200)],
            )
        ]
    )
    metadata = MetadataResponse(
        brokers=[MetadataResponseBroker(node, f"agent-{node}", 9092) for node in range(4)],
        cluster_id="tailrace",
        topics=[
            MetadataResponseTopic(
                name=f"topic-{number}",
                topic_id=uuid.UUID(int=number + 1),
                partitions=[
                    MetadataResponsePartition(
                        partition_index=p, leader_id=1, replica_nodes=[1], isr_nodes=[1]
                    )
                    for p in range(6)
                ],
            )
            for number in range(1000)
        ],
    )
    return [
        (
            "produce request, 50 partitions of 16 KiB",
            produce_request,
            request_codec(ApiKey.PRODUCE, 13),
            load_request_schema(ApiKey.PRODUCE, 13),
        ),
        (
            "produce response, 50 partitions",
            produce_response,
            response_codec(ApiKey.PRODUCE, 13),
            load_response_schema(ApiKey.PRODUCE, 13),
        ),
        (
            "fetch request, 200 partitions",
            fetch_request,
            request_codec(ApiKey.FETCH, 17),
            load_request_schema(ApiKey.FETCH, 17),
        ),
        (
            "fetch response, 200 partitions, empty",
            fetch_response,
            response_codec(ApiKey.FETCH, 17),
            load_response_schema(ApiKey.FETCH, 17),
        ),
        (
            "metadata response, 1,000 topics of 6",
            metadata,
            response_codec(ApiKey.METADATA, 13),
            load_response_schema(ApiKey.METADATA, 13),
        ),
    ]


def best_us(call: Callable[[], object], budget_seconds: float = 0.3) -> float:
    """Return the microseconds of the fastest repetition within the budget."""
    best = float("inf")
    stop = time.perf_counter() + budget_seconds
    while time.perf_counter() < stop:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def main() -> None:
    """Print the table."""
    table = Table("message", "ours, encode us", "kio", "ratio", "ours, decode us", "kio", "ratio")
    for name, message, codec, kio_type in cases():

        def encode(codec: Codec = codec, message: Any = message) -> Parts:
            parts: Parts = []
            parts.append(codec.encode(message, bytearray(), parts))
            return parts

        data = b"".join(encode())
        view = memoryview(data)
        read, write = entity_reader(kio_type), entity_writer(kio_type)
        entity, _ = read(data, 0)
        ours_out = best_us(encode)
        kio_out = best_us(lambda write=write, entity=entity: write(io.BytesIO(), entity))  # type: ignore[misc]
        ours_in = best_us(lambda codec=codec, view=view: codec.decode(view, 0))  # type: ignore[misc]
        kio_in = best_us(lambda read=read, data=data: read(data, 0))  # type: ignore[misc]
        table.add_row(
            name,
            f"{ours_out:,.1f}",
            f"{kio_out:,.1f}",
            f"{kio_out / ours_out:.1f}",
            f"{ours_in:,.1f}",
            f"{kio_in:,.1f}",
            f"{kio_in / ours_in:.1f}",
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
