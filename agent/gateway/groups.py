"""Consumer groups over HTTP: their states, members, assignments and lag.

Any agent knows the groups, their states and offsets. Only a group's coordinator knows its members.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web

from agent.gateway.call import HttpCall, answered
from agent.gateway.errors import HttpRefusal, check
from agent.gateway.listings import listing
from agent.groups.subscription import CONSUMER, partitions_of
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    DescribedConsumerGroup,
)
from tailrace.kafka.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest
from tailrace.kafka.messages.list_groups import ListedGroup, ListGroupsRequest
from tailrace.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tailrace.rpc.link import join_address
from tailrace.turns import Turns

SHARE = "share"
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LATEST = -1
LAGS_TOGETHER = 2_000
"""Partitions of a group whose lags are computed in one turn of the loop."""
READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class _Member:
    """`partitions`: its assigned partitions, as (topic, partition)."""

    consumer_id: str
    instance_id: str | None
    client_id: str
    partitions: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class _ConsumerGroup:
    """`members`: None if another agent coordinates the group."""

    group_id: str
    state: str
    assignor: str
    is_simple: bool
    members: list[_Member] | None


@dataclass(frozen=True, slots=True)
class _Lag:
    """`committed`: the group's position. `end`: the last stable offset, up to which it can read committed records."""

    topic: str
    partition: int
    committed: int
    end: int

    @property
    def lag(self) -> int:
        return max(0, self.end - self.committed)


async def list_groups(call: HttpCall) -> web.StreamResponse:
    rows = [row for row in await _listing(call) if row.group_type != SHARE]
    shown = (_shown(call, _listed(row)) for row in rows)
    return await listing(call, "KafkaConsumerGroupList", ("consumer-groups",), shown)


async def get_group(call: HttpCall) -> web.Response:
    return answered(_shown(call, await _group(call)))


async def list_consumers(call: HttpCall) -> web.StreamResponse:
    group_id, members = await _members(call)
    shown = (_member_shown(call, group_id, member) for member in members)
    return await listing(call, "KafkaConsumerList", ("consumer-groups", group_id, "consumers"), shown)


async def get_consumer(call: HttpCall) -> web.Response:
    group_id, members = await _members(call)
    return answered(_member_shown(call, group_id, _named(call, members)))


async def list_assignments(call: HttpCall) -> web.StreamResponse:
    group_id, members = await _members(call)
    member = _named(call, members)
    path = ("consumer-groups", group_id, "consumers", member.consumer_id, "assignments")
    shown = (
        call.resource(
            "KafkaConsumerAssignment",
            (*path, topic, "partitions", partition),
            consumer_group_id=group_id,
            consumer_id=member.consumer_id,
            topic_name=topic,
            partition_id=partition,
            partition=call.related("topics", topic, "partitions", partition),
            lag=call.related("consumer-groups", group_id, "lags", topic, "partitions", partition),
        )
        for topic, partition in member.partitions
    )
    return await listing(call, "KafkaConsumerAssignmentList", path, shown)


async def list_lags(call: HttpCall) -> web.StreamResponse:
    group, lags = await _lags(call)
    readers = _readers(group)
    shown = (_lag_shown(call, group, lag, readers) for lag in lags)
    return await listing(call, "KafkaConsumerLagList", ("consumer-groups", group.group_id, "lags"), shown)


async def get_lag(call: HttpCall) -> web.Response:
    group, lags = await _lags(call)
    wanted = (call.name("topic_name"), call.number("partition_id"))
    for lag in lags:
        if (lag.topic, lag.partition) == wanted:
            return answered(_lag_shown(call, group, lag, _readers(group)))
    raise HttpRefusal(404, "The group has no position in this partition.", 40403)


async def get_lag_summary(call: HttpCall) -> web.Response:
    group, lags = await _lags(call)
    if not lags:
        raise HttpRefusal(404, "The group has no positions.", 40403)
    most = max(lags, key=lambda lag: lag.lag)
    member = _readers(group).get((most.topic, most.partition))
    path = ("consumer-groups", group.group_id)
    consumer_id = "" if member is None else member.consumer_id
    summary = call.resource(
        "KafkaConsumerGroupLagSummary",
        (*path, "lag-summary"),
        consumer_group_id=group.group_id,
        max_lag_consumer_id=consumer_id,
        max_lag_instance_id=None if member is None else member.instance_id,
        max_lag_client_id="" if member is None else member.client_id,
        max_lag_topic_name=most.topic,
        max_lag_partition_id=most.partition,
        max_lag=most.lag,
        total_lag=sum(lag.lag for lag in lags),
        max_lag_consumer=call.related(*path, "consumers", consumer_id),
        max_lag_partition=call.related("topics", most.topic, "partitions", most.partition),
    )
    return answered(summary)


# --- requests to the handlers


async def _listing(call: HttpCall) -> Sequence[ListedGroup]:
    response = await call.ask(ListGroupsRequest())
    check(response.error_code)
    return sorted(response.groups, key=lambda row: str(row.group_id))


async def _group(call: HttpCall) -> _ConsumerGroup:
    """Return the group of the path. Raises HttpRefusal."""
    name = call.name("group_id")
    [classic] = (await call.ask(DescribeGroupsRequest(groups=[name]))).groups
    if classic.error_code == ErrorCode.NONE:
        return _classic(classic)
    if classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        [consumer] = (await call.ask(ConsumerGroupDescribeRequest(group_ids=[name]))).groups
        check(consumer.error_code, consumer.error_message)
        return _newer(consumer)
    if classic.error_code == ErrorCode.NOT_COORDINATOR:  # return what any agent knows
        for row in await _listing(call):
            if row.group_id == name and row.group_type != SHARE:
                return _listed(row)
    check(classic.error_code, classic.error_message)
    raise HttpRefusal(404, "There is no such consumer group.", 40403)


async def _members(call: HttpCall) -> tuple[str, list[_Member]]:
    group = await _group(call)
    if group.members is None:
        agent = await _coordinator(call, group.group_id)
        raise HttpRefusal(503, f"{agent} knows the members of this group. Send the request to it.", 50302)
    return group.group_id, group.members


async def _coordinator(call: HttpCall, group_id: str) -> str:
    """Describe the group's coordinator by the address that Kafka's clients get."""
    [found] = (await call.ask(FindCoordinatorRequest(coordinator_keys=[group_id]))).coordinators
    if found.error_code != ErrorCode.NONE:
        return "Another agent"
    return f"The agent at {join_address(found.host, found.port)}"


async def _lags(call: HttpCall) -> tuple[_ConsumerGroup, list[_Lag]]:
    group = await _group(call)
    wanted = OffsetFetchRequestGroup(group.group_id, topics=None)
    [fetched] = (await call.ask(OffsetFetchRequest(groups=[wanted]))).groups
    check(fetched.error_code)
    turns = Turns(LAGS_TOGETHER)
    committed: dict[tuple[str, int], int] = {}
    topics: list[ListOffsetsTopic] = []
    for topic in sorted(fetched.topics, key=lambda topic: str(topic.name)):
        wanted_of_topic = []
        async for row in turns.over(sorted(topic.partitions, key=lambda row: row.partition_index)):
            if row.committed_offset >= 0:
                committed[str(topic.name), row.partition_index] = row.committed_offset
                wanted_of_topic.append(ListOffsetsPartition(row.partition_index, timestamp=_LATEST))
        if wanted_of_topic:
            topics.append(ListOffsetsTopic(str(topic.name), wanted_of_topic))
    if not topics:
        return group, []
    request = ListOffsetsRequest(replica_id=-1, isolation_level=READ_COMMITTED, topics=topics)
    lags = []
    for part in (await call.ask(request)).topics:
        name = str(part.name)
        async for end in turns.over(part.partitions):
            if end.error_code == ErrorCode.NONE:
                lags.append(_Lag(name, end.partition_index, committed[name, end.partition_index], end.offset))
    return group, lags


def _classic(described: DescribedGroup) -> _ConsumerGroup:
    is_consumer = described.protocol_type == CONSUMER
    members = [
        _Member(
            consumer_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            partitions=(partitions_of(bytes(member.member_assignment)) or []) if is_consumer else [],
        )
        for member in described.members
    ]
    return _ConsumerGroup(
        group_id=described.group_id,
        state=described.group_state,
        assignor=described.protocol_data,
        is_simple=not described.protocol_type,
        members=members,
    )


def _newer(described: DescribedConsumerGroup) -> _ConsumerGroup:
    members = [
        _Member(
            consumer_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            partitions=[
                (str(topic.topic_name), partition)
                for topic in member.assignment.topic_partitions
                for partition in topic.partitions
            ],
        )
        for member in described.members
    ]
    return _ConsumerGroup(
        group_id=described.group_id,
        state=described.group_state,
        assignor=described.assignor_name,
        is_simple=False,
        members=members,
    )


def _listed(row: ListedGroup) -> _ConsumerGroup:
    return _ConsumerGroup(
        group_id=row.group_id,
        state=row.group_state,
        assignor="",
        is_simple=not row.protocol_type,
        members=None,
    )


def _named(call: HttpCall, members: Sequence[_Member]) -> _Member:
    wanted = call.name("consumer_id")
    for member in members:
        if member.consumer_id == wanted:
            return member
    raise HttpRefusal(404, f"The group has no member {wanted}.")


def _readers(group: _ConsumerGroup) -> dict[tuple[str, int], _Member]:
    """Return the member that has each partition."""
    return {
        topic_partition: member
        for member in reversed(group.members or [])
        for topic_partition in member.partitions
    }


# --- conversion to JSON


def _shown(call: HttpCall, group: _ConsumerGroup) -> dict[str, object]:
    path = ("consumer-groups", group.group_id)
    return call.resource(
        "KafkaConsumerGroup",
        path,
        consumer_group_id=group.group_id,
        is_simple=group.is_simple,
        partition_assignor=group.assignor,
        state=_WORD.sub("_", group.state).upper(),
        consumers=call.related(*path, "consumers"),
        lag_summary=call.related(*path, "lag-summary"),
    )


def _member_shown(call: HttpCall, group_id: str, member: _Member) -> dict[str, object]:
    path = ("consumer-groups", group_id, "consumers", member.consumer_id)
    return call.resource(
        "KafkaConsumer",
        path,
        consumer_group_id=group_id,
        consumer_id=member.consumer_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        assignments=call.related(*path, "assignments"),
    )


def _lag_shown(
    call: HttpCall, group: _ConsumerGroup, lag: _Lag, readers: Mapping[tuple[str, int], _Member]
) -> dict[str, object]:
    member = readers.get((lag.topic, lag.partition))
    return call.resource(
        "KafkaConsumerLag",
        ("consumer-groups", group.group_id, "lags", lag.topic, "partitions", lag.partition),
        consumer_group_id=group.group_id,
        topic_name=lag.topic,
        partition_id=lag.partition,
        current_offset=lag.committed,
        log_end_offset=lag.end,
        lag=lag.lag,
        consumer_id="" if member is None else member.consumer_id,
        instance_id=None if member is None else member.instance_id,
        client_id="" if member is None else member.client_id,
    )
