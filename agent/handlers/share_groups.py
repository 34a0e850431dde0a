"""ShareGroupHeartbeat and ShareGroupDescribe: the members of share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from agent.catalog import KnownTopic
from agent.groups.consumer_group import JOINS, LEAVES
from agent.groups.coordinator import GroupRefusal
from agent.groups.group_bytes import AnyGroup
from agent.groups.share_group import ASSIGNOR, ShareGroup, ShareHeartbeat, ShareMember
from agent.groups.topic_names import in_order
from agent.handlers.described_groups import MEMBER_ROWS, described_assignment, described_groups, of_kind
from agent.handlers.groups import REFUSALS, group_code, subscribed_topics
from agent.services import RequestContext, Services
from tailrace.configs.group_config import SHARE_HEARTBEAT_INTERVAL_MS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.share_group_describe import (
    DescribedShareGroup,
    DescribedShareMember,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from tailrace.kafka.messages.share_group_heartbeat import (
    ShareGroupHeartbeatAssignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatTopicPartitions,
)
from tailrace.limits import is_name
from tailrace.turns import Steps


async def heartbeat(
    services: Services, context: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    """Handle a heartbeat. Its member epoch says whether the member joins, stays or leaves."""
    try:
        _check(request)
        topics = await subscribed_topics(request.subscribed_topic_names)
        await services.catalog.know(request.subscribed_topic_names or ())
        answer = await services.groups.share_heartbeat(
            request.group_id,
            ShareHeartbeat(
                member_id=request.member_id,
                epoch=request.member_epoch,
                rack_id=request.rack_id,
                client_id=context.client_id,
                client_host=f"/{context.client_host}",
                topics=topics,
            ),
        )
    except REFUSALS as error:
        return ShareGroupHeartbeatResponse(error_code=group_code(error), error_message=str(error))
    if answer.code is not ErrorCode.NONE:
        message = answer.message or answer.code.name
        return ShareGroupHeartbeatResponse(error_code=answer.code, error_message=message)
    response = ShareGroupHeartbeatResponse(
        member_id=request.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=services.groups.configs.number(request.group_id, SHARE_HEARTBEAT_INTERVAL_MS),
    )
    if answer.assigned is not None:
        response.assignment = ShareGroupHeartbeatAssignment(
            [
                ShareGroupHeartbeatTopicPartitions(topic_id, sorted(partitions))
                for topic_id, partitions in answer.assigned.items()
            ]
        )
    return response


def _check(request: ShareGroupHeartbeatRequest) -> None:
    """Raise GroupRefusal for what Kafka refuses before it looks at the group, and for what is too large."""
    problems = (
        (not is_name(request.member_id), "MemberId is missing or too long"),
        (request.rack_id is not None and not is_name(request.rack_id), "RackId is empty or too long"),
        (request.member_epoch < LEAVES, f"MemberEpoch is {request.member_epoch}"),
        (
            request.member_epoch == JOINS and not request.subscribed_topic_names,
            "SubscribedTopicNames is missing",
        ),
    )
    for is_wrong, message in problems:
        if is_wrong:
            raise GroupRefusal(ErrorCode.INVALID_REQUEST, message)


async def describe(
    services: Services, context: RequestContext, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    """Describe each group's epochs and members, with their assignments."""
    await services.catalog.refresh_if_possible()  # the group may have moved from another agent a moment ago
    topics = services.catalog.snapshot.by_id

    def describe_one(group: AnyGroup) -> Steps[DescribedShareGroup]:
        return _description(of_kind(group, ShareGroup, "share"), topics)

    groups = await described_groups(
        services, context, request, answer=DescribedShareGroup, describe=describe_one
    )
    return ShareGroupDescribeResponse(groups=groups)


def _description(group: ShareGroup, topics: Mapping[UUID, KnownTopic]) -> Steps[DescribedShareGroup]:
    members = []
    for member in group.members.values():
        members.append((yield from _described_member(member, topics)))
    return DescribedShareGroup(
        group_id=group.group_id,
        group_state=group.phase,
        group_epoch=group.epoch,
        assignment_epoch=group.assigned_epoch,
        assignor_name=ASSIGNOR,
        members=members,
    )


def _described_member(member: ShareMember, topics: Mapping[UUID, KnownTopic]) -> Steps[DescribedShareMember]:
    yield MEMBER_ROWS
    return DescribedShareMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=(yield from in_order(member.topics)),
        assignment=(yield from described_assignment(member.assigned, topics)),
    )
