"""Transactions: adding partitions, ending, describing and aborting."""

from __future__ import annotations

import enum
from uuid import UUID

from sequencer.api.commits import BatchError
from sequencer.api.reads import PartitionError
from sequencer.api.values import Value
from tailrace.limits import Int64


class TransactionRef(Value, frozen=True):
    """A producer's transaction, as its client identifies it."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int64


class AddToTransaction(Value, frozen=True):
    """Add partitions or a group that the transaction will write to; the first addition begins the transaction.
    `verify_only`: change nothing, but raise InvalidTransactionState if one of them is not in the transaction.

    `number`: the number of the transaction that the client means, as the agent looked it up when it received the
    request (`transactions`). It keeps a request that arrives after the end of that transaction from beginning another
    one. -1: the open transaction, or else the next.
    """

    transaction: TransactionRef
    partitions: list[tuple[UUID, Int64]]
    group_id: str | None = None
    verify_only: bool = False
    number: Int64 = -1


class CurrentTransactionQuery(Value, frozen=True):
    topic_id: UUID
    partition: Int64
    producer_id: Int64
    producer_epoch: Int64


class CurrentTransactionsRequest(Value, frozen=True):
    """Requests the open transaction of each batch that a client of transaction version 0 or 1 has just sent."""

    batches: list[CurrentTransactionQuery]


class CurrentTransaction(Value, frozen=True):
    """`number` is -1 with an error: the producer has no open transaction in the partition, or is not the current
    producer."""

    error: BatchError
    number: int


class CurrentTransactionsAnswer(Value, frozen=True):
    """One entry per batch, in the order of the request."""

    transactions: list[CurrentTransaction]


class EndTransaction(Value, frozen=True):
    """Commit or abort a transaction, for all its partitions and group offsets at once. A retry gets the first answer.

    `bumps_epoch`: transaction version 2; the producer continues with the producer id and epoch of the answer.
    `number`: the transaction that was open when the agent received the request (`transactions`). Without an epoch bump
    it keeps a retried end from ending the next transaction; -1: whichever is open.
    """

    transaction: TransactionRef
    is_commit: bool
    bumps_epoch: bool
    number: Int64 = -1


class TransactionsRequest(Value, frozen=True):
    """`transactional_ids` None: all. `after`: the `next` of the previous page."""

    transactional_ids: list[str] | None
    after: str | None = None


class TransactionState(enum.StrEnum):
    """Kafka's state names. The prepare states don't occur, because a transaction ends in one database transaction."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


class TransactionDescription(Value, frozen=True, kw_only=True):
    """`number` counts the producer's transactions. `started_ms` is -1 if no transaction is open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    number: int
    state: TransactionState
    timeout_ms: int
    started_ms: int
    partitions: list[tuple[UUID, int]]
    groups: list[str]


class TransactionDescriptions(Value, frozen=True):
    """A page, ordered by transactional id; unknown ids are left out. `next`: the last entry if there are more pages."""

    transactions: list[TransactionDescription]
    next: str | None = None


class AbortProducer(Value, frozen=True):
    """Abort, on behalf of an operator, what a producer has open in these partitions (WriteTxnMarkers).

    The transaction that is open there is aborted in all its partitions, and its producer is fenced.
    """

    producer_id: Int64
    producer_epoch: Int64
    partitions: list[tuple[UUID, Int64]]
    request_id: UUID | None = None


class AbortedProducer(Value, frozen=True):
    """One error per partition; NONE even if nothing was open."""

    errors: list[PartitionError]
