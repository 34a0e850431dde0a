"""AddPartitionsToTxn: let partitions take part in a transaction."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bool, Int16, Int32, Int64, Message, On, TopicName, TransactionalId


class AddPartitionsToTxnTopic(Message):
    name: TopicName = ""
    partitions: list[Int32] = []


class AddPartitionsToTxnTransaction(Message):
    transactional_id: Annotated[TransactionalId, On("4+")] = ""
    producer_id: Annotated[Int64, On("4+")] = 0
    producer_epoch: Annotated[Int16, On("4+")] = 0
    verify_only: Annotated[Bool, On("4+")] = False
    topics: Annotated[list[AddPartitionsToTxnTopic], On("4+")] = []


class AddPartitionsToTxnRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.ADD_PARTITIONS_TO_TXN, "0-5", flexible="3+")

    transactions: Annotated[list[AddPartitionsToTxnTransaction], On("4+")] = []
    v3_and_below_transactional_id: Annotated[TransactionalId, On("0-3")] = ""
    v3_and_below_producer_id: Annotated[Int64, On("0-3")] = 0
    v3_and_below_producer_epoch: Annotated[Int16, On("0-3")] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], On("0-3")] = []


class AddPartitionsToTxnPartitionResult(Message):
    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Message):
    name: TopicName = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = []


class AddPartitionsToTxnResult(Message):
    transactional_id: Annotated[TransactionalId, On("4+")] = ""
    topic_results: Annotated[list[AddPartitionsToTxnTopicResult], On("4+")] = []


class AddPartitionsToTxnResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, On("4+", ignorable=True)] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], On("4+")] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], On("0-3")] = []
