"""DescribeTransactions: the state of transactions."""

from __future__ import annotations

from typing import ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Int16, Int32, Int64, Message, String, TopicName, TransactionalId


class DescribeTransactionsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DESCRIBE_TRANSACTIONS, "0", flexible="0+")

    transactional_ids: list[TransactionalId] = []


class TopicData(Message):
    topic: TopicName = ""
    partitions: list[Int32] = []


class TransactionState(Message):
    error_code: Int16 = 0
    transactional_id: TransactionalId = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = []


class DescribeTransactionsResponse(Message):
    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = []
