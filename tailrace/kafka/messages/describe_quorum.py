"""DescribeQuorum: the leader and followers of the cluster's metadata."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Int16, Int32, Int64, Message, On, TopicName


class DescribeQuorumRequestPartition(Message):
    partition_index: Int32 = 0


class DescribeQuorumRequestTopic(Message):
    topic_name: TopicName = ""
    partitions: list[DescribeQuorumRequestPartition] = []


class DescribeQuorumRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DESCRIBE_QUORUM, "0-1", flexible="0+")

    topics: list[DescribeQuorumRequestTopic] = []


class QuorumReplica(Message):
    replica_id: Int32 = 0
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Annotated[Int64, On("1+", ignorable=True)] = -1
    last_caught_up_timestamp: Annotated[Int64, On("1+", ignorable=True)] = -1


class DescribeQuorumResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[QuorumReplica] = []
    observers: list[QuorumReplica] = []


class DescribeQuorumResponseTopic(Message):
    topic_name: TopicName = ""
    partitions: list[DescribeQuorumResponsePartition] = []


class DescribeQuorumResponse(Message):
    error_code: Int16 = 0
    topics: list[DescribeQuorumResponseTopic] = []
