"""Offsets for the commands: the two ends of a log, the offset at a time, and the positions that users give."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tailrace.clock import SystemClock
from tailrace_cli.errors import CommandFailed, WrongUsage
from tailrace_cli.record_text import parse_time_ms

if TYPE_CHECKING:
    from tailrace_cli.connections.kafka_client import KafkaClient

NamedPartition = tuple[str, int]
"""A topic's name and a partition."""

SHOWN_PARTITIONS = 6
"""At most this many partitions are named in one message."""
EARLIEST, LATEST = -2, -1
"""ListOffsets' timestamps for the two ends of a log."""


async def list_offsets(
    client: KafkaClient, partitions: Sequence[NamedPartition], timestamp: int
) -> dict[NamedPartition, int]:
    """Return each partition's first offset at or after a timestamp in ms (-1 if there is none).

    With EARLIEST or LATEST in place of a timestamp, return that end of the log. Raises CommandFailed.
    """
    from tailrace.kafka.messages.list_offsets import (
        ListOffsetsPartition,
        ListOffsetsRequest,
        ListOffsetsTopic,
    )
    from tailrace_cli.connections.kafka_client import check

    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for name, index in sorted(partitions):
        by_topic.setdefault(name, []).append(ListOffsetsPartition(partition_index=index, timestamp=timestamp))
    topics = [ListOffsetsTopic(name=name, partitions=asked) for name, asked in by_topic.items()]
    offsets: dict[NamedPartition, int] = {}
    answer = await client.ask(ListOffsetsRequest(replica_id=-1, topics=topics))
    for topic in answer.topics:
        for partition in topic.partitions:
            check(partition.error_code, None, f"offsets of {topic.name}-{partition.partition_index}")
            offsets[topic.name, partition.partition_index] = partition.offset
    return offsets


async def partitions_of(client: KafkaClient, topic: str) -> list[NamedPartition]:
    """Return a topic's partitions in order. Raises CommandFailed."""
    (described,) = await client.topics([topic])
    return [(topic, partition) for partition in sorted(row.partition_index for row in described.partitions)]


def chosen_partitions(
    partitions: Sequence[NamedPartition], numbers: Sequence[int] | None, whose: str
) -> list[NamedPartition]:
    """Return the partitions with these numbers, or all. Raises CommandFailed for a number that none of them has."""
    if unknown := set(numbers or ()) - {number for _, number in partitions}:
        raise CommandFailed(f"{whose} has no partition {min(unknown)}")
    return [key for key in partitions if not numbers or key[1] in numbers]


async def offsets_at(
    client: KafkaClient,
    partitions: Sequence[NamedPartition],
    where: str,
    committed: Mapping[NamedPartition, int],
) -> dict[NamedPartition, int]:
    """Return the offset that `where` names in each partition, clipped to the partition's log.

    `where` is start, end, an offset, +N or -N from the committed offset, or a time (see `parse_time_ms`) other than a
    bare number. Raises CommandFailed.
    """
    firsts = await list_offsets(client, partitions, EARLIEST)
    ends = await list_offsets(client, partitions, LATEST)
    if where == "start":
        return firsts
    if where == "end":
        return ends
    if re.fullmatch(r"\d{1,18}", where):
        targets = dict.fromkeys(partitions, int(where))
    elif re.fullmatch(r"[+-]\d{1,18}", where):
        if missing := [partition for partition in partitions if partition not in committed]:
            raise CommandFailed(
                f"{where} is relative to the committed offset; {missing[0][0]}-{missing[0][1]} has none"
            )
        targets = {partition: committed[partition] + int(where) for partition in partitions}
    else:
        try:
            moment = parse_time_ms(where, SystemClock().wall_ms())
        except WrongUsage:
            raise WrongUsage(
                f"{where!r} is no position; expected start, end, an offset, +N or -N from the committed offset, or a "
                "time from 1970 on: 2026-01-31T12:00, or 2h (2 hours ago)"
            ) from None
        at = await list_offsets(client, partitions, moment)
        targets = {
            partition: ends[partition] if at[partition] < 0 else at[partition] for partition in partitions
        }
    return within({partition: (firsts[partition], ends[partition]) for partition in partitions}, targets)


def within(
    logs: Mapping[NamedPartition, tuple[int, int]], wanted: Mapping[NamedPartition, int]
) -> dict[NamedPartition, int]:
    """Clip the wanted offsets to their partitions' logs (first offset, end offset). Name those it moved on stderr."""
    nearest = {name: min(max(wanted[name], first), end) for name, (first, end) in logs.items()}
    outside = [name for name in logs if nearest[name] != wanted[name]]
    for topic, partition in outside[:SHOWN_PARTITIONS]:
        name = topic, partition
        first, end = logs[name]
        print(
            f"{topic}-{partition}: offset {wanted[name]} is outside the log ({first} to {end}); "
            f"{nearest[name]} is used instead",
            file=sys.stderr,
        )
    if len(outside) > SHOWN_PARTITIONS:
        print(f"... and {len(outside) - SHOWN_PARTITIONS} more partitions", file=sys.stderr)
    return nearest
