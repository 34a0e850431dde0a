"""Readers of old records get each chunk by one GET, and do not wait for one GET after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.cold_reads import Case, Log, read_all, run
from cache.chunk import ChunkId, ChunkRef
from cache.chunk_cache import ChunkCache
from cache.observer import CacheObserver, Tier
from cache.read_ahead import MAX_PLANNED, UNREAD_SECONDS, ReadAheadWindow
from cache.read_batches import ReadRequest
from cache.reader import BatchReader
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api.agents import Ring
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.reads import FindAnswer, FindRequest
from tailrace.object_store.api import ObjectMissing
from tailrace.object_store.memory import MemoryStore
from tests.simulation.loop import SimulatedClock, SimulatedLoop, run_simulated
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.faulty_store import S3_STANDARD, FaultyStore

KIB = 1024
SMALL = Case(mib=20, cache_mib=3, batch_kib=8, chunk_kib=64)
"""A reader of 1.33 GiB with 192 MiB of cache, as small as 1 to 64."""
POOL = ThreadPoolExecutor(1)
ALONE = ZoneRing(Ring(1, []), "a", 1)


@pytest.mark.parametrize("is_uneven", [False, True])
@pytest.mark.parametrize("readers", [1, 5])
def test_the_gets_of_cold_readers_are_few_more_than_the_chunks(readers: int, is_uneven: bool) -> None:
    case = Case(20, 3, 8, readers, is_uneven, chunk_kib=64)
    assert run(case).gets_per_chunk <= 1.1, "one in twenty is a hedge"


@pytest.mark.parametrize("is_uneven", [False, True])
def test_one_cold_reader_is_not_blocked_by_the_latency_of_single_gets(is_uneven: bool) -> None:
    """100 chunks a second: 400 MiB/s of chunks of 4 MiB."""
    rate = run(Case(20, 3, 8, is_uneven=is_uneven, chunk_kib=64)).modelled_mib_per_second
    assert rate * KIB / SMALL.chunk_kib >= 100


def test_a_window_grows_while_gets_hold_its_stream_up_and_stays_where_they_do_not() -> None:
    window, now, get_seconds = ReadAheadWindow(100, 10_000), 0.0, 0.0625
    window.took(100, now, get_seconds)
    sizes = []
    for _ in range(4):  # each window arrives one GET later
        now += get_seconds
        window.took(window.bytes, now, get_seconds)
        sizes.append(window.bytes)
    assert sizes == [200, 400, 800, 1600]
    for _ in range(4):  # a reader of 8,000 bytes a second
        now += 0.125
        window.took(1000, now, get_seconds)
    assert window.bytes == 1000
    window.took(10_000_000, now + 0.125, get_seconds)
    assert window.bytes == 10_000


class CountedTiers(CacheObserver):
    """Where the chunks of tail readers came from."""

    def __init__(self) -> None:
        self.tail: Counter[Tier] = Counter()

    def chunk_read(self, tier: Tier, length: int, *, is_catch_up: bool, chunks: int = 1) -> None:
        if not is_catch_up:
            self.tail[tier] += 1


def tail_beside(cold_readers: int) -> tuple[Counter[Tier], float]:
    """A tail reader that reads ten chunks again and again, at a modelled S3; where they came from, its longest wait."""
    log = Log(SMALL)
    settings = CacheSettings(memory_bytes=3 << 20, chunk_bytes=log.chunk_bytes)

    async def main(loop: SimulatedLoop) -> tuple[Counter[Tier], float]:
        clock, entropy, seen = SimulatedClock(loop), SeededEntropy(1), CountedTiers()
        inner = MemoryStore(clock)
        for number in range(log.objects):
            await inner.put(f"mixed/{number}", [log.body])
        await inner.put("young", [b"y" * (10 * log.chunk_bytes)])
        store = FaultyStore(inner, clock, entropy, S3_STANDARD)
        cache = ChunkCache(store, settings, lambda: ALONE, observer=seen)
        reader = BatchReader(cache, clock, POOL, find=log.find_batches)
        cold = [asyncio.create_task(read_all(log, reader, is_uneven=True)) for _ in range(cold_readers)]
        longest = 0.0
        for turn in range(100):
            place = turn % 10
            began = loop.time()
            await cache.get(ChunkRef(ChunkId("young", place), place * log.chunk_bytes, log.chunk_bytes))
            longest = max(longest, loop.time() - began)
            await clock.sleep(0.01)
        await asyncio.gather(*cold)
        await reader.close()
        await cache.close()
        return seen.tail, longest

    return run_simulated(1, main, 1000.0)


def test_the_tail_reads_from_memory_beside_catch_up_readers_as_without_them() -> None:
    assert tail_beside(0)[0] == tail_beside(3)[0] == {Tier.STORE: 10, Tier.MEMORY: 90}
    assert tail_beside(3)[1] <= 0.3, "a tail reader's GET waits for the store alone"


class Following:
    """A reader over one log in memory, with a clock that stands still."""

    def __init__(self, settings: CacheSettings | None = None) -> None:
        self.log = Log(SMALL)
        self.clock = ManualClock(1_900_000_000_000)
        self.store = MemoryStore(self.clock)
        chosen = settings or CacheSettings(memory_bytes=3 << 20, chunk_bytes=self.log.chunk_bytes)
        self.cache = ChunkCache(self.store, chosen, lambda: ALONE)
        self.asked: list[FindRequest] = []
        self.trouble: Exception | None = None
        self.reader = BatchReader(self.cache, self.clock, POOL, find=self.find)

    async def find(self, request: FindRequest) -> FindAnswer:
        if self.trouble is not None:
            raise self.trouble
        self.asked.append(request)
        return await self.log.find_batches(request)

    async def put(self, objects: range) -> None:
        for number in objects:
            await self.store.put(f"mixed/{number}", [self.log.body])

    async def read(self, partition: int, offset: int, max_bytes: int = 16 * KIB) -> int:
        """Read once, and let what was begun arrive; the offset to go on from."""
        runs = self.log.runs_from(partition, offset, max_bytes)
        out = await self.reader.read(runs, ReadRequest(offset=offset, max_bytes=max_bytes, leader_epoch=0))
        for _ in range(50):
            await asyncio.sleep(0)
        return out.end_offset

    async def close(self) -> None:
        await self.reader.close()
        await self.cache.close()


async def test_chunks_that_nobody_asks_for_are_evicted_for_others() -> None:
    following = Following()
    cache = following.cache
    await following.put(range(following.log.objects))
    for partition in range(16):
        await following.read(partition, 40)
    left = [ChunkId(f"mixed/{number}", place) for number in range(160) for place in (0, 1)]
    unread = [chunk for chunk in left if cache.is_unread(chunk)]
    assert unread
    following.clock.advance(UNREAD_SECONDS + 1)
    await following.read(0, 0)
    assert not any(map(cache.is_unread, unread)), "abandoned chunks are gone"
    assert any(map(cache.is_unread, left)), "and their room is used"
    await following.close()


async def test_read_ahead_takes_at_most_half_of_the_catch_up_share() -> None:
    following = Following()
    share = following.cache.settings.catch_up_share * following.cache.settings.memory_bytes
    await following.put(range(following.log.objects))
    for partition in range(16):
        offset = 3 * partition
        for _ in range(4):
            offset = await following.read(partition, offset)
            chunks = [ChunkId(f"mixed/{number}", place) for number in range(160) for place in (0, 1)]
            unread = sum(map(following.cache.is_unread, chunks)) * following.log.chunk_bytes
            assert unread <= share / 2
    await following.close()


async def test_runs_that_were_replaced_cost_a_get_and_nothing_else() -> None:
    following = Following()
    await following.put(range(4))  # what stands behind them is gone: compacted, and collected
    offset = await following.read(0, 0)
    assert offset == await following.read(0, 0), "what is there is read, whatever was read ahead"
    end = following.log.runs_from(0, 0, 1 << 30)[-1].end_offset
    with pytest.raises(ObjectMissing):
        await following.read(0, end - 1)
    await following.close()


@pytest.mark.parametrize("trouble", [SequencerUnavailable("away"), ZeroDivisionError("a bug")])
async def test_a_sequencer_that_is_away_leaves_readers_as_they_are(trouble: Exception) -> None:
    following = Following()
    await following.put(range(following.log.objects))
    following.trouble = trouble
    offset = 0
    for _ in range(5):
        offset = await following.read(0, offset)
    following.trouble = None
    assert offset < await following.read(0, offset)
    assert following.asked, "it is asked again by the next read"
    await following.close()


async def test_the_runs_of_an_answer_that_are_kept_are_few() -> None:
    following = Following()
    await following.put(range(following.log.objects))
    await following.read(0, 0, 1 << 30)
    assert all(
        each.max_bytes <= MAX_PLANNED * 64 * KIB for asked in following.asked for each in asked.partitions
    )
    assert len(following.asked) <= 2
    await following.close()
