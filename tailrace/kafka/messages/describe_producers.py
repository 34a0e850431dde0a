"""DescribeProducers: the producers that are active in partitions."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, ErrorMessage, Int16, Int32, Int64, Message, On, TopicName


class TopicRequest(Message):
    name: TopicName = ""
    partition_indexes: list[Int32] = []


class DescribeProducersRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DESCRIBE_PRODUCERS, "0", flexible="0+")

    topics: list[TopicRequest] = []


class ProducerState(Message):
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    active_producers: list[ProducerState] = []


class TopicResponse(Message):
    name: TopicName = ""
    partitions: list[PartitionResponse] = []


class DescribeProducersResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = []
