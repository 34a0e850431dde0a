"""Producer ids, and the producers that are active in a partition."""

from __future__ import annotations

from uuid import UUID

from sequencer.api.reads import PartitionError
from sequencer.api.values import Value
from tailrace.limits import Int64


class InitProducer(Value, frozen=True):
    """Initialize an idempotent producer, or (with a transactional id) a transactional one.

    A known transactional id gets a higher epoch, and its open transaction is aborted. `producer_id` and
    `producer_epoch`, if given, are the caller's current ones (KIP-360); if they are not current, the call raises
    ProducerFenced.
    """

    producer_id: Int64 = -1
    producer_epoch: Int64 = -1
    transactional_id: str | None = None
    timeout_ms: Int64 = 0
    request_id: UUID | None = None


class ProducerGrant(Value, frozen=True):
    producer_id: int
    producer_epoch: int


class ProducerQuery(Value, frozen=True):
    """`after`: the `next` of the previous page."""

    topic_id: UUID
    partition: Int64
    after: Int64 = -1


class ActiveProducer(Value, frozen=True, kw_only=True):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    transaction_start_offset: int = -1


class ProducersAnswer(Value, frozen=True):
    """A page, ordered by producer id. `next`: the last entry if there are more pages; else -1."""

    error: PartitionError
    producers: list[ActiveProducer]
    next: int = -1
