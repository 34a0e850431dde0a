"""Time from a producer's `produce` to three consumer groups: `python -m bench.end_to_end BOOTSTRAP TOPIC RATE SECONDS`.

One process produces records of 1 KiB at a steady rate. Each record contains the time at which it was sent
(CLOCK_MONOTONIC, which all processes of a machine share). Each group is one consumer in a separate process. All use
librdkafka, with linger 0. Prints one line of JSON: the records that all groups got, and the percentiles of their
latencies in milliseconds.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Semaphore
from typing import Any

from confluent_kafka import Consumer, Producer

GROUPS = 3
RECORD_BYTES = 1024
PATIENCE_SECONDS = 60.0
SENT_AT = struct.Struct("<d")


def measure(bootstrap: str, topic: str, rate: float, seconds: float) -> dict[str, Any]:
    """Produce for `seconds`, and wait until all groups have all records. Raises RuntimeError."""
    count, spawning = int(rate * seconds), get_context("spawn")
    ready = spawning.Semaphore(0)
    with ProcessPoolExecutor(GROUPS, spawning, keep, (ready,)) as processes:
        readers = [
            processes.submit(read, bootstrap, topic, f"{topic}-{number}", count, seconds)
            for number in range(GROUPS)
        ]
        for _ in readers:
            if not ready.acquire(timeout=PATIENCE_SECONDS):
                raise RuntimeError(f"a group has no partitions after {PATIENCE_SECONDS:.0f} s")
        produce(bootstrap, topic, rate, count)
        latencies = sorted(latency for reader in readers for latency in reader.result())
    if len(latencies) != GROUPS * count:
        raise RuntimeError(f"{GROUPS} groups got {len(latencies)} records of {GROUPS} x {count}")
    return {
        "records": count,
        "received": len(latencies),
        **{f"{name}_ms": 1000 * at(latencies, share) for name, share in SHARES.items()},
    }


SHARES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}


def at(values: list[float], share: float) -> float:
    """Return the value in ascending `values` below which this share of them is."""
    return values[int(share * (len(values) - 1))]


def produce(bootstrap: str, topic: str, rate: float, count: int) -> None:
    """Send each record when it is due, without waiting for responses; then wait for the responses."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    padding = bytes(RECORD_BYTES - SENT_AT.size)
    started = time.monotonic()
    for number in range(count):
        due = started + number / rate
        while (early := due - time.monotonic()) > 0:
            producer.poll(min(early, 0.01))
        producer.produce(topic, SENT_AT.pack(time.monotonic()) + padding)
    producer.flush(PATIENCE_SECONDS)


_ready: list[Semaphore] = []
"""The semaphore that a reader's process releases when it has its partitions."""


def keep(ready: Semaphore) -> None:
    """Set up a reader's process."""
    _ready.append(ready)


def read(bootstrap: str, topic: str, group: str, count: int, seconds: float) -> list[float]:
    """Read all records as one group. Return the latency of each in seconds."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "fetch.wait.max.ms": 500})
    consumer.subscribe([topic], on_assign=lambda *_: _ready[0].release())
    latencies: list[float] = []
    ends = time.monotonic() + seconds + 2 * PATIENCE_SECONDS
    while len(latencies) < count and time.monotonic() < ends:
        for message in consumer.consume(500, 0.05):
            value = message.value()
            if message.error() is None and value is not None:
                latencies.append(time.monotonic() - SENT_AT.unpack_from(value)[0])
    consumer.close()
    return latencies


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))))
