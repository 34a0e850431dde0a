"""The cost that merges and passes over keys add to compaction: requests, bytes and CPU of a day of hourly rounds.

    python -m bench.compaction_rounds

A topic with 12 partitions gets four objects per hour, 40 MiB in total. One round per hour compacts them: without
merges, with merges, and with `cleanup.policy=compact` too (2,000 keys, the default dirty ratio). Everything is in
memory and in this process. Requests of the collector and to the database are not counted.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence

from compactor.cycle import CompactionSettings, InProcess, run_cycle
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.buffers import Buffer
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.compaction import Log

PARTITIONS, HOURS, OBJECTS, RECORDS, KEYS = 12, 24, 4, 150, 2_000
KINDS = ("compaction", "with merges", "with merges and keys")
REPEATS = 2
"""The first repeat compiles kernels."""


class CountingStore(MemoryStore):
    """Counts requests and bytes."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.counts: Counter[str] = Counter()

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


def batch(luck: random.Random, now_ms: int) -> bytes:
    """Return a batch of about 40 KB of JSON."""
    made = [
        NewRecord(
            b"key-%06d" % luck.randrange(KEYS),
            json.dumps({"carrier": "UA", "delay": luck.random(), "id": luck.randbytes(24).hex()}).encode(),
            (("note", b"x" * 120),),
        )
        for _ in range(RECORDS)
    ]
    return encode_batch(made, timestamps=[now_ms] * RECORDS)


async def day(kind: str) -> tuple[Counter[str], float]:
    """Run a day's rounds. Return their requests and bytes, and their CPU seconds."""
    clock, luck = ManualClock(), random.Random(5)
    store = CountingStore(clock)
    committer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1))
    await committer.start()
    log = Log(committer, store, clock)
    await log.topic("t", PARTITIONS, {"cleanup.policy": "compact"} if "keys" in kind else {})
    here = InProcess(store, clock, log.entropy)
    settings = CompactionSettings(min_bytes=1, min_age_ms=0, merges="merges" in kind)
    used: Counter[str] = Counter()
    cpu_s = 0.0
    for _ in range(HOURS):
        for _ in range(OBJECTS):
            await log.produce(
                *[("t", partition, batch(luck, clock.wall_ms())) for partition in range(PARTITIONS)]
            )
        clock.advance(3_600)
        store.counts.clear()
        began = time.process_time()
        await run_cycle(
            log.sequencer,
            here,
            clock=clock,
            entropy=log.entropy,
            settings=settings,
            keyed=here if "keys" in kind else None,
        )
        cpu_s += time.process_time() - began
        used.update(store.counts)
    await committer.close()
    return used, cpu_s


def main() -> None:
    """Print the last repeat's figures."""
    for repeat in range(REPEATS):
        for kind in KINDS:
            used, cpu_s = asyncio.run(day(kind))
            if repeat == REPEATS - 1:
                mib = {name: round(used[name] / (1 << 20)) for name in ("read", "written")}
                print(f"{kind}: {used['PUT']} PUTs, {used['GET']} GETs, {mib} MiB, {cpu_s:.1f} CPU-s")


if __name__ == "__main__":
    main()
