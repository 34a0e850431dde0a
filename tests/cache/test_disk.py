"""The disk tier: what it takes, and that no fault of the disk reaches a reader."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis.strategies as st
import pytest
import structlog
from hypothesis import given, settings

from cache import disk as disk_module
from cache.chunk import ChunkBytes, ChunkId, ChunkRef
from cache.chunk_cache import ChunkCache
from cache.chunk_file import CHUNKS, ChunkFile, open_disk_file
from cache.disk import PAUSE_SECONDS, READ_SECONDS, DiskTier, EvictionHistory, open_disk_tier
from cache.disk_index import PAGE_BYTES, whole_pages
from cache.observer import CacheObserver, DiskRead, DiskWrite, Tier
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api.agents import Ring
from tailrace.clock import Clock, SystemClock
from tests.cache.test_chunk import bytes_of
from tests.cache.test_chunk_cache import Counted, CountingStore, cluster
from tests.support.chunk_files import MemoryChunkFile
from tests.support.clocks import ManualClock

SIZE = 2 * PAGE_BYTES + 17
ROOM = whole_pages(SIZE)
FULL = OSError(errno.ENOSPC, "No space left on device")
BROKEN = OSError(errno.EIO, "Input/output error")


@dataclass
class Outcomes(CacheObserver):
    """Counts what the tier reports."""

    reads: Counter[DiskRead] = field(default_factory=Counter)
    writes: Counter[DiskWrite] = field(default_factory=Counter)

    def disk_read(self, outcome: DiskRead) -> None:
        self.reads[outcome] += 1

    def disk_write(self, outcome: DiskWrite, length: int) -> None:
        self.writes[outcome] += 1


def ref(number: int, size: int = SIZE) -> ChunkRef:
    return ChunkRef(ChunkId("c/mixed/ab/1", number), number * SIZE, size)


def body(number: int, size: int = SIZE) -> bytearray:
    return bytearray(number.to_bytes(4, "big") * (size // 4 + 1))[:size]


class Bench:
    """A tier over a file of its own kind."""

    def __init__(self, file: ChunkFile, clock: Clock, chunks: int) -> None:
        self.outcomes = Outcomes()
        self.tier = DiskTier(file, chunks * ROOM, clock, self.outcomes)

    async def keep(self, *numbers: int, is_old: bool = False) -> None:
        """Offer these chunks and wait until they are written, or not."""
        for number in numbers:
            self.tier.offer(ref(number).id, ChunkBytes.fetched(body(number)), is_old=is_old)
            await self.settle()

    async def settle(self) -> None:
        if self.tier._writer is not None:
            await asyncio.gather(self.tier._writer)

    async def read(self, number: int) -> bytes | None:
        found = await self.tier.read(ref(number))
        return None if found is None else bytes_of(found)

    async def held(self, numbers: range) -> list[int]:
        return [number for number in numbers if await self.read(number) == body(number)]


class MemoryBench(Bench):
    """Over the twin in memory, with a clock that the test moves."""

    def __init__(self, chunks: int = 8) -> None:
        self.clock = ManualClock()
        self.file = MemoryChunkFile()
        super().__init__(self.file, self.clock, chunks)


@pytest.fixture
def said() -> Iterator[list[dict[str, object]]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.fixture(params=["disk", "memory"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """A tier of eight chunks over a file, or over its twin."""
    if request.param == "memory":
        return MemoryBench()
    return Bench(open_disk_file(tmp_path, SystemClock()), SystemClock(), 8)


# --- what it takes ----------------------------------------------------------------------------------------------


async def test_a_chunk_that_left_memory_is_read_from_the_disk(bench: Bench) -> None:
    await bench.keep(1, 2, 3)
    assert await bench.held(range(5)) == [1, 2, 3]
    assert bench.outcomes.reads == {DiskRead.HIT: 3, DiskRead.MISS: 2}
    assert bench.outcomes.writes == {DiskWrite.WRITTEN: 3}
    assert bench.tier.bytes_held == 3 * SIZE
    bench.tier.remove(ref(2).id)
    assert not bench.tier.has(ref(2).id)
    assert await bench.held(range(5)) == [1, 3]
    await bench.tier.close()


async def test_the_oldest_chunks_make_room_for_new_ones(bench: Bench) -> None:
    await bench.keep(*range(20))
    assert await bench.held(range(20)) == list(range(12, 20))
    await bench.tier.close()


async def test_one_pass_through_old_records_writes_nothing_and_the_second_all_of_them() -> None:
    bench = MemoryBench(8)
    await bench.keep(*range(8), is_old=True)
    assert bench.outcomes.writes == {}
    await bench.keep(*range(8), is_old=True)
    assert bench.outcomes.writes == {DiskWrite.WRITTEN: 8}
    await bench.keep(*range(8), is_old=True)
    assert bench.outcomes.writes == {DiskWrite.WRITTEN: 8}, "what is there is not written again"


def test_the_eviction_history_reaches_about_as_far_back_as_the_disk() -> None:
    left = EvictionHistory(reach_bytes=10)
    assert not any(left.note(str(number), 1) for number in range(15))
    assert left.note("9", 1)
    assert not any(left.note(str(number), 1) for number in range(100, 115))
    assert not left.note("9", 1), "too long ago"


async def test_a_chunk_that_is_larger_than_the_disk_is_dropped() -> None:
    bench = MemoryBench(1)
    large = ref(1, 3 * SIZE)
    bench.tier.offer(large.id, ChunkBytes([bytes(3 * SIZE)]), is_old=False)
    await bench.settle()
    assert bench.outcomes.writes == {DiskWrite.DROPPED: 1}
    assert await bench.tier.read(large) is None


async def test_nobody_writes_to_a_chunk_that_is_on_its_way_to_the_disk() -> None:
    bench = MemoryBench()
    chunk = ChunkBytes.fetched(body(1))
    assert chunk.memory is not None
    bench.tier.offer(ref(1).id, chunk, is_old=True)
    assert chunk.memory is not None, "it was not taken"
    bench.tier.offer(ref(1).id, chunk, is_old=True)
    assert chunk.memory is None
    await bench.settle()


async def test_a_chunk_that_waits_to_be_written_is_read_from_the_queue() -> None:
    bench = MemoryBench()
    bench.tier.offer(ref(1).id, ChunkBytes.fetched(body(1)), is_old=False)
    assert bench.tier.has(ref(1).id)
    assert await bench.read(1) == body(1)
    assert bench.outcomes.writes[DiskWrite.WRITTEN] == 0
    await bench.settle()
    assert await bench.read(1) == body(1)
    assert bench.outcomes.reads == Counter({DiskRead.HIT: 2})


async def test_a_chunk_that_is_removed_while_it_waits_is_not_there_afterwards() -> None:
    bench = MemoryBench()
    bench.file.open.clear()
    for number in (1, 2):
        bench.tier.offer(ref(number).id, ChunkBytes.fetched(body(number)), is_old=False)
    await asyncio.sleep(0)
    for number in (1, 2):  # the first is being written
        bench.tier.remove(ref(number).id)
    bench.file.open.set()
    await bench.settle()
    assert await bench.held(range(3)) == []
    await bench.keep(3)
    assert await bench.held(range(4)) == [3]


async def test_chunks_beyond_the_queue_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "QUEUE_BYTES", 3 * SIZE)

    bench = MemoryBench()
    bench.file.open.clear()
    for number in range(6):
        bench.tier.offer(ref(number).id, ChunkBytes([body(number)]), is_old=False)
    bench.file.open.set()
    await bench.settle()
    assert bench.outcomes.writes == {DiskWrite.WRITTEN: 3, DiskWrite.DROPPED: 3}
    assert await bench.held(range(6)) == [0, 1, 2]
    await bench.keep(7)
    assert await bench.held(range(8)) == [0, 1, 2, 7]


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["keep", "read", "remove", "damage", "fail", "wait"]), st.integers(0, 20)),
        max_size=60,
    )
)
def test_whatever_happens_a_read_gives_the_chunk_itself_or_nothing(steps: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        bench = MemoryBench(6)
        for what, number in steps:
            if what == "keep":
                await bench.keep(number, is_old=number % 3 == 0)
            elif what == "read":
                assert await bench.read(number) in (None, body(number))
            elif what == "remove":
                bench.tier.remove(ref(number).id)
            elif what == "damage" and bench.file.data:
                bench.file.data[number * 1_000 % len(bench.file.data)] ^= 255
            elif what == "fail":
                bench.file.error = BROKEN if number % 2 else None
            elif what == "wait":
                bench.clock.advance(number * 10)
            assert len(bench.file.data) <= 6 * ROOM
            assert bench.tier.bytes_held <= 6 * ROOM

    asyncio.run(scenario())


# --- what a disk does -------------------------------------------------------------------------------------------


async def test_a_chunk_whose_bytes_have_changed_is_not_there_and_is_counted(
    tmp_path: Path, said: list[dict[str, object]]
) -> None:
    bench = Bench(open_disk_file(tmp_path, SystemClock()), SystemClock(), 8)
    await bench.keep(1, 2)
    with open(tmp_path / CHUNKS, "r+b") as file:
        file.seek(ROOM + 100)
        file.write(b"\xff")
    assert await bench.held(range(3)) == [1]
    assert bench.outcomes.reads[DiskRead.CORRUPT] == 1
    assert not bench.tier.has(ref(2).id)
    await bench.keep(2)
    assert await bench.held(range(3)) == [1, 2]
    await bench.tier.close()
    assert [line["event"] for line in said] == ["a chunk on the cache's disk was corrupt"]


async def test_chunks_of_a_file_that_was_cut_short_are_not_there(tmp_path: Path) -> None:
    bench = Bench(open_disk_file(tmp_path, SystemClock()), SystemClock(), 8)
    await bench.keep(0, 1, 2)
    os.truncate(tmp_path / CHUNKS, ROOM + 5)
    assert await bench.held(range(3)) == [0]
    assert bench.outcomes.reads[DiskRead.CORRUPT] == 2
    await bench.keep(3)
    assert await bench.held(range(4)) == [0, 3]
    await bench.tier.close()


async def test_a_file_that_was_removed_is_used_to_the_end(tmp_path: Path) -> None:
    bench = Bench(open_disk_file(tmp_path, SystemClock()), SystemClock(), 8)
    await bench.keep(0)
    (tmp_path / CHUNKS).unlink()
    await bench.keep(1)
    assert await bench.held(range(2)) == [0, 1]
    await bench.tier.close()


async def test_a_full_disk_takes_no_chunks_for_a_while_and_then_in_the_room_that_it_has(
    said: list[dict[str, object]],
) -> None:
    bench = MemoryBench(100)
    await bench.keep(0, 1, 2)
    bench.file.error = FULL
    await bench.keep(3, 4)
    bench.file.error = None
    assert bench.outcomes.writes == {DiskWrite.WRITTEN: 3, DiskWrite.FAILED: 1, DiskWrite.DROPPED: 1}
    assert bench.tier.is_off
    assert await bench.held(range(5)) == [0, 1, 2], "what is there is read"
    bench.clock.advance(PAUSE_SECONDS)
    assert not bench.tier.is_off
    await bench.keep(5, 6)
    assert await bench.held(range(7)) == [2, 5, 6]
    assert len(bench.file.data) <= 3 * ROOM
    assert [(line["event"], line["cause"], line["reads_go_on"]) for line in said] == [
        ("the cache does not use its disk for a while", "OSError: [Errno 28] No space left on device", True)
    ]


async def test_a_disk_with_errors_is_left_alone_for_a_while_and_the_cause_is_logged_once(
    said: list[dict[str, object]],
) -> None:
    bench = MemoryBench()
    await bench.keep(0, 1, 2)
    bench.file.error = BROKEN
    assert await asyncio.gather(*map(bench.read, range(3))) == [None, None, None]
    assert bench.outcomes.reads == {DiskRead.FAILED: 3}
    assert bench.tier.is_off
    bench.file.error = None
    await bench.keep(3)
    assert bench.outcomes.writes[DiskWrite.WRITTEN] == 3, "nothing is written"
    bench.clock.advance(PAUSE_SECONDS)
    await bench.keep(4)
    assert await bench.held(range(5)) == [4], "what failed is forgotten"
    assert [line["cause"] for line in said] == ["OSError: [Errno 5] Input/output error"]


async def test_a_disk_that_does_not_answer_in_time_is_given_up(said: list[dict[str, object]]) -> None:
    bench = MemoryBench()
    await bench.keep(0, 1)
    bench.file.open.clear()
    reading = asyncio.create_task(bench.read(0))
    while not bench.clock._sleepers:
        await asyncio.sleep(0)
    bench.clock.advance(READ_SECONDS)
    assert await reading is None
    assert bench.outcomes.reads == {DiskRead.FAILED: 1}
    assert not bench.tier.has(ref(1).id)
    bench.clock.advance(PAUSE_SECONDS)
    bench.file.open.set()
    assert await bench.held(range(2)) == [1]
    assert [line["cause"] for line in said] == [f"no answer within {READ_SECONDS} s"]


async def test_a_disk_that_answers_others_meanwhile_is_busy_and_not_given_up() -> None:
    class OneAtATime(MemoryChunkFile):
        """Answers a read for each release of `turns`, in order."""

        turns = asyncio.Semaphore(0)

        async def read(self, start: int, length: int) -> tuple[bytearray, int]:
            await self.turns.acquire()
            return await super().read(start, length)

    clock, file = ManualClock(), OneAtATime()
    bench = Bench(file, clock, 8)
    await bench.keep(0, 1)
    readings = [asyncio.create_task(bench.read(number)) for number in range(2)]
    while len(clock._sleepers) < 2:
        await asyncio.sleep(0)
    clock.advance(READ_SECONDS / 2)
    file.turns.release()
    assert await readings[0] == body(0)
    clock.advance(READ_SECONDS / 2)
    assert await readings[1] is None, "the store is read"
    assert not bench.tier.is_off
    file.turns.release()
    assert await bench.held(range(2)) == [0]


async def test_the_end_does_not_wait_for_chunks_that_are_not_written_yet() -> None:
    bench = MemoryBench()
    await bench.keep(0)
    bench.file.open.clear()
    for number in (1, 2):
        bench.tier.offer(ref(number).id, ChunkBytes([body(number)]), is_old=False)
    await asyncio.sleep(0)
    await bench.tier.close()
    assert bench.file.is_closed
    assert await bench.held(range(3)) == []
    bench.tier.offer(ref(3).id, ChunkBytes([body(3)]), is_old=False)
    assert bench.tier._writer is None or bench.tier._writer.done()
    assert bench.outcomes.writes == {DiskWrite.WRITTEN: 1}


async def test_a_file_that_cannot_be_removed_fails_no_end(
    tmp_path: Path, said: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, *, missing_ok: bool) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    bench = Bench(open_disk_file(tmp_path, SystemClock()), SystemClock(), 8)
    monkeypatch.setattr(Path, "unlink", refused)
    await bench.tier.close()
    monkeypatch.undo()
    await open_disk_file(tmp_path, SystemClock()).close()
    assert [line["cause"] for line in said] == ["OSError: [Errno 30] Read-only file system"]


# --- in the cache -----------------------------------------------------------------------------------------------

SETTINGS = CacheSettings(chunk_bytes=PAGE_BYTES, memory_bytes=4 * PAGE_BYTES, disk_bytes=1 << 20)
OBJECT = os.urandom(40 * PAGE_BYTES)
REFS = [ChunkRef(ChunkId("c/mixed/ab/1", number), number * PAGE_BYTES, PAGE_BYTES) for number in range(40)]


async def test_a_reader_of_more_than_memory_holds_reads_the_store_once_or_twice_and_then_the_disk(
    tmp_path: Path,
) -> None:
    store, counted = CountingStore(), Counted()
    await store.put(REFS[0].id.key, [OBJECT])
    disk = open_disk_tier(SETTINGS.changed(disk_path=tmp_path), SystemClock(), counted)
    cache = ChunkCache(store, SETTINGS, lambda: ZoneRing(Ring(1, []), "a", 0), None, counted, disk)
    assert disk is not None

    async def read(*, is_catch_up: bool) -> bytes:
        got = []
        for chunk in REFS:
            got.append(bytes_of(await cache.get(chunk, is_catch_up=is_catch_up)))
            if disk._writer is not None:
                await asyncio.gather(disk._writer)
        return b"".join(got)

    for expected in (40, 80, 80, 80):
        assert await read(is_catch_up=True) == OBJECT
        assert sum(store.gets.values()) <= expected
    assert sum(store.gets.values()) > 70
    store.gets.clear()
    assert counted.tiers[Tier.DISK] > 70
    for chunk in REFS:
        cache.forget(chunk.id)
    for _ in range(3):
        assert await read(is_catch_up=False) == OBJECT
    assert sum(store.gets.values()) == 40, "a reader of the tail who falls behind costs one GET a chunk"
    await cache.close()
    await disk.close()


async def test_each_chunk_of_a_zone_is_on_the_disk_of_the_agent_that_owns_it() -> None:
    store = CountingStore()
    await store.put(REFS[0].id.key, [OBJECT])
    agents = cluster(store, ["a", "a"], SETTINGS.changed(peer_timeout_s=60.0))
    disks = []
    for agent in agents:
        disk = DiskTier(MemoryChunkFile(), 1 << 20, SystemClock())
        with_disk = ChunkCache(
            store, agent.cache.settings, agent.cache._ring, agent.cache._peers, agent.counted, disk
        )
        agent.cache.__dict__.update(with_disk.__dict__)
        disks.append(disk)
    for chunk in REFS * 2:
        assert bytes_of(await agents[0].cache.get(chunk)) == OBJECT[chunk.start : chunk.start + PAGE_BYTES]
        await asyncio.sleep(0)
    assert sum(store.gets.values()) == 40
    assert agents[0].counted.tiers[Tier.DISK] > 0
    for chunk in REFS:
        assert sum(disk.has(chunk.id) for disk in disks) <= 1
    assert all(disk.bytes_held > 10 * PAGE_BYTES for disk in disks)


def test_without_a_folder_there_is_no_tier(tmp_path: Path) -> None:
    assert open_disk_tier(CacheSettings(), SystemClock(), CacheObserver()) is None
    with pytest.raises(ValueError, match="expected room for one chunk"):
        CacheSettings(disk_path=tmp_path)
    with pytest.raises(ValueError, match="expected a folder"):
        CacheSettings(disk_path="", disk_bytes=1 << 30)
