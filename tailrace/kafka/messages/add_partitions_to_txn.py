"""AddPartitionsToTxn (API key 24): let partitions take part in a transaction."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Bool, Int16, Int32, Int64, Message, On, String


class AddPartitionsToTxnTopic(Message):
    """The partitions of one topic to add."""

    name: String = ""
    partitions: list[Int32] = []


class AddPartitionsToTxnTransaction(Message):
    """List of transactions to add partitions to."""

    transactional_id: Annotated[String, On("4+")] = ""
    producer_id: Annotated[Int64, On("4+")] = 0
    producer_epoch: Annotated[Int16, On("4+")] = 0
    verify_only: Annotated[Bool, On("4+")] = False
    topics: Annotated[list[AddPartitionsToTxnTopic], On("4+")] = []


class AddPartitionsToTxnRequest(Message):
    """AddPartitionsToTxn request."""

    transactions: Annotated[list[AddPartitionsToTxnTransaction], On("4+")] = []
    v3_and_below_transactional_id: Annotated[String, On("0-3")] = ""
    v3_and_below_producer_id: Annotated[Int64, On("0-3")] = 0
    v3_and_below_producer_epoch: Annotated[Int16, On("0-3")] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], On("0-3")] = []


class AddPartitionsToTxnPartitionResult(Message):
    """The outcome of one partition."""

    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Message):
    """The outcome of one topic."""

    name: String = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = []


class AddPartitionsToTxnResult(Message):
    """Results categorized by transactional ID."""

    transactional_id: Annotated[String, On("4+")] = ""
    topic_results: Annotated[list[AddPartitionsToTxnTopicResult], On("4+")] = []


class AddPartitionsToTxnResponse(Message):
    """AddPartitionsToTxn response."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, On("4+", ignorable=True)] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], On("4+")] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], On("0-3")] = []
