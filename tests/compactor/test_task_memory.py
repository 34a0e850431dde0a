"""A task needs at most four times its item and 300 MB: what a cluster's memoryOverhead is computed from."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyspark")

from compactor.by_key.keyed_cycle import KeyedSummary, due_partitions, items_of
from compactor.by_key.keyed_index import MIN_MEMORY_BYTES
from compactor.by_key.keyed_rewrite import KeyedItem
from compactor.cycle import CompactionSettings, InProcess, run_cycle
from compactor.merges import plan_merges
from compactor.on_spark.session import TASK_BASE_BYTES, keyed_task_memory_bytes, task_memory_bytes
from compactor.plan import PlanSettings, WorkItem, plan
from sequencer.api.compaction import CompactionRequest
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tailrace.batches.record_batch import Compression
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.configs.topic_config import topic_settings
from tailrace.object_store.open import open_store
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.compaction import T0, Log, batch_of, compacted_here

ITEM_BYTES = 48 << 20
NO_MERGES = CompactionSettings(min_bytes=1, min_age_ms=0, merges=False)
ONE_TASK = """
import sys
from compactor.on_spark import job
output = job.OutputLocation("out/", "c", until_ms=1 << 62)
(outcome,) = getattr(job, sys.argv[3])([open(sys.argv[1], "rb").read()], sys.argv[2], output)
kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in open("/proc/self/status"))
       if name in ("VmHWM", "RssFile")}
print(len(outcome), (kib["VmHWM"] - kib["RssFile"]) * 1024)
"""
"""The peak without pages of libraries: workers share these, and the kernel maps more or fewer of them. ru_maxrss would
begin at what the process had that started this one."""


def half_random(luck: random.Random, size: int) -> bytes:
    """Compresses about as well as JSON does."""
    return (b'{"carrier": "UA", "delay": 1234, "id": "' + luck.randbytes(size // 8).hex().encode()).ljust(
        size
    )


@asynccontextmanager
async def log_on_disk(folder: Path, configs: dict[str, str] | None = None) -> AsyncIterator[Log]:
    clock = ManualClock()
    committer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1))
    await committer.start()
    store = open_store(str(folder / "objects"), clock=clock)
    try:
        log = Log(committer, store, clock)
        await log.topic("t", configs=configs)
        yield log
    finally:
        await store.close()
        await committer.close()


def batch_of_1_mib(codec: Compression, record_bytes: int, seed: int = 1) -> bytes:
    luck = random.Random(seed)
    return batch_of([half_random(luck, record_bytes) for _ in range((1 << 20) // record_bytes)], codec=codec)


async def item_on_disk(folder: Path, codec: Compression, record_bytes: int) -> WorkItem:
    async with log_on_disk(folder) as log:
        batch = batch_of_1_mib(codec, record_bytes)
        for _ in range(ITEM_BYTES // len(batch)):
            await log.produce(("t", 0, batch))
        page = await log.sequencer.compaction_candidates(CompactionRequest(1, 0, 10_000))
        (item,) = plan(page.candidates, PlanSettings())
        return item


async def merge_on_disk(folder: Path) -> WorkItem:
    """Four Parquet objects, whose records take several times as much."""
    async with log_on_disk(folder) as log:
        for number in range(4):
            for seed in range(2 * ITEM_BYTES // 4 >> 20):
                batch = batch_of_1_mib(Compression.NONE, 2_000, 100 * number + seed)
                await log.produce(("t", 0, batch))
            await compacted_here(log)
        page = await log.sequencer.compaction_candidates(CompactionRequest(0, 0, 10_000, is_of_merges=True))
        (item,) = plan_merges(page.merges, PlanSettings())
        return item


@pytest.mark.parametrize(("codec", "record_bytes"), [(Compression.NONE, 1_000), (Compression.ZSTD, 100)])
def test_a_task_needs_at_most_four_times_its_item_and_300_mb(
    tmp_path: Path, codec: Compression, record_bytes: int
) -> None:
    measure(tmp_path, asyncio.run(item_on_disk(tmp_path, codec, record_bytes)))


def test_a_merge_needs_no_more(tmp_path: Path) -> None:
    item = asyncio.run(merge_on_disk(tmp_path))
    assert item.is_merge and item.stored_bytes >= ITEM_BYTES // 4
    measure(tmp_path, item)


async def pass_on_disk(folder: Path) -> KeyedItem:
    """Runs whose records take many times as much, and of each of which some go."""
    async with log_on_disk(folder, {"cleanup.policy": "compact"}) as log:
        luck = random.Random(1)
        for number in range(5 * ITEM_BYTES >> 20):
            made = [
                NewRecord(b"%d" % (record and 1_000 * number + record), half_random(luck, 4_000))
                for record in range(262)
            ]
            await log.produce(("t", 0, encode_batch(made, timestamps=[T0] * len(made))))
        topic = log.topics["t"]
        runner = InProcess(log.store, log.clock, log.entropy)
        await run_cycle(log.sequencer, runner, clock=log.clock, entropy=log.entropy, settings=NO_MERGES)
        settings = topic_settings(topic.configs)
        async for due in due_partitions(log.sequencer, topic, settings, 1 << 30, KeyedSummary()):
            (item,) = items_of(topic, due, settings, PlanSettings(), MIN_MEMORY_BYTES)
        return item


def test_a_pass_over_keys_needs_no_more_than_executors_are_given(tmp_path: Path) -> None:
    item = asyncio.run(pass_on_disk(tmp_path))
    assert len(item.pieces[0].runs) == 2 and item.stored_bytes < ITEM_BYTES
    most = keyed_task_memory_bytes(item.stored_bytes, MIN_MEMORY_BYTES)
    measure(tmp_path, item, task="run_keyed_task", most_bytes=most)


def measure(
    tmp_path: Path, item: WorkItem | KeyedItem, *, task: str = "run_task", most_bytes: int | None = None
) -> None:
    """Run a task for the item and check its peak."""
    (tmp_path / "item").write_bytes(msgspec.msgpack.Encoder(uuid_format="bytes").encode(item))
    for _ in range(2):  # the first may compile kernels, which an executor does once
        done = subprocess.run(
            [sys.executable, "-c", ONE_TASK, str(tmp_path / "item"), str(tmp_path / "objects"), task],
            capture_output=True, text=True, check=True, timeout=600,
        )  # fmt: skip
    outcome_bytes, peak_bytes = map(int, done.stdout.split())
    assert outcome_bytes > 100
    print(f"{peak_bytes >> 20} MiB for {item.stored_bytes >> 20} MiB")
    assert peak_bytes > TASK_BASE_BYTES // 4, "a whole process was measured"
    assert peak_bytes <= (most_bytes or task_memory_bytes(item.stored_bytes))
