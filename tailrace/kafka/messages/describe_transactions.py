"""DescribeTransactions (API key 65): the state of transactions."""

from __future__ import annotations

from tailrace.kafka.schema import Int16, Int32, Int64, Message, String


class DescribeTransactionsRequest(Message):
    """DescribeTransactions request."""

    transactional_ids: list[String] = []


class TopicData(Message):
    """The set of partitions included in the current transaction (if active)."""

    topic: String = ""
    partitions: list[Int32] = []


class TransactionState(Message):
    """The current state of the transaction."""

    error_code: Int16 = 0
    transactional_id: String = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = []


class DescribeTransactionsResponse(Message):
    """DescribeTransactions response."""

    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = []
