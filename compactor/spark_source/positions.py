"""Where a query starts and ends in each partition, and the progress of a stream.

A stream's offset has, for each topic, its id and the next offset of each partition. The id reveals a topic that was
deleted and created again under the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from compactor.spark_source.log_reader import Bounds, DataLost, LogPartition, LogReader, OffsetRange
from compactor.spark_source.options import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    PerPartition,
    Position,
    SourceOptions,
    TopicChoice,
)
from compactor.spark_source.pushdown import Limits

Offsets = Mapping[LogPartition, int]


class UnknownLog(Exception):
    """A topic or partition does not exist; the message says which."""


async def chosen_bounds(reader: LogReader, topics: Sequence[Any], choice: TopicChoice) -> Bounds:
    """Return the readable range of the chosen partitions. Raises UnknownLog if a named topic or partition is
    missing."""
    bounds = await reader.bounds(topic for topic in topics if choice.has_topic(topic.name))
    if missing := sorted(choice.names - {partition.topic for partition in bounds}):
        raise UnknownLog(f"no topic {missing[0]!r}")
    for name, numbers in sorted((choice.assigned or {}).items()):
        if unknown := sorted(numbers - {partition.number for partition in bounds if partition.topic == name}):
            raise UnknownLog(f"no partition {unknown[0]} of topic {name!r}")
    return {key: of for key, of in bounds.items() if choice.has_partition(key.topic, key.number)}


async def offsets_at(position: Position, bounds: Bounds, reader: LogReader, *, if_none: str) -> Offsets:
    """Return the position's offset in each partition.

    Args:
        if_none: what to do if no record is at or after the position's time: `latest` or `error`.

    Raises ValueError if the option does not match the partitions, or no record is at or after its time.
    """
    if position.edge:
        edge = 0 if position.edge == EARLIEST else 1
        committed = await reader.committed(position.group, bounds) if position.group else {}
        if position.group and not committed:
            raise ValueError(
                f"option {position.option!r}: group {position.group!r} has no offsets of these topics"
            )
        return {partition: committed.get(partition, edges[edge]) for partition, edges in bounds.items()}
    if position.offsets is not None:
        given = _of_each(position, position.offsets, bounds)
        return {
            partition: {EARLIEST_OFFSET: bounds[partition][0], LATEST_OFFSET: bounds[partition][1]}.get(
                offset, offset
            )
            for partition, offset in given.items()
        }
    times_ms = (
        dict.fromkeys(bounds, position.time_ms or 0)
        if position.times_ms is None
        else _of_each(position, position.times_ms, bounds)
    )
    offsets = await reader.offsets_at(times_ms)
    for partition, offset in offsets.items():
        if offset is None and if_none != LATEST:
            raise ValueError(
                f"option {position.option!r}: topic {partition.topic!r}, partition {partition.number} has no record at"
                f" or after {times_ms[partition]}; startingOffsetsByTimestampStrategy=latest reads it from its end"
            )
    return {key: bounds[key][1] if offset is None else offset for key, offset in offsets.items()}


def _of_each(position: Position, given: PerPartition, bounds: Bounds) -> dict[LogPartition, int]:
    named = {(topic, number) for topic, of_topic in given.items() for number in of_topic}
    existing = {(partition.topic, partition.number) for partition in bounds}
    if named != existing:
        different = sorted(named ^ existing)
        raise ValueError(
            f"option {position.option!r} names other partitions than are read; different are"
            f" {', '.join(f'{topic}-{number}' for topic, number in different[:5])}"
        )
    return {partition: given[partition.topic][partition.number] for partition in bounds}


async def batch_ranges(
    options: SourceOptions, bounds: Bounds, reader: LogReader, limits: Limits
) -> list[OffsetRange]:
    """Return what a batch query reads of each partition, within Spark's filters. Raises ValueError."""
    chosen = {key: edges for key, edges in bounds.items() if limits.has_partition(key.topic, key.number)}
    starting = options.starting or Position("startingOffsets", edge=EARLIEST)
    ending = options.ending or Position("endingOffsets", edge=LATEST)
    if_none = "error" if options.fails_without_time else LATEST
    starts = await offsets_at(starting, bounds, reader, if_none=if_none)
    ends = await offsets_at(ending, bounds, reader, if_none=LATEST)
    for key in bounds:
        if starts[key] > ends[key]:
            raise ValueError(
                f"topic {key.topic!r}, partition {key.number}: {starting.option} {starts[key]} is after {ends[key]}"
            )
    ranges = (
        OffsetRange(key, max(starts[key], limits.offsets.first), min(ends[key], limits.offsets.last + 1))
        for key in chosen
    )
    return [wanted_range for wanted_range in ranges if wanted_range.start < wanted_range.end]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The progress of a stream: the next offset of each partition.

    `is_initial`: this is where a stream with a new checkpoint would start. `began`: where this stream started, if none
    of its batches has ended yet.
    """

    offsets: Offsets
    is_initial: bool = False
    began: Offsets | None = None

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> StreamOffset:
        """Read an offset from a checkpoint. Raises ValueError if this source did not write it."""
        try:
            began = _read(kept["began"]) if "began" in kept else None
            return cls(_read(kept["topics"]), kept.get("isInitial", False), began)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"the checkpoint has an offset that this source did not write: {str(kept)[:200]}; start the stream"
                " with a new checkpoint"
            ) from error

    def kept(self) -> dict[str, Any]:
        """Return the offset as JSON for Spark's checkpoint."""
        kept: dict[str, Any] = {"topics": _kept(self.offsets)}
        if self.is_initial:
            kept["isInitial"] = True
        if self.began is not None:
            kept["began"] = _kept(self.began)
        return kept


def _read(topics: Mapping[str, Any]) -> Offsets:
    return {
        LogPartition(name, UUID(hex=topic["id"]), int(number)): int(offset)
        for name, topic in topics.items()
        for number, offset in topic["offsets"].items()
    }


def _kept(offsets: Offsets) -> dict[str, Any]:
    topics: dict[str, Any] = {}
    for partition, offset in sorted(offsets.items()):
        topic = topics.setdefault(partition.topic, {"id": partition.topic_id.hex, "offsets": {}})
        topic["offsets"][str(partition.number)] = offset
    return topics


def ranges_between(start: StreamOffset, end: StreamOffset, *, fails_on_data_loss: bool) -> list[OffsetRange]:
    """Return what a micro-batch reads of each partition. A new partition is read from offset 0.

    The first batch starts at the recorded start of the stream, because Spark requests the initial offset again after a
    restart, and the log may have changed.

    Raises DataLost if a topic is not the one that the stream has read, or has lost records that were already read.
    """

    def lost(partition: LogPartition, why: str) -> None:
        if fails_on_data_loss:
            raise DataLost(
                f"topic {partition.topic!r}: {why}. Start the stream with a new checkpoint, or give option"
                " failOnDataLoss=false to read what there is now"
            )

    begun = end.began if start.is_initial and end.began is not None else start.offsets
    for gone in sorted(set(begun) - set(end.offsets)):
        lost(gone, _missing_partition(gone, end.offsets))
    ranges: list[OffsetRange] = []
    for partition, upto in sorted(end.offsets.items()):
        begin = begun.get(partition, 0)
        if begin > upto:
            lost(
                partition,
                f"partition {partition.number} ends at {upto}, the stream has read it up to {begin}",
            )
        ranges.append(OffsetRange(partition, begin, upto))
    return [unread for unread in ranges if unread.start < unread.end]


def _missing_partition(gone: LogPartition, existing: Iterable[LogPartition]) -> str:
    ids = {partition.topic_id for partition in existing if partition.topic == gone.topic}
    if not ids:
        return "it was deleted since the stream read it"
    if gone.topic_id in ids:
        return f"partition {gone.number} is gone"
    return f"it was deleted and made again since the stream read it (id {gone.topic_id}, now {min(ids)})"
