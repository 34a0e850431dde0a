"""Messages that members of consumer groups exchange through the coordinator. They are never flexible."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Bytes, Int32, Message, On, String, TopicName


class TopicPartition(Message):
    topic: TopicName = ""
    partitions: list[Int32] = []


class ConsumerProtocolSubscription(Message):
    """What a member of a consumer group subscribes to."""

    topics: list[TopicName] = []
    user_data: Annotated[Bytes | None, On(nullable="0+")] = None
    owned_partitions: Annotated[list[TopicPartition], On("1+", ignorable=True)] = []
    generation_id: Annotated[Int32, On("2+", ignorable=True)] = -1
    rack_id: Annotated[String | None, On("3+", nullable="3+", ignorable=True)] = None


class ConsumerProtocolAssignment(Message):
    """What the leader of a consumer group assigns to a member."""

    assigned_partitions: list[TopicPartition] = []
    user_data: Annotated[Bytes | None, On(nullable="0+")] = None
