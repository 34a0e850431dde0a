"""OffsetForLeaderEpoch: find the end offset of a leader epoch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Int16, Int32, Int64, Message, On, TopicName


class OffsetForLeaderPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Message):
    topic: TopicName = ""
    partitions: list[OffsetForLeaderPartition] = []


class OffsetForLeaderEpochRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "2-4", flexible="4+")

    replica_id: Annotated[Int32, On("3+", ignorable=True)] = -2
    topics: list[OffsetForLeaderTopic] = []


class EpochEndOffset(Message):
    """The largest epoch with its end offset, after which the logs are known to diverge."""

    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Message):
    topic: TopicName = ""
    partitions: list[EpochEndOffset] = []


class OffsetForLeaderEpochResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = []
