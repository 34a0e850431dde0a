"""The Spark source without Spark: what it reads and refuses, and that it never loses records silently."""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import compactor.rewrite as rewrite_module
from compactor.cycle import CompactionSettings, InProcess, run_cycle
from compactor.spark_source.columns import COLUMNS, spark_schema, with_kafkas_headers
from compactor.spark_source.log_index import SequencerIndex
from compactor.spark_source.log_reader import (
    JOINED_BATCHES,
    JOINED_BYTES,
    SPLITS,
    TASK_BYTES,
    BatchCoalescer,
    DamagedRecords,
    DataLost,
    LogPartition,
    LogReader,
    OffsetRange,
    Splits,
    UnreadableRecords,
)
from compactor.spark_source.options import Position, SourceOptions
from compactor.spark_source.positions import (
    StreamOffset,
    UnknownLog,
    batch_ranges,
    chosen_bounds,
    offsets_at,
    ranges_between,
)
from compactor.spark_source.pushdown import IntegerRange, Limits, push
from compactor.spark_source.source import BatchSource, DefaultSource, StreamSource
from sequencer.api.groups import CommitOffsets, OffsetPosition
from sequencer.api.reads import FindAnswer, FindRequest, Run
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import DeleteTopic, Topic
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from tailrace.batches.record_batch import Compression
from tailrace.object_store.api import ObjectMissing
from tailrace.parquet_object.schema import GREATEST_TIME_MS
from tailrace.parquet_object.write import write_parquet
from tests.support.compaction import T0, Log, batch_of, memory_log, unreadable_batch

OLD, NEW = UUID(int=1), UUID(int=2)
P0, P1, P2 = (LogPartition("t", OLD, number) for number in range(3))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class CountedIndex(SequencerIndex):
    """A sequencer's index that counts what it is asked."""

    def __init__(self, sequencer: Committer) -> None:
        super().__init__(sequencer)
        self.calls = 0

        async def counted(request: FindRequest) -> FindAnswer:
            self.calls += 1
            return await sequencer.find_batches(request)

        self.find_batches = counted

    async def topics(self) -> list[Topic]:
        self.calls += 1
        return await super().topics()


@asynccontextmanager
async def opened_log() -> AsyncIterator[tuple[Log, CountedIndex]]:
    async with memory_log() as (log, _):
        yield log, CountedIndex(log.sequencer)


async def delete_records(log: Log, partition: int, offset: int) -> None:
    asked = DeleteRecordsPartition(log.topics["t"].topic_id, partition, offset)
    await log.sequencer.delete_records(DeleteRecords([asked]))
    await log.sequencer.apply_retention(Empty())


async def compact(log: Log) -> None:
    runner = InProcess(log.store, log.clock, log.entropy)
    all_there_is = CompactionSettings(min_bytes=1, min_age_ms=0, merges=False)
    await run_cycle(log.sequencer, runner, clock=log.clock, entropy=log.entropy, settings=all_there_is)


def of_topic(topic: Topic, partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(LogPartition(topic.name, topic.topic_id, partition), start, end)


async def offsets_read(reader: LogReader, *wanted: OffsetRange) -> list[int]:
    return [
        row["offset"]
        for task in await reader.cut(wanted)
        async for batch in reader.read_all(task)
        for row in batch.to_pylist()
    ]


async def test_records_below_the_log_start_are_lost_not_left_out_unless_the_reader_is_told_to_pass_over_them() -> (
    None
):
    async with opened_log() as (log, index):
        topic = await log.topic("t")
        for value in (b"a", b"b", b"c", b"d"):
            await log.produce(("t", 0, batch_of([value])))
        await delete_records(log, 0, 3)
        strict = LogReader(index, log.store, ["offset"])
        for wanted in (of_topic(topic, 0, 1, 4), of_topic(topic, 0, 1, 2)):
            with pytest.raises(DataLost, match=r"partition 0: offsets 1 to .*log start to 3.*failOnDataLoss"):
                await strict.cut([wanted])
            with pytest.raises(DataLost):
                [each async for each in strict.read(wanted)]
        assert await offsets_read(strict, of_topic(topic, 0, 3, 4)) == [3]
        lenient = LogReader(index, log.store, ["offset"], passes_over_lost=True)
        assert await offsets_read(lenient, of_topic(topic, 0, 1, 4)) == [3]
        assert await offsets_read(lenient, of_topic(topic, 0, 1, 2)) == []


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
async def test_records_that_cannot_be_decoded_fail_a_query_unless_it_is_told_to_pass_over_them(
    codec: Compression,
) -> None:
    async with opened_log() as (log, index):
        topic = await log.topic("t")
        bad = ("t", 0, unreadable_batch([b"x", b"y"], codec))
        await log.produce(("t", 0, batch_of([b"a", b"b"])), bad, ("t", 0, batch_of([b"c"])))
        await log.produce(bad, ("t", 0, batch_of([b"d"])))
        whole = of_topic(topic, 0, 0, 8)
        says = r"topic 't', partition 0: offsets 2 to 3 can't be decoded: .*failOnUnreadable=false"
        with pytest.raises(UnreadableRecords, match=says):
            await offsets_read(LogReader(index, log.store, ["offset"]), whole)
        reader = LogReader(index, log.store, ["offset"], passes_over_unreadable=True)
        assert await offsets_read(reader, whole) == [0, 1, 4, 7]
        assert reader.unreadable == 4


async def test_a_log_that_is_shorter_than_what_is_to_be_read_is_a_loss() -> None:
    async with opened_log() as (log, index):
        topic = await log.topic("t")
        await log.produce(("t", 0, batch_of([b"a", b"b"])))
        strict = LogReader(index, log.store, ["offset"])
        for wanted in (of_topic(topic, 0, 0, 5), of_topic(topic, 0, 3, 5)):
            with pytest.raises(DataLost, match=r"offsets . to 4 are lost, as the log is shorter.*ends at 2"):
                await strict.cut([wanted])
        lenient = LogReader(index, log.store, ["offset"], passes_over_lost=True)
        assert await offsets_read(lenient, of_topic(topic, 0, 0, 5)) == [0, 1]
        assert await offsets_read(lenient, of_topic(topic, 0, 3, 5)) == []


async def test_a_query_starts_at_what_a_group_has_committed() -> None:
    def starting(**options: str) -> Position:
        given = {"store": "/s", "sequencer": "127.0.0.1:1", "subscribe": "t", "startingGroup": "g"} | options
        position = SourceOptions.of(given).starting
        assert position is not None
        return position

    async with opened_log() as (log, index):
        topic = await log.topic("t", 2)
        for partition in (0, 1):
            await log.produce(("t", partition, batch_of([b"a", b"b", b"c"])))
        reader = LogReader(index, log.store, ["offset"])
        bounds = await reader.bounds(await index.topics())
        first, second = bounds
        with pytest.raises(ValueError, match="group 'g' has no offsets of these topics"):
            await offsets_at(starting(), bounds, reader, if_none="error")
        committed = [OffsetPosition(topic.topic_id, 0, 2, -1, "")]
        await log.sequencer.commit_offsets(CommitOffsets("g", -1, 0, -1, "", committed))
        for options, expected in (({}, 0), ({"startingOffsets": "latest"}, 3)):
            found = await offsets_at(starting(**options), bounds, reader, if_none="error")
            assert found == {first: 2, second: expected}
    for options in ({"startingOffsets": '{"t": {"0": 1}}'}, {"startingTimestamp": "5"}):
        with pytest.raises(ValueError, match="option 'startingGroup'"):
            starting(**options)


async def test_a_topic_that_was_made_again_is_not_read_in_the_place_of_the_old_one() -> None:
    async with opened_log() as (log, index):
        old = await log.topic("t")
        await log.produce(("t", 0, batch_of([b"old"])))
        await log.sequencer.delete_topic(DeleteTopic(old.topic_id))
        new = await log.topic("t")
        await log.produce(("t", 0, batch_of([b"new"])))
        reader = LogReader(index, log.store, ["offset"])
        with pytest.raises(DataLost, match="the topic or the partition was deleted"):
            await reader.cut([of_topic(old, 0, 0, 1)])
        assert await reader.bounds(await index.topics()) == {LogPartition("t", new.topic_id, 0): (0, 1)}


async def test_thin_partitions_share_a_task_and_a_handful_of_calls_plan_them() -> None:
    async with opened_log() as (log, index):
        await log.topic("t", 200)
        for _ in range(3):
            await log.produce(*(("t", partition, batch_of([b"x" * 100])) for partition in range(200)))
        reader = LogReader(index, log.store, ["offset"])
        index.calls = 0
        bounds = await reader.bounds(await index.topics())
        assert list(bounds.values()) == [(0, 3)] * 200
        everything = [OffsetRange(partition, *edges) for partition, edges in bounds.items()]
        assert await reader.cut(everything) == [everything]
        assert index.calls <= 5
        index.calls = 0
        (batch,) = [batch async for batch in reader.read_all(everything)]
        assert batch.num_rows == 600, "small ones are joined"
        assert index.calls <= 10
        tasks = await reader.cut(everything, min_tasks=4)
        assert 4 <= len(tasks) <= 5 and [each for task in tasks for each in task][:2] == everything[:2]


@pytest.mark.parametrize("gone", [0, 1])
async def test_what_partitions_have_of_a_mixed_object_is_read_together_or_asked_for_again(
    gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_log() as (log, index):
        await log.topic("t", 50)
        for _ in range(3):
            await log.produce(*(("t", partition, batch_of([b"x", b"y"])) for partition in range(50)))
        reader = LogReader(index, log.store, ["partition", "offset"])
        bounds = await reader.bounds(await index.topics())
        get_range, calls = log.store.get_range, 0

        async def counted(key: str, start: int, length: int) -> bytes:
            nonlocal calls
            calls += 1
            if calls <= gone:
                raise ObjectMissing(key)
            return await get_range(key, start, length)

        monkeypatch.setattr(log.store, "get_range", counted)
        everything = [OffsetRange(partition, start, end - 1) for partition, (start, end) in bounds.items()]
        (batch,) = [batch async for batch in reader.read_all(everything)]
        read = [(row["partition"], row["offset"]) for row in batch.to_pylist()]
        assert read == [(partition, offset) for partition in range(50) for offset in range(5)]
        assert calls == 3 + 50 * gone


async def test_partitions_are_read_ahead_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactor.spark_source.log_reader.AHEAD_BYTES", 300_000)

    async with opened_log() as (log, index):
        await log.topic("t", 3)
        for size in (10, 50_000, 250_000):
            await log.produce(*(("t", partition, batch_of([b"x" * size])) for partition in range(2)))
        await log.produce(("t", 2, batch_of([b"x"])))
        reader = LogReader(index, log.store, ["partition", "offset"])
        bounds = await reader.bounds(await index.topics())
        most = 0
        read_ahead = reader._read_ahead

        async def watched(runs: list[Run]) -> dict[tuple[str, int], memoryview]:
            nonlocal most
            found = await read_ahead(runs)
            most = max(most, sum(map(len, found.values())))
            return found

        monkeypatch.setattr(reader, "_read_ahead", watched)
        everything = [OffsetRange(partition, *edges) for partition, edges in bounds.items()]
        found = [row async for batch in reader.read_all(everything) for row in batch.to_pylist()]
        assert [(row["partition"], row["offset"]) for row in found] == [
            (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)
        ]  # fmt: skip
        assert 0 < most < 300_000


async def test_a_footer_and_a_row_group_that_partitions_share_are_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened_log() as (log, index):
        await log.topic("t", 50)
        await log.produce(*(("t", partition, batch_of([b"x", b"y"])) for partition in range(50)))
        await compact(log)
        reader = LogReader(index, log.store, ["partition", "offset"])
        bounds = await reader.bounds(await index.topics())
        asked: Counter[str] = Counter()
        get_range = log.store.get_range

        async def counted(key: str, start: int, length: int) -> bytes:
            asked[key] += 1
            return await get_range(key, start, length)

        monkeypatch.setattr(log.store, "get_range", counted)
        everything = [OffsetRange(partition, *edges) for partition, edges in bounds.items()]
        (batch,) = [batch async for batch in reader.read_all(everything)]
        read = [(row["partition"], row["offset"]) for row in batch.to_pylist()]
        assert read == [(partition, offset) for partition in range(50) for offset in range(2)]
        assert list(asked.values()) == [2]


async def test_columns_that_nobody_asked_for_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened_log() as (log, index):
        topic = await log.topic("t")
        await log.produce(("t", 0, batch_of([os.urandom(50_000)] * 2)))
        await compact(log)
        asked: list[int] = []
        get_range = log.store.get_range

        async def counted(key: str, start: int, length: int) -> bytes:
            asked.append(length)
            return await get_range(key, start, length)

        monkeypatch.setattr(log.store, "get_range", counted)
        whole = of_topic(topic, 0, 0, 2)
        assert await offsets_read(LogReader(index, log.store, ["offset", "timestamp"]), whole) == [0, 1]
        assert sum(asked) < 20_000
        assert await offsets_read(LogReader(index, log.store, ["offset", "value"]), whole) == [0, 1]
        assert sum(asked) > 50_000


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.integers(0, 3), max_size=20))
def test_record_batches_are_joined_in_order_and_a_large_one_is_passed_on(sizes: list[int]) -> None:
    counts = [JOINED_BYTES // 8 if size == 3 else size for size in sizes]
    batches = [pa.record_batch({"n": np.full(count, number)}) for number, count in enumerate(counts)]
    joined = BatchCoalescer()
    found = [ready for batch in batches for ready in joined.add(batch)] + list(joined.rest())
    assert [n for batch in found for n in batch["n"].unique().to_pylist()] == [
        number for number, count in enumerate(counts) if count
    ]
    large = [batch for batch in batches if batch.nbytes >= JOINED_BYTES]
    assert all(any(batch is each for each in found) for batch in large)
    assert all(batch.nbytes <= 2 * JOINED_BYTES for batch in found)


def test_few_of_the_smallest_record_batches_wait_to_be_joined() -> None:
    joined, one = BatchCoalescer(), pa.record_batch({"n": [1]})
    found = []
    for _ in range(3 * JOINED_BATCHES + 1):
        found += joined.add(one)
        assert len(joined._held) <= JOINED_BATCHES
    assert [batch.num_rows for batch in [*found, *joined.rest()]] == [JOINED_BATCHES] * 3 + [1]


def test_very_many_runs_are_fewer_pieces() -> None:
    partitions = [LogPartition("t", UUID(int=1), number) for number in range(2)]
    pieces = Splits(TASK_BYTES)
    for partition in partitions:
        for offset in range(50_000):
            pieces.add(OffsetRange(partition, offset, offset + 1), 1_000)
    assert pieces.total_bytes == sum(size for _, size in pieces.held) == 100_000_000
    assert len(pieces.held) < 25_000
    assert max(size for _, size in pieces.held) <= 100_000_000 // SPLITS
    for partition in partitions:
        ends = [(piece.start, piece.end) for piece, _ in pieces.held if piece.partition == partition]
        assert [end for _, end in ends[:-1]] == [start for start, _ in ends[1:]]
        assert (ends[0][0], ends[-1][1]) == (0, 50_000)


def test_no_piece_of_a_large_scan_is_larger_than_a_task() -> None:
    pieces = Splits(3_000)
    for offset in range(50_000):
        pieces.add(OffsetRange(LogPartition("t", UUID(int=1), 0), offset, offset + 1), 1_000)
    assert max(size for _, size in pieces.held) == 3_000 < pieces.total_bytes // SPLITS


async def test_a_thick_partition_is_cut_between_runs() -> None:
    async with opened_log() as (log, index):
        topic = await log.topic("t")
        for _ in range(6):
            await log.produce(("t", 0, batch_of([b"x" * 1_000] * 2)))
        reader = LogReader(index, log.store, ["offset"])
        tasks = await reader.cut([of_topic(topic, 0, 1, 11)], task_bytes=4_000)
        assert [[part[1:] for part in task] for task in tasks] == [[(1, 4)], [(4, 8)], [(8, 11)]]
        assert await offsets_read(reader, of_topic(topic, 0, 1, 11)) == list(range(1, 11))


async def test_a_large_parquet_file_is_cut_between_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite_module, "write_parquet", partial(write_parquet, row_group_bytes=3_000))

    async with opened_log() as (log, index):
        topic = await log.topic("t")
        for _ in range(6):
            await log.produce(("t", 0, batch_of([b"x" * 1_000] * 2)))
        await compact(log)
        reader = LogReader(index, log.store, ["offset"])
        whole = of_topic(topic, 0, 1, 11)
        assert len(await reader.cut([whole])) == 1
        tasks = await reader.cut([whole], task_bytes=100)
        assert [[part[1:] for part in task] for task in tasks] == [
            [(1, 2)], [(2, 4)], [(4, 6)], [(6, 8)], [(8, 10)], [(10, 11)]
        ]  # fmt: skip
        read = [
            row["offset"]
            for task in tasks
            async for each in reader.read_all(task)
            for row in each.to_pylist()
        ]
        assert read == list(range(1, 11))


async def test_a_large_parquet_file_that_is_damaged_is_named_by_the_task_that_reads_it() -> None:
    async with opened_log() as (log, index):
        topic = await log.topic("t")
        await log.produce(("t", 0, batch_of([b"x" * 1_000] * 2)))
        await compact(log)
        async for info in log.store.list(""):
            await log.store.put(info.key, [bytes(info.size)])
        reader = LogReader(index, log.store, ["offset"])
        ((whole,),) = await reader.cut([of_topic(topic, 0, 0, 2)], task_bytes=100)
        with pytest.raises(DamagedRecords, match=r"offsets 0 to 1 are damaged.*startingOffsets") as raised:
            await offsets_read(reader, whole)
        assert "startingOffsets" not in raised.value.damage
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


async def test_a_batch_that_cannot_be_decoded_counts_once_over_two_ranges() -> None:
    async with opened_log() as (log, index):
        topic = await log.topic("t")
        await log.produce(("t", 0, unreadable_batch([b"x"] * 5)))
        reader = LogReader(index, log.store, ["offset"], passes_over_unreadable=True)
        for start, end in ((0, 2), (2, 5)):
            assert await offsets_read(reader, of_topic(topic, 0, start, end)) == []
        assert reader.unreadable == 5


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_a_time_is_where_the_first_record_at_or_after_it_is(is_compacted: bool) -> None:
    async with opened_log() as (log, index):
        topic = await log.topic("t", 2)
        for second in range(3):
            await log.produce(("t", 0, batch_of([b"a", b"b", b"c"], at=T0 + 1_000 * second)))
        if is_compacted:
            await compact(log)
        reader = LogReader(index, log.store, ["value"])
        bounds = await reader.bounds(await index.topics())
        first, second = (LogPartition("t", topic.topic_id, number) for number in range(2))
        for time_ms, offset in ((T0 - 5, 0), (T0 + 2, 2), (T0 + 3, 3), (T0 + 1_000, 3), (T0 + 2_002, 8)):
            found = await offsets_at(Position("o", time_ms=time_ms), bounds, reader, if_none="latest")
            assert found == {first: offset, second: 0}
        with pytest.raises(ValueError, match=r"partition 1 has no record at or after"):
            await offsets_at(Position("startingTimestamp", time_ms=T0), bounds, reader, if_none="error")
        times = {"t": {0: T0 + 5_000, 1: 0}}
        late = await offsets_at(Position("o", times_ms=times), bounds, reader, if_none="latest")
        assert late == {first: 9, second: 0}


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_a_time_beyond_microseconds_is_where_the_first_record_at_or_after_it_is(
    is_compacted: bool,
) -> None:
    """Nanoseconds that a producer sends as milliseconds by mistake are such times."""

    async with opened_log() as (log, index):
        topic = await log.topic("t")
        times = [-(2**62), GREATEST_TIME_MS, T0 * 10**6, 2**62, 2**63 - 1]
        for at in times:
            await log.produce(("t", 0, batch_of([b"v"], at=at)))
        if is_compacted:
            await compact(log)
        reader = LogReader(index, log.store, ["value"])
        bounds = await reader.bounds(await index.topics())
        for offset, at in enumerate(times[1:], 1):
            for time_ms in (max(0, times[offset - 1] + 1), at):
                found = await offsets_at(Position("o", time_ms=time_ms), bounds, reader, if_none="error")
                assert found == {LogPartition("t", topic.topic_id, 0): offset}
        until = LogReader(index, log.store, ["offset"], limits=Limits(times_us=IntegerRange(last=-1)))
        assert await offsets_read(until, of_topic(topic, 0, 0, 5)) == [0]


@pytest.mark.parametrize("form", ["%d", '{"t": {"0": %d}}'])
@pytest.mark.parametrize("side", ["starting", "ending"])
def test_a_time_or_offset_of_more_than_64_bits_is_refused(side: str, form: str) -> None:
    names = [f"{side}Timestamp"] if form == "%d" else [f"{side}Offsets", f"{side}OffsetsByTimestamp"]
    for name in names:
        SourceOptions.of({**STORE, "subscribe": "t", name: form % (2**63 - 1)})
        with pytest.raises(ValueError, match=f"option '{name}'.*{2**63 - 1}"):
            SourceOptions.of({**STORE, "subscribe": "t", name: form % 2**63})


async def test_an_aborted_record_of_that_time_hides_none_that_came_later() -> None:
    async with opened_log() as (log, index):
        topic = await log.topic("t")
        producer = await log.producer("p")
        await log.produce(("t", 0, batch_of([b"aborted"], at=T0 + 9_000, producer=producer)))
        await log.finish(producer, is_commit=False)
        await log.produce(("t", 0, batch_of([b"old"], at=T0)))
        await log.produce(("t", 0, batch_of([b"a", b"b"], at=T0 + 4_999)))
        reader = LogReader(index, log.store, ["value"])
        bounds = await reader.bounds(await index.topics())
        found = await offsets_at(Position("o", time_ms=T0 + 5_000), bounds, reader, if_none="error")
        assert found == {LogPartition("t", topic.topic_id, 0): 4}


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_a_query_reads_only_what_its_filters_want(is_compacted: bool) -> None:
    async with opened_log() as (log, index):
        await log.topic("t", 3)
        await log.topic("u")
        for second in range(3):
            batch = batch_of([b"a", b"b", b"c"], at=T0 + 1_000 * second)
            await log.produce(*(("t", number, batch) for number in range(3)), ("u", 0, batch))
        if is_compacted:
            await compact(log)
        options = SourceOptions.of({**STORE, "subscribe": "t, u"})

        async def read(*filters: Filter) -> list[tuple[str, int, int]]:
            limits, left = push(Limits(), filters)
            assert left == []
            reader = LogReader(index, log.store, ["topic", "partition", "offset"], limits=limits)
            bounds = await chosen_bounds(reader, await index.topics(), options.topics)
            tasks = await reader.cut(await batch_ranges(options, bounds, reader, limits))
            return [
                tuple(row.values())
                for task in tasks
                async for batch in reader.read_all(task)
                for row in batch.to_pylist()
            ]

        def at(ms: int) -> datetime:
            return EPOCH + timedelta(milliseconds=T0 + ms)

        time = ("timestamp",)
        assert len(await read()) == 36
        assert await read(EqualTo(("partition",), 1), GreaterThan(("offset",), 6)) == [
            ("t", 1, 7),
            ("t", 1, 8),
        ]
        assert await read(EqualTo(("topic",), "u"), LessThanOrEqual(("offset",), 1)) == [
            ("u", 0, 0),
            ("u", 0, 1),
        ]
        assert {number for _, number, _ in await read(In(("partition",), (2, 1)))} == {1, 2}
        assert await read(EqualTo(("partition",), 2), GreaterThanOrEqual(time, at(2_001))) == [
            ("t", 2, 7), ("t", 2, 8)
        ]  # fmt: skip
        within = [GreaterThan(time, at(1)), LessThan(time, at(1_001)), EqualTo(("partition",), 1)]
        assert await read(*within) == [("t", 1, 2), ("t", 1, 3)]

        async def never(key: str, start: int, length: int) -> bytes:
            raise AssertionError(f"{key} is read for a time that no object reaches")

        log.store.get_range = never  # type: ignore[method-assign]
        assert await read(GreaterThan(time, at(60_000))) == []


def test_a_filter_is_taken_over_only_where_it_is_applied_exactly() -> None:
    mine = [
        GreaterThan(("offset",), 3), LessThanOrEqual(("offset",), 9), IsNotNull(("timestamp",)),
        EqualTo(("topic",), "t"), In(("topic",), ("t", "u")),
        GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(microseconds=7)),
    ]  # fmt: skip
    sparks = [
        Not(EqualTo(("offset",), 4)), IsNotNull(("key",)), EqualTo(("value",), b"x"), StringStartsWith(("topic",), "t"),
        EqualTo(("headers", "key"), "h"), EqualTo(("offset",), True), GreaterThan(("timestamp",), datetime(2020, 1, 1)),
    ]  # fmt: skip
    limits, left = push(Limits(), [*mine, *sparks])
    assert left == sparks
    assert limits == Limits(topics=frozenset("t"), offsets=IntegerRange(4, 9), times_us=IntegerRange(first=7))


async def test_several_topics_are_chosen_by_name_by_pattern_or_by_partition() -> None:
    async with opened_log() as (log, index):
        for name in ("a1", "a2", "b"):
            await log.topic(name, 2)
        reader = LogReader(index, log.store, ["offset"])

        async def chosen(given: dict[str, str]) -> list[tuple[str, int]]:
            choice = SourceOptions.of(STORE | given).topics
            bounds = await chosen_bounds(reader, await index.topics(), choice)
            return sorted((each.topic, each.number) for each in bounds)

        assert await chosen({"subscribe": "b,a1"}) == [("a1", 0), ("a1", 1), ("b", 0), ("b", 1)]
        assert await chosen({"subscribePattern": "a."}) == [("a1", 0), ("a1", 1), ("a2", 0), ("a2", 1)]
        assert await chosen({"subscribePattern": "a"}) == []
        assert await chosen({"assign": '{"b": [1], "a1": [0]}'}) == [("a1", 0), ("b", 1)]
        for given, says in (
            ({"subscribe": "a1,c"}, "no topic 'c'"),
            ({"assign": '{"b": [2]}'}, "no partition 2"),
        ):
            with pytest.raises(UnknownLog, match=says):
                await chosen(given)


def test_a_stream_that_meets_another_topic_of_its_name_fails_or_begins_with_it() -> None:
    again = [LogPartition("t", NEW, number) for number in range(2)]
    before, after = StreamOffset({P0: 5}), StreamOffset({again[0]: 3, again[1]: 2})
    with pytest.raises(DataLost, match="'t': it was deleted and made again"):
        ranges_between(before, after, fails_on_data_loss=True)
    begun = [OffsetRange(again[0], 0, 3), OffsetRange(again[1], 0, 2)]
    assert ranges_between(before, after, fails_on_data_loss=False) == begun


def test_a_stream_reads_what_came_since_and_new_partitions_and_topics_from_their_beginning() -> None:
    other = LogPartition("u", NEW, 0)
    before, after = StreamOffset({P0: 5, P1: 7}), StreamOffset({P0: 9, P1: 7, P2: 4, other: 2})
    assert ranges_between(before, after, fails_on_data_loss=True) == [
        OffsetRange(P0, 5, 9), OffsetRange(P2, 0, 4), OffsetRange(other, 0, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ({P0: 4}, "ends at 4, the stream has read it up to 5"),
        ({P1: 9}, "partition 0 is gone"),
        ({}, "it was deleted since"),
    ],
)
def test_a_stream_whose_partition_became_shorter_or_went_fails(
    after: dict[LogPartition, int], why: str
) -> None:
    with pytest.raises(DataLost, match=why):
        ranges_between(StreamOffset({P0: 5}), StreamOffset(after), fails_on_data_loss=True)


def test_a_streams_offset_is_read_back_and_one_of_another_source_is_refused() -> None:
    offset = StreamOffset({P0: 5, P2: 7, LogPartition("u", NEW, 0): 1})
    assert StreamOffset.of(json.loads(json.dumps(offset.kept()))) == offset
    with pytest.raises(ValueError, match="start the stream with a new checkpoint"):
        StreamOffset.of({"t": {"0": 5}})


STORE = {"store": "s", "sequencer": "127.0.0.1:1"}
GIVEN = STORE | {"topic": "t"}
BOUNDS = {P0: (3, 9), P1: (0, 4)}


@pytest.mark.parametrize(
    ("given", "offsets"),
    [
        ("earliest", {P0: 3, P1: 0}),
        ("latest", {P0: 9, P1: 4}),
        ('{"t": {"0": -1, "1": -2}}', {P0: 9, P1: 0}),
        ('{"t": {"0": 5, "1": 0}}', {P0: 5, P1: 0}),
    ],
)
async def test_a_query_starts_where_it_is_told_to(given: str, offsets: dict[LogPartition, int]) -> None:
    async with opened_log() as (log, index):
        starting = SourceOptions.of(GIVEN | {"startingOffsets": given}).starting
        assert starting is not None
        reader = LogReader(index, log.store, ["offset"])
        assert await offsets_at(starting, BOUNDS, reader, if_none="error") == offsets


def test_a_record_without_headers_has_null_as_in_sparks_kafka_source() -> None:
    kind = COLUMNS["headers"].arrow
    header = {"key": "h", "value": None}
    for headers in ([[header], [], [header, header], None], [[], []], [[header]], []):
        batch = pa.record_batch({"headers": pa.array([[], *headers], kind)}).slice(1)
        found = with_kafkas_headers(batch)
        assert found.schema == batch.schema
        assert found.column(0).to_pylist() == [each or None for each in headers]
    plain = pa.record_batch({"offset": [1]})
    assert with_kafkas_headers(plain) is plain


def test_columns_are_those_of_sparks_kafka_source_and_headers_come_when_asked_for() -> None:
    plain = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp_ltz,"
        " timestampType int"
    )
    assert spark_schema(SourceOptions.of(GIVEN).columns) == plain
    headers = ", headers array<struct<key: string, value: binary>>"
    assert spark_schema(SourceOptions.of(GIVEN | {"includeheaders": "true"}).columns) == plain + headers
    assert (
        spark_schema(SourceOptions.of(GIVEN | {"columns": "offset,key"}).columns)
        == "offset bigint, key binary"
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"maxOffsetPerTrigger": "100"}, "maxOffsetPerTrigger are unknown; there are store, sequencer"),
        ({"maxoffsetspertrigger": "100"}, "'maxOffsetsPerTrigger' is not supported: Spark does not tell"),
        ({"kafka.bootstrap.servers": "h:9092"}, "not a broker; give 'store'"),
        ({"option.store": "s", "owner": "me", "provider": "tailrace"}, "use CREATE TEMPORARY VIEW .* USING"),
        ({"store": ""}, "'store' is missing; .*WITH"),
        ({"subscribe": "t"}, "options subscribe, topic given; expected one of"),
        ({"topic": ""}, "none given; expected one of"),
        ({"topic": "", "subscribePattern": "a("}, "'subscribePattern': 'a\\('"),
        ({"topic": "", "assign": "t"}, "'assign': 't'; expected JSON"),
        ({"startingOffsets": "soon"}, "'startingOffsets': 'soon'; expected 'earliest', 'latest', or"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "no number is below -2"),
        ({"startingOffsets": '{"0": 3}'}, "'startingOffsets'.*expected"),
        ({"startingOffsets": '{"t": {"0": 1.5}}'}, "'startingOffsets'.*expected"),
        ({"endingTimestamp": "now"}, "'endingTimestamp': 'now'; expected a time in ms"),
        ({"startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "no number is below 0"),
        ({"startingOffsetsByTimestampStrategy": "skip"}, "expected 'error' or 'latest'"),
        ({"failOnDataLoss": "maybe"}, "'failOnDataLoss': 'maybe'; expected true or false"),
        ({"minPartitions": "0"}, "'minPartitions': '0'; expected a whole number above 0"),
        ({"columns": "offset,size"}, "'columns': 'offset,size'; allowed, once each"),
        ({"database": "sqlite:///x"}, "give one of the options"),
    ],
)
def test_an_option_that_is_wrong_or_unknown_is_refused_by_name(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SourceOptions.of(GIVEN | given)


def test_a_schema_that_is_given_must_be_the_sources_own() -> None:
    """Spark takes our columns by their places, whatever their names are: the key would be in `value`."""
    source = DefaultSource(GIVEN | {"columns": "key,value,timestamp,headers"})
    key, value = StructField("key", BinaryType()), StructField("value", BinaryType())
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    headers = StructField("headers", ArrayType(header))
    own = StructType([key, value, StructField("timestamp", TimestampType()), headers])
    assert isinstance(source.reader(own), BatchSource)
    assert isinstance(source.streamReader(own), StreamSource)
    other = StructType([value, key, StructField("timestamp", TimestampType()), headers])
    for given in (other, StructType([StructField("value", StringType())])):
        for read in (source.reader, source.streamReader):
            with pytest.raises(
                ValueError, match=r"has the columns key binary, value binary, .* without a schema"
            ):
                read(given)


async def test_offsets_name_each_partition_and_a_stream_has_no_end() -> None:
    async with opened_log() as (log, index):
        reader = LogReader(index, log.store, ["offset"])
        with pytest.raises(ValueError, match=r"'startingOffsets' names other partitions than are read.*t-1"):
            await offsets_at(
                Position("startingOffsets", offsets={"t": {0: 3}}), BOUNDS, reader, if_none="error"
            )
    with pytest.raises(ValueError, match="'endingTimestamp': a stream has no end"):
        StreamSource(SourceOptions.of(GIVEN | {"endingTimestamp": "1"}))
