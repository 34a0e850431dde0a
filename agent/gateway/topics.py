"""Clusters, brokers, topics and partitions over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aiohttp import web

from agent.gateway.call import HttpCall, answered
from agent.gateway.errors import HttpRefusal, check
from agent.gateway.listings import listing
from agent.gateway.topic_configs import SeveralConfigs
from tailrace.configs.internal_topics import is_internal
from tailrace.kafka.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tailrace.kafka.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tailrace.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tailrace.kafka.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tailrace.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TIMEOUT_MS = 30_000


class NewTopic(msgspec.Struct):
    """The body of a request for a new topic."""

    topic_name: str
    partitions_count: int | None = None
    replication_factor: int | None = None
    configs: SeveralConfigs = []
    validate_only: bool = False


class PartitionsCount(msgspec.Struct):
    """The topic's new number of partitions."""

    partitions_count: int


# --- clusters and brokers


async def list_clusters(call: HttpCall) -> web.StreamResponse:
    cluster = await _cluster(call)
    return await listing(call, "KafkaClusterList", (), [_cluster_shown(call, cluster)])


async def get_cluster(call: HttpCall) -> web.Response:
    return answered(_cluster_shown(call, await _cluster(call)))


async def list_brokers(call: HttpCall) -> web.StreamResponse:
    return await listing(call, "KafkaBrokerList", ("brokers",), await _brokers(call))


async def get_broker(call: HttpCall) -> web.Response:
    wanted = call.number("broker_id")
    for broker in await _brokers(call):
        if broker["broker_id"] == wanted:
            return answered(broker)
    raise HttpRefusal(404, f"There is no broker {wanted}.")


async def _cluster(call: HttpCall) -> DescribeClusterResponse:
    described: DescribeClusterResponse = await call.ask(DescribeClusterRequest())
    check(described.error_code, described.error_message)
    return described


def _cluster_shown(call: HttpCall, described: DescribeClusterResponse) -> dict[str, object]:
    return call.resource(
        "KafkaCluster",
        (),
        controller=call.related("brokers", described.controller_id),
        brokers=call.related("brokers"),
        consumer_groups=call.related("consumer-groups"),
        topics=call.related("topics"),
    )


async def _brokers(call: HttpCall) -> list[dict[str, object]]:
    return [
        call.resource(
            "KafkaBroker",
            ("brokers", broker.broker_id),
            broker_id=broker.broker_id,
            host=broker.host,
            port=broker.port,
            rack=broker.rack,
        )
        for broker in (await _cluster(call)).brokers
    ]


# --- topics


async def topic_of(call: HttpCall) -> MetadataResponseTopic:
    """Return the topic of the path, with its partitions in order. Raises HttpRefusal."""
    [topic] = await _metadata(call, [MetadataRequestTopic(name=call.name("topic_name"))])
    check(topic.error_code)
    topic.partitions.sort(key=lambda partition: partition.partition_index)
    return topic


async def _metadata(
    call: HttpCall, topics: list[MetadataRequestTopic] | None
) -> Sequence[MetadataResponseTopic]:
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    response: MetadataResponse = await call.ask(request)
    check(response.error_code)
    return response.topics


async def list_topics(call: HttpCall) -> web.StreamResponse:
    topics = sorted(await _metadata(call, None), key=lambda topic: topic.name or "")
    return await listing(call, "KafkaTopicList", ("topics",), (_topic_shown(call, topic) for topic in topics))


async def get_topic(call: HttpCall) -> web.Response:
    return answered(_topic_shown(call, await topic_of(call)))


async def create_topic(call: HttpCall) -> web.Response:
    given = await call.body(NewTopic)
    wanted = CreatableTopic(
        name=given.topic_name,
        num_partitions=_small(given.partitions_count, "partitions_count"),
        replication_factor=_small(given.replication_factor, "replication_factor"),
        configs=[CreatableTopicConfig(config.name, config.value) for config in given.configs],
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS, validate_only=given.validate_only)
    [made] = (await call.ask(request)).topics
    check(made.error_code, made.error_message)
    shown = _shown(call, name=made.name, partitions=made.num_partitions, replicas=made.replication_factor)
    return answered(shown, status=200 if given.validate_only else 201)


async def delete_topic(call: HttpCall) -> web.Response:
    name = call.name("topic_name")
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name)], topic_names=[name], timeout_ms=TIMEOUT_MS)
    [deleted] = (await call.ask(request)).responses
    check(deleted.error_code, deleted.error_message)
    return web.Response(status=204)


async def add_partitions(call: HttpCall) -> web.Response:
    count = _small((await call.body(PartitionsCount)).partitions_count, "partitions_count")
    wanted = CreatePartitionsTopic(call.name("topic_name"), count, assignments=None)
    [added] = (await call.ask(CreatePartitionsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS))).results
    check(added.error_code, added.error_message)
    return answered(_topic_shown(call, await topic_of(call)))


def _small(given: int | None, what: str) -> int:
    """Return a count for Kafka, -1 for the default. Raises HttpRefusal."""
    if given is None:
        return -1
    if not 0 < given < 2**15:
        raise HttpRefusal(400, f"{what} must be a number from 1 to {2**15 - 1}.")
    return given


def _topic_shown(call: HttpCall, topic: MetadataResponseTopic) -> dict[str, object]:
    replicas = len(topic.partitions[0].replica_nodes) if topic.partitions else 0
    return _shown(call, name=topic.name or "", partitions=len(topic.partitions), replicas=replicas)


def _shown(call: HttpCall, *, name: str, partitions: int, replicas: int) -> dict[str, object]:
    path = ("topics", name)
    return call.resource(
        "KafkaTopic",
        path,
        topic_name=name,
        is_internal=is_internal(name),
        replication_factor=replicas,
        partitions_count=partitions,
        partitions=call.related(*path, "partitions"),
        configs=call.related(*path, "configs"),
        partition_reassignments=call.related(*path, "partitions", "-", "reassignments"),
    )


# --- partitions


async def list_partitions(call: HttpCall) -> web.StreamResponse:
    topic = await topic_of(call)
    name = call.name("topic_name")
    shown = (_partition_shown(call, name, partition) for partition in topic.partitions)
    return await listing(call, "KafkaPartitionList", ("topics", name, "partitions"), shown)


async def get_partition(call: HttpCall) -> web.Response:
    return answered(_partition_shown(call, call.name("topic_name"), await _partition(call)))


async def list_replicas(call: HttpCall) -> web.StreamResponse:
    found = await _partition(call)
    name = call.name("topic_name")
    path = ("topics", name, "partitions", found.partition_index, "replicas")
    shown = [
        call.resource(
            "KafkaReplica",
            (*path, node),
            topic_name=name,
            partition_id=found.partition_index,
            broker_id=node,
            is_leader=node == found.leader_id,
            is_in_sync=True,
            broker=call.related("brokers", node),
        )
        for node in found.replica_nodes
    ]
    return await listing(call, "KafkaReplicaList", path, shown)


async def _partition(call: HttpCall) -> MetadataResponsePartition:
    wanted = call.number("partition_id")
    for partition in (await topic_of(call)).partitions:
        if partition.partition_index == wanted:
            return partition
    raise HttpRefusal(404, f"The topic has no partition {wanted}.", 40403)


def _partition_shown(call: HttpCall, name: str, found: MetadataResponsePartition) -> dict[str, object]:
    path = ("topics", name, "partitions", found.partition_index)
    return call.resource(
        "KafkaPartition",
        path,
        topic_name=name,
        partition_id=found.partition_index,
        leader=call.related(*path, "replicas", found.leader_id),
        replicas=call.related(*path, "replicas"),
        reassignment=call.related(*path, "reassignment"),
    )
