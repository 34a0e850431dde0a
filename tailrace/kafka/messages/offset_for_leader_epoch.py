"""OffsetForLeaderEpoch (API key 23): where a leader epoch ends."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Int16, Int32, Int64, Message, On, String


class OffsetForLeaderPartition(Message):
    """Each partition to get offsets for."""

    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Message):
    """Each topic to get offsets for."""

    topic: String = ""
    partitions: list[OffsetForLeaderPartition] = []


class OffsetForLeaderEpochRequest(Message):
    """OffsetForLeaderEpoch request."""

    replica_id: Annotated[Int32, On("3+", ignorable=True)] = -2
    topics: list[OffsetForLeaderTopic] = []


class EpochEndOffset(Message):
    """The largest epoch, and its end, from which on the logs are known to differ."""

    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Message):
    """Each topic we fetched offsets for."""

    topic: String = ""
    partitions: list[EpochEndOffset] = []


class OffsetForLeaderEpochResponse(Message):
    """OffsetForLeaderEpoch response."""

    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = []
