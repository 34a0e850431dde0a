"""Writing from Spark: CPU of a sink's task per record, compared with a librdkafka producer in the same process.

    python -m bench.spark_sink [--bootstrap HOST:PORT --broker-pid PID] [--records 200000] [--json FILE]

The sink converts Arrow batches, as Spark passes them, to objects in memory and one commit. The figures include all work
of a task and the commit, but not Spark itself, which both ways need. With `--bootstrap`, librdkafka's producer sends
the same records (with defaults, one `produce` call each, as in `foreachPartition`) to an existing topic `sink-bench`
with 12 partitions, and the broker's CPU is added to the client's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

from bench.support.process_figures import cpu_seconds
from compactor.spark_sink.options import SinkOptions
from compactor.spark_sink.task import WriteTask, chunks
from sequencer.api.commits import WriteRequest
from sequencer.api.topics import CreateTopic
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.object_store.memory import MemoryStore

TOPIC, PARTITIONS = "sink-bench", 12
SPARKS_BATCH = 10_000
"""Rows of an Arrow batch (spark.sql.execution.arrow.maxRecordsPerBatch)."""
SIZES = (100, 1_000)
ROUNDS = 3


def rows(count: int, size: int) -> list[pa.RecordBatch]:
    """Return records with a key of 8 bytes and a value that hardly compresses."""
    luck = random.Random(size)
    keys = [b"%08d" % luck.randrange(100_000) for _ in range(count)]
    table = pa.table({"key": keys, "value": [luck.randbytes(size) for _ in range(count)]})
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=SPARKS_BATCH)
    return batches


async def sink(batches: list[pa.RecordBatch]) -> None:
    """Run one task and its commit."""
    clock, entropy = SystemClock(), SystemEntropy()
    sequencer = Committer(MemoryRowStore(clock), clock, entropy)
    await sequencer.start()
    await sequencer.create_topic(CreateTopic(TOPIC, PARTITIONS, {}))
    options = SinkOptions.of({"store": "memory:", "sequencer": "127.0.0.1:1", "topic": TOPIC})
    task = WriteTask(sequencer, MemoryStore(clock), options, UUID(int=1), clock, entropy)
    for chunk in chunks(batches, options.object_bytes):
        await task.write(chunk)
    await sequencer.commit_write(WriteRequest(UUID(int=1), 0, False, task.objects))
    await sequencer.close()


def librdkafka(batches: list[pa.RecordBatch], bootstrap: str) -> None:
    """Send the same rows with a producer."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for batch in batches:
        for row in batch.to_pylist():
            while True:
                try:
                    producer.produce(TOPIC, row["value"], row["key"])
                    break
                except BufferError:
                    producer.poll(0.1)
    producer.flush()


def main() -> None:
    """Measure both ways in turn, and print the least CPU of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bootstrap")
    parser.add_argument("--broker-pid", type=int)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for size in SIZES:
        batches = rows(options.records * SIZES[0] // size, size)
        count = sum(batch.num_rows for batch in batches)
        for turn in range(ROUNDS + 1):  # the first compiles
            began = time.process_time()
            asyncio.run(sink(batches))
            seconds = {"sink": time.process_time() - began}
            if options.bootstrap:
                began, of_broker = time.process_time(), cpu_seconds(options.broker_pid)
                librdkafka(batches, options.bootstrap)
                seconds["producer"] = time.process_time() - began
                seconds["broker"] = cpu_seconds(options.broker_pid) - of_broker
            for name, spent in seconds.items() if turn else ():
                place = f"{name} {size} B"
                found[place] = min(spent / count * 1e6, found.get(place, spent / count * 1e6))
    for name, micros in found.items():
        print(f"{name:16} {micros:8.2f} us of CPU a record, {1e6 / micros:10,.0f} records a CPU second")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
