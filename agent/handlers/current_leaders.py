"""Names the current leaders of a produce request's partitions in its answer, with the agents' addresses (KIP-951).

Kafka's brokers do so only with NOT_LEADER_OR_FOLLOWER. librdkafka accepts it in any answer, so it learns of new leaders
without a refused batch (decision 60).
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.catalog import KnownTopic
from agent.leadership import SMALL_RING
from agent.services import RequestContext, Services
from sequencer.api.agents import Member
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.produce import LeaderIdAndEpoch, NodeEndpoint, ProduceResponse

FIRST_VERSION_OF_LEADERS = 10
"""The first Produce version whose answers can name leaders."""
MAX_NAMED = 100
"""The most partitions in one answer. librdkafka sends one request per partition."""


def name_leaders(
    services: Services,
    context: RequestContext,
    response: ProduceResponse,
    topics: Sequence[KnownTopic | ErrorCode],
) -> None:
    """Fill in the leaders of the first MAX_NAMED partitions, and the leaders' addresses; in a small ring, all agents'
    addresses. `topics`: one for each topic of the response."""
    snapshot = services.catalog.snapshot
    members = {member.broker_id: member for member in snapshot.ring.members}
    named = set(members) if len(members) <= SMALL_RING else set[int]()
    left = MAX_NAMED
    for topic, rows in zip(topics, response.responses, strict=True):
        if isinstance(topic, ErrorCode):
            continue
        for row in rows.partition_responses[:left]:
            leaders = snapshot.replicas.of(context.zone, topic.topic.topic_id, row.index, 1)
            if leaders and members[leaders[0]].info.address_of(context.access.listener) is not None:
                row.current_leader = LeaderIdAndEpoch(leaders[0], max(snapshot.ring.generation, 0))
                named.add(leaders[0])
            left -= 1
    response.node_endpoints = [
        endpoint
        for broker_id in sorted(named)
        if (endpoint := _endpoint(members[broker_id], context.access.listener)) is not None
    ]


def _endpoint(member: Member, listener: str) -> NodeEndpoint | None:
    address = member.info.address_of(listener)
    return None if address is None else NodeEndpoint(member.broker_id, *address, member.info.zone or None)
