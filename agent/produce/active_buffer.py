"""The active buffer: what was received since the last seal, by partition, in order of arrival. Pure.

A sealed buffer is the same thing, closed: it knows the runs of its object, and after the commit it gives each batch's
outcome to the request that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from sequencer.api import BatchError
from tailrace.buffers import Buffer
from tailrace.ids import TopicPartition
from tailrace.mixed_object import BatchCoordinates
from tailrace.topic_config import Latency


class BatchResult(msgspec.Struct, gc=False):
    """The result of one batch, for its producer. `failure` is set when it was not the sequencer that refused it."""

    error: BatchError = BatchError.NONE
    base_offset: int = -1
    log_start_offset: int = -1
    failure: FlushFailure | None = None


@dataclass(frozen=True, slots=True)
class FlushFailure:
    """Why a buffer's batches were not stored, in words and as a kind that becomes a retriable Kafka error."""

    kind: str  # 'storage' | 'timeout'
    message: str


class Waiting(Protocol):
    """A request whose batches wait for their results."""

    def settle(self, index: int, result: BatchResult) -> None:
        """Give the batch at `index` its result, once."""
        ...


class Submission:
    """The batches of one produce request; `settled` is passed their results when the last has its own."""

    __slots__ = ("_left", "_settled", "results")

    def __init__(self, count: int, settled: Callable[[list[BatchResult | None]], None]) -> None:
        self.results: list[BatchResult | None] = [None] * count
        self._left = count
        self._settled = settled

    def settle(self, index: int, result: BatchResult) -> None:
        """Give the batch at `index` its result, once."""
        if self.results[index] is not None:
            return
        self.results[index] = result
        self._left -= 1
        if not self._left:
            self._settled(self.results)


class BufferedBatch(msgspec.Struct, gc=False):
    """One batch on its way, and the place in its request where the result belongs.

    `transaction`: of a transactional batch, the number of the producer's transaction that was open when the batch was
    received, or ANY_TRANSACTION. `is_answered_on_receipt`: its producer does not wait for the commit
    (agent.produce.receipts).
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
    """The transaction of each batch, as a RunProposal wants it: empty when none is transactional."""
    if not any(batch.coordinates.is_transactional for batch in batches):
        return []
    return [batch.transaction for batch in batches]


@dataclass(slots=True)
class ActiveBuffer:
    """Batches by partition. `opened_at`, `last_added_at`: monotonic seconds. `latency`: the strictest one.
    `is_given_up`: all who wait were told to retry."""

    opened_at: float
    last_added_at: float = 0.0
    size: int = 0
    batches: dict[TopicPartition, list[BufferedBatch]] = field(default_factory=dict)
    topic_names: dict[TopicPartition, str] = field(default_factory=dict)
    latency: Latency = Latency.COST
    is_given_up: bool = False

    def add(self, partition: TopicPartition, topic_name: str, batch: BufferedBatch, now: float) -> bool:
        """Take one batch after those already here. Whether it makes `latency` stricter."""
        held = self.batches.get(partition)
        if held is None:
            held = self.batches[partition] = []
            self.topic_names[partition] = topic_name
        held.append(batch)
        self.size += batch.coordinates.length
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
        """Have the producers of all batches without a result retry, and release the bytes: they are sent again."""
        for batch in self.all_batches():
            batch.settle(BatchResult(failure=failure))
        self.batches.clear()

    def is_late(self, failure: FlushFailure) -> None:
        """Release the bytes: they are stored, and it is not known whether they are committed. Producers who wait retry;
        of what was answered on receipt the outcome is counted once it is known."""
        if not any(batch.is_answered_on_receipt for batch in self.all_batches()):
            self.fail(failure)
            return
        for batch in self.all_batches():
            batch.data = b""
            if not batch.is_answered_on_receipt:
                batch.settle(BatchResult(failure=failure))
        self.is_given_up = True
