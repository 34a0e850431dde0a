"""DeleteTopics (API key 20): delete topics."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import NIL_UUID, Int16, Int32, Message, On, String, Uuid


class DeleteTopicState(Message):
    """The name or topic ID of the topic."""

    name: Annotated[String | None, On("6+", nullable="6+")] = None
    topic_id: Annotated[Uuid, On("6+")] = NIL_UUID


class DeleteTopicsRequest(Message):
    """DeleteTopics request."""

    topics: Annotated[list[DeleteTopicState], On("6+")] = []
    topic_names: Annotated[list[String], On("0-5", ignorable=True)] = []
    timeout_ms: Int32 = 0


class DeletableTopicResult(Message):
    """The results for each topic we tried to delete."""

    name: Annotated[String | None, On(nullable="6+")] = ""
    topic_id: Annotated[Uuid, On("6+", ignorable=True)] = NIL_UUID
    error_code: Int16 = 0
    error_message: Annotated[String | None, On("5+", nullable="5+", ignorable=True)] = None


class DeleteTopicsResponse(Message):
    """DeleteTopics response."""

    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = []
