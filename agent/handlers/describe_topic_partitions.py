"""DescribeTopicPartitions (KIP-966): metadata in pages, by topic name and partition."""

from __future__ import annotations

from agent.catalog import Snapshot
from agent.errors import unknown_topic_code
from agent.services import RequestContext, Services
from cache.ring import NO_LEADER
from sequencer.api.topics import Topic
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from tailrace.security.acls import ResourceType
from tailrace.turns import Turns

MAX_PARTITIONS = 2_000
PARTITIONS_IN_A_TURN = 1_000
"""Partitions placed in one turn of the loop, in a small ring."""
NAME_BYTES = 100
PARTITION_BYTES = 320
"""Estimated bytes of the name of a topic that may be described, and of a partition in the answer."""


async def handle(
    services: Services, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Describe topics in order of name, from the cursor on, until the limit of partitions is reached."""
    snapshot = await services.catalog.refresh()
    names = sorted({topic.name for topic in request.topics} or snapshot.by_name)
    start = request.cursor
    left = max(1, min(request.response_partition_limit, MAX_PARTITIONS))
    await context.reservation.needs(NAME_BYTES * len(names) + PARTITION_BYTES * left)
    response = DescribeTopicPartitionsResponse()
    if start is not None and start.partition_index < 0:
        response.topics = [_unknown(topic.name, ErrorCode.INVALID_REQUEST) for topic in request.topics]
        return response
    turns = Turns(snapshot.replicas.in_a_turn(context.zone, PARTITIONS_IN_A_TURN))
    for name in names:
        if start is not None and name < start.topic_name:
            continue
        first = start.partition_index if start is not None and name == start.topic_name else 0
        if left == 0:
            response.next_cursor = Cursor(name, first)
            break
        known = snapshot.by_name.get(name)
        if known is None:
            response.topics.append(_unknown(name, unknown_topic_code(name)))
            await turns.did()
            continue
        last = min(first + left, known.topic.partitions)
        rows = [
            _row(snapshot, context.zone, known.topic, index) async for index in turns.over(range(first, last))
        ]
        left -= len(rows)
        response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=known.topic.topic_id,
                is_internal=known.is_internal,
                partitions=rows,
                topic_authorized_operations=context.access.operations(ResourceType.TOPIC, name),
            )
        )
        if last < known.topic.partitions:
            response.next_cursor = Cursor(name, last)
            break
    return response


def _unknown(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name)


def _row(snapshot: Snapshot, zone: str, topic: Topic, index: int) -> DescribeTopicPartitionsResponsePartition:
    nodes = snapshot.replicas.of(zone, topic.topic_id, index, topic.replication_factor)
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=nodes[0] if nodes else NO_LEADER,
        leader_epoch=max(snapshot.ring.generation, 0),
        replica_nodes=nodes,
        isr_nodes=nodes,
        eligible_leader_replicas=[],
        last_known_elr=[],
    )
