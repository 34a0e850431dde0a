"""Metadata: brokers, topics and the leaders of partitions."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    NIL_UUID,
    Api,
    Bool,
    ClusterId,
    Int16,
    Int32,
    Message,
    On,
    String,
    TopicId,
    TopicName,
)


class MetadataRequestTopic(Message):
    topic_id: Annotated[TopicId, On("10+", ignorable=True)] = NIL_UUID
    name: Annotated[TopicName | None, On(nullable="10+")] = ""


class MetadataRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.METADATA, "0-13", flexible="9+")

    topics: Annotated[list[MetadataRequestTopic] | None, On(nullable="1+")] = []
    allow_auto_topic_creation: Annotated[Bool, On("4+")] = True
    include_cluster_authorized_operations: Annotated[Bool, On("8-10")] = False
    include_topic_authorized_operations: Annotated[Bool, On("8+")] = False


class MetadataResponseBroker(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[String | None, On("1+", nullable="1+", ignorable=True)] = None


class MetadataResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, On("7+", ignorable=True)] = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    offline_replicas: Annotated[list[Int32], On("5+", ignorable=True)] = []


class MetadataResponseTopic(Message):
    error_code: Int16 = 0
    name: Annotated[TopicName | None, On(nullable="12+")] = ""
    topic_id: Annotated[TopicId, On("10+", ignorable=True)] = NIL_UUID
    is_internal: Annotated[Bool, On("1+", ignorable=True)] = False
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: Annotated[Int32, On("8+")] = -2147483648


class MetadataResponse(Message):
    throttle_time_ms: Annotated[Int32, On("3+", ignorable=True)] = 0
    brokers: list[MetadataResponseBroker] = []
    cluster_id: Annotated[ClusterId | None, On("2+", nullable="2+", ignorable=True)] = None
    controller_id: Annotated[Int32, On("1+", ignorable=True)] = -1
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: Annotated[Int32, On("8-10")] = -2147483648
    error_code: Annotated[Int16, On("13+", ignorable=True)] = 0
