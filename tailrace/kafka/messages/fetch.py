"""Fetch: read record batches of partitions, with or without a session (KIP-227)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    NIL_UUID,
    Api,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    MessageValue,
    On,
    RecordsGather,
    String,
    TopicId,
    TopicName,
    Uuid,
)


class ReplicaState(MessageValue, frozen=True):
    """The follower that fetches (KRaft only)."""

    replica_id: Annotated[Int32, On("15+")] = -1
    replica_epoch: Annotated[Int64, On("15+")] = -1


class FetchPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, On("9+", ignorable=True)] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, On("12+")] = -1
    log_start_offset: Annotated[Int64, On("5+", ignorable=True)] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, On("17+", tag=0, ignorable=True)] = NIL_UUID
    high_watermark: Annotated[Int64, On("18+", tag=1, ignorable=True)] = 0x7FFF_FFFF_FFFF_FFFF


class FetchTopic(Message):
    topic: Annotated[TopicName, On("0-12", ignorable=True)] = ""
    topic_id: Annotated[TopicId, On("13+", ignorable=True)] = NIL_UUID
    partitions: list[FetchPartition] = []


class ForgottenTopic(Message):
    """Partitions that leave an incremental fetch session."""

    topic: Annotated[TopicName, On("7-12", ignorable=True)] = ""
    topic_id: Annotated[TopicId, On("13+", ignorable=True)] = NIL_UUID
    partitions: Annotated[list[Int32], On("7+")] = []


class FetchRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.FETCH, "4-18", flexible="12+")

    cluster_id: Annotated[String | None, On("12+", nullable="12+", tag=0, ignorable=True)] = None
    replica_id: Annotated[Int32, On("0-14")] = -1
    replica_state: Annotated[ReplicaState, On("15+", tag=1)] = ReplicaState()
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, On("7+", ignorable=True)] = 0
    session_epoch: Annotated[Int32, On("7+", ignorable=True)] = -1
    topics: list[FetchTopic] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], On("7+")] = []
    rack_id: Annotated[String, On("11+", ignorable=True)] = ""


class EpochEndOffset(MessageValue, frozen=True):
    """The largest epoch with its end offset, after which the logs are known to diverge."""

    epoch: Annotated[Int32, On("12+")] = -1
    end_offset: Annotated[Int64, On("12+")] = -1


class LeaderIdAndEpoch(MessageValue, frozen=True):
    """The leader of a partition."""

    leader_id: Annotated[Int32, On("12+")] = -1
    leader_epoch: Annotated[Int32, On("12+")] = -1


class SnapshotId(MessageValue, frozen=True):
    """The end of the snapshot that the follower must fetch instead (KRaft only)."""

    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, On("5+", ignorable=True)] = -1
    diverging_epoch: Annotated[EpochEndOffset, On("12+", tag=0)] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, On("12+", tag=1)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, On("12+", tag=2)] = SnapshotId()
    aborted_transactions: Annotated[list[AbortedTransaction] | None, On(nullable="0+")] = []
    preferred_read_replica: Annotated[Int32, On("11+")] = -1
    records: Annotated[RecordsGather | None, On(nullable="0+")] = None


class FetchableTopicResponse(Message):
    topic: Annotated[TopicName, On("0-12", ignorable=True)] = ""
    topic_id: Annotated[TopicId, On("13+", ignorable=True)] = NIL_UUID
    partitions: list[PartitionData] = []


class NodeEndpoint(Message):
    """The address of a leader that the response names."""

    node_id: Annotated[Int32, On("16+")] = 0
    host: Annotated[String, On("16+")] = ""
    port: Annotated[Int32, On("16+")] = 0
    rack: Annotated[String | None, On("16+", nullable="16+")] = None


class FetchResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, On("7+", ignorable=True)] = 0
    session_id: Annotated[Int32, On("7+")] = 0
    responses: list[FetchableTopicResponse] = []
    node_endpoints: Annotated[list[NodeEndpoint], On("16+", tag=0)] = []
