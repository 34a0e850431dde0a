"""DeleteShareGroupOffsets: delete the offsets of topics in a share group without members (KIP-932)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    NIL_UUID,
    Api,
    ErrorMessage,
    GroupId,
    Int16,
    Int32,
    Message,
    On,
    TopicId,
    TopicName,
)


class DeleteShareOffsetsTopic(Message):
    topic_name: TopicName = ""


class DeleteShareGroupOffsetsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, "0", flexible="0+")

    group_id: GroupId = ""
    topics: list[DeleteShareOffsetsTopic] = []


class DeletedShareTopic(Message):
    topic_name: TopicName = ""
    topic_id: TopicId = NIL_UUID
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None


class DeleteShareGroupOffsetsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    responses: list[DeletedShareTopic] = []
