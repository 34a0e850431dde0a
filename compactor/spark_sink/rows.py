"""Rows from Spark, and the partition of each. Pure.

A row goes to the partition that it names, else to the one that Kafka's default partitioner chooses for its key. A row
without a key goes to a partition that changes after every `STICKY_BYTES`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.spark_sink.murmur2 import murmur2
from sequencer.api.topics import Topic
from tailrace.configs.topic_config import TopicSettings

STICKY_BYTES = 1 << 20
"""The size of a batch, so that batches are full and a small task makes few runs."""
_COMPACT = "compact"
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
Array = Any


class InvalidRow(ValueError):
    """A row can't be written; the message says which row of its task, and why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A topic that is written to, with the limits from its configs and the cluster's."""

    topic: Topic
    settings: TopicSettings


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Some rows of a task, from its row `first` on. `topics`: for each row the index of its topic in `targets`."""

    first: int
    key: Array
    value: Array
    headers: Array
    targets: Sequence[Target]
    topics: Array
    partitions: Array

    def __len__(self) -> int:
        return len(self.value)


def rows_of(
    table: Any, targets: Mapping[str, Target], *, topic: str, first: int, sticky: int
) -> tuple[SinkRows, int]:
    """Convert a table with Spark's columns to rows. Return them, and the `sticky` number for the next table.

    Args:
        targets: every topic of the cluster, by name.
        topic: the topic of all rows, '' if a column has it.
        sticky: a number that selects the first partition for rows without a key.

    Raises InvalidRow.
    """
    count = table.num_rows
    value = _column(table, "value", pa.binary())
    key = _column(table, "key", pa.binary())
    used, topics = _topics(table, targets, topic, first)
    headers = _headers(table, first)
    counts = np.array([target.topic.partitions for target in used], np.int64)[topics]
    named = _column(table, "partition", pa.int32())
    partitions = np.asarray(pc.fill_null(named, -1)).astype(np.int64)
    _check_named(named, partitions, counts, first)
    is_free = np.asarray(pc.is_null(named))
    has_key = np.asarray(pc.is_valid(key))
    by_key = is_free & has_key
    if by_key.any():
        partitions[by_key] = (_hashes(key) & 0x7FFFFFFF).astype(np.int64)[by_key] % counts[by_key]
    sticks = is_free & ~has_key
    if sticks.any():
        given = np.cumsum(np.where(sticks, np.asarray(pc.fill_null(pc.binary_length(value), 0)), 0))
        partitions[sticks] = ((sticky + given // STICKY_BYTES) % counts)[sticks]
        sticky += int(given[-1]) // STICKY_BYTES + 1
    needs_key = np.array([_COMPACT in target.settings.cleanup_policy for target in used], bool)[topics]
    if (needs_key & ~has_key).any():
        at = int(np.argmax(needs_key & ~has_key))
        name = used[topics[at]].topic.name
        raise InvalidRow(f"row {first + at} of its task has no key, which the compacted topic {name!r} needs")
    assert len(key) == len(value) == count
    return SinkRows(
        first=first, key=key, value=value, headers=headers, targets=used, topics=topics, partitions=partitions
    ), sticky


def _column(table: Any, name: str, kind: Any) -> Array:
    """Return the column as one array; all null if it is missing."""
    if name not in table.column_names:
        return pa.nulls(table.num_rows, kind)
    column = table.column(name).cast(kind)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _topics(table: Any, targets: Mapping[str, Target], topic: str, first: int) -> tuple[list[Target], Array]:
    """Return the topics that the rows go to, and for each row the index of its topic."""
    if topic:
        return [_target(targets, topic, first)], np.zeros(table.num_rows, np.int32)
    column = _column(table, "topic", pa.string())
    if column.null_count:
        at = int(np.argmax(np.asarray(pc.is_null(column))))
        raise InvalidRow(f"row {first + at} of its task has no topic")
    coded = column.dictionary_encode()
    used = [_target(targets, name, first) for name in coded.dictionary.to_pylist()]
    return used, np.asarray(coded.indices).astype(np.int32)


def _target(targets: Mapping[str, Target], name: str, first: int) -> Target:
    target = targets.get(name)
    if target is None:
        raise InvalidRow(f"topic {name!r} (from row {first} of its task on) does not exist; create it first")
    return target


def _headers(table: Any, first: int) -> Array:
    """Return the headers of all rows; all null if the column is missing."""
    headers = _column(table, "headers", _HEADERS)
    if pc.list_flatten(headers).field(0).null_count:
        raise InvalidRow(f"a header without a key, at or after row {first} of its task")
    return headers


def _check_named(named: Array, partitions: Array, counts: Array, first: int) -> None:
    is_bad = np.asarray(pc.is_valid(named)) & ((partitions < 0) | (partitions >= counts))
    if is_bad.any():
        at = int(np.argmax(is_bad))
        raise InvalidRow(
            f"row {first + at} of its task names partition {partitions[at]}; its topic has {counts[at]}"
        )


def _hashes(key: Array) -> Array:
    """Return Kafka's hash of each key. The hash of a null key is meaningless."""
    hashes = np.empty(len(key), np.uint32)
    _, offsets, data = key.buffers()
    from_offset = np.frombuffer(offsets, np.int32)[key.offset : key.offset + len(key) + 1]
    murmur2(from_offset, np.frombuffer(data or b"", np.uint8), hashes)
    return hashes
