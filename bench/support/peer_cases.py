"""The loads of `bench.peers`, with the servers that each runs on."""

from __future__ import annotations

from dataclasses import dataclass

from bench.support.raw_load import MIB, Load

COLD_CACHE = {
    "TAILRACE_CACHE__MEMORY_BYTES": str(64 * MIB),
    "TAILRACE_CACHE__FRAMED_BYTES": str(16 * MIB),
    "TAILRACE_CACHE__CATCH_UP_AGE_MS": "1000",
}
AS_ON_S3 = {"TAILRACE_AGENT__MAX_PUTS_PER_SECOND": "5", "TAILRACE_SEQUENCER__EARLY_PUTS_PER_SECOND": "5"}
FOLDER, NULL, S3, KAFKA, SMALL_CACHE = (
    "Tailrace", "Tailrace, null store", "Tailrace, modelled S3", "Kafka", "Tailrace, cache of 64 MiB"
)  # fmt: skip
PEERS = (FOLDER, KAFKA)
WARM_UP = Load("16 x 1 KiB, warm-up", 16, 1024, 16, 5)
PROGRAMS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    FOLDER: (("tailrace_cli.app",), {}),
    NULL: (("bench.serve_over", "null"), {}),
    S3: (("bench.serve_over", "s3"), AS_ON_S3),
    SMALL_CACHE: (("tailrace_cli.app",), COLD_CACHE),
}
"""For each server, its module with the first arguments, and its settings."""


@dataclass(frozen=True, slots=True)
class Case:
    """One load on some of the servers. `rate`: requests or records per second; 0 means as fast as they are answered."""

    kind: str
    name: str
    servers: tuple[str, ...]
    load: Load | None = None
    rate: float = 0.0
    settings: str = "defaults"


def batches(records: int, record_bytes: int, connections: int, in_flight: int, *, idempotent: bool) -> Case:
    """Return a case that produces batches of one shape and then fetches them."""
    size = f"{records} x {'1 KiB' if record_bytes == 1024 else f'{record_bytes} B'}"
    name = f"{size}, {connections} connections{', idempotent' if idempotent else ''}"
    load = Load(name, records, record_bytes, connections, in_flight, idempotent)
    servers = (FOLDER, NULL, KAFKA) if records >= 16 else PEERS
    return Case("produce", name, servers, load)


def in_turn(topics: int) -> Case:
    """Return a case whose clients send small batches to many topics in turn, as librdkafka does."""
    name = f"10 x 100 B, 100 connections, {topics} topics"
    return Case("produce", name, PEERS, Load(name, 10, 100, 100, 5, topics=topics))


def paced(mib: int, kib: int, servers: tuple[str, ...] = (FOLDER, S3, KAFKA)) -> Case:
    """Return a case with a steady rate of requests of one batch each."""
    name = f"{mib} MiB/s of {kib} KiB"
    return Case("paced", name, servers, Load(name, kib, 1024, 4, 64), rate=mib * 1024 / kib)


DAILY = (
    paced(1, 16),
    paced(20, 64),
    Case("groups", "100 records/s", (FOLDER, S3, KAFKA), rate=100.0),
    batches(1, 1024, 16, 5, idempotent=False),
    batches(10, 100, 100, 5, idempotent=True),
    in_turn(10),
    batches(16, 1024, 16, 5, idempotent=False),
    batches(64, 1024, 16, 5, idempotent=False),
    batches(480, 1024, 8, 4, idempotent=False),
    Case("cold", "16 x 1 KiB", (SMALL_CACHE, KAFKA), Load("16 x 1 KiB", 16, 1024, 16, 5)),
    Case("cold", "480 x 1 KiB", (SMALL_CACHE, KAFKA), Load("480 x 1 KiB", 480, 1024, 8, 4)),
    Case("librdkafka", "defaults", (FOLDER, NULL, KAFKA)),
    Case("java", "defaults", PEERS),
)
"""The daily loads. Latencies come first, because Kafka does not wait for its disk: its unwritten data would be written
while other servers sync."""
LARGE = "large batches"
WHOLE = (
    paced(20, 16),
    Case("groups", "1,000 records/s", (FOLDER, S3, KAFKA), rate=1_000.0),
    *DAILY,
    *(
        batches(records, record_bytes, connections, in_flight, idempotent=idempotent)
        for records, record_bytes in ((1, 1024), (10, 100), (16, 1024), (64, 1024), (480, 1024))
        for connections, in_flight in ((1, 64), (100, 5), (1000, 1))
        for idempotent in (False, True)
        if (records, connections, idempotent) != (10, 100, True)
        and not (records == 480 and connections > 100)
    ),
    Case("cold", "10 x 100 B", (SMALL_CACHE, KAFKA), Load("10 x 100 B", 10, 100, 100, 5)),
    Case("librdkafka", LARGE, (FOLDER, NULL, KAFKA), settings=LARGE),
    Case("java", LARGE, PEERS, settings=LARGE),
)
"""All loads, the daily ones included."""
