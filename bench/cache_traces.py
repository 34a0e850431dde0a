"""Hit ratios of the chunk cache on traces of readers, compared with LRU and the optimum (Belady, 1966).

    python -m bench.cache_traces [--chunks 64] [--only NAME ...] [--json FILE]
    python -m bench.cache_traces --disk 512        adds a disk tier of so many chunks: GETs and writes by admission rule
    python -m bench.cache_traces --record FILE     records the trace of `recorded` again

A trace is a list of events: an agent uploads a chunk, a tail reader reads one, a reader of old records reads one. The
policy is the agent's `cache.chunk_cache.ChunkCache` with all its shares. Chunks are a few bytes here, because only
counts matter. Each policy may keep uploaded chunks without a GET. LRU and the optimum use the whole memory for all
chunks. The optimum knows the future, so no policy can hit more often. There is no read-ahead here: it changes when a
chunk is fetched, but not how often.

    zipf, tail / old       some chunks are read much more often than others
    scan beside the tail   three groups follow the writer; one reader reads a long old log once
    catch-up               16 partitions in each chunk, whose readers are some chunks apart; three groups, far apart
    fan-out                eight groups read the same log, each some chunks behind the one before
    recorded               five readers of `bench.cold_reads`: the agent's reader with its partitions and fetches
    far behind             groups that are more chunks behind the writer than memory holds (with --disk only)
    again and again        one reader reads more old chunks than memory holds, four times (with --disk only)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from cache.chunk import ChunkBytes, ChunkId, ChunkRef
from cache.chunk_cache import ChunkCache
from cache.disk import DiskTier
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api.agents import AgentInfo, Member, Ring
from tailrace.object_store.memory import MemoryStore
from tailrace.object_store.metered import MeteredStore
from tests.support.chunk_files import MemoryChunkFile
from tests.support.clocks import ManualClock

CHUNK_BYTES = 4096
RECORDED = Path(__file__).parent / "results" / "cache-trace.json"
UPLOAD, TAIL, OLD = "upload", "tail", "old"
NEVER = 1 << 60


class Event(NamedTuple):
    """`kind`: UPLOAD, or a read at the TAIL or of OLD records. `chunk`: its number."""

    kind: str
    chunk: int


Trace = list[Event]


class Ratios(NamedTuple):
    """The share of reads that needed no GET, by policy."""

    ours: float
    lru: float
    optimum: float


def main() -> None:
    """Print a line for each trace."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=64, help="chunks that fit into memory (default 64)")
    parser.add_argument("--only", nargs="+", choices=[*TRACES, *DISK_TRACES], help="default: all")
    parser.add_argument("--disk", type=int, default=0, help="chunks that fit on the disk (default 0: none)")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--record", type=Path, help="record a trace of bench.cold_reads, and write it there")
    options = parser.parse_args()
    if options.record is not None:
        options.record.write_text(json.dumps([event.chunk for event in record()]) + "\n")
        return
    if options.disk:
        show_disk(options.only or [*TRACES, *DISK_TRACES], options.chunks, options.disk)
        return
    print(
        "| trace | reads | chunks | Tailrace | LRU | optimum | of the optimum's hits |\n|---|---|---|---|---|---|---|"
    )
    rows = []
    for name in options.only or TRACES:
        trace = TRACES[name](options.chunks)
        ratios = ratios_of(trace, options.chunks)
        reads = sum(event.kind != UPLOAD for event in trace)
        part = ratios.ours / ratios.optimum if ratios.optimum else 1.0
        print(
            f"| {name} | {reads:,} | {len({event.chunk for event in trace}):,} | {ratios.ours:.3f} | "
            f"{ratios.lru:.3f} | {ratios.optimum:.3f} | {part:.0%} |",
            flush=True,
        )
        rows.append({"trace": name, "chunks": options.chunks, "reads": reads, **ratios._asdict()})
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def ratios_of(trace: Sequence[Event], chunks: int) -> Ratios:
    """Return the hit ratios of all policies with memory for `chunks` chunks."""
    reads = sum(event.kind != UPLOAD for event in trace)
    hits = (asyncio.run(hits_of_ours(trace, chunks)), hits_of_lru(trace, chunks), most_hits(trace, chunks))
    return Ratios(*(count / reads for count in hits))


# --- policies ---------------------------------------------------------------------------------------------


class _Bodies(MemoryStore):
    """A store in which every object exists."""

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return bytes(length)


async def hits_of_ours(trace: Sequence[Event], chunks: int) -> int:
    """Count the hits of the agent's cache. The agent is alone in its zone."""
    return sum(event.kind != UPLOAD for event in trace) - await gets_of_ours(trace, chunks, None)


async def gets_of_ours(trace: Sequence[Event], chunks: int, disk: DiskTier | None) -> int:
    """Run the agent's own cache on the trace, with or without a disk tier, and return its GETs."""
    clock = ManualClock()
    store = MeteredStore(_Bodies(clock), clock)
    settings = CacheSettings(memory_bytes=chunks * CHUNK_BYTES, chunk_bytes=CHUNK_BYTES)
    alone = Member(1, 1, AgentInfo("", 0, "", 0, 0, "a", "0", UUID(int=1)), False)
    ring = ZoneRing(Ring(1, [alone]), "a", 1)
    cache = ChunkCache(store, settings, lambda: ring, disk=disk)
    for kind, chunk in trace:
        if kind == UPLOAD:
            cache.write_through(str(chunk), [bytes(CHUNK_BYTES)])
            await asyncio.sleep(0)  # lets the disk tier write the chunks that left memory
            continue
        ref = ChunkRef(ChunkId(str(chunk), 0), 0, CHUNK_BYTES)
        if cache.held(ref, is_catch_up=kind == OLD) is None:
            await cache.get(ref, is_catch_up=kind == OLD)
        assert cache.bytes_held <= settings.memory_bytes
    await cache.close()
    return store.counts.gets


class _Taking(DiskTier):
    """A disk tier with another admission rule: it treats all chunks as old, or none. None keeps the tier's own rule."""

    def __init__(self, file: MemoryChunkFile, chunks: int, is_old: bool | None) -> None:
        super().__init__(file, chunks * CHUNK_BYTES, ManualClock())
        self._is_old = is_old

    def offer(self, chunk: ChunkId, data: ChunkBytes, *, is_old: bool) -> None:
        super().offer(chunk, data, is_old=is_old if self._is_old is None else self._is_old)


def show_disk(names: Sequence[str], chunks: int, disk_chunks: int) -> None:
    """Print a line for each trace: GETs without a disk, then GETs and chunks written under each admission rule."""
    rules = {"all": False, "left memory twice": True, "the tail, else twice": None}
    print(
        f"| trace | GETs without | {' | '.join(f'{rule}: GETs, writes' for rule in rules)} |\n|{'---|' * 5}"
    )
    for name in names:
        trace = {**TRACES, **DISK_TRACES}[name](chunks)
        cells = [f"{asyncio.run(gets_of_ours(trace, chunks, None)):,}"]
        for is_old in rules.values():
            cells.append(asyncio.run(_disk_figures(trace, chunks, disk_chunks, is_old)))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


async def _disk_figures(trace: Sequence[Event], chunks: int, disk_chunks: int, is_old: bool | None) -> str:
    file = MemoryChunkFile()
    disk = _Taking(file, disk_chunks, is_old)
    gets = await gets_of_ours(trace, chunks, disk)
    await disk.close()
    return f"{gets:,}, {file.written // CHUNK_BYTES:,}"


def hits_of_lru(trace: Sequence[Event], chunks: int) -> int:
    """Count the hits of one LRU queue of all chunks."""
    kept: dict[int, None] = {}
    hits = 0
    for kind, chunk in trace:
        if chunk in kept:
            del kept[chunk]
            hits += kind != UPLOAD
        elif len(kept) >= chunks:
            del kept[next(iter(kept))]
        kept[chunk] = None
    return hits


def most_hits(trace: Sequence[Event], chunks: int) -> int:
    """Count the hits of Belady's optimum, which drops the chunk whose next read is farthest away."""
    next_read, following = [NEVER] * len(trace), dict[int, int]()
    for at in range(len(trace) - 1, -1, -1):
        kind, chunk = trace[at]
        next_read[at] = following.get(chunk, NEVER)
        if kind != UPLOAD:
            following[chunk] = at
    kept: dict[int, int] = {}
    farthest: list[tuple[int, int]] = []
    hits = 0
    for at, (kind, chunk) in enumerate(trace):
        hits += kind != UPLOAD and chunk in kept
        kept.pop(chunk, None)
        if next_read[at] == NEVER:
            continue
        kept[chunk] = next_read[at]
        heappush(farthest, (-next_read[at], chunk))
        while len(kept) > chunks:
            when, candidate = heappop(farthest)
            if kept.get(candidate) == -when:
                del kept[candidate]
    return hits


# --- traces -----------------------------------------------------------------------------------------------


def zipf(chunks: int, kind: str = OLD, skew: float = 0.9) -> Trace:
    """Twenty times as many chunks as fit; the n-th is read in proportion to n ** -skew."""
    luck = random.Random(1)
    numbers = range(20 * chunks)
    weights = list(accumulate((number + 1) ** -skew for number in numbers))
    return [Event(kind, chunk) for chunk in luck.choices(numbers, cum_weights=weights, k=300 * chunks)]


def scan_beside_tail(chunks: int) -> Trace:
    """Tail readers are up to two chunks behind the writer. The scan reads two old chunks per uploaded chunk."""
    luck = random.Random(2)
    trace: Trace = []
    for number in range(20 * chunks):
        trace.append(Event(UPLOAD, number))
        trace += [Event(TAIL, max(0, number - luck.randrange(3))) for _ in range(3)]
        trace += [Event(OLD, -2 * number - scanned) for scanned in (1, 2)]
    return trace


def catch_up(chunks: int, partitions: int = 16, drift: int = 6) -> Trace:
    """Each group reads all chunks in order, by partitions that are up to `drift` chunks apart."""
    luck = random.Random(3)
    length = 12 * chunks
    readers = [[group * 3 * chunks, [luck.randrange(drift) for _ in range(partitions)]] for group in range(3)]
    trace: Trace = []
    for step in range(-6 * chunks, length + drift):
        for starts_at, lags in readers:
            assert isinstance(starts_at, int) and isinstance(lags, list)
            for partition, lag in enumerate(lags):
                at = step + starts_at - lag
                if 0 <= at < length:
                    trace.append(Event(OLD, at))
                if not luck.randrange(8):
                    lags[partition] = min(drift - 1, max(0, lag + luck.choice((-1, 1))))
    return trace


def fan_out(chunks: int) -> Trace:
    """Eight groups behind one writer: the first at the tail, each other one a ninth of the memory later. Chunks more
    than a third of the memory behind count as old."""
    trace: Trace = []
    for number in range(20 * chunks):
        trace.append(Event(UPLOAD, number))
        for group in range(8):
            behind = group * chunks // 9
            if number >= behind:
                trace.append(Event(OLD if behind > chunks // 3 else TAIL, number - behind))
    return trace


def far_behind(chunks: int) -> Trace:
    """Three groups behind one writer: one at the tail, the others behind by two and four times the memory's chunks."""
    trace: Trace = []
    for number in range(20 * chunks):
        trace.append(Event(UPLOAD, number))
        for behind in (0, 2 * chunks, 4 * chunks):
            if number >= behind:
                trace.append(Event(OLD if behind else TAIL, number - behind))
    return trace


def again_and_again(chunks: int) -> Trace:
    """Four passes through four times as many old chunks as fit into memory."""
    return [Event(OLD, chunk) for _ in range(4) for chunk in range(4 * chunks)]


def recorded(chunks: int) -> Trace:
    """Return the trace that was recorded with memory for 64 chunks."""
    return [Event(OLD, chunk) for chunk in json.loads(RECORDED.read_text())]


def record() -> Iterator[Event]:
    """Yield the chunks that the readers of one case of `bench.cold_reads` request, in order."""
    from bench import cold_reads

    asked: list[ChunkId] = []

    class Recording(ChunkCache):
        def held(self, chunk: ChunkRef, *, is_catch_up: bool = False) -> ChunkBytes | None:
            found = super().held(chunk, is_catch_up=is_catch_up)
            if found is not None:
                asked.append(chunk.id)
            return found

        async def get(self, chunk: ChunkRef, *, is_catch_up: bool = False) -> ChunkBytes:
            if self.peek(chunk.id) is None:
                asked.append(chunk.id)
            return await super().get(chunk, is_catch_up=is_catch_up)

    cold_reads.ChunkCache = Recording  # type: ignore[misc]
    cold_reads.run(
        cold_reads.Case(mib=192, cache_mib=16, batch_kib=16, readers=5, is_uneven=True, chunk_kib=256)
    )
    numbers = {chunk: number for number, chunk in enumerate(dict.fromkeys(asked))}
    yield from (Event(OLD, numbers[chunk]) for chunk in asked)


TRACES: dict[str, Callable[[int], Trace]] = {
    "zipf, tail": lambda chunks: zipf(chunks, TAIL),
    "zipf, old": zipf,
    "scan beside the tail": scan_beside_tail,
    "catch-up": catch_up,
    "fan-out": fan_out,
    "recorded": recorded,
}
DISK_TRACES: dict[str, Callable[[int], Trace]] = {
    "far behind": far_behind,
    "again and again": again_and_again,
}


if __name__ == "__main__":
    main()
