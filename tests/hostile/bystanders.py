"""A producer without retries and a consumer in a process of their own. If they lose or wait for records, hostile
clients caused it.

    python -m tests.hostile.bystanders HOST:PORT

It prints `ready` when the producer has begun. Each input line names the phase that begins now: a `quiet` or `hostile`
slice of time, `between`, which is not measured, or `over`. After `over` it prints the outcome of the records as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.hostile.known import QUIET_GROUP, QUIET_TOPIC

RECORDS_PER_SECOND = 40
PARTITIONS = 2
OWN_CONFIGS = {
    "cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1", "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
}  # fmt: skip
"""Set on their topic itself, so that a change of the cluster's defaults does not affect it."""
BETWEEN, QUIET, HOSTILE, OVER = "between", "quiet", "hostile", "over"


@dataclass(slots=True)
class Seen:
    """The outcome of the records."""

    slices: dict[str, list[list[float]]] = field(
        default_factory=lambda: {BETWEEN: [[]], QUIET: [], HOSTILE: []}
    )
    """Latencies in seconds, by the phase in which the record was sent."""
    failed: list[str] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    read: dict[int, int] = field(default_factory=dict)
    """How often each record was read."""
    consumer_errors: list[str] = field(default_factory=list)


def produce(producer: Producer, seen: Seen, phase: dict[str, str]) -> None:
    """Send one record after another at a steady pace, until the phase is `over`."""
    number = 0
    while (now := phase["now"]) != OVER:
        began, latencies = time.perf_counter(), seen.slices[now][-1]

        def acknowledged(error: KafkaError | None, message: Message, *, n: int = number, at: float = began,
                         kept: list[float] = latencies) -> None:  # fmt: skip
            if error is not None:
                seen.failed.append(f"record {n}: {error.str()}")
            else:
                seen.acknowledged.add(n)
                kept.append(time.perf_counter() - at)

        try:
            producer.produce(
                QUIET_TOPIC, str(number).encode(), partition=number % PARTITIONS, on_delivery=acknowledged
            )
        except KafkaException as error:  # the topic or its partition is gone
            seen.failed.append(f"record {number}: {error}")
        number += 1
        producer.poll(1 / RECORDS_PER_SECOND)
        left = 1 / RECORDS_PER_SECOND - (time.perf_counter() - began)
        if left > 0:
            time.sleep(left)
    producer.flush(30)


def consume(consumer: Consumer, seen: Seen, stop: threading.Event) -> None:
    """Read everything, until all acknowledged records were read (or nothing arrived for some time)."""
    quiet_since = time.monotonic()
    while not (
        stop.is_set() and (seen.acknowledged <= seen.read.keys() or time.monotonic() - quiet_since > 20)
    ):
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error() is not None:
            seen.consumer_errors.append(str(message.error()))
            continue
        quiet_since = time.monotonic()
        number = int(message.value())
        seen.read[number] = seen.read.get(number, 0) + 1
    consumer.close()


def report(seen: Seen) -> dict[str, Any]:
    """Return what the parent process needs to know."""
    return {
        "records": len(seen.acknowledged),
        "failed": seen.failed[:20],
        "lost": sorted(seen.acknowledged - seen.read.keys())[:20],
        "doubled": sorted(number for number, times in seen.read.items() if times > 1)[:20],
        "consumer_errors": seen.consumer_errors[:20],
        "slices": {kind: seen.slices[kind] for kind in (QUIET, HOSTILE)},
    }


def main() -> None:
    """See the module."""
    address = sys.argv[1]
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(QUIET_TOPIC, PARTITIONS, config=OWN_CONFIGS)]).values():
        made.result(30)
    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": "all",
            "enable.idempotence": False,
            "retries": 0,
            "linger.ms": 0,
        }
    )
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": QUIET_GROUP, "auto.offset.reset": "earliest"}
    )
    seen, phase, stop = Seen(), {"now": BETWEEN}, threading.Event()
    consuming = threading.Thread(target=consume, args=(consumer, seen, stop))
    producing = threading.Thread(target=produce, args=(producer, seen, phase))
    is_assigned = threading.Event()
    consumer.subscribe([QUIET_TOPIC], on_assign=lambda *_: is_assigned.set())
    consuming.start()
    is_assigned.wait(60)
    producing.start()
    print("ready", flush=True)
    while phase["now"] != OVER:
        now = sys.stdin.readline().strip() or OVER  # the parent process is gone
        if now != OVER:
            seen.slices[now].append([])
        phase["now"] = now
    producing.join()
    stop.set()
    consuming.join()
    print(json.dumps(report(seen)), flush=True)


if __name__ == "__main__":
    main()
