"""Offsets for the commands: the ends of a log, the offset of a time, and the positions that users name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tailrace.clock import SystemClock
from tailrace_cli.errors import CommandFailed
from tailrace_cli.record_text import parse_time_ms

if TYPE_CHECKING:
    from tailrace_cli.connections.kafka_client import KafkaClient

Place = tuple[str, int]
"""A topic's name and a partition."""

EARLIEST, LATEST = -2, -1
"""ListOffsets' timestamps for the two ends of a log."""


async def list_offsets(client: KafkaClient, places: Sequence[Place], timestamp: int) -> dict[Place, int]:
    """Each partition's first offset at or after a timestamp in ms (-1 for none), or one of its ends.

    Raises CommandFailed.
    """
    from tailrace.kafka import ApiKey
    from tailrace.kafka.messages.list_offsets import (
        ListOffsetsPartition,
        ListOffsetsRequest,
        ListOffsetsTopic,
    )
    from tailrace_cli.connections.kafka_client import check

    topics = [
        ListOffsetsTopic(
            name=name,
            partitions=[
                ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
                for topic, partition in places
                if topic == name
            ],
        )
        for name in sorted({topic for topic, _ in places})
    ]
    found: dict[Place, int] = {}
    answer = await client.ask(ApiKey.LIST_OFFSETS, ListOffsetsRequest(replica_id=-1, topics=topics))
    for topic in answer.topics:
        for partition in topic.partitions:
            check(partition.error_code, None, f"offsets of {topic.name}-{partition.partition_index}")
            found[topic.name, partition.partition_index] = partition.offset
    return found


async def partitions_of(client: KafkaClient, topic: str) -> list[Place]:
    """A topic's partitions, in order. Raises CommandFailed."""
    (found,) = await client.topics([topic])
    return [(topic, partition) for partition in sorted(row.partition_index for row in found.partitions)]


async def offsets_at(
    client: KafkaClient, places: Sequence[Place], where: str, committed: Mapping[Place, int]
) -> dict[Place, int]:
    """The offset that `where` names in each partition, within its log.

    `where` is start, end, an offset, +N or -N from the committed offset, or a time (see `parse_time_ms`) other than a
    bare number. Raises CommandFailed.
    """
    firsts = await list_offsets(client, places, EARLIEST)
    ends = await list_offsets(client, places, LATEST)
    if where == "start":
        return firsts
    if where == "end":
        return ends
    if re.fullmatch(r"\d{1,18}", where):
        wanted = dict.fromkeys(places, int(where))
    elif re.fullmatch(r"[+-]\d{1,18}", where):
        if missing := [place for place in places if place not in committed]:
            raise CommandFailed(
                f"{where} counts from a committed offset; {missing[0][0]}-{missing[0][1]} has none"
            )
        wanted = {place: committed[place] + int(where) for place in places}
    else:
        moment = parse_time_ms(where, SystemClock().wall_ms())
        at = await list_offsets(client, places, moment)
        wanted = {place: ends[place] if at[place] < 0 else at[place] for place in places}
    return {place: min(max(wanted[place], firsts[place]), ends[place]) for place in places}
