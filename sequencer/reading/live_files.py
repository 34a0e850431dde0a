"""The live Parquet objects of a topic, page by page, for readers that read the table without a sequencer."""

from __future__ import annotations

from collections.abc import Iterator

from sequencer.api.commits import ObjectKind
from sequencer.api.errors import InvalidRequest, UnknownTopic
from sequencer.api.objects import LiveFiles, LiveFilesRequest, LivePartition, LiveRun
from sequencer.api.reads import FindPartition, FindRequest, FoundPartition, PartitionError
from sequencer.reading.queries import Reader, object_record
from sequencer.store.row_store import RowStore
from sequencer.store.rows import TopicRow
from sequencer.store.state import HotState

PARTITIONS_A_PAGE = 500
"""Limit of partitions in a page; their runs share the size limit of one `find_batches` answer."""
_ALL = 1 << 62


async def live_files(
    state: HotState, reader: Reader, store: RowStore, request: LiveFilesRequest
) -> LiveFiles:
    """Return a page of a topic's live Parquet runs. Runs of other kinds are read and left out.

    Raises UnknownTopic.
    """
    topic = state.get(TopicRow, request.topic_id)
    if topic is None:
        raise UnknownTopic(f"no topic has the id {request.topic_id}")
    first, offset = request.after or (0, 0)
    if not 0 <= first < topic.partitions:
        raise InvalidRequest(f"partition {first}; topic {topic.name!r} has {topic.partitions}")
    end = min(topic.partitions, first + PARTITIONS_A_PAGE)
    bounds = {
        partition: row.log_start_offset
        for partition in range(first, end)
        if (row := state.live_partition(topic.topic_id, partition)) is not None
    }
    asked = [
        FindPartition(topic.topic_id, partition, max(log_start, offset if partition == first else 0), _ALL)
        for partition, log_start in bounds.items()
    ]
    answer = await reader.find_batches(FindRequest(asked))
    partitions: list[LivePartition] = []
    following = (end, 0) if end < topic.partitions else None
    for sought, found in zip(asked, answer.partitions, strict=True):
        if found.error is PartitionError.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopic(f"topic {topic.name!r} was deleted")
        partitions.append(_live_partition(sought.partition, found))
        reached = found.runs[-1].end_offset if found.runs else max(sought.offset, found.log_start_offset)
        if reached < found.high_watermark:
            following = (sought.partition, reached)
            break
    ids = dict.fromkeys(run.object_id for partition in partitions for run in partition.runs)
    rows = await store.object_rows(list(ids))
    return LiveFiles(answer.commit_number, partitions, [object_record(row) for row in rows], following)


def _live_partition(partition: int, found: FoundPartition) -> LivePartition:
    return LivePartition(
        partition=partition,
        log_start_offset=found.log_start_offset,
        last_stable_offset=found.last_stable_offset,
        high_watermark=found.high_watermark,
        runs=list(_parquet_runs(found)),
    )


def _parquet_runs(found: FoundPartition) -> Iterator[LiveRun]:
    for run in found.runs:
        if run.kind is ObjectKind.PARQUET:
            yield LiveRun(run.base_offset, run.end_offset, run.object_id, run.commit_number)
