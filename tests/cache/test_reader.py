"""The reader returns exactly the right bytes, for any runs, offset and budget."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import UUID
from weakref import WeakSet

import pytest
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from cache.chunk import ChunkId, ObjectCorrupt, chunk_at
from cache.chunk_cache import ChunkCache
from cache.framed import JOINED_AT_ONCE, LEAST_JOINED, LEAST_VIEW_BYTES, RUN_BYTES, FramedRuns, _stretches_of
from cache.layout import LARGE_BATCH_BYTES, PIECE_BYTES
from cache.mixed_reader import STEP_CHUNKS
from cache.observer import CacheObserver, Tier
from cache.peer import ChunkRequest, PeerServer
from cache.read_batches import ReadBatches, ReadRequest
from cache.reader import BatchReader
from cache.record_times import OffsetAndTimestamp, first_reaching, latest
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api.agents import Ring
from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.reads import Marker, Run, RunBatch
from tailrace.batches.compression import MAX_LOOKED_INTO_BYTES, compress
from tailrace.batches.record_batch import (
    HEADER_BYTES,
    MARKER_BYTES,
    Compression,
    assemble,
    assemble_like,
    check_crc,
    read_header,
    split,
)
from tailrace.batches.records import NewRecord, decode_records, encode_batch
from tailrace.ids import TopicPartition
from tailrace.object_store.api import ObjectMissing
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock
from tests.support.consumer import is_abort
from tests.support.row_samples import sample_run

TOPIC = UUID(int=5)
SETTINGS = CacheSettings(chunk_bytes=128, memory_bytes=1 << 20)
POOL = ThreadPoolExecutor(2)
EPOCH = 9
T0 = 1_700_000_000_000
OLD = T0 - 3_600_000
ALONE = ZoneRing(Ring(1, []), "a", 1)


def batch_of(
    count: int, value_bytes: int = 5, *, at: int = T0, codec: Compression = Compression.NONE
) -> bytes:
    records = [NewRecord(b"k%d" % number, b"v" * value_bytes) for number in range(count)]
    return encode_batch(records, timestamps=[at + number for number in range(count)], compression=codec)


def mixed_run(
    key: str,
    base_offset: int,
    batches: list[tuple[bytes, BatchStatus]],
    *,
    start: int = 8,
    created_ms: int = T0,
) -> tuple[Run, bytes, list[tuple[int, int, bytes]]]:
    """A run, its object's bytes, and what a reader should get: (base offset, end offset, batch)."""
    table: list[RunBatch] = []
    stored: list[tuple[int, int, bytes]] = []
    offset = base_offset
    for data, status in batches:
        header = read_header(data)
        is_stored = status == BatchStatus.STORED
        base = offset if is_stored else -1
        table.append(RunBatch(len(data), header.record_count, status, base, header.max_timestamp))
        if is_stored:
            stored.append((offset, offset + header.record_count, data))
            offset += header.record_count
    body = b"".join(data for data, _ in batches)
    whole = b"#" * start + body + b"footer"
    newest = max((each.max_timestamp for each in table), default=-1)
    run = sample_run(
        base_offset,
        offset,
        topic_id=TOPIC,
        object_id=UUID(int=1),
        key=key,
        object_size=len(whole),
        index_start=start + len(body),
        start=start,
        length=len(body),
        max_timestamp=newest,
        created_ms=created_ms,
        batches=table,
    )
    return run, whole, stored


def request(
    offset: int,
    max_bytes: int,
    *,
    leader_epoch: int = EPOCH,
    minimum_one: bool = True,
    end_limit: int | None = None,
) -> ReadRequest:
    return ReadRequest(
        offset=offset,
        max_bytes=max_bytes,
        leader_epoch=leader_epoch,
        minimum_one=minimum_one,
        end_limit=end_limit,
    )


def reader_over(store: MemoryStore, clock: ManualClock, of: CacheSettings = SETTINGS) -> BatchReader:
    alone = ZoneRing(Ring(1, []), "a", 1)
    return BatchReader(ChunkCache(store, of, lambda: alone), clock, POOL)


def batches_in(found: ReadBatches) -> list[tuple[int, bytes]]:
    data = b"".join(found.parts)
    assert len(data) == found.bytes
    got: list[tuple[int, bytes]] = []
    for header, batch in split(memoryview(data)):
        check_crc(batch)
        assert header.leader_epoch == EPOCH
        got.append((header.base_offset, bytes(batch)))
    assert len(got) == found.batch_count
    return got


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_read_gives_the_stored_batches_from_the_offset_on_within_the_budget(data: st.DataObject) -> None:
    runs: list[Run] = []
    objects: dict[str, bytes] = {}
    stored: list[tuple[int, int, bytes]] = []
    created_ms, chunk_bytes = (
        data.draw(st.sampled_from([T0, OLD])),
        data.draw(st.sampled_from([128, 1 << 20])),
    )
    offset = data.draw(st.integers(0, 1000))
    first = offset
    for number in range(data.draw(st.integers(1, 4))):
        batches = [
            (batch_of(count, size), status)
            for count, size, status in data.draw(
                st.lists(
                    st.tuples(st.integers(1, 4), st.integers(0, 150), st.sampled_from(BatchStatus)),
                    max_size=4,
                )
            )
        ]
        batches.append((batch_of(1), BatchStatus.STORED))
        key = f"m/{number}"
        start = data.draw(st.integers(0, 300))
        run, objects[key], expected = mixed_run(key, offset, batches, start=start, created_ms=created_ms)
        runs.append(run)
        stored += expected
        offset = run.end_offset
    asked = data.draw(st.integers(first, offset - 1))
    budget = data.draw(st.integers(0, 2500))
    minimum_one = data.draw(st.booleans())
    limit = data.draw(st.none() | st.integers(first, offset))
    fresh = data.draw(st.booleans())

    async def whole() -> ReadBatches:
        clock = ManualClock()
        store = MemoryStore(clock)
        alone = ZoneRing(Ring(1, []), "a", 1)
        cache = ChunkCache(store, SETTINGS.changed(chunk_bytes=chunk_bytes), lambda: alone)
        for key, body in objects.items():
            await store.put(key, [body])
            if fresh:
                cache.write_through(key, [body[:200], body[200:]])
        reader = BatchReader(cache, clock, POOL)
        found = await reader.read(runs, request(asked, budget, minimum_one=minimum_one, end_limit=limit))
        again = reader.read_held(runs, request(asked, budget, minimum_one=minimum_one, end_limit=limit))
        is_one_step = sum(map(len, objects.values())) <= STEP_CHUNKS * chunk_bytes
        assert again == found or (again is None and not is_one_step), "what is kept as it is sent is the same"
        return found

    found = asyncio.run(whole())

    wanted: list[tuple[int, int, bytes]] = []
    room, left = budget, False
    for base, end, body in stored:
        if end <= asked:
            continue
        left = (limit is not None and base >= limit) or (len(body) > room and bool(wanted or not minimum_one))
        if left:
            break
        wanted.append((base, end, body))
        room -= len(body)
    got = batches_in(found)
    assert [base for base, _ in got] == [base for base, _, _ in wanted]
    assert [body[16:] for _, body in got] == [body[16:] for _, _, body in wanted]
    assert found.first_offset == (wanted[0][0] if wanted else -1)
    assert found.end_offset == (wanted[-1][1] if wanted else asked)
    assert found.record_count == sum(end - base for base, end, _ in wanted)
    assert found.is_complete == (not left)


async def test_a_cached_run_is_read_again_without_its_object() -> None:
    run, body, stored = mixed_run("m/1", 10, [(batch_of(3, 60), BatchStatus.STORED) for _ in range(9)])

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("m/1", [body])
    reader = reader_over(store, clock, SETTINGS.changed(memory_bytes=0))
    assert reader.read_held([run], request(10, 10_000)) is None
    first = await reader.read([run], request(10, 10_000))
    await store.delete(["m/1"])
    assert reader.read_held([run], request(10, 10_000)) == first
    later = reader.read_held([run], request(17, 500))
    assert later is not None and batches_in(later)[0][0] == stored[2][0]


async def test_a_run_is_sent_with_the_epoch_that_is_asked_for() -> None:
    run, body, _ = mixed_run("m/1", 10, [(batch_of(3, 60), BatchStatus.STORED) for _ in range(3)])

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("m/1", [body])
    reader = reader_over(store, clock)
    await reader.read([run], request(10, 10_000, leader_epoch=EPOCH - 1))
    assert reader.read_held([run], request(10, 10_000)) is None
    assert len(batches_in(await reader.read([run], request(10, 10_000)))) == 3


async def test_large_batches_are_sent_out_of_their_chunk_and_are_not_copied() -> None:
    batches = [batch_of(1, 10), batch_of(1, LARGE_BATCH_BYTES), batch_of(1, 10), batch_of(1, 10)]
    run, body, stored = mixed_run("m/1", 0, [(data, BatchStatus.STORED) for data in batches])

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("m/1", [body])
    reader = reader_over(store, clock, CacheSettings())
    for _ in range(2):
        found = await reader.read([run], request(0, 1 << 20))
        assert [data[16:] for _, data in batches_in(found)] == [data[16:] for _, _, data in stored]
        assert len(found.parts) == 4, "a piece, a head with a view of the chunk, a piece"
    assert reader.framed_bytes_held < LARGE_BATCH_BYTES


async def test_old_runs_are_sent_out_of_their_chunk_and_nothing_is_kept_of_them() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    runs = await short_runs(store, value_bytes=LEAST_VIEW_BYTES // 4, created_ms=OLD)
    reader = reader_over(store, clock, CacheSettings())
    first = await reader.read(runs, request(0, 1 << 20))
    again = reader.read_held(runs, request(0, 1 << 20))
    assert again == first and reader.framed_bytes_held == 0
    assert [
        memoryview(a).obj is memoryview(b).obj for a, b in zip(first.parts, again.parts, strict=True)
    ] == ([True] * len(runs)), "views of the same memory"
    assert [base for base, _ in batches_in(again)] == list(range(0, 4 * len(runs), 2))


async def test_short_old_runs_are_joined_by_their_second_reader_and_sent_as_one_view_to_the_third() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    runs = await short_runs(store, created_ms=OLD)
    reader = reader_over(store, clock, CacheSettings())
    first = await reader.read(runs, request(0, 1 << 20))
    assert reader.framed_bytes_held == 0, "the first reader pays for nobody"
    second = reader.read_held(runs, request(0, 1 << 20))
    third = reader.read_held(runs, request(0, 1 << 20))
    assert second == first and third is not None and len(third.parts) == 1
    assert replace(third, parts=first.parts) == first and batches_in(third) == batches_in(first)
    assert reader.framed_bytes_held > third.bytes + RUN_BYTES * len(runs), "the runs are counted"
    assert reader.read_held(runs, request(0, 1 << 20, leader_epoch=EPOCH + 1)) is None
    less = reader.read_held(runs, request(0, third.bytes - 1))
    assert less is not None and batches_in(less) == batches_in(first)[:-1]
    upto = reader.read_held(runs, request(0, 1 << 20, end_limit=41))
    assert upto is not None and batches_in(upto) == batches_in(first)[:21]


async def test_a_reader_that_begins_within_a_joined_run_continues_with_the_next() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    runs = await short_runs(store, 3 * LEAST_JOINED, created_ms=OLD)
    reader = reader_over(store, clock, CacheSettings())
    first = await reader.read(runs, request(0, 1 << 20))
    late = runs[2 * LEAST_JOINED :]
    for _ in range(2):
        reader.read_held(late, request(late[0].base_offset, 1 << 20))
    within = reader.read_held(runs[1:], request(6, 1 << 20))
    assert within is not None and len(within.parts) == 2 * LEAST_JOINED, "all but a run, and a joined run"
    again = reader.read_held(runs[1:], request(6, 1 << 20))
    assert again is not None and len(again.parts) == 3, "a run in part, and two joined runs"
    assert batches_in(again) == batches_in(within) == batches_in(first)[3:]


async def test_an_answer_keeps_no_chunk_in_memory_of_which_it_shows_little() -> None:
    few, many = [(batch_of(1, 40), BatchStatus.STORED)], [(batch_of(1, 9_000), BatchStatus.STORED)]
    small, body, _ = mixed_run("m/1", 0, few, created_ms=OLD)
    large, rest, _ = mixed_run("m/1", 1, many, start=len(body), created_ms=OLD)
    size = len(body) + len(rest)
    runs = [structs.replace(run, object_size=size) for run in (small, large)]

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("m/1", [body + rest[len(body) :] + b"#" * len(body)])
    found = await reader_over(store, clock, CacheSettings()).read(runs, request(0, 1 << 20))
    kept = [memoryview(memoryview(part).obj).nbytes for part in found.parts]
    assert kept == [small.length, size] and len(batches_in(found)) == 2


async def test_an_answer_on_its_way_keeps_its_epoch() -> None:
    run, body, _ = mixed_run("m/1", 0, [(batch_of(3, 60), BatchStatus.STORED)] * 3, created_ms=OLD)

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("m/1", [body])
    reader = reader_over(store, clock, CacheSettings())
    under_way = await reader.read([run], request(0, 10_000))
    before = b"".join(under_way.parts)
    later = await reader.read([run], request(0, 10_000, leader_epoch=EPOCH + 1))
    assert {header.leader_epoch for header, _ in split(memoryview(b"".join(later.parts)))} == {EPOCH + 1}
    assert b"".join(under_way.parts) == before


async def test_a_chunk_on_its_way_to_a_peer_is_not_written_to() -> None:
    """The frame's MAC covers its bytes, and most of them wait for the socket."""

    clock = ManualClock()
    store = MemoryStore(clock)
    runs = await short_runs(store, 2, created_ms=OLD)
    reader = reader_over(store, clock, CacheSettings())
    ready = await reader.read(runs[:1], request(0, 10_000))
    asked = [
        ChunkRequest(1, run.key, 0, 0, run.object_size, is_catch_up=True, timeout_ms=1_000) for run in runs
    ]
    on_their_way = [(await PeerServer(reader._cache).chunk(chunk))[1] for chunk in asked]
    before = [b"".join(parts) for parts in on_their_way]
    found = await reader.read(runs, request(0, 10_000))
    assert [base for base, _ in batches_in(found)] == [0, 2, 4, 6]
    assert [b"".join(parts) for parts in on_their_way] == before
    assert memoryview(found.parts[0]).obj is memoryview(ready.parts[0]).obj, "what was ready is sent on"


async def test_a_chunk_remembers_no_more_of_its_runs_than_a_part_of_its_bytes() -> None:
    one, body, _ = mixed_run("m/1", 0, [(batch_of(1, 40), BatchStatus.STORED)], start=0, created_ms=OLD)
    (batch,), size = one.batches, one.length
    runs = [
        structs.replace(
            one, base_offset=number, end_offset=number + 1, start=number * size, object_size=1_000 * size,
            batches=[structs.replace(batch, base_offset=number)],
        )
        for number in range(1_000)
    ]  # fmt: skip

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("m/1", [body[:size] * 1_000])
    reader = reader_over(store, clock, CacheSettings())
    for first in (0, 500, 0):
        found = await reader.read(runs[first:], request(first, 1 << 20))
        assert [base for base, _ in batches_in(found)] == list(range(first, 1_000))
    chunk = reader._cache.peek(ChunkId("m/1", 0))
    assert chunk is not None and 50 < len(chunk.ready) <= 16 + chunk.size // 1024


async def test_a_chunk_remembers_nothing_of_its_small_batches() -> None:
    """They are framed after their check, and a note of each would take as much memory as the smallest ones."""
    clock = ManualClock()
    store = MemoryStore(clock)
    run, body, stored = mixed_run("m/1", 0, [(batch_of(1), BatchStatus.STORED)] * 1_000, start=0)
    await store.put("m/1", [body])
    reader = reader_over(store, clock, CacheSettings())
    for offset in (0, 500):
        found = await reader.read([run], request(offset, 1 << 20))
        assert [base for base, _ in batches_in(found)] == [base for base, _, _ in stored[offset:]]
    chunk = reader._cache.peek(ChunkId("m/1", 0))
    assert chunk is not None and (len(chunk.checked), len(chunk.ready), len(chunk.sent)) == (0, 0, 0)


async def test_a_run_that_is_kept_for_another_epoch_meanwhile_is_read_again() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    runs = await short_runs(store, 2)
    cache = ChunkCache(store, CacheSettings(), lambda: ALONE)
    reader = BatchReader(cache, clock, POOL)
    await reader.read(runs[:1], request(0, 10_000))
    waits = asyncio.ensure_future(reader.read(runs, request(0, 10_000)))
    await asyncio.sleep(0)
    assert await reader.read(runs[:1], request(0, 10_000, leader_epoch=EPOCH + 1))
    found = await waits
    assert {header.leader_epoch for header, _ in split(memoryview(b"".join(found.parts)))} == {EPOCH}
    assert [base for base, _ in batches_in(found)] == [0, 2, 4, 6]


class ChunksRead(CacheObserver):
    def __init__(self) -> None:
        self.chunks: list[tuple[Tier, int]] = []

    def chunk_read(self, tier: Tier, length: int, *, is_catch_up: bool, chunks: int = 1) -> None:
        self.chunks.append((tier, chunks))


class FramedRead(CacheObserver):
    bytes = 0

    def framed_read(self, length: int) -> None:
        self.bytes += length


async def test_a_chunk_is_read_once_by_a_reader_of_several_of_its_runs() -> None:
    batches = [(batch_of(1, 100), BatchStatus.STORED)]
    first, body, _ = mixed_run("m/1", 0, batches, created_ms=OLD)
    second, rest, _ = mixed_run("m/1", 1, batches, start=first.start + first.length, created_ms=OLD)
    whole_object = body[: second.start] + rest[second.start :]
    runs = [structs.replace(run, object_size=len(whole_object)) for run in (first, second)]

    clock, observer = ManualClock(), ChunksRead()
    store = MemoryStore(clock)
    await store.put("m/1", [whole_object])
    cache = ChunkCache(store, CacheSettings(), lambda: ALONE, observer=observer)
    reader = BatchReader(cache, clock, POOL)
    assert await reader.read(runs, request(0, 10_000)) == reader.read_held(runs, request(0, 10_000))
    assert observer.chunks == [(Tier.STORE, 1), (Tier.MEMORY, 1)]


async def test_runs_are_kept_as_sent_within_their_budget() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    reader = reader_over(store, clock, SETTINGS.changed(framed_bytes=10_000))
    for number in range(20):
        run, body, stored = mixed_run(f"m/{number}", 0, [(batch_of(3, 300), BatchStatus.STORED)] * 3)
        await store.put(run.key, [body])
        found = await reader.read([run], request(0, 1 << 20))
        assert len(batches_in(found)) == len(stored)
        assert 0 < reader.framed_bytes_held <= 10_000


async def short_runs(
    store: MemoryStore, count: int = 30, value_bytes: int = 40, *, created_ms: int = T0
) -> list[Run]:
    """Runs of two batches, each in an object of its own, that follow each other from offset 0 on."""
    runs: list[Run] = []
    for number in range(count):
        batches = [(batch_of(2, value_bytes), BatchStatus.STORED)] * 2
        run, body, _ = mixed_run(f"m/{number}", 4 * number, batches, created_ms=created_ms)
        await store.put(run.key, [body])
        runs.append(run)
    return runs


async def test_short_runs_that_are_read_again_are_sent_as_one_view() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    runs = await short_runs(store)
    reader = reader_over(store, clock, CacheSettings())
    first = await reader.read(runs, request(0, 1 << 20))
    reader.read_held(runs, request(0, 1 << 20))
    again = reader.read_held(runs, request(0, 1 << 20))
    assert again is not None and len(again.parts) == 1
    assert reader.framed_bytes_held > again.bytes + RUN_BYTES * len(runs), (
        "the runs that it names are counted"
    )
    assert batches_in(again) == batches_in(first)
    within = await reader.read(runs[10:], request(41, 1 << 20))
    assert batches_in(within) == batches_in(first)[20:]


async def test_longer_runs_are_joined_and_not_copied() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    runs = await short_runs(store, value_bytes=LEAST_VIEW_BYTES // 4)
    reader = reader_over(store, clock, CacheSettings())
    first = await reader.read(runs, request(0, 1 << 20))
    reader.read_held(runs, request(0, 1 << 20))
    again = reader.read_held(runs, request(0, 1 << 20))
    assert again is not None and batches_in(again) == batches_in(first)
    assert len(again.parts) == len(runs)
    assert all(part is once for part, once in zip(again.parts, first.parts, strict=True))
    assert reader.framed_bytes_held > again.bytes + RUN_BYTES * len(runs), "they were joined"


async def test_long_runs_are_joined_up_to_the_size_of_a_joined_run() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    runs = await short_runs(store, 12, value_bytes=PIECE_BYTES // 13)
    reader = reader_over(store, clock, CacheSettings())
    for _ in range(2):
        await reader.read(runs, request(0, 1 << 20))
        reader.read_held(runs, request(0, 1 << 20))
    joined = [number for number in range(12) if reader._mixed.framed.joined_at(runs[number]) is not None]
    assert joined == [0, 3, 6], "three runs fill one; so few as are left may be followed by others"


def test_runs_are_joined_about_a_piece_at_a_time_and_not_too_many_at_once() -> None:
    half = PIECE_BYTES // 2
    assert not list(_stretches_of([half] * (LEAST_JOINED - 1)))
    assert list(_stretches_of([half] * 100)) == [(2 * at, 2 * at + 2) for at in range(JOINED_AT_ONCE)]
    assert list(_stretches_of([2 * PIECE_BYTES, *[half] * 8])) == [(1, 3), (3, 5), (5, 7), (7, 9)]


@pytest.mark.parametrize(
    ("count", "value_bytes", "first", "is_joined"),
    [
        (LEAST_JOINED, 10, 10, True),
        (LEAST_JOINED - 1, 10, 10, False),
        pytest.param(LEAST_JOINED, LEAST_VIEW_BYTES, 10, False, id="longer runs"),
        pytest.param(20, 10, LARGE_BATCH_BYTES, False, id="the first has two pieces"),
    ],
)
def test_old_runs_are_joined_if_they_are_short_and_the_first_is_one_piece(
    count: int, value_bytes: int, first: int, is_joined: bool
) -> None:
    runs: list[Run] = []
    parts: list[bytes] = []
    for number in range(count):
        small = batch_of(1, value_bytes), BatchStatus.STORED
        stored = [small] if number else [small, (batch_of(1, first), BatchStatus.STORED)]
        run, body, _ = mixed_run(f"m/{number}", number + bool(number), stored)
        runs.append(run)
        parts.append(body[run.start : run.start + run.length])
    framed = FramedRuns(1 << 22, 1 << 22)
    framed.join_ready(runs, parts, EPOCH)
    joined = framed.joined_at(runs[0])
    assert (joined is not None) == is_joined
    head = framed.of(runs[0]).framed(0, EPOCH)
    assert head == (parts[0] if is_joined else None)


def test_framed_pieces_are_kept_under_one_epoch_and_replaced_by_a_joined_run() -> None:
    small, large = ((batch_of(1, size), BatchStatus.STORED) for size in (10, LARGE_BATCH_BYTES))
    framed = FramedRuns(1 << 22, 1 << 22)
    parted, body, _ = mixed_run("m/p", 0, [small, large])
    first, second = memoryview(body)[8 : 8 + len(small[0])], memoryview(body)[8 + len(small[0]) :]
    framed.of(parted).keep(0, EPOCH, first)
    assert not framed.is_kept(parted, EPOCH)
    framed.of(parted).keep(1, EPOCH, second)
    assert framed.is_kept(parted, EPOCH) and not framed.is_kept(parted, EPOCH + 1)
    assert framed.of(parted).whole(EPOCH) is None, "two pieces"
    framed.of(parted).keep(1, EPOCH + 1, second)
    assert framed.of(parted).framed(0, EPOCH + 1) is None

    runs = [mixed_run(f"m/{number}", number, [small])[0] for number in range(LEAST_JOINED)]
    for run in runs:
        framed.of(run).keep(0, EPOCH, first)
    assert framed.of(runs[0]).whole(EPOCH) is first and framed.of(runs[0]).whole(EPOCH + 1) is None
    framed.join(runs, [framed.of(run) for run in runs], EPOCH)
    assert [framed.is_kept(run, EPOCH) for run in runs] == [True] + [False] * (LEAST_JOINED - 1)


async def test_a_run_that_is_joined_again_keeps_nothing_of_the_earlier_joined_run() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    runs: list[Run] = []
    for number in range(40):
        value_bytes = LEAST_VIEW_BYTES if number < LEAST_JOINED else 10
        run, body, _ = mixed_run(f"m/{number}", number, [(batch_of(1, value_bytes), BatchStatus.STORED)])
        await store.put(run.key, [body])
        runs.append(run)
    reader = reader_over(store, clock, CacheSettings())
    for room in (1 << 20, sum(run.length for run in runs[:LEAST_JOINED])):
        for _ in range(3):
            found = await reader.read(runs, request(0, room))
            held = reader.read_held(runs, request(0, room))
            assert held is not None and batches_in(held) == batches_in(found)
    held = reader.read_held(runs, request(0, room))
    assert held is not None and held.batch_count == LEAST_JOINED
    alive = {id(part.obj): part.obj for part in held.parts if isinstance(part, memoryview)}
    assert sum(memoryview(buffer).nbytes for buffer in alive.values()) == held.bytes


@pytest.mark.parametrize("created_ms", [T0, OLD])
async def test_a_run_that_was_replaced_is_not_sent_with_those_that_it_was_joined_with(
    created_ms: int,
) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    runs = await short_runs(store, created_ms=created_ms)
    reader = reader_over(store, clock, CacheSettings())
    for _ in range(3):
        await reader.read(runs, request(0, 1 << 20))
        reader.read_held(runs, request(0, 1 << 20))
    other, body, stored = mixed_run("m/other", 20, [(batch_of(4, 50), BatchStatus.STORED)])
    await store.put(other.key, [body])
    runs[5] = other
    assert reader.read_held(runs, request(0, 1 << 20)) is None
    found = await reader.read(runs, request(0, 1 << 20))
    assert batches_in(found)[10][1][16:] == stored[0][2][16:]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 119),
            st.integers(1, 8_000),
            st.none() | st.integers(0, 120),
            st.integers(EPOCH - 1, EPOCH),
        ),
        min_size=2,
        max_size=12,
    ),
    st.sampled_from([2_000, 1 << 20]),
    st.booleans(),
    st.booleans(),
)
def test_a_read_does_not_depend_on_earlier_reads(
    reads: list[tuple[int, int, int | None, int]], framed_bytes: int, are_long: bool, are_old: bool
) -> None:
    factor = LEAST_VIEW_BYTES // 100 if are_long else 1
    sizes = {"chunk_bytes": (1024 if are_old else 128) * factor, "framed_bytes": framed_bytes * factor}

    async def whole() -> None:
        clock = ManualClock()
        store = MemoryStore(clock)
        runs = await short_runs(store, value_bytes=40 * factor, created_ms=OLD if are_old else T0)
        reader = reader_over(store, clock, CacheSettings(memory_bytes=16 << 20, **sizes))
        for offset, max_bytes, end_limit, epoch in [*reads, *reads]:
            wanted = request(offset, max_bytes * factor, end_limit=end_limit, leader_epoch=epoch)
            fresh = await reader_over(store, clock).read(runs[offset // 4 :], wanted)
            found = reader.read_held(runs[offset // 4 :], wanted)
            if found is None:
                found = await reader.read(runs[offset // 4 :], wanted)
            assert b"".join(found.parts) == b"".join(fresh.parts)
            assert replace(found, parts=[]) == replace(fresh, parts=[])
            assert reader.framed_bytes_held <= sizes["framed_bytes"]

    asyncio.run(whole())


async def test_a_piece_with_a_corrupt_batch_is_not_kept() -> None:
    run, body, stored = mixed_run("m/1", 0, [(batch_of(3, 60), BatchStatus.STORED) for _ in range(3)])

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("m/1", [corrupted(body, 8 + len(stored[0][2]) + 100)])
    reader = reader_over(store, clock, CacheSettings())
    for _ in range(2):
        assert (await reader.read([run], request(0, 10_000))).batch_count == 1
        assert reader.read_held([run], request(0, 10_000)) is None
    last = await reader.read([run], request(6, 10_000))
    assert [base for base, _ in batches_in(last)] == [6], "what stands after it is sound"


def test_reading_on_from_the_end_offset_gives_every_batch_once() -> None:
    run, body, stored = mixed_run("m/1", 10, [(batch_of(3, 60), BatchStatus.STORED) for _ in range(9)])

    async def whole() -> list[int]:
        clock = ManualClock()
        store = MemoryStore(clock)
        await store.put("m/1", [body])
        reader = reader_over(store, clock)
        offset, seen = 10, []
        while offset < run.end_offset:
            found = await reader.read([run], request(offset, 500))
            seen += [base for base, _ in batches_in(found)]
            offset = found.end_offset
        return seen

    assert asyncio.run(whole()) == [base for base, _, _ in stored]


def corrupted(body: bytes, at: int) -> bytes:
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


def test_rot_in_the_cache_is_repaired_from_the_store() -> None:
    run, body, stored = mixed_run("m/1", 0, [(batch_of(3, 60), BatchStatus.STORED) for _ in range(3)])

    async def whole() -> ReadBatches:
        clock = ManualClock()
        store = MemoryStore(clock)
        reader = reader_over(store, clock)
        await store.put("m/1", [corrupted(body, 150)])
        with pytest.raises(ObjectCorrupt, match="m/1"):
            await reader.read([run], request(0, 10_000))
        await store.put("m/1", [body])
        return await reader.read([run], request(0, 10_000))

    assert [base for base, _ in batches_in(asyncio.run(whole()))] == [base for base, _, _ in stored]


@pytest.mark.parametrize("created_ms", [T0, OLD])
@pytest.mark.parametrize("place", range(HEADER_BYTES))
def test_no_byte_of_a_batch_header_rots_unseen(place: int, created_ms: int) -> None:
    """The CRC begins behind length and magic; offset and leader epoch are written anew in every answer."""
    run, body, stored = mixed_run("m/1", 0, [(batch_of(3, 60), BatchStatus.STORED)], created_ms=created_ms)
    is_written_anew = place < 8 or 12 <= place < 16

    async def whole() -> ReadBatches:
        clock = ManualClock()
        store = MemoryStore(clock)
        await store.put("m/1", [corrupted(body, run.start + place)])
        return await reader_over(store, clock, CacheSettings()).read([run], request(0, 10_000))

    if is_written_anew:
        assert [base for base, _ in batches_in(asyncio.run(whole()))] == [base for base, _, _ in stored]
    else:
        with pytest.raises(ObjectCorrupt, match="m/1"):
            asyncio.run(whole())


async def test_records_before_the_corruption_are_returned_and_the_next_read_names_it() -> None:
    run, body, stored = mixed_run("m/1", 0, [(batch_of(3, 60), BatchStatus.STORED) for _ in range(3)])
    second = 8 + len(stored[0][2])

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("m/1", [corrupted(body, second + 100)])
    reader = reader_over(store, clock)
    found = await reader.read([run], request(0, 10_000))
    assert (found.batch_count, found.end_offset, found.is_complete) == (1, 3, False)
    with pytest.raises(ObjectCorrupt) as caught:
        await reader.read([run], request(found.end_offset, 10_000))
    assert (caught.value.key, caught.value.start) == ("m/1", second)


async def test_a_missing_or_a_short_object_is_named() -> None:
    run, body, _ = mixed_run("m/1", 0, [(batch_of(3, 60), BatchStatus.STORED)])

    clock = ManualClock()
    store = MemoryStore(clock)
    reader = reader_over(store, clock)
    with pytest.raises(ObjectMissing, match="m/1"):
        await reader.read([run], request(0, 10_000))
    await store.put("m/1", [body[:140]])
    with pytest.raises(ObjectCorrupt, match="ends after"):
        await reader.read([run], request(0, 10_000))


async def test_a_time_is_found_within_a_run_of_any_codec() -> None:
    batches = [
        (batch_of(3, at=T0 + 100, codec=Compression.ZSTD), BatchStatus.STORED),
        (batch_of(3, at=T0 + 900), BatchStatus.DUPLICATE),
        (batch_of(3, at=T0 + 200, codec=Compression.GZIP), BatchStatus.STORED),
    ]
    run, body, _ = mixed_run("m/1", 50, batches)

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("m/1", [body])
    reader = reader_over(store, clock)
    assert await reader.find_timestamp(run, T0, 0) == OffsetAndTimestamp(50, T0 + 100)
    assert await reader.find_timestamp(run, T0 + 102, 0) == OffsetAndTimestamp(52, T0 + 102)
    assert await reader.find_timestamp(run, T0 + 103, 0) == OffsetAndTimestamp(53, T0 + 200)
    assert await reader.find_timestamp(run, T0, 54) == OffsetAndTimestamp(54, T0 + 201)
    assert await reader.find_timestamp(run, T0 + 203, 0) is None
    assert await reader.find_latest(run, 0) == OffsetAndTimestamp(55, T0 + 202)
    assert await reader.find_latest(run, 56) is None


def test_by_time_only_the_records_of_a_batch_within_the_bounds_count() -> None:
    batch = encode_batch([NewRecord(None, None)] * 3, timestamps=[T0 + 2, T0, T0 + 1])
    assert first_reaching(batch, T0 + 1, 1, 3) == OffsetAndTimestamp(2, T0 + 1)
    assert first_reaching(batch, T0 + 1, 1, 2) is None
    assert latest(batch, 0) == OffsetAndTimestamp(0, T0 + 2)
    assert latest(batch, 1) == OffsetAndTimestamp(2, T0 + 1)
    assert latest(batch, 3) is None


async def test_by_time_a_batch_whose_records_cannot_be_read_is_passed_over() -> None:
    sound = batch_of(3, at=T0 + 100)
    header = structs.replace(read_header(sound), max_timestamp=T0 + 900)
    unreadable = [
        assemble_like(structs.replace(header, attributes=codec), b"\xff" * 30, header.record_count)
        for codec in Compression
    ]
    stored = [(data, BatchStatus.STORED) for data in (*unreadable, sound)]
    run, body, _ = mixed_run("m/1", 0, stored)

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("m/1", [body])
    reader = reader_over(store, clock)
    assert await reader.find_timestamp(run, T0, 0) == OffsetAndTimestamp(3 * len(unreadable), T0 + 100)
    assert await reader.find_timestamp(run, T0 + 900, 0) is None
    assert await reader.find_latest(run, 0) == OffsetAndTimestamp(3 * len(unreadable) + 2, T0 + 102)


@pytest.mark.parametrize(
    ("records", "count", "first", "newest"),
    [
        pytest.param(
            encode_batch([NewRecord(None, None)] * 30_000, timestamps=[T0] * 30_000)[HEADER_BYTES:],
            30_000,
            (30_000, T0 + 50),
            (30_002, T0 + 52),
            id="very many records",
        ),
        pytest.param(
            bytes(MAX_LOOKED_INTO_BYTES + 1),
            1,
            (0, T0 + 100),
            (0, T0 + 100),
            id="more than an agent looks into",
        ),
    ],
)
async def test_by_time_a_small_batch_costs_little_memory_whatever_it_unpacks_to(
    records: bytes, count: int, first: tuple[int, int], newest: tuple[int, int]
) -> None:
    many = assemble(
        compress(Compression.ZSTD, records),
        attributes=Compression.ZSTD,
        record_count=count,
        last_offset_delta=count - 1,
        base_timestamp=T0,
        max_timestamp=T0 + 100,
    )
    assert len(many) < 30_000
    run, body, _ = mixed_run(
        "m/1", 0, [(many, BatchStatus.STORED), (batch_of(3, at=T0 + 50), BatchStatus.STORED)]
    )
    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("m/1", [body])
    reader = reader_over(store, clock, CacheSettings(chunk_bytes=1 << 20, memory_bytes=4 << 20))
    tracemalloc.start()
    try:
        assert await reader.find_timestamp(run, T0 + 50, 0) == OffsetAndTimestamp(*first)
        assert await reader.find_latest(run, 0) == OffsetAndTimestamp(*newest)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


class Counted(bytearray):
    """Memory that can be seen to go."""

    __hash__ = object.__hash__


class CountingStore(MemoryStore):
    """Knows the most bytes that were held at a time of what it gave."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.most_held = 0
        self._given: WeakSet[Counted] = WeakSet()

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        given = Counted(await super().get_range(key, start, length))
        self._given.add(given)
        self.most_held = max(self.most_held, sum(map(len, self._given)))
        return given


@pytest.mark.parametrize("created_ms", [OLD, T0])
def test_a_thin_partition_is_read_without_holding_the_objects_of_a_whole_answer(created_ms: int) -> None:
    object_bytes, chunk_bytes = 60_000, 1 << 16
    runs, bodies = [], {}
    for number in range(100):
        run, body, _ = mixed_run(
            f"m/{number}", number, [(batch_of(1), BatchStatus.STORED)], created_ms=created_ms
        )
        bodies[run.key] = body.ljust(object_bytes, b"#")
        runs.append(structs.replace(run, object_size=object_bytes))

    async def whole() -> tuple[ReadBatches, int]:
        clock = ManualClock()
        store = CountingStore(clock)
        for key, body in bodies.items():
            await store.put(key, [body])
        settings = CacheSettings(chunk_bytes=chunk_bytes, memory_bytes=4 * chunk_bytes, read_ahead_chunks=0)
        reader = reader_over(store, clock, settings)
        found = await reader.read(runs, request(0, 1 << 20))
        return found, store.most_held

    found, most_held = asyncio.run(whole())
    assert [base for base, _ in batches_in(found)] == list(range(100)) and found.is_complete
    assert most_held <= (4 + 2 * STEP_CHUNKS) * chunk_bytes


def test_old_runs_are_read_ahead_and_young_ones_are_not() -> None:
    run, body, _ = mixed_run("m/1", 0, [(batch_of(3, 300), BatchStatus.STORED) for _ in range(6)])

    async def held_after_a_read(created_ms: int) -> bool:
        clock = ManualClock(T0)
        store = MemoryStore(clock)
        await store.put("m/1", [body])
        alone = ZoneRing(Ring(1, []), "a", 1)
        cache = ChunkCache(store, SETTINGS.changed(chunk_bytes=1024), lambda: alone)
        old = Run(**{name: getattr(run, name) for name in Run.__struct_fields__} | {"created_ms": created_ms})
        reader = BatchReader(cache, clock, POOL)
        await reader.read([old], request(0, 1000))
        for _ in range(5):
            await asyncio.sleep(0)
        held = cache.bytes_held
        await reader.close()
        await cache.close()
        return held > 2048

    assert asyncio.run(held_after_a_read(T0 - 60_000))
    assert not asyncio.run(held_after_a_read(T0))


@pytest.fixture(scope="module")
def parquet() -> tuple[Run, bytes, list[tuple[int, bytes]]]:
    from tailrace.parquet_object.write import SourceBatch, SourceRun, write_parquet

    source: list[tuple[int, bytes]] = []
    other: list[SourceBatch] = []
    offset = 100
    for number in range(30):
        codec = Compression.ZSTD if number % 3 == 0 else Compression.NONE
        source.append((offset, batch_of(4, 50, at=T0 + number * 10, codec=codec)))
        other.append(SourceBatch(batch_of(2), number * 2, 0))
        offset += 4 if number != 10 else 9  # a hole
    batches = [SourceBatch(data, base, 0) for base, data in source]
    written = write_parquet(
        [
            SourceRun(TopicPartition(TOPIC, 1), "t", other),
            SourceRun(TopicPartition(TOPIC, 0), "t", batches, 100, offset + 5),
        ],
        object_id=UUID(int=3),
        cluster_id="c",
        created_ms=T0,
        row_group_bytes=1500,
    )
    assert written.data is not None
    whole = bytes(written.data)
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    run = sample_run(
        100,
        offset + 5,
        topic_id=TOPIC,
        object_id=UUID(int=3),
        kind=ObjectKind.PARQUET,
        key="p/1",
        object_size=len(whole),
        index_start=len(whole) - footer,
        length=len(whole),
        max_timestamp=T0 + 293,
        created_ms=T0,
    )
    return run, whole, source


async def test_a_parquet_run_is_read_from_any_offset_in_small_steps(
    parquet: tuple[Run, bytes, list[tuple[int, bytes]]],
) -> None:
    run, body, source = parquet

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("p/1", [body])
    reader = reader_over(store, clock, SETTINGS.changed(chunk_bytes=1000))
    offset = 102
    seen: list[tuple[int, bytes]] = []
    while offset < run.end_offset:
        assert reader.read_held([run], request(offset, 700)) is None, "its index must be waited for"
        found = await reader.read([run], request(offset, 700))
        seen += batches_in(found)
        offset = found.end_offset
    # The run ends with offsets that hold nothing: a batch without data takes the client past them.
    last, hole = seen.pop()
    assert last == run.end_offset - 1 and read_header(hole).is_control
    assert (found.client_offset, found.record_count) == (run.end_offset, 4 * (found.batch_count - 1))
    assert [base for base, _ in seen] == [base for base, _ in source]
    for (_, got), (base, old) in zip(seen, source, strict=True):
        values = [(each.timestamp, each.key, each.value) for each in decode_records(got)]
        assert values == [(each.timestamp, each.key, each.value) for each in decode_records(old)]
        if not read_header(old).compression:
            assert got[16:] == old[16:]
        assert read_header(got).base_offset == base
    assert offset == run.end_offset
    limited = await reader.read([run], request(100, 1 << 20, end_limit=108))
    assert [base for base, _ in batches_in(limited)] == [100, 104]
    await reader.close()


def test_decoded_indexes_are_kept_within_a_budget_of_bytes(
    parquet: tuple[Run, bytes, list[tuple[int, bytes]]],
) -> None:
    run, body, source = parquet

    async def indexes_kept(index_bytes: int) -> int:
        clock = ManualClock()
        store = MemoryStore(clock)
        await store.put("p/1", [body])
        reader = reader_over(store, clock, SETTINGS.changed(index_bytes=index_bytes))
        assert (await reader.read([run], request(source[0][0], 1 << 20))).batch_count > 0
        held = reader._parquet._indexes
        assert held.bytes_held <= index_bytes
        await reader.close()
        return len(held)

    assert asyncio.run(indexes_kept(1 << 20)) == 1
    assert asyncio.run(indexes_kept(100)) == 0


async def test_a_hole_that_has_no_room_in_the_answer_waits_for_the_next(
    parquet: tuple[Run, bytes, list[tuple[int, bytes]]],
) -> None:
    run, body, source = parquet

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("p/1", [body])
    reader = reader_over(store, clock)
    last = source[-1][0]
    exact = (await reader.read([run], request(last, 1))).bytes
    full = await reader.read([run], request(last, exact))
    assert (full.batch_count, full.client_offset, full.is_complete) == (1, last + 4, False)
    nothing = await reader.read([run], request(last + 4, 10, minimum_one=False))
    assert (nothing.bytes, nothing.client_offset, nothing.is_complete) == (0, last + 4, False)
    passed = await reader.read([run], request(last + 4, 10))
    assert (passed.client_offset, passed.first_offset) == (run.end_offset, run.end_offset - 1)
    assert (passed.record_count, passed.is_complete) == (0, True)
    await reader.close()


def markers_run(base_offset: int, *ends: tuple[int, bool]) -> Run:
    """Markers of (producer, is commit), in no object."""
    markers = [
        Marker(base_offset + at, *end, T0 + 7)
        for at, end in enumerate((by, 4, is_commit) for by, is_commit in ends)
    ]
    table = [RunBatch(MARKER_BYTES, 1, BatchStatus.STORED, marker.offset, -1) for marker in markers]
    return sample_run(
        base_offset,
        base_offset + len(ends),
        topic_id=TOPIC,
        kind=ObjectKind.MARKERS,
        key="",
        length=MARKER_BYTES * len(ends),
        max_timestamp=-1,
        running_max_timestamp=T0,
        created_ms=T0,
        batches=table,
        markers=markers,
    )


async def test_markers_of_two_partitions_at_one_offset_are_kept_apart() -> None:
    clock = ManualClock()
    reader = reader_over(MemoryStore(clock), clock)
    runs = [markers_run(13, (5, True)), structs.replace(markers_run(13, (5, False)), partition=1)]
    for _ in range(2):
        found = [batches_in(await reader.read([run], request(13, 1000))) for run in runs]
        assert [is_abort(batch) for [(_, batch)] in found] == [False, True]


async def test_markers_are_control_batches_between_the_others_and_need_no_object() -> None:
    first, body, before = mixed_run("m/1", 10, [(batch_of(3, 60), BatchStatus.STORED)])
    markers = markers_run(13, (5, True), (6, False))
    second, more, after = mixed_run("m/2", 15, [(batch_of(2), BatchStatus.STORED)])
    runs = [first, markers, second]

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("m/1", [body])
    await store.put("m/2", [more])
    reader = reader_over(store, clock)
    found = await reader.read(runs, request(10, 10_000))
    got = batches_in(found)
    assert [base for base, _ in got] == [10, 13, 14, 15]
    assert [data[16:] for _, data in (got[0], got[3])] == [before[0][2][16:], after[0][2][16:]]
    assert (found.record_count, found.end_offset, found.is_complete) == (5, 17, True)
    for (_, data), producer, is_commit in zip(got[1:3], (5, 6), (True, False), strict=True):
        header = read_header(data)
        assert header.is_control and header.is_transactional and len(data) == MARKER_BYTES
        assert (header.producer_id, header.producer_epoch, header.max_timestamp) == (producer, 4, T0 + 7)
        assert is_abort(data) is not is_commit
    assert [base for base, _ in batches_in(await reader.read(runs, request(14, 10_000)))] == [14, 15]
    one = await reader.read(runs, request(13, 10))
    assert (one.batch_count, one.end_offset, one.is_complete) == (1, 14, False)
    none = await reader.read(runs, request(13, 10, minimum_one=False))
    assert (none.batch_count, none.end_offset) == (0, 13)
    limited = await reader.read(runs, request(10, 10_000, end_limit=14))
    assert (limited.batch_count, limited.end_offset, limited.is_complete) == (2, 14, False)
    alone = await reader.read([markers], request(13, 10_000))
    assert (alone.batch_count, alone.record_count, alone.is_complete) == (2, 0, True)


async def test_a_run_of_no_markers_is_a_hole_that_clients_pass() -> None:
    """What a recovery leaves between the last certain offset and the next."""
    first, body, _ = mixed_run("m/1", 10, [(batch_of(3, 60), BatchStatus.STORED)])
    hole = structs.replace(markers_run(13), end_offset=50)
    second, more, _ = mixed_run("m/2", 50, [(batch_of(2), BatchStatus.STORED)])

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("m/1", [body])
    await store.put("m/2", [more])
    reader = reader_over(store, clock)
    ended = await reader.read([first, hole], request(10, 10_000))
    assert [base for base, _ in batches_in(ended)] == [10, 49]
    assert (ended.client_offset, ended.record_count, ended.is_complete) == (50, 3, True)
    within = await reader.read([hole], request(20, 1))
    assert (within.batch_count, within.client_offset, within.is_complete) == (1, 50, True)
    going_on = await reader.read([hole, second], request(20, 10_000))
    assert [base for base, _ in batches_in(going_on)] == [50]
    waiting = await reader.read([first, hole, second], request(10, 10_000, end_limit=13))
    assert (waiting.batch_count, waiting.client_offset, waiting.is_complete) == (1, 13, False)


async def test_a_time_is_never_found_on_a_marker() -> None:
    clock = ManualClock()
    reader = reader_over(MemoryStore(clock), clock)
    assert await reader.find_timestamp(markers_run(13, (5, True)), T0, 0) is None
    assert await reader.find_timestamp(markers_run(13, (5, True)), -1, 0) is None


async def test_old_runs_beyond_markers_are_read_ahead() -> None:
    first, body, _ = mixed_run(
        "m/1", 0, [(batch_of(3, 300), BatchStatus.STORED) for _ in range(2)], created_ms=0
    )
    second, more, _ = mixed_run("m/2", 7, [(batch_of(3, 300), BatchStatus.STORED)], created_ms=0)

    clock = ManualClock(T0)
    store = MemoryStore(clock)
    await store.put("m/1", [body])
    await store.put("m/2", [more])
    alone = ZoneRing(Ring(1, []), "a", 1)
    cache = ChunkCache(store, SETTINGS.changed(chunk_bytes=1024), lambda: alone)
    reader = BatchReader(cache, clock, POOL)
    await reader.read([first, markers_run(6, (5, True)), second], request(0, 2100))
    for _ in range(5):
        await asyncio.sleep(0)
    assert cache.bytes_held > 2048
    await reader.close()
    await cache.close()


async def test_a_time_is_found_in_a_parquet_run(parquet: tuple[Run, bytes, list[tuple[int, bytes]]]) -> None:
    run, body, source = parquet

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("p/1", [body])
    reader = reader_over(store, clock)
    assert await reader.find_timestamp(run, T0 + 151, 0) == OffsetAndTimestamp(source[15][0] + 1, T0 + 151)
    assert await reader.find_timestamp(run, T0 + 154, 0) == OffsetAndTimestamp(source[16][0], T0 + 160)
    assert await reader.find_timestamp(run, T0 + 999, 0) is None
    last = await reader.find_timestamp(run, run.max_timestamp, 0)
    assert last is not None and await reader.find_latest(run, source[15][0]) == last
    assert await reader.find_latest(run, run.end_offset) is None


async def test_rot_in_a_parquet_object_is_named_or_harmless_and_never_served(
    parquet: tuple[Run, bytes, list[tuple[int, bytes]]],
) -> None:
    """Columns that replay does not read may rot unseen by it; what is served is right, or it is an error."""
    unchecked, body, source = parquet
    run = structs.replace(unchecked, index_crc=int(crc32c(body[unchecked.index_start :])))

    async def read_with_rot_at(place: int, expected: list[tuple[int, bytes]]) -> bool:
        clock = ManualClock()
        store = MemoryStore(clock)
        await store.put("p/1", [corrupted(body, place)])
        reader = reader_over(store, clock, SETTINGS.changed(chunk_bytes=1000))
        offset, seen = 100, list[tuple[int, bytes]]()
        try:
            while offset < run.end_offset:
                found = await reader.read([run], request(offset, 1 << 20))
                seen += batches_in(found)
                offset = found.end_offset
        except ObjectCorrupt as error:
            assert error.key == "p/1"
            assert seen == expected[: len(seen)]
            return True
        assert seen == expected
        return False

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("p/1", [body])
    sound = batches_in(await reader_over(store, clock).read([run], request(100, 1 << 20)))
    assert len(sound) == len(source) + 1
    named = [await read_with_rot_at(place, sound) for place in range(4, len(body), 97)]
    assert any(named)


async def test_a_footer_that_rotted_is_named_before_it_is_parsed(
    parquet: tuple[Run, bytes, list[tuple[int, bytes]]],
) -> None:
    """No flip gets to Arrow, which would end the process over some of them."""
    run, body, source = parquet
    known = structs.replace(run, index_crc=int(crc32c(body[run.index_start :])))

    clock = ManualClock()
    store = MemoryStore(clock)
    for place in range(run.index_start, len(body), 37):
        await store.put("p/1", [corrupted(body, place)])
        reader = reader_over(store, clock, SETTINGS.changed(chunk_bytes=10_000))
        with pytest.raises(ObjectCorrupt, match="was written"):
            await reader.read([known], request(100, 1 << 20))
    await store.put("p/1", [body])
    assert (await reader.read([known], request(100, 1 << 20))).batch_count == len(source) + 1


async def test_a_footer_that_rotted_and_still_parses_is_named(
    parquet: tuple[Run, bytes, list[tuple[int, bytes]]],
) -> None:
    run, body, _ = parquet

    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("p/1", [corrupted(body, body.index(b"headers", run.index_start))])
    with pytest.raises(ObjectCorrupt, match="columns"):
        await reader_over(store, clock).read([run], request(100, 1 << 20))


async def test_large_batches_that_are_in_memory_and_checked_are_read_without_waiting() -> None:
    batches = [batch_of(1, LARGE_BATCH_BYTES), batch_of(1, 10), batch_of(1, LARGE_BATCH_BYTES)]
    run, body, stored = mixed_run("m/1", 0, [(data, BatchStatus.STORED) for data in batches])

    clock = ManualClock(T0)
    store = MemoryStore(clock)
    await store.put("m/1", [body])
    for chunk_bytes in (1 << 20, 50_000):  # in one chunk, and across two
        cache = ChunkCache(store, SETTINGS.changed(chunk_bytes=chunk_bytes), lambda: ALONE)
        reader = BatchReader(cache, clock, POOL)
        assert reader.read_held([run], request(0, 1 << 20)) is None
        first = await reader.read([run], request(0, 1 << 20))
        held = reader.read_held([run], request(0, 1 << 20))
        assert held is not None and batches_in(held) == batches_in(first)
        assert [data[16:] for _, data in batches_in(held)] == [data[16:] for _, _, data in stored]
        cache.forget(ChunkId("m/1", 0))
        assert reader.read_held([run], request(0, 1 << 20)) is None


async def test_patched_headers_of_large_batches_stay_with_their_chunk_for_one_epoch() -> None:
    batches = [(batch_of(1, LARGE_BATCH_BYTES), BatchStatus.STORED)] * 2
    run, body, _ = mixed_run("m/1", 5, batches)

    clock = ManualClock(T0)
    store = MemoryStore(clock)
    await store.put("m/1", [body])
    cache = ChunkCache(store, SETTINGS.changed(chunk_bytes=1 << 20), lambda: ALONE)
    reader = BatchReader(cache, clock, POOL)
    asked = request(5, 1 << 20)
    read = await reader.read([run], asked)
    first, again = reader.read_held([run], asked), reader.read_held([run], asked)
    assert first is not None and again is not None and first == again == read
    assert len(again.parts) == 4, "a head and a view for each batch"
    assert all(one is other for one, other in zip(first.parts, again.parts, strict=True))

    later = reader.read_held([run], structs.replace(asked, leader_epoch=asked.leader_epoch + 1))
    assert later is not None and later.parts[0] != first.parts[0] and later.parts[1] == first.parts[1]
    moved = structs.replace(run, base_offset=7, end_offset=9, batches=moved_by(run.batches, 2))
    found = BatchReader(cache, clock, POOL).read_held([moved], request(7, 1 << 20))
    assert found is not None and [offset for offset, _ in batches_in(found)] == [7, 8]

    part = reader.read_held([run], request(6, 1 << 20))
    assert part is not None and [offset for offset, _ in batches_in(part)] == [6]
    small = reader.read_held([run], request(5, LARGE_BATCH_BYTES))
    assert small is not None and small.batch_count == 1 and not small.is_complete
    below = reader.read_held([run], structs.replace(asked, end_limit=6))
    assert below is not None and [offset for offset, _ in batches_in(below)] == [5]


async def test_a_parquet_run_behind_runs_that_are_held_is_waited_for() -> None:
    small, body, _ = mixed_run("m/1", 0, [(batch_of(1, 10), BatchStatus.STORED)])
    rebuilt = structs.replace(
        small, kind=ObjectKind.PARQUET, key="p/1", base_offset=1, end_offset=2, batches=[], length=2_000
    )

    clock = ManualClock(T0)
    store = MemoryStore(clock)
    await store.put("m/1", [body])
    reader = reader_over(store, clock, CacheSettings())
    await reader.read([small], request(0, 1 << 20))
    assert reader.read_held([small, rebuilt], request(0, 1 << 20)) is None


def moved_by(batches: Sequence[RunBatch], records: int) -> list[RunBatch]:
    return [structs.replace(batch, base_offset=batch.base_offset + records) for batch in batches]


async def test_only_what_is_kept_as_it_is_sent_counts_as_read_so() -> None:
    small, small_body, _ = mixed_run("m/1", 0, [(batch_of(1, 10), BatchStatus.STORED)])
    large, large_body, _ = mixed_run("m/2", 1, [(batch_of(1, LARGE_BATCH_BYTES), BatchStatus.STORED)])

    clock, observer = ManualClock(T0), FramedRead()
    store = MemoryStore(clock)
    await store.put("m/1", [small_body])
    await store.put("m/2", [large_body])
    reader = BatchReader(ChunkCache(store, CacheSettings(), lambda: ALONE), clock, POOL, observer)
    await reader.read([small, large], request(0, 1 << 20))
    assert observer.bytes == 0
    held = reader.read_held([small, large], request(0, 1 << 20))
    assert held is not None and held.batch_count == 2
    assert observer.bytes == small.length


async def test_a_large_batch_whose_crc_was_not_checked_is_not_read_without_waiting() -> None:
    run, body, _ = mixed_run("m/1", 0, [(batch_of(1, LARGE_BATCH_BYTES), BatchStatus.STORED)])

    clock = ManualClock(T0)
    store = MemoryStore(clock)
    await store.put("m/1", [corrupted(body, 1000)])
    cache = ChunkCache(store, SETTINGS.changed(chunk_bytes=1 << 20), lambda: ALONE)
    reader = BatchReader(cache, clock, POOL)
    await cache.get(chunk_at("m/1", 0, len(body), 1 << 20))
    assert reader.read_held([run], request(0, 1 << 20)) is None
    with pytest.raises(ObjectCorrupt):
        await reader.read([run], request(0, 1 << 20))


async def test_markers_that_nobody_has_read_yet_are_made_by_a_read_and_held_from_then_on() -> None:
    clock = ManualClock()
    reader = reader_over(MemoryStore(clock), clock)
    markers = markers_run(6, (5, True))
    assert reader.read_held([markers], request(6, 1000)) is None
    first = await reader.read([markers], request(6, 1000))
    assert reader.read_held([markers], request(6, 1000)) == first
