"""Replay of Parquet objects: CPU of the reader alone, for files with few large partitions and with many small ones.

    python -m bench.parquet_replay [--mib 96] [--json FILE]

Records of 940 B with headers, in batches of 16, are compacted into one object in memory. One reader reads all
partitions to their ends, 1 MiB of each at a time, like a consumer that replays a topic. MiB are those of the batches
that it gets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

from cache.chunk_cache import ChunkCache
from cache.read_batches import ReadRequest
from cache.reader import BatchReader
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api.agents import Ring
from sequencer.api.commits import ObjectKind
from sequencer.api.reads import Run
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.clock import SystemClock
from tailrace.ids import TopicPartition
from tailrace.object_store.memory import MemoryStore
from tailrace.parquet_object.write import SourceBatch, SourceRun, WrittenParquet, write_parquet

MIB = 1 << 20
TOPIC = UUID(int=7)
RECORDS = 16
VALUE_BYTES = 900
CASES = {"thick, 1 partition": 1, "thick, 4 partitions": 4, "thin, 200 partitions": 200}


def written(partitions: int, mib: int) -> WrittenParquet:
    """Write one object with about `mib` MiB of records, evenly from all partitions."""
    half = VALUE_BYTES // 2
    records = [
        NewRecord(b"key-%d" % n, os.urandom(half) + b"v" * half, [("trace", b"%d" % n)])
        for n in range(RECORDS)
    ]
    batch = encode_batch(records, timestamps=[0] * RECORDS)
    count = mib * MIB // partitions // len(batch)
    runs = [
        SourceRun(
            TopicPartition(TOPIC, partition),
            "t",
            [SourceBatch(batch, number * RECORDS, 0) for number in range(count)],
        )
        for partition in range(partitions)
    ]
    return write_parquet(runs, object_id=UUID(int=1), cluster_id="bench", created_ms=0)


def _run(file: WrittenParquet, partition: int) -> Run:
    part = file.runs[partition]
    return Run(
        topic_id=TOPIC,
        partition=part.partition,
        base_offset=part.base_offset,
        end_offset=part.end_offset,
        object_id=UUID(int=1),
        kind=ObjectKind.PARQUET,
        key="parquet/1",
        object_size=file.size,
        index_start=file.index_start,
        start=0,
        length=file.size // len(file.runs),
        max_timestamp=0,
        running_max_timestamp=0,
        commit_number=1,
        created_ms=0,
        batches=[],
        index_crc=file.index_crc,
    )


async def replay(file: WrittenParquet) -> dict[str, Any]:
    """Read all partitions once. Return the bytes and the CPU of this process."""
    clock = SystemClock()
    store = MemoryStore(clock)
    assert file.data is not None
    await store.put("parquet/1", [file.data])
    runs = [_run(file, number) for number in range(len(file.runs))]
    with ThreadPoolExecutor(2) as pool:
        cache = ChunkCache(store, CacheSettings(), lambda: ZoneRing(Ring(1, []), "a", 1))
        reader = BatchReader(cache, clock, pool)
        offsets = {number: run.base_offset for number, run in enumerate(runs)}
        total, began = 0, time.process_time()
        while offsets:
            reads = await asyncio.gather(
                *(
                    reader.read([runs[number]], ReadRequest(offset=offset, max_bytes=MIB, leader_epoch=0))
                    for number, offset in offsets.items()
                )
            )
            total += sum(read.bytes for read in reads)
            ends = {number: read.end_offset for number, read in zip(offsets, reads, strict=True)}
            offsets = {number: end for number, end in ends.items() if end < runs[number].end_offset}
        seconds = time.process_time() - began
        await reader.close()
        await cache.close()
    return {"mib": total / MIB, "cpu_seconds": seconds, "mib_per_cpu_second": total / MIB / seconds}


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=96, help="records of each file (default 96)")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    asyncio.run(replay(written(1, 1)))  # imports and compiles what the first read needs
    rows = []
    print("| file | MiB per CPU-second |\n|---|---|")
    for name, partitions in CASES.items():
        row = {"file": name, **asyncio.run(replay(written(partitions, options.mib)))}
        rows.append(row)
        print(f"| {name} | {row['mib_per_cpu_second']:,.0f} |", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
