"""Erasing one key from a growing log: what the search reads, what is rewritten, and how long both take.

    python -m bench.erasure [--mib 2048] [--only NAME] [--json FILE]

A topic with 8 partitions gets records with distinct keys and values that do not compress, in batches of 64 KiB, and is
compacted into a folder. The log doubles from step to step up to `--mib` MiB. At each step it searches for a key that
the topic does not have, then erases a key of one record and counts what the command read and wrote, its last search
included. Tables and Spark have no part in it.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple

from bench.support.by_case import run_cases
from compactor.cycle import CompactionSettings, InProcess, run_cycle
from compactor.erasure.erase import EraseRequest, ErasureWork, erase_keys, find_keys
from compactor.erasure.search import SearchKeys
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.buffers import Buffer
from tailrace.clock import SystemClock
from tailrace.object_store.folder import FolderStore
from tests.support.clocks import SeededEntropy
from tests.support.compaction import Log

MIB = 1 << 20
PARTITIONS, BATCH_BYTES, OBJECT_BYTES, FIRST_MIB = 8, 64 << 10, 8 * MIB, 128
ALL = CompactionSettings(min_bytes=1, min_age_ms=0, merges=False)


class Case(NamedTuple):
    """Records of `size` bytes, with their keys. `share`: of `--mib`."""

    name: str
    size: int
    share: float


CASES = (Case("1,000 B", 1_000, 1), Case("100 B", 100, 0.25))


class CountingStore(FolderStore):
    """Counts requests and bytes."""

    counts: ClassVar[Counter[str]] = Counter()

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self.counts.update(PUT=1, written=sum(map(len, parts)))
        await super().put(key, parts, if_absent=if_absent)

    async def get(self, key: str) -> bytes:
        data = await super().get(key)
        self.counts.update(GET=1, read=len(data))
        return data

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        self.counts.update(GET=1, read=length)
        return await super().get_range(key, start, length)


def batch(luck: random.Random, size: int) -> tuple[bytes, bytes]:
    """Return a batch and one of its keys."""
    made = [
        NewRecord(b"user-%d" % luck.getrandbits(60), luck.randbytes(size - 23))
        for _ in range(BATCH_BYTES // size)
    ]
    return encode_batch(made, timestamps=[time.time_ns() // 1_000_000] * len(made)), made[0].key or b""


async def grow(log: Log, luck: random.Random, size: int, mib: int) -> bytes:
    """Add `mib` MiB and compact them. Return a key of one record."""
    key = b""
    for _ in range(mib * MIB // OBJECT_BYTES):
        made = [batch(luck, size) for _ in range(OBJECT_BYTES // BATCH_BYTES)]
        await log.produce(*(("t", number % PARTITIONS, data) for number, (data, _) in enumerate(made)))
        key = made[0][1]
    runner = InProcess(log.store, log.clock, log.entropy)
    await run_cycle(log.sequencer, runner, clock=log.clock, entropy=log.entropy, settings=ALL)
    return key


async def erased(log: Log, store: CountingStore, key: bytes) -> dict[str, float]:
    """Search for an absent key, and erase one. Return the figures of both."""
    work = ErasureWork(log.sequencer, store, log.clock, log.entropy)
    absent = EraseRequest(log.topics["t"], SearchKeys.of([b"user-%d" % (1 << 59)]))  # within the bounds
    began, cpu = time.monotonic(), time.process_time()
    search = (await find_keys(work, absent)).cost
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu
    store.counts.clear()
    began = time.monotonic()
    done = await erase_keys(work, EraseRequest(log.topics["t"], SearchKeys.of([key])))
    assert done.erased_records == 1 and len(done.objects) == 1, done
    return {
        "MiB": search.file_bytes / MIB,
        "objects": search.files,
        "row groups": search.row_groups,
        "search: requests": search.requests,
        "search: % read": 100 * search.read_bytes / search.file_bytes,
        "search: s": seconds,
        "search: CPU s": cpu_seconds,
        "erase: requests": store.counts["GET"],
        "erase: % read": 100 * store.counts["read"] / search.file_bytes,
        "erase: MiB written": store.counts["written"] / MIB,
        "erase: s": time.monotonic() - began,
    }


async def curve(case: Case, mib: int) -> dict[str, Any]:
    """Return the figures of each step, by its MiB."""
    luck, clock, found = random.Random(1), SystemClock(), {}
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        store = CountingStore(folder, clock, ThreadPoolExecutor(4))
        committer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1))
        await committer.start()
        log = Log(committer, store, clock)
        await log.topic("t", PARTITIONS)
        held, upto = 0, FIRST_MIB
        while upto <= mib * case.share:
            key = await grow(log, luck, case.size, upto - held)
            step = await erased(log, store, key)
            print(case.name, {name: round(value, 3) for name, value in step.items()}, flush=True)
            found |= {f"{upto} MiB, {name}": value for name, value in step.items()}
            held, upto = upto, 2 * upto
        await committer.close()
        await store.close()
    return found


def main() -> None:
    run_cases(CASES, lambda case, mib: asyncio.run(curve(case, mib)), about=__doc__, mib=2_048)


if __name__ == "__main__":
    main()
