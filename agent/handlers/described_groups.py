"""What requests about several groups share: ConsumerGroupDescribe, ShareGroupDescribe, OffsetFetch and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

from agent.catalog import KnownTopic
from agent.errors import AnswerTooLarge
from agent.groups.assignors import Assignment
from agent.groups.consumer_group import ConsumerGroup
from agent.groups.coordinator import GroupRefusal
from agent.groups.group import Group
from agent.groups.group_bytes import AnyGroup
from agent.groups.share_group import ShareGroup
from agent.handlers.groups import REFUSALS, group_code
from agent.services import RequestContext, Services
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
)
from tailrace.kafka.messages.describe_share_group_offsets import DescribeShareOffsetsGroup
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequestGroup
from tailrace.kafka.messages.share_group_describe import DescribedShareGroup, ShareGroupDescribeRequest
from tailrace.security.acls import ResourceType
from tailrace.turns import Steps, Turns

ROWS_IN_A_TURN = 2_000
"""Members described in one turn of the loop."""
MEMBER_BYTES = 800
PARTITION_BYTES = 64
"""Estimated bytes of a member (also of a group), and of a partition assigned to a member, in a description."""
MEMBER_ROWS = 10
"""The cost of a member's description in addition to its topics and partitions, in these."""
GROUP_ROWS = 20
"""The cost of a group in addition to its members, in members."""

G = TypeVar("G", ConsumerGroup, ShareGroup)
D = TypeVar("D", DescribedConsumerGroup, DescribedShareGroup)
N = TypeVar("N", OffsetFetchRequestGroup, DescribeShareOffsetsGroup)


async def described_groups(
    services: Services,
    context: RequestContext,
    request: ConsumerGroupDescribeRequest | ShareGroupDescribeRequest,
    *,
    answer: type[D],
    describe: Callable[[AnyGroup], Steps[D]],
) -> list[D]:
    """Describe each requested group once; a group that can't be described gets an error."""
    groups: list[D] = []
    turns = Turns(ROWS_IN_A_TURN)
    refusal = await refusal_of_all(services, context, request.group_ids, turns)
    for group_id in dict.fromkeys(request.group_ids):
        try:
            if refusal is not None:
                raise refusal
            group: D = await services.groups.look(group_id, describe)
            if request.include_authorized_operations:
                group.authorized_operations = context.access.operations(ResourceType.GROUP, group.group_id)
        except REFUSALS as error:
            group = answer(group_code(error), error_message=str(error), group_id=group_id)
        groups.append(group)
        await turns.did(GROUP_ROWS + len(group.members))
    return groups


async def refusal_of_all(
    services: Services, context: RequestContext, group_ids: Sequence[str], turns: Turns
) -> AnswerTooLarge | None:
    """Reserve memory for the descriptions. If they are too large, reserve it for refusals, and return the error."""
    try:
        await context.reservation.needs(await _bytes_of_groups(services, group_ids, turns))
    except AnswerTooLarge as error:
        await context.reservation.needs(MEMBER_BYTES * len(group_ids))
        return error
    return None


async def _bytes_of_groups(services: Services, group_ids: Sequence[str], turns: Turns) -> int:
    """Estimate the bytes of the groups' descriptions, as objects and encoded. Loads groups that are not in memory."""
    total = 0
    for group_id in dict.fromkeys(group_ids):
        held = services.groups.held_group(group_id)
        if held is not None:
            total += _bytes_of(held)
        else:
            with suppress(*REFUSALS):
                total += await services.groups.look(group_id, _bytes_of)
        await turns.did(GROUP_ROWS)
    return total


def _bytes_of(group: AnyGroup) -> int:
    """Estimate one group's bytes. What members sent is in memory already; the encoded answer has it once more."""
    assigned = 0 if isinstance(group, Group) else sum(map(_assigned_partitions, group.members.values()))
    said = sum(member.kept_bytes for member in group.members.values())
    return MEMBER_BYTES * (1 + len(group.members)) + said + PARTITION_BYTES * assigned


def _assigned_partitions(member: Any) -> int:
    return sum(map(len, member.assigned.values()))


async def groups_once(groups: list[N]) -> list[N]:
    """Merge repeated groups: return each group once, with all topics requested for it."""
    by_id: dict[str, N] = {}
    async for group in Turns(ROWS_IN_A_TURN).over(groups):
        known = by_id.setdefault(group.group_id, group)
        if known is group or known.topics is None:
            continue
        if group.topics is None:
            known.topics = None
        else:
            known.topics += group.topics
    return list(by_id.values())


def of_kind(group: AnyGroup, kind: type[G], name: str) -> G:
    """Return the group if it is of this kind. Raises GroupRefusal."""
    if isinstance(group, kind):
        return group
    problem = "not found" if is_unused(group) else f"is not a {name} group"
    raise GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} {problem}.")


def is_unused(group: AnyGroup) -> bool:
    """Whether the group never had a member."""
    return group.generation == 0 and group.is_idle


def described_assignment(
    assignment: Assignment, topics: Mapping[UUID, KnownTopic]
) -> Steps[DescribedAssignment]:
    """Describe an assignment with topic names. A topic that was deleted meanwhile is left out."""
    described = DescribedAssignment()
    for topic_id, partitions in assignment.items():
        if topic_id in topics:
            name = topics[topic_id].topic.name
            described.topic_partitions.append(DescribedTopicPartitions(topic_id, name, sorted(partitions)))
        yield 1 + len(partitions)
    return described
