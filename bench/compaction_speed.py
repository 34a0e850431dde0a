"""Speed of compaction: MiB of record bytes per CPU-second, of a rewriting task and of deriving typed columns.

    python -m bench.compaction_speed [--mib 64] [--only NAME] [--json FILE]

A task reads its runs, writes one Parquet object, reads it back and compares it. For a topic with typed columns, a
second task reads the object and writes them. Both run in this process, with a store in memory. Spark's overhead is not
counted. Records are JSON with seven fields and a text that pads them. Record bytes are those of keys and values before
compression.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa

from bench.support.by_case import run_cases
from compactor.columns.arrays import table_fields
from compactor.columns.derive import DeriveItem, DeriveOrder, ValueFormat, derived_files
from compactor.cycle import InProcess
from compactor.plan import Piece, WorkItem
from compactor.rewrite import OutputLocation, RewriteResult
from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.reads import Run, RunBatch
from tailrace.batches.record_batch import Compression
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.configs.columns import parse_columns
from tailrace.object_store.memory import MemoryStore
from tailrace.parquet_object.schema import LOG_SCHEMA

MIB = 1 << 20
TOPIC = UUID(int=7)
BATCH_BYTES = 16 << 10
ROUNDS = 4
COLUMNS = (
    "id long, carrier string, delay double, at struct<lat double, lon double>, tags list<string>, tail string,"
    " late boolean, text string"
)


class Case(NamedTuple):
    """Records of `size` bytes, in batches of 16 KiB, in `partitions` partitions."""

    name: str
    size: int
    partitions: int
    codec: Compression


CASES = (
    Case("940 B", 940, 1, Compression.NONE),
    Case("940 B, zstd", 940, 1, Compression.ZSTD),
    Case("940 B, lz4, 200 partitions", 940, 200, Compression.LZ4),
    Case("200 B", 200, 1, Compression.NONE),
)


def record_of(luck: random.Random, number: int, size: int) -> NewRecord:
    value = {
        "id": number, "carrier": luck.choice(["UA", "DL", "AA"]), "delay": round(luck.random() * 90, 1),
        "at": {"lat": round(luck.random(), 4), "lon": round(luck.random(), 4)}, "tags": ["a", "b"],
        "tail": f"N{luck.randrange(10_000)}", "late": number % 2 == 0, "text": "",
    }  # fmt: skip
    room = max(0, size - len(json.dumps(value)))
    value["text"] = luck.randbytes(room // 4).hex() + "v" * (room - room // 4 * 2)
    return NewRecord(b"key-%d" % luck.randrange(10_000), json.dumps(value).encode(), [])


class Input(NamedTuple):
    """A mixed object, an item with all of it, and its record bytes."""

    data: bytes
    item: WorkItem
    record_bytes: int


def made(case: Case, mib: int) -> Input:
    """Make an input of about `mib` MiB of records."""
    luck, now_ms = random.Random(1), 1_700_000_000_000
    each = max(1, BATCH_BYTES // case.size)
    batches_each = max(1, mib * MIB // (each * case.size * case.partitions))
    parts, pieces, record_bytes, place = [], [], 0, 0
    for partition in range(case.partitions):
        start, coordinates = place, []
        for number in range(batches_each):
            records = [record_of(luck, number * each + n, case.size) for n in range(each)]
            record_bytes += sum(len(record.key or b"") + len(record.value or b"") for record in records)
            batch = encode_batch(records, timestamps=[now_ms + number] * each, compression=case.codec)
            parts.append(batch)
            place += len(batch)
            coordinates.append(RunBatch(len(batch), each, BatchStatus.STORED, number * each, now_ms))
        run = Run(
            topic_id=TOPIC, partition=partition, base_offset=0, end_offset=batches_each * each,
            object_id=UUID(int=1), kind=ObjectKind.MIXED, key="mixed", object_size=0, index_start=0, start=start,
            length=place - start, max_timestamp=now_ms, running_max_timestamp=now_ms, commit_number=1,
            created_ms=now_ms, batches=coordinates,
        )  # fmt: skip
        pieces.append(Piece(partition, [run], []))
    return Input(b"".join(parts), WorkItem("t", pieces), record_bytes)


async def rewritten(given: Input) -> tuple[RewriteResult, bytes, float]:
    """Run a task on the input. Return its result, the bytes of its object, and its CPU seconds."""
    clock = SystemClock()
    store = MemoryStore(clock)
    await store.put("mixed", [given.data])
    output = OutputLocation("parquet/", "bench", clock.wall_ms() + 3_600_000)
    began = time.process_time()
    (outcome,) = [done async for done in InProcess(store, clock, SystemEntropy()).run([given.item], output)]
    seconds = time.process_time() - began
    assert isinstance(outcome, RewriteResult), outcome
    return outcome, await store.get(outcome.object.key), seconds


def derived(result: RewriteResult, data: bytes) -> float:
    """Derive typed columns from the object. Return the CPU seconds."""
    schema = pa.schema([*LOG_SCHEMA, *table_fields(parse_columns(COLUMNS))])
    order = DeriveOrder(
        prefix="t", encoding=ValueFormat("json"), columns=COLUMNS, schema=schema.serialize().to_pybytes()
    )
    began = time.process_time()
    found = derived_files(DeriveItem(result.object, order), data)
    assert found.outcome.unfit == 0
    return time.process_time() - began


def measured(case: Case, mib: int) -> dict[str, float]:
    """Return MiB per CPU-second, the best of several rounds, because the machine may be busy."""
    given = made(case, mib)
    rewrites, derives = [], []
    for _ in range(ROUNDS):
        result, data, seconds = asyncio.run(rewritten(given))
        rewrites.append(seconds)
        derives.append(derived(result, data))
    size = given.record_bytes / MIB
    return {
        "compaction": size / min(rewrites),
        "typed columns": size / min(derives),
        "both": size / (min(rewrites) + min(derives)),
    }


def main() -> None:
    pa.set_cpu_count(1)
    run_cases(CASES, measured, about=__doc__, mib=64)


if __name__ == "__main__":
    main()
