"""Readers of old records on a modelled S3: GETs per chunk, and the rate that latency alone allows.

    python -m bench.cold_reads [--mib 1362] [--cache-mib 192] [--batch-kib 512] [--readers 1] [--json FILE]

The agent's reader and cache run over a store with S3's latencies (GET 30 ms at the median, 120 ms at p99, hedged as in
production), on a loop whose clock jumps from event to event. So the seconds are those that a reader waits, independent
of the machine and its load. GETs are counted below the hedging. The objects have 8 MiB, with batches of all partitions,
but not the same number of each. A reader requests all partitions at once, or one half after the other. Its CPU time is
printed too: the rate that the machine would allow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from bisect import bisect_right
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from uuid import UUID

from cache.chunk_cache import ChunkCache
from cache.read_batches import ReadRequest
from cache.reader import BatchReader
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api.agents import Ring
from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.reads import (
    FindAnswer,
    FindPartition,
    FindRequest,
    FoundPartition,
    PartitionError,
    Run,
    RunBatch,
)
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.clock import Clock
from tailrace.object_store.hedged import HedgedStore
from tailrace.object_store.memory import MemoryStore
from tailrace.object_store.metered import MeteredStore
from tests.simulation.loop import START_WALL_MS, SimulatedClock, SimulatedLoop, run_simulated
from tests.support.clocks import SeededEntropy
from tests.support.faulty_store import S3_STANDARD, FaultyStore

MIB = 1 << 20
TOPIC = UUID(int=7)
PARTITIONS = 16
OBJECT_CHUNKS = 2
FETCH_CHUNKS = 12
"""The largest response in chunks. One partition has at most a quarter of a chunk in it."""
DISORDER = 2
"""A batch may be up to this many objects later than the order of sending."""
YEAR_MS = 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class Case:
    """A log to read and its readers. Tests use small chunks, and scale everything else with them."""

    mib: int = 1362
    cache_mib: int = 192
    batch_kib: int = 512
    readers: int = 1
    is_uneven: bool = False
    chunk_kib: int = 4096
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a case. `gets_per_chunk`: GETs, including hedges, divided by the chunks of the log."""

    gets: int
    hedges: int
    gets_per_chunk: float
    modelled_seconds: float
    modelled_mib_per_second: float
    cpu_seconds: float
    mib_per_cpu_second: float


class OneBody(MemoryStore):
    """A store whose objects all have the same bytes, kept once."""

    def __init__(self, clock: Clock, body: bytes) -> None:
        super().__init__(clock)
        self._body = memoryview(body)

    async def get_range(self, key: str, start: int, length: int) -> bytearray:
        return bytearray(self._body[start : start + length])


class Log:
    """The runs of all partitions, with `find_batches` like the sequencer's.

    Producers send to the partitions in turn. Batches sent at about the same time may be in one object or in the next,
    so an object does not have the same number of batches of each partition.
    """

    def __init__(self, case: Case) -> None:
        batch = encode_batch([NewRecord(None, b"v" * (case.batch_kib * 1024 - 100))], timestamps=[0])
        per_object = OBJECT_CHUNKS * case.chunk_kib * 1024 // len(batch)
        luck = random.Random(case.seed)
        self.body = batch * per_object
        self.objects = max(1, case.mib * MIB // len(self.body))
        self.bytes = self.objects * len(self.body)
        self.chunk_bytes = case.chunk_kib * 1024
        self._runs: list[list[Run]] = [[] for _ in range(PARTITIONS)]
        shuffled = sorted(
            range(self.objects * per_object),
            key=lambda number: number + luck.random() * DISORDER * per_object,
        )
        for number in range(self.objects):
            sent = shuffled[number * per_object : (number + 1) * per_object]
            self._add_object(number, Counter(number_sent % PARTITIONS for number_sent in sent), len(batch))
        self.ends = [runs[-1].end_offset for runs in self._runs]
        self._ends = [[run.end_offset for run in runs] for runs in self._runs]

    def _add_object(self, number: int, counts: Counter[int], size: int) -> None:
        start = 0
        for partition, count in sorted(counts.items()):
            runs = self._runs[partition]
            base = runs[-1].end_offset if runs else 0
            table = [RunBatch(size, 1, BatchStatus.STORED, base + place, 0) for place in range(count)]
            runs.append(self._run(number, partition, start, table))
            start += count * size

    def _run(self, number: int, partition: int, start: int, batches: list[RunBatch]) -> Run:
        return Run(
            topic_id=TOPIC,
            partition=partition,
            base_offset=batches[0].base_offset,
            end_offset=batches[-1].base_offset + 1,
            object_id=UUID(int=number),
            kind=ObjectKind.MIXED,
            key=f"mixed/{number}",
            object_size=len(self.body),
            index_start=len(self.body),
            start=start,
            length=sum(batch.length for batch in batches),
            max_timestamp=0,
            running_max_timestamp=0,
            commit_number=number,
            created_ms=START_WALL_MS - YEAR_MS,
            batches=batches,
        )

    async def find_batches(self, request: FindRequest) -> FindAnswer:
        """Return each partition's runs from its offset on, up to its limit of bytes."""
        return FindAnswer(
            1,
            [
                FoundPartition(
                    error=PartitionError.NONE,
                    log_start_offset=0,
                    high_watermark=self.ends[wanted.partition],
                    last_stable_offset=self.ends[wanted.partition],
                    leader_epoch=0,
                    runs=self.runs_from(wanted.partition, wanted.offset, wanted.max_bytes),
                    aborted=[],
                )
                for wanted in request.partitions
            ],
        )

    def runs_from(self, partition: int, offset: int, max_bytes: int) -> list[Run]:
        """Return the runs of one partition from an offset on."""
        first = bisect_right(self._ends[partition], offset)
        found: list[Run] = []
        for run in self._runs[partition][first:]:
            found.append(run)
            max_bytes -= run.length
            if max_bytes <= 0:
                break
        return found


async def read_all(log: Log, reader: BatchReader, *, is_uneven: bool) -> int:
    """Read the whole log like one consumer. Return the received bytes."""
    at = dict.fromkeys(range(PARTITIONS), 0)
    total = 0
    while at:
        asked = list(at)[: len(at) // 2 or 1] if is_uneven else list(at)
        total += await _fetch(log, reader, at, asked)
        for partition in asked:
            if at[partition] >= log.ends[partition]:
                del at[partition]
            else:
                at[partition] = at.pop(partition)
    return total


async def _fetch(log: Log, reader: BatchReader, at: dict[int, int], asked: list[int]) -> int:
    """Make one request for the given partitions, as the fetch handler serves it."""
    most = log.chunk_bytes // 4
    wanted = [FindPartition(TOPIC, partition, at[partition], most) for partition in asked]
    answer = await log.find_batches(FindRequest(wanted, FETCH_CHUNKS * log.chunk_bytes))

    async def read(partition: int, found: FoundPartition) -> int:
        request = ReadRequest(offset=at[partition], max_bytes=most, leader_epoch=0)
        out = reader.read_held(found.runs, request) or await reader.read(found.runs, request)
        at[partition] = out.end_offset
        return out.bytes

    return sum(await asyncio.gather(*map(read, asked, answer.partitions)))


def run(case: Case) -> Outcome:
    """Read the log of `case`. Return the figures of all readers together."""
    log = Log(case)
    settings = CacheSettings(memory_bytes=case.cache_mib * MIB, chunk_bytes=log.chunk_bytes)

    async def main(loop: SimulatedLoop) -> Outcome:
        clock, entropy = SimulatedClock(loop), SeededEntropy(case.seed)
        metered = MeteredStore(FaultyStore(OneBody(clock, log.body), clock, entropy, S3_STANDARD), clock)
        store = HedgedStore(metered, clock, entropy)
        cache = ChunkCache(store, settings, lambda: ZoneRing(Ring(1, []), "a", 1))
        with ThreadPoolExecutor(1) as pool:
            reader = BatchReader(cache, clock, pool, find=log.find_batches)
            began, cpu = loop.time(), time.process_time()
            readers = [read_all(log, reader, is_uneven=case.is_uneven) for _ in range(case.readers)]
            total = sum(await asyncio.gather(*readers))
            seconds, cpu = loop.time() - began, time.process_time() - cpu
            await reader.close()
            await cache.close()
        assert total == log.bytes * case.readers, f"{total} bytes of {log.bytes} times {case.readers}"
        chunks = log.objects * -(-len(log.body) // settings.chunk_bytes)
        gets = metered.counts.gets
        mib = total / MIB
        return Outcome(gets, store.hedges, gets / chunks, seconds, mib / seconds, cpu, mib / cpu)

    return run_simulated(case.seed, main, end_seconds=100_000.0)


def main() -> None:
    """Run one case, or those of docs/performance.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mib", type=int, default=Case().mib, help="size of the log (default 1362: 1.33 GiB)"
    )
    parser.add_argument(
        "--cache-mib", type=int, default=Case().cache_mib, help="memory of the cache (default 192)"
    )
    parser.add_argument("--batch-kib", type=int, nargs="+", default=[512, 16], help="default: 512 16")
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 10], help="default: 1 10")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    columns = "batches | readers | partitions asked | GETs | hedges | GETs per chunk | modelled MiB/s | MiB per CPU-s"
    print(f"| {columns} |\n|{'---|' * 8}")
    rows = []
    for batch_kib, readers, is_uneven in product(options.batch_kib, options.readers, (False, True)):
        case = Case(options.mib, options.cache_mib, batch_kib, readers, is_uneven)
        out = run(case)
        rows.append({**asdict(case), **asdict(out)})
        print(
            f"| {batch_kib} KiB | {readers} | {'one half' if is_uneven else 'all'} | {out.gets:,} | {out.hedges} | "
            f"{out.gets_per_chunk:.2f} | {out.modelled_mib_per_second:,.0f} | {out.mib_per_cpu_second:,.0f} |",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
