"""What the Spark source reads, what it refuses, and that it loses nothing in silence: without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

pytest.importorskip("pyspark")

from compactor.spark_source.log_reader import AskedIndex, DataLost, LogReader, OffsetRange, TopicBounds
from compactor.spark_source.source import (
    SourceOptions,
    StreamOffset,
    StreamSource,
    offsets_at,
    ranges_between,
)
from sequencer.api import DeleteRecords, DeleteRecordsPartition, DeleteTopic, Empty, FindAnswer, FindRequest
from sequencer.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.compaction import Log, batch_of

OLD, NEW = UUID(int=1), UUID(int=2)


class CountedIndex(AskedIndex):
    """A sequencer's index that counts what it is asked."""

    calls = 0

    async def find(self, request: FindRequest) -> FindAnswer:
        self.calls += 1
        return await super().find(request)


def on_a_log(scenario: Callable[[Log, CountedIndex], Awaitable[None]]) -> None:
    async def whole() -> None:
        clock = ManualClock()
        sequencer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1))
        await sequencer.start()
        await scenario(Log(sequencer.sequencer, MemoryStore(clock), clock), CountedIndex(sequencer.sequencer))
        await sequencer.close()

    asyncio.run(whole())


async def delete_records(log: Log, partition: int, offset: int) -> None:
    asked = DeleteRecordsPartition(log.topics["t"].topic_id, partition, offset)
    await log.sequencer.delete_records(DeleteRecords([asked]))
    await log.sequencer.apply_retention(Empty())


async def offsets_read(reader: LogReader, topic_id: UUID, *wanted: OffsetRange) -> list[int]:
    return [
        row["offset"]
        for task in await reader.cut(topic_id, wanted)
        for part in task
        async for batch in reader.read(topic_id, part)
        for row in batch.to_pylist()
    ]


def test_records_below_the_log_start_are_lost_not_left_out_unless_the_reader_is_told_to_pass_over_them() -> (
    None
):
    async def scenario(log: Log, index: CountedIndex) -> None:
        topic = await log.topic("t")
        for value in (b"a", b"b", b"c", b"d"):
            await log.produce(("t", 0, batch_of([value])))
        await delete_records(log, 0, 3)
        strict = LogReader(index, log.store, "t", ["offset"])
        for wanted in (OffsetRange(0, 1, 4), OffsetRange(0, 1, 2)):
            with pytest.raises(DataLost, match=r"partition 0: offsets 1 to .*log start to 3.*failOnDataLoss"):
                await strict.cut(topic.topic_id, [wanted])
            with pytest.raises(DataLost):
                [each async for each in strict.read(topic.topic_id, wanted)]
        assert await offsets_read(strict, topic.topic_id, OffsetRange(0, 3, 4)) == [3]
        lenient = LogReader(index, log.store, "t", ["offset"], passes_over_lost=True)
        assert await offsets_read(lenient, topic.topic_id, OffsetRange(0, 1, 4)) == [3]
        assert await offsets_read(lenient, topic.topic_id, OffsetRange(0, 1, 2)) == []

    on_a_log(scenario)


def test_a_log_that_is_shorter_than_what_is_to_be_read_is_a_loss() -> None:
    async def scenario(log: Log, index: CountedIndex) -> None:
        topic = await log.topic("t")
        await log.produce(("t", 0, batch_of([b"a", b"b"])))
        strict = LogReader(index, log.store, "t", ["offset"])
        for wanted in (OffsetRange(0, 0, 5), OffsetRange(0, 3, 5)):
            with pytest.raises(DataLost, match=r"offsets . to 4 are lost, as the log is shorter.*ends at 2"):
                await strict.cut(topic.topic_id, [wanted])
        lenient = LogReader(index, log.store, "t", ["offset"], passes_over_lost=True)
        assert await offsets_read(lenient, topic.topic_id, OffsetRange(0, 0, 5)) == [0, 1]
        assert await offsets_read(lenient, topic.topic_id, OffsetRange(0, 3, 5)) == []

    on_a_log(scenario)


def test_a_topic_that_was_made_again_is_not_read_in_the_place_of_the_old_one() -> None:
    async def scenario(log: Log, index: CountedIndex) -> None:
        old = await log.topic("t")
        await log.produce(("t", 0, batch_of([b"old"])))
        await log.sequencer.delete_topic(DeleteTopic(old.topic_id))
        new = await log.topic("t")
        await log.produce(("t", 0, batch_of([b"new"])))
        reader = LogReader(index, log.store, "t", ["offset"])
        with pytest.raises(DataLost, match="the topic or the partition was deleted"):
            await reader.cut(old.topic_id, [OffsetRange(0, 0, 1)])
        assert await reader.bounds() == TopicBounds(new.topic_id, {0: (0, 1)})

    on_a_log(scenario)


def test_thin_partitions_share_a_task_and_a_handful_of_calls_plan_them() -> None:
    async def scenario(log: Log, index: CountedIndex) -> None:
        topic = await log.topic("t", 200)
        for _ in range(3):
            await log.produce(*(("t", partition, batch_of([b"x" * 100])) for partition in range(200)))
        reader = LogReader(index, log.store, "t", ["offset"])
        bounds = await reader.bounds()
        assert bounds.ends == dict.fromkeys(range(200), (0, 3))
        index.calls = 0
        everything = [OffsetRange(partition, *ends) for partition, ends in bounds.ends.items()]
        assert await reader.cut(topic.topic_id, everything) == [everything]
        assert index.calls <= 3
        tasks = await reader.cut(topic.topic_id, everything, min_tasks=4)
        assert 4 <= len(tasks) <= 5 and [each for task in tasks for each in task][:2] == everything[:2]

    on_a_log(scenario)


def test_a_thick_partition_is_cut_between_runs() -> None:
    async def scenario(log: Log, index: CountedIndex) -> None:
        topic = await log.topic("t")
        for _ in range(6):
            await log.produce(("t", 0, batch_of([b"x" * 1_000] * 2)))
        reader = LogReader(index, log.store, "t", ["offset"])
        tasks = await reader.cut(topic.topic_id, [OffsetRange(0, 1, 11)], task_bytes=4_000)
        assert tasks == [[OffsetRange(0, 1, 4)], [OffsetRange(0, 4, 8)], [OffsetRange(0, 8, 11)]]
        assert await offsets_read(reader, topic.topic_id, OffsetRange(0, 1, 11)) == list(range(1, 11))

    on_a_log(scenario)


def test_a_stream_that_meets_another_topic_of_its_name_fails_or_begins_with_it() -> None:
    before, after = StreamOffset(OLD, {0: 5}), StreamOffset(NEW, {0: 3, 1: 2})
    with pytest.raises(DataLost, match="'t': it was deleted and made again"):
        ranges_between(before, after, "t", fails_on_data_loss=True)
    begun = [OffsetRange(0, 0, 3), OffsetRange(1, 0, 2)]
    assert ranges_between(before, after, "t", fails_on_data_loss=False) == begun


def test_a_stream_reads_what_came_since_and_new_partitions_from_their_beginning() -> None:
    before, after = StreamOffset(OLD, {0: 5, 1: 7}), StreamOffset(OLD, {0: 9, 1: 7, 2: 4})
    assert ranges_between(before, after, "t", fails_on_data_loss=True) == [
        OffsetRange(0, 5, 9), OffsetRange(2, 0, 4)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("after", "why"), [({0: 4}, "ends at 4, the stream has read it up to 5"), ({1: 9}, "partition 0 is gone")]
)
def test_a_stream_whose_partition_became_shorter_or_went_fails(after: dict[int, int], why: str) -> None:
    with pytest.raises(DataLost, match=why):
        ranges_between(StreamOffset(OLD, {0: 5}), StreamOffset(OLD, after), "t", fails_on_data_loss=True)


def test_a_streams_offset_is_read_back_also_from_a_checkpoint_without_a_topic_id() -> None:
    offset = StreamOffset(OLD, {0: 5, 11: 7})
    assert StreamOffset.of(offset.kept()) == offset
    assert StreamOffset.of({"0": 5, "11": 7}) == StreamOffset(None, {0: 5, 11: 7})
    ranges = ranges_between(
        StreamOffset(None, {0: 5}), StreamOffset(OLD, {0: 6}), "t", fails_on_data_loss=True
    )
    assert ranges == [OffsetRange(0, 5, 6)]


GIVEN = {"store": "s", "sequencer": "h:1", "topic": "t"}
BOUNDS = TopicBounds(OLD, {0: (3, 9), 1: (0, 4)})


@pytest.mark.parametrize(
    ("given", "offsets"),
    [
        ({}, {0: 3, 1: 0}),
        ({"startingOffsets": "latest"}, {0: 9, 1: 4}),
        ({"startingOffsets": '{"0": -1, "1": -2}'}, {0: 9, 1: 0}),
        ({"startingOffsets": '{"0": 5, "1": 0}'}, {0: 5, 1: 0}),
    ],
)
def test_a_query_starts_where_it_is_told_to(given: dict[str, str], offsets: dict[int, int]) -> None:
    assert offsets_at(SourceOptions.of(GIVEN | given).starting, BOUNDS, "startingOffsets") == offsets


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"maxOffsetsPerTrigger": "100"}, "maxOffsetsPerTrigger are unknown; there are store, sequencer"),
        ({"startingOffsets": "soon"}, "'startingOffsets': 'soon'; expected is 'earliest', 'latest', or"),
        ({"startingOffsets": '{"0": -3}'}, "no offset is below -2"),
        ({"startingOffsets": "[1]"}, "'startingOffsets': '\\[1\\]'; expected"),
        ({"failOnDataLoss": "maybe"}, "'failOnDataLoss': 'maybe'; expected is true or false"),
        ({"minPartitions": "0"}, "'minPartitions': '0'; expected is a whole number from 1 on"),
        ({"columns": "offset,size"}, "'columns': 'offset,size'; allowed, once each"),
        ({"database": "sqlite:///x"}, "give one of the options"),
    ],
)
def test_an_option_that_is_wrong_or_unknown_is_refused_by_name(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SourceOptions.of(GIVEN | given)


def test_offsets_name_each_partition_and_a_stream_has_no_end() -> None:
    with pytest.raises(
        ValueError, match=r"'startingOffsets' names partitions \[0\], not each of the topic's: \[0, 1\]"
    ):
        offsets_at({0: 3}, BOUNDS, "startingOffsets")
    with pytest.raises(ValueError, match="a stream has no end"):
        StreamSource(SourceOptions.of(GIVEN | {"endingOffsets": '{"0": 1}'}))
