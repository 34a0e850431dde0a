"""Elections, reassignments, log dirs, the quorum, feature levels: what is so already, and what can't be."""

from __future__ import annotations

from typing import Any

import pytest

from agent.handlers.described_configs import LOG_DIR
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tailrace.kafka.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tailrace.kafka.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
)
from tailrace.kafka.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopicPartitions
from tailrace.kafka.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from tailrace.kafka.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.support.agents import agent_bench, codes


async def test_no_election_is_needed() -> None:
    async with agent_bench() as bench:
        await bench.topic("t", 2)

        named = ElectLeadersRequest(topic_partitions=[ElectLeadersTopicPartitions("t", [0, 7])])
        (topic,) = (await bench.ask(ApiKey.ELECT_LEADERS, 2, named)).replica_election_results
        everything = await bench.ask(ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(topic_partitions=None))

        assert codes(topic.partition_result) == [
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert everything.error_code == 0 and everything.replica_election_results == []
        request = ElectLeadersRequest(7, [ElectLeadersTopicPartitions("t", [0])])
        refused = await bench.ask(ApiKey.ELECT_LEADERS, 2, request)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert codes(refused.replica_election_results[0].partition_result) == [ErrorCode.INVALID_REQUEST]


async def test_a_partition_stays_on_the_brokers_that_are_shown_and_cannot_be_moved() -> None:
    async with agent_bench() as bench:
        await bench.topic("t", 3)
        mine = bench.services.identity.broker_id
        rows = [
            ReassignablePartition(0, [mine]),
            ReassignablePartition(1, [mine + 1]),
            ReassignablePartition(2, None),
            ReassignablePartition(3, [mine]),
            ReassignablePartition(0, [mine, mine]),
        ]

        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("t", rows)])
        answer = await bench.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, request)

        assert codes(answer.responses[0].partitions) == [
            ErrorCode.NONE,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ]
        listed = await bench.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, ListPartitionReassignmentsRequest())
        assert (listed.error_code, listed.topics) == (0, [])


async def test_the_store_is_the_only_log_dir() -> None:
    async with agent_bench() as bench:
        await bench.topic("t", 1)
        topics = [AlterReplicaLogDirTopic("t", [0, 1])]

        request = AlterReplicaLogDirsRequest(
            [AlterReplicaLogDir(LOG_DIR, topics), AlterReplicaLogDir("/mnt/disk2", topics)]
        )
        here, elsewhere = (await bench.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, request)).results

        assert codes(here.partitions) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert codes(elsewhere.partitions) == [ErrorCode.LOG_DIR_NOT_FOUND] * 2


async def test_the_quorum_is_one_agent_that_the_others_follow() -> None:
    async with agent_bench() as bench:
        other = await bench.join("az-b", 2)
        topics = [
            DescribeQuorumRequestTopic(name, [DescribeQuorumRequestPartition(0)])
            for name in ("__cluster_metadata", "t")
        ]

        answer = await bench.ask(ApiKey.DESCRIBE_QUORUM, 1, DescribeQuorumRequest(topics))

        quorum, unknown = (topic.partitions[0] for topic in answer.topics)
        assert quorum.leader_id == bench.services.identity.broker_id
        assert [voter.replica_id for voter in quorum.current_voters] == [quorum.leader_id]
        assert [observer.replica_id for observer in quorum.observers] == [other.broker_id]
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("feature", "level", "kind", "code"),
    [
        ("group.version", 1, 1, ErrorCode.NONE),
        ("group.version", 1, 7, ErrorCode.INVALID_UPDATE_VERSION),
        ("transaction.version", 1, 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("metadata.version", 1, 1, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
async def test_feature_levels_stay_what_they_are(
    feature: str, level: int, kind: int, code: ErrorCode
) -> None:
    async with agent_bench() as bench:
        update = FeatureUpdateKey(feature, level, upgrade_type=kind)
        request: Any = UpdateFeaturesRequest(feature_updates=[update])

        old = await bench.ask(ApiKey.UPDATE_FEATURES, 1, request)
        new = await bench.ask(ApiKey.UPDATE_FEATURES, 2, request)

        assert old.error_code == new.error_code == code
        assert codes(old.results) == ([] if code else [code])
        assert new.results == []
