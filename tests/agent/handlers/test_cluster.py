"""DescribeCluster, DescribeLogDirs, OffsetForLeaderEpoch, AlterConfigs, ApiVersions' features."""

from __future__ import annotations

from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from tailrace.kafka.messages.api_versions import ApiVersionsRequest
from tailrace.kafka.messages.describe_cluster import DescribeClusterRequest
from tailrace.kafka.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tailrace.kafka.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.agent.handlers.test_configs import TOPIC, alter, value_of
from tests.agent.handlers.test_produce import produce
from tests.support.agents import AgentBench, agent_bench, batch


async def test_the_cluster_is_all_live_agents() -> None:
    async with agent_bench() as bench:
        await bench.join("az-b", 2)
        response = await bench.ask(ApiKey.DESCRIBE_CLUSTER, 2, DescribeClusterRequest())
        assert response.error_code == 0 and response.cluster_id
        assert [(each.host, each.rack) for each in response.brokers] == [
            ("host-1", "az-a"),
            ("host-2", "az-b"),
        ]
        assert response.controller_id in {each.broker_id for each in response.brokers}


async def test_the_log_dir_is_the_store_and_holds_the_bytes_of_batches() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        sent = batch(b"x" * 100)
        await produce(bench, (1, sent))

        async def sizes(*topics: DescribableLogDirTopic, every: bool = False) -> dict[tuple[str, int], int]:
            request = DescribeLogDirsRequest(None if every else list(topics))
            (found,) = (await bench.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, request)).results
            return {
                (topic.name, row.partition_index): row.partition_size
                for topic in found.topics
                for row in topic.partitions
            }

        assert (await sizes(every=True))["t", 1] == len(sent)
        assert await sizes(DescribableLogDirTopic("t", [1])) == {("t", 1): len(sent)}
        assert await sizes(DescribableLogDirTopic("nowhere", [0])) == {}
        bench.sequencer.is_away = True
        bench.services.catalog.refresh = _known(bench)  # type: ignore[method-assign]
        response = await bench.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(None))
        assert response.error_code == ErrorCode.REQUEST_TIMED_OUT


def _known(bench: AgentBench) -> Any:
    async def refresh() -> Any:
        return bench.services.catalog.snapshot

    return refresh


async def test_an_epoch_ends_where_the_log_does() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await produce(bench, (0, batch(b"1", b"2")))

        async def asked(epoch: int, name: str = "t", partition: int = 0) -> tuple[int, int, int]:
            named = [OffsetForLeaderTopic(name, [OffsetForLeaderPartition(partition, -1, epoch)])]
            request = OffsetForLeaderEpochRequest(topics=named)
            response = await bench.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)
            row = response.topics[0].partitions[0]
            return row.error_code, row.leader_epoch, row.end_offset

        code, epoch, end = await asked(0)
        assert (code, epoch, end) == (0, 0, 2)
        assert await asked(1_000) == (0, -1, -1)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await asked(0, "nowhere"))[0] == (await asked(0, "t", 7))[0] == unknown


async def test_alter_configs_replaces_all_that_was_set() -> None:
    async with agent_bench() as bench:
        await bench.topic()

        async def replaced(configs: dict[str, str], *, validate_only: bool = False, name: str = "t") -> int:
            changes = [AlterableConfig(key, value) for key, value in configs.items()]
            request = AlterConfigsRequest([AlterConfigsResource(TOPIC, name, changes)], validate_only)
            (row,) = (await bench.ask(ApiKey.ALTER_CONFIGS, 2, request)).responses
            return int(row.error_code)

        assert await alter(bench, TOPIC, "t", ("retention.ms", 0, "7000")) == 0
        assert await replaced({"max.message.bytes": "4000"}, validate_only=True) == 0
        assert await value_of(bench, TOPIC, "t", "retention.ms") == ("7000", 1)
        assert await replaced({"max.message.bytes": "4000"}) == 0
        assert await value_of(bench, TOPIC, "t", "max.message.bytes") == ("4000", 1)
        assert await value_of(bench, TOPIC, "t", "retention.ms") == ("604800000", 5)
        assert await replaced({"max.message.bytes": "many"}) == ErrorCode.INVALID_CONFIG
        assert await replaced({}, name="nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_highest_feature_levels_are_finalized() -> None:
    async with agent_bench() as bench:
        asked = ApiVersionsRequest("probe", "1")
        for version, supported in (
            (3, []),
            (4, [("group.version", 0, 1), ("share.version", 0, 1), ("transaction.version", 0, 2)]),
        ):
            response = await bench.ask(ApiKey.API_VERSIONS, version, asked)
            features = [
                (each.name, each.min_version, each.max_version) for each in response.supported_features
            ]
            assert features == supported  # older clients fail at a range that begins at 0
            assert response.finalized_features_epoch >= 0
            levels = {each.name: each.max_version_level for each in response.finalized_features}
            assert levels == {"group.version": 1, "share.version": 1, "transaction.version": 2}
        assert not (await bench.ask(ApiKey.API_VERSIONS, 2, asked)).finalized_features
