"""Authorized operations, where a request asks for them: as a Kafka whose ACLs let everybody do everything says."""

from __future__ import annotations

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.describe_cluster import DescribeClusterRequest
from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest
from tailrace.kafka.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.agent.handlers.test_group_offsets import commit
from tests.support.agents import agent_bench

NOT_ASKED = -(2**31)
KAFKAS_TOPIC, KAFKAS_CLUSTER, KAFKAS_GROUP = 3576, 8096, 3400


async def test_metadata_tells_them_of_topics_and_the_cluster() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        for asked, topic, cluster in ((True, KAFKAS_TOPIC, KAFKAS_CLUSTER), (False, NOT_ASKED, NOT_ASKED)):
            request = MetadataRequest(
                [MetadataRequestTopic(name="t"), MetadataRequestTopic(name="nowhere")],
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=asked,
                include_topic_authorized_operations=asked,
            )
            response = await bench.ask(ApiKey.METADATA, 10, request)
            assert [row.topic_authorized_operations for row in response.topics] == [topic, NOT_ASKED]
            assert response.cluster_authorized_operations == cluster


async def test_the_cluster_and_a_described_topic_tell_them() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        assert (
            await bench.ask(ApiKey.DESCRIBE_CLUSTER, 1, request)
        ).cluster_authorized_operations == KAFKAS_CLUSTER
        described = await bench.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest())
        assert described.topics[0].topic_authorized_operations == KAFKAS_TOPIC


async def test_a_group_tells_them_if_it_is_there() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await commit(bench, 9, (0, 5, ""))
        request = DescribeGroupsRequest(["g", "nobody"], include_authorized_operations=True)
        groups = (await bench.ask(ApiKey.DESCRIBE_GROUPS, 6, request)).groups
        assert [group.authorized_operations for group in groups] == [KAFKAS_GROUP, NOT_ASKED]
        request = DescribeGroupsRequest(["g"])
        groups = (await bench.ask(ApiKey.DESCRIBE_GROUPS, 6, request)).groups
        assert groups[0].authorized_operations == NOT_ASKED
