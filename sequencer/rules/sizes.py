"""Bytes and counts of runs per partition, read in steps whose cost does not grow with the number of topics.

Topics are ordered by the integers of their ids, which compare ten times as fast as the ids.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from uuid import UUID

from sequencer.store.row_store import PartitionBytes, RowStore
from sequencer.store.rows import TopicRow

TOPICS_AT_ONCE = 50
PARTITIONS_AT_ONCE = 100
"""Partitions whose runs one statement sums up, in a topic with more partitions than this."""


@dataclass(frozen=True, slots=True)
class Summed:
    """What one statement summed up: the sizes of those partitions that have runs, in order; how many partitions there
    were; and the last of them."""

    sizes: list[PartitionBytes]
    partitions: int
    last: tuple[UUID, int]


async def sums_of(
    store: RowStore, topics: Iterable[TopicRow], after: tuple[UUID, int] | None = None
) -> AsyncIterator[Summed]:
    """Yield the sizes of these topics' partitions, one statement at a time, ordered by topic id and partition,
    beginning after `after`."""
    sought = (row for row in topics if after is None or row.topic_id >= after[0])
    for step in _summed_together(sorted(sought, key=attrgetter("topic_id.int"))):
        if step[0].partitions <= PARTITIONS_AT_ONCE:
            sizes = _in_order(await store.partition_bytes([row.topic_id for row in step]))
            yield Summed(
                [size for size in sizes if after is None or (size.topic_id, size.partition) > after],
                sum(row.partitions for row in step),
                (step[-1].topic_id, step[-1].partitions - 1),
            )
            continue
        (topic,) = step
        first = after[1] + 1 if after is not None and after[0] == topic.topic_id else 0
        for begin in range(first, topic.partitions, PARTITIONS_AT_ONCE):
            end = min(begin + PARTITIONS_AT_ONCE, topic.partitions)
            sizes = _in_order(await store.partition_bytes_within(topic.topic_id, begin, end))
            yield Summed(sizes, end - begin, (topic.topic_id, end - 1))


async def sizes_of(store: RowStore, topics: Iterable[TopicRow]) -> AsyncIterator[PartitionBytes]:
    """Yield the sizes of these topics' partitions that have runs, ordered by topic id and partition."""
    async for summed in sums_of(store, topics):
        for size in summed.sizes:
            yield size


async def sizes_around(
    store: RowStore, topics: Sequence[TopicRow], partitions: Iterable[tuple[UUID, int]]
) -> AsyncIterator[PartitionBytes]:
    """Yield the sizes of these topics' partitions that have runs. In a topic with many partitions, yield only those
    that one statement sums up together with one of `partitions`."""
    wide = {row.topic_id for row in topics if row.partitions > PARTITIONS_AT_ONCE}
    async for size in sizes_of(store, [row for row in topics if row.topic_id not in wide]):
        yield size
    steps = ((topic_id, partition // PARTITIONS_AT_ONCE) for topic_id, partition in partitions)
    for topic_id, step in dict.fromkeys(counted for counted in steps if counted[0] in wide):
        begin = step * PARTITIONS_AT_ONCE
        for size in await store.partition_bytes_within(topic_id, begin, begin + PARTITIONS_AT_ONCE):
            yield size


def _summed_together(topics: Sequence[TopicRow]) -> Iterator[Sequence[TopicRow]]:
    """Yield groups of topics with few partitions, or single topics with many, whose sizes are summed in steps."""
    begin = 0
    for number, topic in enumerate(topics):
        is_wide = topic.partitions > PARTITIONS_AT_ONCE
        if begin < number and (is_wide or number - begin == TOPICS_AT_ONCE):
            yield topics[begin:number]
            begin = number
        if is_wide:
            yield [topic]
            begin = number + 1
    if begin < len(topics):
        yield topics[begin:]


def _in_order(sizes: Iterable[PartitionBytes]) -> list[PartitionBytes]:
    return sorted(sizes, key=attrgetter("topic_id.int", "partition"))
