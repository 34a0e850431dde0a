"""The active buffer: the batches received since the last seal, by partition, in order of arrival. Pure.

A sealed buffer is an active buffer that takes no more batches. After the commit it passes each batch's outcome to the
request that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from sequencer.api.commits import BatchError
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.buffers import Buffer
from tailrace.configs.topic_config import Latency
from tailrace.ids import TopicPartition


class BatchResult(msgspec.Struct, gc=False):
    """The result of one batch, for its producer. `failure` is set if something other than the sequencer caused it."""

    error: BatchError = BatchError.NONE
    base_offset: int = -1
    log_start_offset: int = -1
    failure: FlushFailure | None = None


@dataclass(frozen=True, slots=True)
class FlushFailure:
    """Why a buffer's batches were not stored: a message, and a kind that becomes a retriable Kafka error."""

    kind: str  # 'storage' | 'timeout'
    message: str


class Waiting(Protocol):
    """A request whose batches wait for their results."""

    def settle(self, index: int, result: BatchResult) -> None:
        """Give the batch at `index` its result. Call it once per batch."""


class Submission:
    """The batches of one produce request. Calls `settled` with all results once each batch has one."""

    __slots__ = ("_left", "_settled", "results")

    def __init__(self, count: int, settled: Callable[[list[BatchResult | None]], None]) -> None:
        self.results: list[BatchResult | None] = [None] * count
        self._left = count
        self._settled = settled

    def settle(self, index: int, result: BatchResult) -> None:
        """Give the batch at `index` its result; a second call does nothing."""
        if self.results[index] is not None:
            return
        self.results[index] = result
        self._left -= 1
        if not self._left:
            self._settled(self.results)


class BufferedBatch(msgspec.Struct, gc=False):
    """One buffered batch, and the index in its request at which its result belongs.

    `transaction`: for a transactional batch, the number of the producer's transaction that was open when the batch was
    received, or ANY_TRANSACTION. `is_answered_on_receipt`: the producer does not wait for the commit
    """

    coordinates: BatchCoordinates
    data: Buffer
    submission: Waiting
    index: int
    transaction: int = 0
    latency: Latency = Latency.BALANCED
    is_answered_on_receipt: bool = False

    def settle(self, result: BatchResult) -> None:
        self.submission.settle(self.index, result)


def transactions_of(batches: Sequence[BufferedBatch]) -> list[int]:
    """Return the transaction of each batch for a RunProposal; an empty list if no batch is transactional."""
    if not any(batch.coordinates.is_transactional for batch in batches):
        return []
    return [batch.transaction for batch in batches]


@dataclass(slots=True)
class ActiveBuffer:
    """Batches by partition. `opened_at`, `last_added_at`: monotonic seconds. `latency`: the strictest of the batches.
    `is_given_up`: all waiting producers were told to retry."""

    opened_at: float
    last_added_at: float = 0.0
    size: int = 0
    records: int = 0
    batches: dict[TopicPartition, list[BufferedBatch]] = field(default_factory=dict)
    topic_names: dict[TopicPartition, str] = field(default_factory=dict)
    latency: Latency = Latency.COST
    is_given_up: bool = False

    def add(self, partition: TopicPartition, topic_name: str, batch: BufferedBatch, now: float) -> bool:
        """Append a batch. Return whether it makes `latency` stricter."""
        held = self.batches.get(partition)
        if held is None:
            held = self.batches[partition] = []
            self.topic_names[partition] = topic_name
        held.append(batch)
        self.size += batch.coordinates.length
        self.records += batch.coordinates.record_count
        self.last_added_at = now
        if batch.latency <= self.latency:
            return False
        self.latency = batch.latency
        return True

    def all_batches(self) -> Iterable[BufferedBatch]:
        """Every batch, in no particular order of partitions."""
        for batches in self.batches.values():
            yield from batches

    def fail(self, failure: FlushFailure) -> None:
        """Fail all batches without a result with `failure`, so their producers retry, and release the bytes."""
        for batch in self.all_batches():
            batch.settle(BatchResult(failure=failure))
        self.batches.clear()

    def is_late(self, failure: FlushFailure) -> None:
        """Release the bytes of a stored buffer whose commit has no answer yet, and tell the waiting producers to retry.
        Batches that were answered on receipt keep their place: their outcome is counted once it is known."""
        if not any(batch.is_answered_on_receipt for batch in self.all_batches()):
            self.fail(failure)
            return
        for batch in self.all_batches():
            batch.data = b""
            if not batch.is_answered_on_receipt:
                batch.settle(BatchResult(failure=failure))
        self.is_given_up = True
