"""Reading more than memory holds, with and without the cache's disk tier: GETs, MiB/s, and MiB per second of CPU.

    python -m bench.disk_tier [--mib 512] [--cache-mib 64] [--passes 5] [--folder DIR] [--store URL] [--json FILE]

The agent's reader and cache read the log of `bench.cold_reads` several times, on a real loop. The disk tier's file is
in DIR. The store is in memory, with S3's latencies (GET 30 ms at the median, 120 ms at p99), and a GET costs the CPU
only a copy of its bytes. To include what a real store's client costs, pass that store's URL.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.cold_reads import MIB, Case, Log, OneBody, read_all
from cache.chunk_cache import ChunkCache
from cache.disk import open_disk_tier
from cache.observer import CacheObserver
from cache.reader import BatchReader
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api.agents import Ring
from tailrace.clock import SystemClock
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.metered import MeteredStore
from tailrace.object_store.open import open_store
from tests.support.clocks import SeededEntropy
from tests.support.faulty_store import S3_STANDARD, FaultyStore

OBJECT = "bench/disk-tier"


class OneObject:
    """A store that answers every GET from the same object of another store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        return await self._store.get_range(OBJECT, start, length)


async def figures(case: Case, passes: int, folder: Path | None, url: str | None) -> list[dict[str, float]]:
    """Read the log `passes` times and return one row for each."""
    log, clock = Log(case), SystemClock()
    settings = CacheSettings(
        memory_bytes=case.cache_mib * MIB,
        chunk_bytes=log.chunk_bytes,
        disk_path=folder,
        disk_bytes=2 * log.bytes if folder else 0,
    )
    store = MeteredStore(
        FaultyStore(OneBody(clock, log.body), clock, SeededEntropy(case.seed), S3_STANDARD), clock
    )
    if url is not None:
        inner = open_store(url, clock=clock)
        await inner.put(OBJECT, [log.body])
        store = MeteredStore(OneObject(inner), clock)  # type: ignore[arg-type]
    disk = open_disk_tier(settings, clock, CacheObserver())
    cache = ChunkCache(store, settings, lambda: ZoneRing(Ring(1, []), "a", 1), disk=disk)
    chunks = log.objects * -(-len(log.body) // settings.chunk_bytes)
    rows = []
    with ThreadPoolExecutor(1) as pool:
        reader = BatchReader(cache, clock, pool, find=log.find_batches)
        for number in range(passes):
            gets, began, cpu = store.counts.gets, time.perf_counter(), time.process_time()
            total = await read_all(log, reader, is_uneven=False)
            assert total == log.bytes, f"{total} bytes of {log.bytes}"
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            rows.append(
                {
                    "pass": number + 1,
                    "gets_per_chunk": (store.counts.gets - gets) / chunks,
                    "mib_per_second": total / MIB / seconds,
                    "mib_per_cpu_second": total / MIB / cpu,
                }
            )
        await reader.close()
    await cache.close()
    if disk is not None:
        await disk.close()
    if url is not None:
        await inner.close()
    return rows


def main() -> None:
    """Print a line for each pass, first without the disk tier, then with it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=512, help="size of the log (default 512)")
    parser.add_argument("--cache-mib", type=int, default=64, help="memory of the cache (default 64)")
    parser.add_argument("--batch-kib", type=int, nargs="+", default=[512, 16], help="default: 512 16")
    parser.add_argument("--passes", type=int, default=5, help="how often the log is read (default 5)")
    parser.add_argument("--store", metavar="URL", help="a store to read from (default: the model of S3)")
    parser.add_argument("--folder", type=Path, help="where the disk is (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    columns = "batches | disk | pass | GETs per chunk | MiB/s | MiB per CPU-s"
    print(f"| {columns} |\n|{'---|' * 6}")
    written = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for batch_kib in options.batch_kib:
            case = Case(mib=options.mib, cache_mib=options.cache_mib, batch_kib=batch_kib)
            for disk in (None, Path(folder)):
                for row in asyncio.run(figures(case, options.passes, disk, options.store)):
                    written.append({"batch_kib": batch_kib, "disk": disk is not None, **row})
                    print(
                        f"| {batch_kib} KiB | {'no' if disk is None else 'yes'} | {row['pass']} | "
                        f"{row['gets_per_chunk']:.2f} | {row['mib_per_second']:,.0f} | "
                        f"{row['mib_per_cpu_second']:,.0f} |",
                        flush=True,
                    )
    if options.json is not None:
        options.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
