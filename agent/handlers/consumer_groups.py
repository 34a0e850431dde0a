"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: groups whose assignment the coordinator computes (KIP-848)."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from agent.catalog import KnownTopic
from agent.groups.assignors import ASSIGNORS, Assignment, united
from agent.groups.consumer_group import JOINS, LEAVES_FOR_NOW, Consumer, ConsumerGroup, ConsumerHeartbeat
from agent.groups.coordinator import GroupRefusal
from agent.groups.group_bytes import AnyGroup
from agent.groups.topic_names import TopicNames, in_order
from agent.groups.topic_pattern import InvalidPattern, TopicPattern
from agent.handlers.described_groups import MEMBER_ROWS, described_assignment, described_groups, of_kind
from agent.handlers.groups import REFUSALS, group_code, subscribed_topics
from agent.services import RequestContext, Services
from tailrace.configs.group_config import CONSUMER_HEARTBEAT_INTERVAL_MS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from tailrace.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatTopicPartitions,
)
from tailrace.limits import is_name
from tailrace.turns import Steps

CLIENT_NAMES_MEMBER = 1
"""From this version on, clients generate their member ids (KIP-1082)."""

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""The member types in ConsumerGroupDescribe."""


async def heartbeat(
    services: Services, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Handle a heartbeat: the member joins, stays or leaves, by its epoch; the answer has its next step."""
    try:
        _check(request, context.api_version)
        topics = await subscribed_topics(request.subscribed_topic_names)
        await services.catalog.know(request.subscribed_topic_names or ())
        answer = await services.groups.consumer_heartbeat(
            request.group_id, _heartbeat(services, context, request, topics)
        )
    except REFUSALS as error:
        return ConsumerGroupHeartbeatResponse(error_code=group_code(error), error_message=str(error))
    except InvalidPattern as error:
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.INVALID_REGULAR_EXPRESSION, error_message=str(error)
        )
    if answer.code is not ErrorCode.NONE:
        message = answer.message or answer.code.name
        return ConsumerGroupHeartbeatResponse(error_code=answer.code, error_message=message)
    assigned = answer.assigned
    return ConsumerGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=services.groups.configs.number(
            request.group_id, CONSUMER_HEARTBEAT_INTERVAL_MS
        ),
        assignment=None
        if assigned is None
        else ConsumerGroupHeartbeatAssignment(_topic_partitions(assigned)),
    )


def _check(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Raise GroupRefusal for what Kafka refuses before it looks at the group, and for what is too large."""
    is_joining = request.member_epoch == JOINS
    problems = (
        (not request.member_id and (version >= CLIENT_NAMES_MEMBER or not is_joining), "MemberId is missing"),
        (bool(request.member_id) and not is_name(request.member_id), "MemberId is too long"),
        (
            request.instance_id is not None and not is_name(request.instance_id),
            "InstanceId is empty or too long",
        ),
        (request.rack_id is not None and not is_name(request.rack_id), "RackId is empty or too long"),
        (request.member_epoch < LEAVES_FOR_NOW, f"MemberEpoch is {request.member_epoch}"),
        (
            request.member_epoch == LEAVES_FOR_NOW and request.instance_id is None,
            "InstanceId is missing: only a static member leaves for a while",
        ),
        (is_joining and request.rebalance_timeout_ms < 0, "RebalanceTimeoutMs is missing"),
        (
            is_joining and bool(request.topic_partitions),
            "TopicPartitions of a member that joins must be empty",
        ),
        (
            is_joining and request.subscribed_topic_names is None and request.subscribed_topic_regex is None,
            "SubscribedTopicNames or SubscribedTopicRegex is missing",
        ),
    )
    for is_wrong, message in problems:
        if is_wrong:
            raise GroupRefusal(ErrorCode.INVALID_REQUEST, message)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        raise GroupRefusal(ErrorCode.UNSUPPORTED_ASSIGNOR, f"{request.server_assignor!r} is none of {known}")
    if request.subscribed_topic_regex:
        TopicPattern(request.subscribed_topic_regex)


def _heartbeat(
    services: Services,
    context: RequestContext,
    request: ConsumerGroupHeartbeatRequest,
    topics: TopicNames | None,
) -> ConsumerHeartbeat:
    owned = request.topic_partitions
    rebalance_ms = request.rebalance_timeout_ms
    return ConsumerHeartbeat(
        member_id=request.member_id or str(services.entropy.uuid()),
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=context.client_id,
        client_host=f"/{context.client_host}",
        rebalance_seconds=None if rebalance_ms < 0 else rebalance_ms / 1000,
        topics=topics,
        pattern=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if owned is None else united((topic.topic_id, topic.partitions) for topic in owned),
    )


def _topic_partitions(assigned: Assignment) -> list[ConsumerGroupHeartbeatTopicPartitions]:
    return [
        ConsumerGroupHeartbeatTopicPartitions(topic_id, sorted(partitions))
        for topic_id, partitions in assigned.items()
    ]


async def describe(
    services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe each group's epochs and members, with their current and target assignments."""
    await services.catalog.refresh_if_possible()  # the group may have moved from another agent a moment ago
    topics = services.catalog.snapshot.by_id

    def describe_one(group: AnyGroup) -> Steps[DescribedConsumerGroup]:
        return _description(of_kind(group, ConsumerGroup, "consumer"), topics)

    groups = await described_groups(
        services, context, request, answer=DescribedConsumerGroup, describe=describe_one
    )
    return ConsumerGroupDescribeResponse(groups=groups)


def _description(group: ConsumerGroup, topics: Mapping[UUID, KnownTopic]) -> Steps[DescribedConsumerGroup]:
    members = []
    for member in group.members.values():
        members.append((yield from _described_member(member, topics)))
    return DescribedConsumerGroup(
        group_id=group.group_id,
        group_state=group.phase,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=members,
    )


def _described_member(member: Consumer, topics: Mapping[UUID, KnownTopic]) -> Steps[DescribedConsumer]:
    yield MEMBER_ROWS
    # Its client reads the partitions that it must give up until it no longer names them.
    reads = united((*member.assigned.items(), *member.revoking.items()))
    return DescribedConsumer(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=(yield from in_order(member.subscription.topics)),
        subscribed_topic_regex=member.subscription.pattern,
        assignment=(yield from described_assignment(reads, topics)),
        target_assignment=(yield from described_assignment(member.target, topics)),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )
