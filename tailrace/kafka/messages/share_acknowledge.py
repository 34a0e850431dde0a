"""ShareAcknowledge: acknowledge records that a member of a share group has acquired (KIP-932, KIP-1222)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.messages.share_fetch import AcknowledgementBatch, ShareLeader, ShareNodeEndpoint
from tailrace.kafka.schema import (
    NIL_UUID,
    Api,
    Bool,
    ErrorMessage,
    GroupId,
    Int16,
    Int32,
    Message,
    On,
    String,
    TopicId,
)


class AcknowledgePartition(Message):
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []


class AcknowledgeTopic(Message):
    topic_id: TopicId = NIL_UUID
    partitions: list[AcknowledgePartition] = []


class ShareAcknowledgeRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.SHARE_ACKNOWLEDGE, "1-2", flexible="0+")

    group_id: Annotated[GroupId | None, On(nullable="0+")] = None
    member_id: Annotated[String | None, On(nullable="0+")] = None
    share_session_epoch: Int32 = 0
    is_renew_ack: Annotated[Bool, On("2+")] = False
    topics: list[AcknowledgeTopic] = []


class AcknowledgedPartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    current_leader: ShareLeader = ShareLeader()


class AcknowledgedTopic(Message):
    topic_id: TopicId = NIL_UUID
    partitions: list[AcknowledgedPartition] = []


class ShareAcknowledgeResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, On(ignorable=True)] = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    acquisition_lock_timeout_ms: Annotated[Int32, On("2+")] = 0
    responses: list[AcknowledgedTopic] = []
    node_endpoints: list[ShareNodeEndpoint] = []
