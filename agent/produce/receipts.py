"""Receipts: batches whose producers were answered on receipt (`tailrace.flush=async`), until their result is known.

Invariants:
- a batch is answered only once a lane's buffer holds it, with offset -1, because its offset is not known yet;
- it stays charged to the memory budget until its result is known: producers that don't wait for the store wait for
  memory;
- a result other than "stored" is counted as lost, by cause, once. It can't be sent to the producer any more.

The count may exceed the actual loss: a commit whose answer never came may have stored its batches, and so may another
agent to which the producer sent the same batch.
"""

from __future__ import annotations

import math

import structlog

from agent.memory_budget import MemoryBudget
from agent.produce.active_buffer import BatchResult, BufferedBatch, Waiting
from agent.produce.request_memory import ELEMENT_BYTES
from agent.telemetry import AgentTelemetry
from sequencer.api.commits import BatchError
from tailrace.clock import Clock

log = structlog.get_logger("agent.flush")

WARNING_SECONDS = 30.0
"""The shortest time between two warnings about lost batches."""
_STORED = (BatchError.NONE, BatchError.DUPLICATE)


class Receipts:
    """All receipts of an agent. Owned by one event loop."""

    def __init__(self, budget: MemoryBudget, telemetry: AgentTelemetry, clock: Clock) -> None:
        self._budget = budget
        self._telemetry = telemetry
        self._clock = clock
        self._warned_at = -math.inf
        self._lost_batches = self._lost_records = 0
        """Lost since the last warning."""

    def answer(self, topic_name: str, batch: BufferedBatch) -> None:
        """Answer the batch's producer; the receipt gets the batch's result instead."""
        charge = batch.coordinates.length + ELEMENT_BYTES
        self._budget.keep(charge)
        producer = batch.submission
        batch.submission = Receipt(self, topic_name, batch.coordinates.record_count, charge)
        producer.settle(batch.index, BatchResult())

    def close(self, receipt: Receipt, result: BatchResult) -> None:
        """Give back the memory, and count the batch if it is lost."""
        self._budget.give(receipt.charge)
        if result.failure is None and result.error in _STORED:
            return
        cause = result.failure.kind if result.failure is not None else result.error.name.lower()
        self._telemetry.lost_batches.labels(cause).inc()
        self._telemetry.lost_records.labels(cause).inc(receipt.records)
        self._lost_batches += 1
        self._lost_records += receipt.records
        self._warn(receipt.topic_name, cause, "" if result.failure is None else result.failure.message)

    def _warn(self, topic_name: str, cause: str, message: str) -> None:
        now = self._clock.monotonic()
        if now - self._warned_at < WARNING_SECONDS:
            return
        log.warning(
            "batches were acknowledged on receipt and lost; `last` is one of them",
            batches=self._lost_batches,
            records=self._lost_records,
            last={"topic": topic_name, "cause": cause, "error": message},
        )
        self._warned_at = now
        self._lost_batches = self._lost_records = 0


class Receipt(Waiting):
    """One batch that was answered on receipt. `charge`: bytes of the memory budget."""

    __slots__ = ("_is_closed", "_receipts", "charge", "records", "topic_name")

    def __init__(self, receipts: Receipts, topic_name: str, records: int, charge: int) -> None:
        self._receipts = receipts
        self._is_closed = False
        self.topic_name = topic_name
        self.records = records
        self.charge = charge

    def settle(self, index: int, result: BatchResult) -> None:
        """Close the receipt with the batch's result; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._receipts.close(self, result)
