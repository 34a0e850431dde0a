"""The declared APIs and their versions: the one place where versions are decided.

Declared is not served: what a broker answers is decided by the handlers that are registered with dispatch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum

from tailrace.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tailrace.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from tailrace.kafka.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from tailrace.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.kafka.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tailrace.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tailrace.kafka.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from tailrace.kafka.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tailrace.kafka.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from tailrace.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tailrace.kafka.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from tailrace.kafka.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tailrace.kafka.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tailrace.kafka.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tailrace.kafka.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tailrace.kafka.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from tailrace.kafka.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tailrace.kafka.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tailrace.kafka.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tailrace.kafka.messages.end_txn import EndTxnRequest, EndTxnResponse
from tailrace.kafka.messages.fetch import FetchRequest, FetchResponse
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tailrace.kafka.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.kafka.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tailrace.kafka.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tailrace.kafka.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tailrace.kafka.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tailrace.kafka.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tailrace.kafka.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataResponse
from tailrace.kafka.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tailrace.kafka.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tailrace.kafka.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tailrace.kafka.messages.produce import ProduceRequest, ProduceResponse
from tailrace.kafka.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tailrace.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tailrace.kafka.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tailrace.kafka.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tailrace.kafka.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tailrace.kafka.schema import MessageType


class ApiKey(IntEnum):
    """The number by which a request names its API."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """The versions and messages of one API.

    `advertised_min` is below `min` where Kafka lists versions that it refuses: such requests can be decoded,
    and are answered with UNSUPPORTED_VERSION.
    """

    key: ApiKey
    min: int
    max: int
    flexible_from: int | None
    request: MessageType
    response: MessageType
    advertised_min: int

    def is_flexible(self, version: int) -> bool:
        """Whether the version has tagged fields and compact lengths (KIP-482)."""
        return self.flexible_from is not None and version >= self.flexible_from


def _spec(
    key: ApiKey,
    versions: tuple[int, int],
    flexible_from: int | None,
    request: MessageType,
    response: MessageType,
    advertised_min: int | None = None,
) -> ApiSpec:
    low, high = versions
    advertised = low if advertised_min is None else advertised_min
    return ApiSpec(key, low, high, flexible_from, request, response, advertised)


_DECLARED = (
    # librdkafka judges brokers by whether they list Produce 0 to 2 (KAFKA-18659).
    _spec(ApiKey.PRODUCE, (3, 13), 9, ProduceRequest, ProduceResponse, advertised_min=0),
    _spec(ApiKey.FETCH, (4, 18), 12, FetchRequest, FetchResponse),
    _spec(ApiKey.LIST_OFFSETS, (1, 11), 6, ListOffsetsRequest, ListOffsetsResponse),
    _spec(ApiKey.METADATA, (0, 13), 9, MetadataRequest, MetadataResponse),
    _spec(ApiKey.OFFSET_COMMIT, (2, 10), 8, OffsetCommitRequest, OffsetCommitResponse),
    _spec(ApiKey.OFFSET_FETCH, (1, 10), 6, OffsetFetchRequest, OffsetFetchResponse),
    _spec(ApiKey.FIND_COORDINATOR, (0, 6), 3, FindCoordinatorRequest, FindCoordinatorResponse),
    _spec(ApiKey.JOIN_GROUP, (0, 9), 6, JoinGroupRequest, JoinGroupResponse),
    _spec(ApiKey.HEARTBEAT, (0, 4), 4, HeartbeatRequest, HeartbeatResponse),
    _spec(ApiKey.LEAVE_GROUP, (0, 5), 4, LeaveGroupRequest, LeaveGroupResponse),
    _spec(ApiKey.SYNC_GROUP, (0, 5), 4, SyncGroupRequest, SyncGroupResponse),
    _spec(ApiKey.DESCRIBE_GROUPS, (0, 6), 5, DescribeGroupsRequest, DescribeGroupsResponse),
    _spec(ApiKey.LIST_GROUPS, (0, 5), 3, ListGroupsRequest, ListGroupsResponse),
    _spec(ApiKey.SASL_HANDSHAKE, (0, 1), None, SaslHandshakeRequest, SaslHandshakeResponse),
    _spec(ApiKey.API_VERSIONS, (0, 4), 3, ApiVersionsRequest, ApiVersionsResponse),
    _spec(ApiKey.CREATE_TOPICS, (2, 7), 5, CreateTopicsRequest, CreateTopicsResponse),
    _spec(ApiKey.DELETE_TOPICS, (1, 6), 4, DeleteTopicsRequest, DeleteTopicsResponse),
    _spec(ApiKey.DELETE_RECORDS, (0, 2), 2, DeleteRecordsRequest, DeleteRecordsResponse),
    _spec(ApiKey.INIT_PRODUCER_ID, (0, 5), 2, InitProducerIdRequest, InitProducerIdResponse),
    _spec(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, (2, 4), 4, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
    ),
    _spec(ApiKey.ADD_PARTITIONS_TO_TXN, (0, 5), 3, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
    _spec(ApiKey.ADD_OFFSETS_TO_TXN, (0, 4), 3, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
    _spec(ApiKey.END_TXN, (0, 5), 3, EndTxnRequest, EndTxnResponse),
    _spec(ApiKey.WRITE_TXN_MARKERS, (1, 2), 1, WriteTxnMarkersRequest, WriteTxnMarkersResponse),
    _spec(ApiKey.TXN_OFFSET_COMMIT, (0, 5), 3, TxnOffsetCommitRequest, TxnOffsetCommitResponse),
    _spec(ApiKey.DESCRIBE_ACLS, (1, 3), 2, DescribeAclsRequest, DescribeAclsResponse),
    _spec(ApiKey.DESCRIBE_CONFIGS, (1, 4), 4, DescribeConfigsRequest, DescribeConfigsResponse),
    _spec(ApiKey.ALTER_CONFIGS, (0, 2), 2, AlterConfigsRequest, AlterConfigsResponse),
    _spec(ApiKey.DESCRIBE_LOG_DIRS, (1, 5), 2, DescribeLogDirsRequest, DescribeLogDirsResponse),
    _spec(ApiKey.SASL_AUTHENTICATE, (0, 2), 2, SaslAuthenticateRequest, SaslAuthenticateResponse),
    _spec(ApiKey.CREATE_PARTITIONS, (0, 3), 2, CreatePartitionsRequest, CreatePartitionsResponse),
    _spec(ApiKey.DELETE_GROUPS, (0, 2), 2, DeleteGroupsRequest, DeleteGroupsResponse),
    _spec(ApiKey.ELECT_LEADERS, (0, 2), 2, ElectLeadersRequest, ElectLeadersResponse),
    _spec(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        (0, 1),
        1,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
    ),
    _spec(ApiKey.OFFSET_DELETE, (0, 0), None, OffsetDeleteRequest, OffsetDeleteResponse),
    _spec(
        ApiKey.DESCRIBE_CLIENT_QUOTAS, (0, 1), 1, DescribeClientQuotasRequest, DescribeClientQuotasResponse
    ),
    _spec(ApiKey.DESCRIBE_CLUSTER, (0, 2), 0, DescribeClusterRequest, DescribeClusterResponse),
    _spec(ApiKey.DESCRIBE_PRODUCERS, (0, 0), 0, DescribeProducersRequest, DescribeProducersResponse),
    _spec(ApiKey.DESCRIBE_TRANSACTIONS, (0, 0), 0, DescribeTransactionsRequest, DescribeTransactionsResponse),
    _spec(ApiKey.LIST_TRANSACTIONS, (0, 2), 0, ListTransactionsRequest, ListTransactionsResponse),
    _spec(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        (0, 1),
        0,
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupHeartbeatResponse,
    ),
    _spec(
        ApiKey.CONSUMER_GROUP_DESCRIBE, (0, 1), 0, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
    ),
    _spec(ApiKey.LIST_CONFIG_RESOURCES, (0, 1), 0, ListConfigResourcesRequest, ListConfigResourcesResponse),
    _spec(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        (0, 0),
        0,
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsResponse,
    ),
)

API_VERSIONS: Mapping[int, ApiSpec] = {spec.key: spec for spec in _DECLARED}


def supported_versions(served: Collection[int] | None = None) -> list[tuple[int, int, int]]:
    """(api key, first, last version) to tell clients, by key.

    Args:
        served: the API keys that have a handler; None for all declared.
    """
    return [
        (int(spec.key), spec.advertised_min, spec.max)
        for spec in sorted(_DECLARED, key=lambda spec: spec.key)
        if served is None or spec.key in served
    ]
