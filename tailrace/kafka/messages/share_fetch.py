"""ShareFetch: acquire records of partitions for a member of a share group, and acknowledge earlier ones (KIP-932,
KIP-1206, KIP-1222)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    NIL_UUID,
    Api,
    Bool,
    ErrorMessage,
    GroupId,
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
)


class AcknowledgementBatch(Message):
    """A range of offsets. `acknowledge_types` (0 gap, 1 accept, 2 release, 3 reject, 4 renew) has one element for all
    offsets, or one for each."""

    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: list[Int8] = []


class ShareFetchPartition(Message):
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []


class ShareFetchTopic(Message):
    topic_id: TopicId = NIL_UUID
    partitions: list[ShareFetchPartition] = []


class ShareForgottenTopic(Message):
    """Partitions that leave a share session."""

    topic_id: TopicId = NIL_UUID
    partitions: list[Int32] = []


class ShareFetchRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.SHARE_FETCH, "1-2", flexible="0+")

    group_id: Annotated[GroupId | None, On(nullable="0+")] = None
    member_id: Annotated[String | None, On(nullable="0+")] = None
    share_session_epoch: Int32 = 0
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Annotated[Int8, On("2+")] = 0
    is_renew_ack: Annotated[Bool, On("2+")] = False
    topics: list[ShareFetchTopic] = []
    forgotten_topics_data: list[ShareForgottenTopic] = []


class ShareLeader(MessageValue, frozen=True):
    """The leader of a partition."""

    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class ShareAcquiredRecords(Message):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_count: Int16 = 0


class SharePartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    current_leader: ShareLeader = ShareLeader()
    records: RecordsGather = b""
    acquired_records: list[ShareAcquiredRecords] = []


class ShareFetchableTopicResponse(Message):
    topic_id: TopicId = NIL_UUID
    partitions: list[SharePartitionData] = []


class ShareNodeEndpoint(Message):
    """The address of a leader that the response names."""

    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[String | None, On(nullable="0+")] = None


class ShareFetchResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, On(ignorable=True)] = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: list[ShareFetchableTopicResponse] = []
    node_endpoints: list[ShareNodeEndpoint] = []
