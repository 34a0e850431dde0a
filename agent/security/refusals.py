"""The parts of responses that say that the client may not do what it asked for. Pure.

A function has the name of the API that it serves. `code` is the error code of the missing permission.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnTopicResult,
)
from tailrace.kafka.messages.alter_configs import AlterConfigsResourceResponse
from tailrace.kafka.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirTopicResult,
)
from tailrace.kafka.messages.alter_share_group_offsets import AlteredShareOffset, AlteredShareTopic
from tailrace.kafka.messages.alter_user_scram_credentials import AlterUserScramCredentialsResult
from tailrace.kafka.messages.create_topics import CreatableTopicResult
from tailrace.kafka.messages.delete_records import DeleteRecordsPartitionResult, DeleteRecordsTopicResult
from tailrace.kafka.messages.delete_share_group_offsets import DeletedShareTopic
from tailrace.kafka.messages.describe_configs import DescribeConfigsResult
from tailrace.kafka.messages.describe_producers import PartitionResponse, TopicResponse
from tailrace.kafka.messages.describe_share_group_offsets import DescribedShareOffsets
from tailrace.kafka.messages.join_group import JoinGroupResponse
from tailrace.kafka.messages.list_offsets import ListOffsetsPartitionResponse, ListOffsetsTopicResponse
from tailrace.kafka.messages.offset_commit import OffsetCommitResponsePartition, OffsetCommitResponseTopic
from tailrace.kafka.messages.offset_delete import OffsetDeleteResponsePartition, OffsetDeleteResponseTopic
from tailrace.kafka.messages.offset_for_leader_epoch import EpochEndOffset, OffsetForLeaderTopicResult
from tailrace.kafka.messages.produce import PartitionProduceResponse, TopicProduceResponse
from tailrace.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tailrace.kafka.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
)

FAILED = "Authorization failed."
"""Kafka's error message, for responses that have one."""


def with_code(request: Any, code: ErrorCode) -> Any:
    """Return a response with only the code."""
    return APIS[request.api.key].response(error_code=code)


def each_topic(refuse: Callable[[Any, ErrorCode], Any], request: Any, code: ErrorCode) -> Any:
    """Return a response in which every topic of the request has the code."""
    return APIS[request.api.key].response(topics=[refuse(topic, code) for topic in request.topics])


def produce(topic: Any, code: ErrorCode) -> TopicProduceResponse:
    rows = [
        PartitionProduceResponse(partition.index, code, base_offset=-1) for partition in topic.partition_data
    ]
    return TopicProduceResponse(topic.name, topic.topic_id, rows)


def list_offsets(topic: Any, code: ErrorCode) -> ListOffsetsTopicResponse:
    rows = [
        ListOffsetsPartitionResponse(partition.partition_index, code, timestamp=-1, offset=-1)
        for partition in topic.partitions
    ]
    return ListOffsetsTopicResponse(topic.name, rows)


def offset_commit(topic: Any, code: ErrorCode) -> OffsetCommitResponseTopic:
    rows = [OffsetCommitResponsePartition(partition.partition_index, code) for partition in topic.partitions]
    return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=rows)


def txn_offset_commit(topic: Any, code: ErrorCode) -> TxnOffsetCommitResponseTopic:
    rows = [
        TxnOffsetCommitResponsePartition(partition.partition_index, code) for partition in topic.partitions
    ]
    return TxnOffsetCommitResponseTopic(topic.name, rows)


def delete_records(topic: Any, code: ErrorCode) -> DeleteRecordsTopicResult:
    rows = [
        DeleteRecordsPartitionResult(partition.partition_index, low_watermark=-1, error_code=code)
        for partition in topic.partitions
    ]
    return DeleteRecordsTopicResult(topic.name, rows)


def offset_delete(topic: Any, code: ErrorCode) -> OffsetDeleteResponseTopic:
    rows = [OffsetDeleteResponsePartition(partition.partition_index, code) for partition in topic.partitions]
    return OffsetDeleteResponseTopic(topic.name, rows)


def describe_share_offsets(group: Any, code: ErrorCode) -> DescribedShareOffsets:
    return DescribedShareOffsets(group.group_id, error_code=code, error_message=FAILED)


def alter_share_offsets(topic: Any, code: ErrorCode) -> AlteredShareTopic:
    rows = [AlteredShareOffset(partition.partition_index, code, FAILED) for partition in topic.partitions]
    return AlteredShareTopic(topic.topic_name, partitions=rows)


def delete_share_offsets(topic: Any, code: ErrorCode) -> DeletedShareTopic:
    return DeletedShareTopic(topic.topic_name, error_code=code, error_message=FAILED)


def offset_for_leader_epoch(topic: Any, code: ErrorCode) -> OffsetForLeaderTopicResult:
    rows = [EpochEndOffset(error_code=code, partition=partition.partition) for partition in topic.partitions]
    return OffsetForLeaderTopicResult(topic.topic, rows)


def describe_producers(topic: Any, code: ErrorCode) -> TopicResponse:
    rows = [PartitionResponse(index, code, FAILED) for index in topic.partition_indexes]
    return TopicResponse(topic.name, rows)


def add_partitions(topic: Any, code: ErrorCode) -> AddPartitionsToTxnTopicResult:
    rows = [AddPartitionsToTxnPartitionResult(index, code) for index in topic.partitions]
    return AddPartitionsToTxnTopicResult(topic.name, rows)


def create_topic(topic: Any, code: ErrorCode) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        error_code=code,
        error_message=FAILED,
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )


def alter_config(resource: Any, code: ErrorCode) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(code, FAILED, resource.resource_type, resource.resource_name)


def describe_config(resource: Any, code: ErrorCode) -> DescribeConfigsResult:
    return DescribeConfigsResult(code, FAILED, resource.resource_type, resource.resource_name)


def alter_scram(request: Any, code: ErrorCode) -> Any:
    users = dict.fromkeys(change.name for change in [*request.deletions, *request.upsertions])
    rows = [AlterUserScramCredentialsResult(user, code, FAILED) for user in users]
    return APIS[request.api.key].response(results=rows)


def write_markers(request: Any, code: ErrorCode) -> Any:
    return APIS[request.api.key].response(
        markers=[
            WritableTxnMarkerResult(
                marker.producer_id,
                [
                    WritableTxnMarkerTopicResult(
                        topic.name,
                        [WritableTxnMarkerPartitionResult(index, code) for index in topic.partition_indexes],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def alter_log_dirs(request: Any, code: ErrorCode) -> Any:
    return APIS[request.api.key].response(
        results=[
            AlterReplicaLogDirTopicResult(
                topic.name, [AlterReplicaLogDirPartitionResult(index, code) for index in topic.partitions]
            )
            for log_dir in request.dirs
            for topic in log_dir.topics
        ]
    )


def join_group(request: Any, code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, protocol_name="", member_id=request.member_id)
