"""DeleteTopics: delete topics."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import NIL_UUID, Api, ErrorMessage, Int16, Int32, Message, On, TopicId, TopicName


class DeleteTopicState(Message):
    name: Annotated[TopicName | None, On("6+", nullable="6+")] = None
    topic_id: Annotated[TopicId, On("6+")] = NIL_UUID


class DeleteTopicsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DELETE_TOPICS, "1-6", flexible="4+")

    topics: Annotated[list[DeleteTopicState], On("6+")] = []
    topic_names: Annotated[list[TopicName], On("0-5", ignorable=True)] = []
    timeout_ms: Int32 = 0


class DeletableTopicResult(Message):
    name: Annotated[TopicName | None, On(nullable="6+")] = ""
    topic_id: Annotated[TopicId, On("6+", ignorable=True)] = NIL_UUID
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On("5+", nullable="5+", ignorable=True)] = None


class DeleteTopicsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = []
