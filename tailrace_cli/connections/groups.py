"""Groups of all kinds for the commands: classic (by rebalance), consumer (KIP-848) and share (KIP-932)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tailrace.kafka.embedded import read_embedded
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.errors import MalformedRequest
from tailrace.kafka.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from tailrace.kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolAssignment
from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest
from tailrace.kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
)
from tailrace.kafka.messages.metadata import MetadataRequest
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tailrace.kafka.messages.share_group_describe import ShareGroupDescribeRequest
from tailrace_cli.connections.kafka_client import KafkaClient, KafkaRefused, check
from tailrace_cli.connections.offsets import LATEST, NamedPartition, list_offsets

CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"

_HAS_MEMBERS = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.NON_EMPTY_GROUP,
    }
)
STOP_MEMBERS = "the group has members; stop its consumers first"


@dataclass(frozen=True, slots=True)
class ShownMember:
    """A member of a group. `assigned` is None if its partitions are not known: a classic group that is no consumer
    group, or that rebalances."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assigned: list[str] | None = None


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """A group as its coordinator describes it. `kind`: CLASSIC, CONSUMER or SHARE."""

    group: str
    kind: str
    state: str
    protocol: str
    members: list[ShownMember]

    @property
    def partitions(self) -> set[NamedPartition]:
        """The partitions that are assigned to members."""
        named = (each.rpartition("-") for member in self.members for each in member.assigned or ())
        return {(topic, int(number)) for topic, _, number in named}

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


async def describe_group(coordinator: KafkaClient, group: str) -> ShownGroup:
    """Describe a group of any kind. Raises KafkaRefused."""
    for kind, request in (
        (CONSUMER, ConsumerGroupDescribeRequest([group])),
        (SHARE, ShareGroupDescribeRequest([group])),
    ):
        (described,) = (await coordinator.ask(request)).groups
        if described.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            return _shown(group, kind, described)
    (described,) = (await coordinator.ask(DescribeGroupsRequest([group]))).groups
    return _shown(group, CLASSIC, described)


def _shown(group: str, kind: str, described: Any) -> ShownGroup:
    check(described.error_code, described.error_message, f"group {group!r}")
    is_classic = kind == CLASSIC
    members = [
        ShownMember(
            member_id=member.member_id,
            instance_id=getattr(member, "group_instance_id" if is_classic else "instance_id", None),
            client_id=member.client_id,
            host=member.client_host,
            assigned=_assigned_by_leader(described.protocol_type, bytes(member.member_assignment))
            if is_classic
            else _assigned(member.assignment.topic_partitions),
        )
        for member in described.members
    ]
    protocol = described.protocol_data if is_classic else described.assignor_name
    return ShownGroup(group=group, kind=kind, state=described.group_state, protocol=protocol, members=members)


async def kind_of(coordinator: KafkaClient, group: str) -> str:
    """Return a group's kind. A missing group is CLASSIC, because its first offset commit creates a classic group."""
    try:
        return (await describe_group(coordinator, group)).kind
    except KafkaRefused as refused:
        if refused.code == ErrorCode.GROUP_ID_NOT_FOUND:
            return CLASSIC
        raise


def _assigned(topics: Iterable[Any]) -> list[str]:
    return _names((topic.topic_name, topic.partitions) for topic in topics)


def _assigned_by_leader(protocol_type: str, assignment: bytes) -> list[str] | None:
    """Return the partitions of a classic group's member. The leader wrote them; the coordinator does not read them."""
    if protocol_type != "consumer" or not assignment:
        return None
    try:
        read, _ = read_embedded(ConsumerProtocolAssignment, assignment)
    except MalformedRequest:
        return None
    return _names((topic.topic, topic.partitions) for topic in read.assigned_partitions)


def _names(topics: Iterable[tuple[str, Sequence[int]]]) -> list[str]:
    pairs = sorted((topic, number) for topic, numbers in topics for number in numbers)
    return [f"{topic}-{number}" for topic, number in pairs]


# --- positions of groups


async def group_offsets(coordinator: KafkaClient, group: str, kind: str) -> dict[NamedPartition, int]:
    """Return a group's position in each partition: its committed offset, or a share group's start offset.

    Raises KafkaRefused.
    """
    if kind == SHARE:
        return await _share_offsets(coordinator, group)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    (fetched,) = (await coordinator.ask(request)).groups
    check(fetched.error_code, None, f"offsets of group {group!r}")
    topics = (await coordinator.ask(MetadataRequest(topics=None))).topics
    names = {topic.topic_id: topic.name for topic in topics}
    return {
        (
            topic.name or names.get(topic.topic_id, str(topic.topic_id)),
            partition.partition_index,
        ): partition.committed_offset
        for topic in fetched.topics
        for partition in topic.partitions
    }


async def _share_offsets(coordinator: KafkaClient, group: str) -> dict[NamedPartition, int]:
    request = DescribeShareGroupOffsetsRequest([DescribeShareOffsetsGroup(group, topics=None)])
    (fetched,) = (await coordinator.ask(request)).groups
    check(fetched.error_code, fetched.error_message, f"offsets of group {group!r}")
    return {
        (topic.topic_name, partition.partition_index): partition.start_offset
        for topic in fetched.topics
        for partition in topic.partitions
        if partition.error_code == ErrorCode.NONE and partition.start_offset >= 0
    }


async def lags(
    coordinator: KafkaClient, offsets: Mapping[NamedPartition, int | None]
) -> list[dict[str, Any]]:
    """Return each partition's committed offset (None: there is none), end offset and lag. Raises KafkaRefused."""
    ends = await list_offsets(coordinator, list(offsets), LATEST)
    return [
        {
            "topic": key[0],
            "partition": key[1],
            "committed": offset,
            "end_offset": ends.get(key),
            "lag": max(0, ends[key] - offset) if key in ends and offset is not None else None,
        }
        for key, offset in sorted(offsets.items(), key=lambda item: item[0])
    ]


async def move_group(
    coordinator: KafkaClient, group: str, kind: str, offsets: Mapping[NamedPartition, int]
) -> None:
    """Set the positions of a group that has no members. Raises KafkaRefused."""
    if kind == SHARE:
        await _move_share_group(coordinator, group, offsets)
        return
    by_topic = _by_topic(offsets)
    ids = {topic.name: topic.topic_id for topic in await coordinator.topics(list(by_topic))}
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                topic_id=ids[name],
                partitions=[
                    OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
                    for partition, offset in moved
                ],
            )
            for name, moved in by_topic.items()
        ],
    )
    for topic in (await coordinator.ask(request)).topics:
        for partition in topic.partitions:
            _check_moved(partition.error_code, None, group)


async def _move_share_group(
    coordinator: KafkaClient, group: str, offsets: Mapping[NamedPartition, int]
) -> None:
    topics = [
        AlterShareOffsetsTopic(
            name, [AlterShareOffsetsPartition(partition, offset) for partition, offset in moved]
        )
        for name, moved in _by_topic(offsets).items()
    ]
    request = AlterShareGroupOffsetsRequest(group, topics)
    answer = await coordinator.ask(request)
    _check_moved(answer.error_code, answer.error_message, group)
    for topic in answer.responses:
        for partition in topic.partitions:
            _check_moved(partition.error_code, partition.error_message, group)


def _by_topic(offsets: Mapping[NamedPartition, int]) -> dict[str, list[tuple[int, int]]]:
    """Return the partitions of each topic with their offsets, in order."""
    by_topic: dict[str, list[tuple[int, int]]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, []).append((partition, offset))
    return by_topic


def _check_moved(error_code: int, message: str | None, group: str) -> None:
    try:
        check(error_code, message, f"group {group!r} was not reset")
    except KafkaRefused as refused:
        if refused.code in _HAS_MEMBERS:
            check(error_code, STOP_MEMBERS, f"group {group!r} was not reset")
        raise
