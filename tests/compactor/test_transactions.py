"""Transactions under compaction: consumers see the same, at the same offsets, and always get on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.chunk_cache import ChunkCache
from cache.read_batches import ReadRequest
from cache.reader import BatchReader
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from compactor.cycle import CompactionSettings, InProcess, run_cycle
from compactor.order import SwapOrder
from compactor.plan import Piece, PlanSettings, WorkItem, plan
from compactor.rewrite import OutputLocation, RewriteFailure, RewriteResult, try_rewrite
from compactor.spark_source.database_index import DatabaseIndex
from compactor.spark_source.log_reader import LogReader, OffsetRange
from sequencer.api.agents import Ring
from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.compaction import CompactionCandidate
from sequencer.api.reads import (
    AbortedTransaction,
    FindAnswer,
    FindRequest,
    FoundPartition,
    Marker,
    OffsetsAnswer,
    OffsetsRequest,
    PartitionError,
    Run,
    RunBatch,
)
from sequencer.api.topics import Topic
from sequencer.engine.committer import Committer
from sequencer.store.sql.store import SqlRowStore
from tailrace.batches.record_batch import MARKER_BYTES, Compression, read_header
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.compaction import Log as RealLog
from tests.support.compaction import batch_of
from tests.support.consumer import JavaLikeConsumer

TOPIC = UUID(int=5)
NIL = UUID(int=0)
T0 = 1_700_000_000_000
PLAIN = 0
"""The producer that writes without transactions."""
POOL = ThreadPoolExecutor(2)


@dataclass
class Log:
    """A partition as the sequencer keeps it: runs, open and aborted ranges, and the rules of a swap."""

    store: MemoryStore
    entropy: SeededEntropy = field(default_factory=lambda: SeededEntropy(1))
    runs: list[Run] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    written: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Each record's producer and value, by offset."""
    undone: set[int] = field(default_factory=set)
    """Offsets of aborted records."""
    number: int = 0

    @property
    def end(self) -> int:
        return self.runs[-1].end_offset if self.runs else 0

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.end)

    @property
    def committed(self) -> dict[int, bytes]:
        return {
            offset: value
            for offset, (_, value) in self.written.items()
            if offset < self.stable and offset not in self.undone
        }

    async def write(self, *batches: tuple[int, int, Compression]) -> None:
        """One object with batches of (producer, records, codec)."""
        table: list[RunBatch] = []
        body = b""
        base = offset = self.end
        for producer, count, codec in batches:
            values = [b"%d/%d" % (self.number, each) for each in range(count)]
            if producer != PLAIN:
                self.open.setdefault(producer, offset)
            data = encode_batch(
                [NewRecord(b"k", value) for value in values],
                timestamps=[T0 + offset + each for each in range(count)],
                compression=codec,
                producer_id=-1 if producer == PLAIN else producer,
                producer_epoch=-1 if producer == PLAIN else 0,
                base_sequence=-1 if producer == PLAIN else self.number,
                is_transactional=producer != PLAIN,
            )
            table.append(RunBatch(len(data), count, BatchStatus.STORED, offset, T0 + offset + count - 1))
            body += data
            for each, value in enumerate(values):
                self.written[offset + each] = producer, value
            offset += count
        self.number += 1
        key, newest = f"m/{self.number}", table[-1].max_timestamp
        await self.store.put(key, [b"########", body, b"footer"])
        self.runs.append(
            Run(
                topic_id=TOPIC,
                partition=0,
                base_offset=base,
                end_offset=offset,
                object_id=self.entropy.uuid(),
                kind=ObjectKind.MIXED,
                key=key,
                object_size=len(body) + 14,
                index_start=len(body) + 8,
                start=8,
                length=len(body),
                max_timestamp=newest,
                running_max_timestamp=newest,
                commit_number=self.number,
                created_ms=T0,
                batches=table,
            )
        )

    def finish(self, producer: int, is_commit: bool) -> None:
        """End the producer's transaction, if one is open. Markers that stand together share a row."""
        first = self.open.pop(producer, None)
        if first is None:
            return
        at = self.end
        if not is_commit:
            self.aborted.append(AbortedTransaction(producer, first, at))
            self.undone.update(
                offset for offset, (by, _) in self.written.items() if by == producer and first <= offset < at
            )
        running = self.runs[-1].running_max_timestamp
        markers = [Marker(at, producer, 0, is_commit, T0 + at)]
        if self.runs[-1].kind is ObjectKind.MARKERS:
            markers = self.runs.pop().markers + markers
        table = [RunBatch(MARKER_BYTES, 1, BatchStatus.STORED, each.offset, -1) for each in markers]
        self.runs.append(
            Run(
                topic_id=TOPIC,
                partition=0,
                base_offset=markers[0].offset,
                end_offset=at + 1,
                object_id=NIL,
                kind=ObjectKind.MARKERS,
                key="",
                object_size=0,
                index_start=0,
                start=0,
                length=MARKER_BYTES * len(markers),
                max_timestamp=-1,
                running_max_timestamp=running,
                commit_number=self.number,
                created_ms=T0,
                batches=table,
                markers=markers,
            )
        )

    def candidate(self, max_runs: int) -> CompactionCandidate:
        runs: list[Run] = []
        for run in self.runs:
            if run.kind is not ObjectKind.PARQUET:
                runs.append(run)
            elif runs:
                break
        topic = Topic(TOPIC, "t", 1, {}, 0)
        return CompactionCandidate(topic, 0, 0, self.stable, runs[:max_runs], list(self.aborted))

    def swap(self, result: RewriteResult) -> None:
        [new] = result.runs
        base, end = new.base_offset, new.end_offset
        old = [run for run in self.runs if base <= run.base_offset < end]
        assert new.replaced == [(run.base_offset, run.object_id) for run in old]
        assert old[-1].end_offset == end <= self.stable
        for each in self.aborted:
            assert each.first_offset >= base or not base <= each.last_offset < end, "swaps in offset order"
        self.aborted = [
            msgspec.structs.replace(each, first_offset=max(each.first_offset, end))
            if base <= each.first_offset < end
            else each
            for each in self.aborted
            if not base <= each.first_offset <= each.last_offset < end
        ]
        place = self.runs.index(old[0])
        self.runs[place : place + len(old)] = [
            Run(
                topic_id=TOPIC,
                partition=0,
                base_offset=base,
                end_offset=end,
                object_id=result.object.object_id,
                kind=ObjectKind.PARQUET,
                key=result.object.key,
                object_size=result.object.size,
                index_start=result.object.index_start,
                start=0,
                length=new.length,
                max_timestamp=new.max_timestamp,
                running_max_timestamp=old[-1].running_max_timestamp,
                commit_number=1,
                created_ms=T0,
                batches=[],
            )
        ]

    async def compact(self, target_bytes: int, max_runs: int = 1_000, seed: int = 0) -> list[RewriteResult]:
        """One round of the compactor's, whose tasks end in any order."""
        items = plan([self.candidate(max_runs)], PlanSettings(min(target_bytes, 500), target_bytes))
        random.Random(seed).shuffle(items)
        order = SwapOrder(items)
        results: list[RewriteResult] = []
        for item in items:
            outcome = await self.rewritten(item)
            assert isinstance(outcome, RewriteResult), outcome
            for result in order.add(outcome):
                self.swap(result)
                results.append(result)
        assert order.is_complete
        return results

    async def rewritten(self, item: WorkItem) -> RewriteResult | RewriteFailure:
        output = OutputLocation("c/", "c", until_ms=1 << 62)
        return await try_rewrite(item, self.store, output, clock=ManualClock(), entropy=self.entropy)

    async def consume(self, start: int, max_bytes: int, *, read_committed: bool = True) -> JavaLikeConsumer:
        """Fetch until the end, as an agent serves it. Each fetch must bring the consumer on."""
        ring = ZoneRing(Ring(1, []), "a", 1)
        cache = ChunkCache(self.store, CacheSettings(chunk_bytes=1000), lambda: ring)
        reader = BatchReader(cache, ManualClock(), POOL)
        consumer = JavaLikeConsumer(start, read_committed)
        end = self.stable if read_committed else self.end
        while consumer.position < end:
            position = consumer.position
            runs = [run for run in self.runs if run.end_offset > position]
            request = ReadRequest(offset=position, max_bytes=max_bytes, leader_epoch=0, end_limit=end)
            read = await reader.read(runs, request)
            overlapping = [
                each
                for each in self.aborted
                if each.first_offset < read.end_offset and each.last_offset >= position
            ]
            consumer.take(b"".join(read.parts), overlapping)
            assert consumer.position > position, "stuck"
            assert consumer.position == read.client_offset
            assert read.bytes <= max_bytes or read.batch_count == 1
        assert consumer.position >= end
        await reader.close()
        await cache.close()
        return consumer


class LogOf:
    """The log as a table's reader asks for it."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def topics(self) -> list[Topic]:
        return [Topic(TOPIC, "t", 1, {}, 0)]

    async def list_offsets(self, request: OffsetsRequest) -> OffsetsAnswer:
        raise AssertionError("no time is looked up")

    async def find_batches(self, request: FindRequest) -> FindAnswer:
        return FindAnswer(1, [self._found(asked.offset) for asked in request.partitions])

    def _found(self, offset: int) -> FoundPartition:
        runs = [run for run in self._log.runs if run.end_offset > offset][:3]
        end = runs[-1].end_offset if runs else 0
        aborted = [
            each for each in self._log.aborted if each.first_offset < end and each.last_offset >= offset
        ]
        return FoundPartition(
            error=PartitionError.NONE,
            log_start_offset=0,
            high_watermark=self._log.end,
            last_stable_offset=self._log.stable,
            leader_epoch=0,
            runs=runs,
            aborted=aborted,
        )

    async def close(self) -> None:
        pass


async def as_table(log: Log, start: int = 0) -> dict[int, bytes]:
    """What the Spark source gives: values by offset."""
    index = LogOf(log)
    reader = LogReader(index, log.store, ["offset", "value"])
    rows: dict[int, bytes] = {}
    ((partition, (_, stable)),) = (await reader.bounds(await index.topics())).items()
    wanted = OffsetRange(partition, start, max(start, stable))
    for task in await reader.cut([wanted], task_bytes=500):
        async for batch in reader.read_all(task):
            for row in batch.to_pylist():
                assert row["offset"] not in rows
                rows[row["offset"]] = row["value"]
    return rows


def seen(consumer: JavaLikeConsumer) -> dict[int, bytes | None]:
    assert [each.offset for each in consumer.records] == sorted({each.offset for each in consumer.records})
    return {each.offset: each.value for each in consumer.records}


PRODUCER = st.sampled_from([PLAIN, 1, 1, 2])
BATCH = st.tuples(PRODUCER, st.integers(1, 3), st.sampled_from([Compression.NONE, Compression.ZSTD]))
STEP = st.one_of(
    st.lists(BATCH, min_size=1, max_size=3),
    st.tuples(st.sampled_from([1, 1, 2]), st.booleans()),
    st.tuples(st.sampled_from([1, 1, 2]), st.booleans()),
    st.builds(lambda *of: of, st.sampled_from([200, 1_000, 1 << 20]), st.integers(1, 12), st.integers(0, 9)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEP, min_size=3, max_size=18), st.sampled_from([1, 300, 1 << 20]), st.data())
def test_consumers_see_the_same_before_and_after_compaction(
    steps: list[list[tuple[int, int, Compression]] | tuple[int, ...]], max_bytes: int, data: st.DataObject
) -> None:
    async def whole() -> None:
        log = Log(MemoryStore(ManualClock()))
        for step in steps:
            if isinstance(step, list):
                await log.write(*step)
            elif len(step) == 2:
                log.finish(step[0], bool(step[1]))
            else:
                before = await log.consume(0, max_bytes)
                assert await as_table(log) == log.committed
                await log.compact(*step)
                assert (await log.consume(0, max_bytes)).records == before.records
        before = await log.consume(0, max_bytes)
        assert seen(before) == log.committed
        everything = seen(await log.consume(0, max_bytes, read_committed=False))
        while await log.compact(1_000, 1_000):
            pass
        assert all(run.kind is ObjectKind.PARQUET for run in log.runs if run.end_offset <= log.stable)
        assert all(each.last_offset >= log.stable for each in log.aborted)
        assert (await log.consume(0, max_bytes)).records == before.records
        left = seen(await log.consume(0, max_bytes, read_committed=False))
        assert log.committed.items() <= left.items() <= everything.items()
        start = data.draw(st.integers(0, log.end))
        later = await log.consume(start, max_bytes)
        assert seen(later) == {at: value for at, value in log.committed.items() if at >= start}
        assert await as_table(log, start) == seen(later)

    asyncio.run(whole())


async def transacted(log: Log) -> None:
    """Producer 1 aborts, producer 2 commits, both around plain records."""
    await log.write((1, 2, Compression.NONE), (PLAIN, 1, Compression.NONE))
    await log.write((2, 2, Compression.NONE), (1, 3, Compression.NONE))
    log.finish(1, False)
    log.finish(2, True)


async def test_aborted_records_and_markers_are_dropped_and_the_counts_say_so() -> None:
    log = Log(MemoryStore(ManualClock()))
    await transacted(log)
    [result] = await log.compact(1 << 20)
    assert (result.row_count, result.aborted_count, result.marker_count) == (3, 5, 2)
    assert log.aborted == []
    assert [(run.kind, run.base_offset, run.end_offset) for run in log.runs] == [(ObjectKind.PARQUET, 0, 10)]
    assert seen(await log.consume(0, 1 << 20)) == log.committed


@pytest.mark.parametrize("outcomes", [(False, True), (True, False), (False, True, False, True)])
async def test_a_producers_transactions_one_after_the_other_are_kept_apart(
    outcomes: tuple[bool, ...],
) -> None:
    log = Log(MemoryStore(ManualClock()))
    for is_commit in outcomes:
        await log.write((1, 2, Compression.NONE))
        log.finish(1, is_commit)
    assert len(log.committed) == 2 * sum(outcomes)
    assert seen(await log.consume(0, 1 << 20)) == log.committed
    assert await as_table(log) == log.committed
    [result] = await log.compact(1 << 20)
    assert result.row_count == 2 * sum(outcomes)
    assert seen(await log.consume(0, 1 << 20)) == log.committed
    assert await as_table(log) == log.committed


async def test_an_empty_log_is_skipped_and_continues() -> None:
    log = Log(MemoryStore(ManualClock()))
    await log.write((1, 3, Compression.NONE))
    log.finish(1, False)
    [result] = await log.compact(1 << 20)
    assert (result.row_count, result.runs[0].max_timestamp) == (0, -1)
    consumer = await log.consume(0, 1)
    assert (consumer.records, consumer.position) == ([], 4)
    await log.write((PLAIN, 1, Compression.NONE))
    assert list(seen(await log.consume(0, 1 << 20))) == [4]
    assert await log.compact(1 << 20)
    assert list(seen(await log.consume(2, 1 << 20))) == [4]


async def test_an_open_transaction_behind_a_hole_blocks_nobody_before_it() -> None:
    log = Log(MemoryStore(ManualClock()))
    await log.write((1, 3, Compression.NONE))
    log.finish(1, False)
    await log.compact(1 << 20)
    await log.write((2, 3, Compression.NONE))
    assert (await log.consume(0, 1 << 20)).position == log.stable == 4


async def test_a_transaction_over_two_objects_keeps_its_marker_until_the_last_swap() -> None:
    log = Log(MemoryStore(ManualClock()))
    await log.write((1, 2, Compression.NONE))
    await log.write((1, 2, Compression.NONE), (PLAIN, 1, Compression.NONE))
    log.finish(1, False)
    await log.compact(1 << 20, max_runs=1)
    assert log.aborted == [AbortedTransaction(1, 2, 5)]
    assert seen(await log.consume(0, 1 << 20)) == log.committed
    await log.compact(1 << 20)
    assert log.aborted == []
    assert seen(await log.consume(0, 1 << 20)) == log.committed


def changed(item: WorkItem, aborted: Sequence[AbortedTransaction]) -> WorkItem:
    [piece] = item.pieces
    return WorkItem(item.topic_name, [Piece(piece.partition, piece.runs, list(aborted))])


@pytest.mark.parametrize(
    "aborted",
    [[AbortedTransaction(2, 3, 9)], [AbortedTransaction(1, 0, 6)], [AbortedTransaction(7, 0, 8)]],
)
async def test_an_aborted_range_without_its_marker_ends_nothing(aborted: list[AbortedTransaction]) -> None:
    log = Log(MemoryStore(ManualClock()))
    await transacted(log)
    [item] = plan([log.candidate(100)], PlanSettings())
    found = await log.rewritten(changed(item, aborted))
    assert isinstance(found, RewriteFailure) and "no marker" in found.reason


async def test_an_offset_that_no_batch_accounts_for_is_found() -> None:
    log = Log(MemoryStore(ManualClock()))
    await transacted(log)
    [item] = plan([log.candidate(100)], PlanSettings())
    [piece] = item.pieces
    short = msgspec.structs.replace(piece.runs[-1], end_offset=piece.end_offset + 1)
    bad = Piece(0, [*piece.runs[:-1], short], piece.aborted)
    found = await log.rewritten(WorkItem("t", [bad]))
    assert isinstance(found, RewriteFailure) and "are expected" in found.reason


async def test_a_flipped_producer_id_drops_no_record_in_silence() -> None:
    """Producer 2's committed batch, its id rotted to aborted 1's."""

    log = Log(MemoryStore(ManualClock()))
    await transacted(log)
    data = bytearray(await log.store.get("m/2"))
    assert read_header(data, 8).producer_id == 2
    data[8 + 50] = 1
    await log.store.delete(["m/2"])
    await log.store.put("m/2", [data])
    [item] = plan([log.candidate(100)], PlanSettings())
    found = await log.rewritten(item)
    assert isinstance(found, RewriteFailure) and "CRC" in found.reason


async def test_the_table_read_from_the_database_itself_has_committed_records_only(tmp_path: Path) -> None:
    clock, entropy = ManualClock(T0), SeededEntropy(1)
    url = f"sqlite:///{tmp_path}/rows.db"
    sequencer = Committer(SqlRowStore(url, clock=clock, entropy=entropy), clock, entropy)
    await sequencer.start()
    store = MemoryStore(clock)
    index = DatabaseIndex(url, clock, entropy)
    try:
        log = RealLog(sequencer, store, clock)
        await log.topic("t")
        good, bad = await log.producer("good"), await log.producer("bad")
        for number in range(3):
            await log.produce(
                ("t", 0, batch_of([b"g%d" % number], producer=good)),
                ("t", 0, batch_of([b"b%d" % number], producer=bad)),
            )
            await log.finish(bad, is_commit=False)
        await log.finish(good, is_commit=True)
        await log.produce(("t", 0, batch_of([b"open"], producer=good)))
        expected = [(each.offset, each.value) for each in await log.consumed("t")]
        assert [value for _, value in expected] == [b"g0", b"g1", b"g2"]
        reader = LogReader(index, store, ["offset", "value"])
        here = InProcess(store, clock, entropy)
        for _ in range(2):
            ((partition, edges),) = (await reader.bounds(await index.topics())).items()
            rows = [
                (row["offset"], row["value"])
                async for batch in reader.read(OffsetRange(partition, *edges))
                for row in batch.to_pylist()
            ]
            assert rows == expected
            all_there_is = CompactionSettings(min_bytes=1, min_age_ms=0)
            summary = await run_cycle(
                sequencer, here, clock=clock, entropy=entropy, settings=all_there_is, holder="this one"
            )
        assert (summary.failures, summary.refused) == ([], [])
    finally:
        await index.close()
        await sequencer.close()


async def test_results_that_come_in_any_order_are_swapped_in_the_order_of_offsets() -> None:
    log = Log(MemoryStore(ManualClock()))
    for _ in range(12):
        await log.write((1, 3, Compression.NONE))
    log.finish(1, False)
    results = await log.compact(250, seed=3)
    assert len(results) > 2
    assert log.aborted == []
