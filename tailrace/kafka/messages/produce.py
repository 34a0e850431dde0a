"""Produce: append record batches to partitions."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    NIL_UUID,
    Api,
    ErrorMessage,
    Int16,
    Int32,
    Int64,
    Message,
    MessageValue,
    On,
    RecordsView,
    String,
    TopicId,
    TopicName,
    TransactionalId,
)


class PartitionProduceData(Message):
    index: Int32 = 0
    records: Annotated[RecordsView | None, On(nullable="0+")] = None


class TopicProduceData(Message):
    name: Annotated[TopicName, On("0-12", ignorable=True)] = ""
    topic_id: Annotated[TopicId, On("13+", ignorable=True)] = NIL_UUID
    partition_data: list[PartitionProduceData] = []


class ProduceRequest(Message):
    # librdkafka checks that brokers list Produce 0 to 2 (KAFKA-18659).
    api: ClassVar[Api] = Api(ApiKey.PRODUCE, "3-13", flexible="9+", listed="0-13")

    transactional_id: Annotated[TransactionalId | None, On("3+", nullable="3+")] = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = []


class BatchIndexAndErrorMessage(Message):
    """A record that caused its batch to be dropped."""

    batch_index: Annotated[Int32, On("8+")] = 0
    batch_index_error_message: Annotated[ErrorMessage | None, On("8+", nullable="8+")] = None


class LeaderIdAndEpoch(MessageValue, frozen=True):
    """The leader of a partition."""

    leader_id: Annotated[Int32, On("10+")] = -1
    leader_epoch: Annotated[Int32, On("10+")] = -1


class PartitionProduceResponse(Message):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Annotated[Int64, On("2+", ignorable=True)] = -1
    log_start_offset: Annotated[Int64, On("5+", ignorable=True)] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], On("8+", ignorable=True)] = []
    error_message: Annotated[ErrorMessage | None, On("8+", nullable="8+", ignorable=True)] = None
    current_leader: Annotated[LeaderIdAndEpoch, On("10+", tag=0)] = LeaderIdAndEpoch()


class TopicProduceResponse(Message):
    name: Annotated[TopicName, On("0-12", ignorable=True)] = ""
    topic_id: Annotated[TopicId, On("13+", ignorable=True)] = NIL_UUID
    partition_responses: list[PartitionProduceResponse] = []


class NodeEndpoint(Message):
    """The address of a leader that the response names."""

    node_id: Annotated[Int32, On("10+")] = 0
    host: Annotated[String, On("10+")] = ""
    port: Annotated[Int32, On("10+")] = 0
    rack: Annotated[String | None, On("10+", nullable="10+")] = None


class ProduceResponse(Message):
    responses: list[TopicProduceResponse] = []
    throttle_time_ms: Annotated[Int32, On("1+", ignorable=True)] = 0
    node_endpoints: Annotated[list[NodeEndpoint], On("10+", tag=0)] = []
