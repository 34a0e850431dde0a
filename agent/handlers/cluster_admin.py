"""Requests about Kafka's replicas, controllers and feature levels, answered for a cluster that has none of these.

Every agent can serve every partition, and the object store keeps the copies. So a request for the current state
succeeds, any other is refused with the reason, and nothing is ever in progress.
"""

from __future__ import annotations

from agent.catalog import Snapshot
from agent.errors import EXPECTED, code_of
from agent.handlers.api_versions import FEATURES
from agent.handlers.described_configs import LOG_DIR
from agent.services import RequestContext, Services
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tailrace.kafka.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from tailrace.kafka.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseTopic,
    QuorumReplica,
)
from tailrace.kafka.messages.elect_leaders import (
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReplicaElectionResult,
)
from tailrace.kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tailrace.kafka.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tailrace.turns import Turns

METADATA_TOPIC = "__cluster_metadata"
"""Kafka's metadata topic, the only topic in DescribeQuorum requests."""
ROWS_IN_A_TURN = 1_000
"""Rows answered in one turn of the loop."""
PREFERRED, UNCLEAN = 0, 1
"""The types of elections."""
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
"""The types of changes of a feature's level."""


async def elect_leaders(
    services: Services, context: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    """Answer that no election is needed: leaders follow the ring of agents. "All partitions" gets an empty result."""
    snapshot = await services.catalog.refresh()
    response, turns = ElectLeadersResponse(), Turns(ROWS_IN_A_TURN)
    is_known = request.election_type in (PREFERRED, UNCLEAN)
    if not is_known:
        response.error_code = ErrorCode.INVALID_REQUEST
    async for topic in turns.over(request.topic_partitions or ()):
        results = [
            ElectLeadersPartitionResult(index, *_election(snapshot, topic.topic, index, is_known=is_known))
            async for index in turns.over(topic.partitions)
        ]
        response.replica_election_results.append(ReplicaElectionResult(topic.topic, results))
    return response


def _election(
    snapshot: Snapshot, topic: str, partition: int, *, is_known: bool
) -> tuple[ErrorCode, str | None]:
    if not is_known:
        return ErrorCode.INVALID_REQUEST, "the type of election is neither 0 (preferred) nor 1 (unclean)"
    if not _exists(snapshot, topic, partition):
        return _unknown()
    return ErrorCode.ELECTION_NOT_NEEDED, "leaders follow the live agents by themselves"


async def alter_partition_reassignments(
    services: Services, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Refuse to move partitions: no broker stores one. Only the current assignment is accepted."""
    snapshot = await services.catalog.refresh()
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    turns = Turns(snapshot.replicas.in_a_turn(context.zone, ROWS_IN_A_TURN))
    async for topic in turns.over(request.topics):
        answers = [
            ReassignablePartitionResponse(
                row.partition_index, *_reassignment(snapshot, context.zone, topic.name, row)
            )
            async for row in turns.over(topic.partitions)
        ]
        response.responses.append(ReassignableTopicResponse(topic.name, answers))
    return response


def _reassignment(
    snapshot: Snapshot, zone: str, name: str, row: ReassignablePartition
) -> tuple[ErrorCode, str | None]:
    if not _exists(snapshot, name, row.partition_index):
        return _unknown()
    if row.replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
    topic = snapshot.by_name[name].topic
    shown = snapshot.replicas.of(zone, topic.topic_id, row.partition_index, topic.replication_factor)
    if sorted(row.replicas) == sorted(shown):
        return ErrorCode.NONE, None
    return (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "partitions lie on no broker: the object store keeps the copies, and leaders follow the live agents",
    )


async def list_partition_reassignments(
    services: Services, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Answer that no reassignment is in progress."""
    return ListPartitionReassignmentsResponse(error_message=None)


async def alter_replica_log_dirs(
    services: Services, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Accept a replica in the object store, the only log dir; refuse any other."""
    snapshot = await services.catalog.refresh()
    response, turns = AlterReplicaLogDirsResponse(), Turns(ROWS_IN_A_TURN)
    async for directory in turns.over(request.dirs):
        async for topic in turns.over(directory.topics):
            rows = [
                AlterReplicaLogDirPartitionResult(index, _move(snapshot, directory.path, topic.name, index))
                async for index in turns.over(topic.partitions)
            ]
            response.results.append(AlterReplicaLogDirTopicResult(topic.name, rows))
    return response


def _move(snapshot: Snapshot, path: str, topic: str, partition: int) -> ErrorCode:
    if path != LOG_DIR:
        return ErrorCode.LOG_DIR_NOT_FOUND
    return ErrorCode.NONE if _exists(snapshot, topic, partition) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def describe_quorum(
    services: Services, context: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """Describe the sequencer's metadata as a quorum: one agent is shown as the voter, the others as observers."""
    try:
        snapshot = await services.catalog.refresh()
    except EXPECTED as error:
        return DescribeQuorumResponse(error_code=code_of(error))
    response, turns = DescribeQuorumResponse(), Turns(ROWS_IN_A_TURN)
    async for topic in turns.over(request.topics):
        rows = [
            _quorum(services, snapshot)
            if (topic.topic_name, partition.partition_index) == (METADATA_TOPIC, 0)
            else DescribeQuorumResponsePartition(
                partition.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            async for partition in turns.over(topic.partitions)
        ]
        response.topics.append(DescribeQuorumResponseTopic(topic.topic_name, rows))
    return response


def _quorum(services: Services, snapshot: Snapshot) -> DescribeQuorumResponsePartition:
    live = sorted(member.broker_id for member in snapshot.ring.members)
    voter, *observers = live or [services.identity.broker_id]
    return DescribeQuorumResponsePartition(
        leader_id=voter,
        leader_epoch=snapshot.incarnation,
        high_watermark=snapshot.version,
        current_voters=[QuorumReplica(voter, snapshot.version)],
        observers=[QuorumReplica(agent, snapshot.version) for agent in observers],
    )


async def update_features(
    services: Services, context: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Accept only the current levels: the code fixes them. As in Kafka 4, one refused change refuses all."""
    results = [_feature(update) async for update in Turns(ROWS_IN_A_TURN).over(request.feature_updates)]
    refused = next((result for result in results if result.error_code), None)
    if refused is not None:
        return UpdateFeaturesResponse(error_code=refused.error_code, error_message=refused.error_message)
    return UpdateFeaturesResponse(error_message=None, results=results)


def _feature(update: FeatureUpdateKey) -> UpdatableFeatureResult:
    if update.feature not in FEATURES:
        message = f"{update.feature!r} is none of {', '.join(FEATURES)}"
    elif update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        message = f"upgrade type {update.upgrade_type} is none of 1 to 3"
    elif update.max_version_level != FEATURES[update.feature][1]:
        message = f"{update.feature} is at level {FEATURES[update.feature][1]}, which can't be changed"
    else:
        return UpdatableFeatureResult(update.feature, error_message=ErrorCode.NONE.name)
    return UpdatableFeatureResult(update.feature, ErrorCode.INVALID_UPDATE_VERSION, message)


def _exists(snapshot: Snapshot, topic: str, partition: int) -> bool:
    known = snapshot.by_name.get(topic)
    return known is not None and 0 <= partition < known.topic.partitions


def _unknown() -> tuple[ErrorCode, str | None]:
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
