"""ListTransactions: list transactions with their states."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Int16, Int32, Int64, Message, On, String, TransactionalId

TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
"""Kafka's state names, which a filter may use. In Tailrace the Prepare states and Dead never occur."""


class ListTransactionsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.LIST_TRANSACTIONS, "0-2", flexible="0+")

    state_filters: list[String] = []
    producer_id_filters: list[Int64] = []
    duration_filter: Annotated[Int64, On("1+")] = -1
    transactional_id_pattern: Annotated[String | None, On("2+", nullable="2+")] = None


class TransactionState(Message):
    transactional_id: TransactionalId = ""
    producer_id: Int64 = 0
    transaction_state: String = ""


class ListTransactionsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[String] = []
    transaction_states: list[TransactionState] = []
