"""Receipts: batches whose producers were answered on receipt (`tailrace.flush=async`), until their result is known.

Invariants:
- a batch is answered only once a lane's buffer holds it, by offset -1: nobody knows its offset yet;
- it stays charged to the memory budget until its result is known, so that producers who don't wait for the store wait
  for memory;
- a result that is not "stored" is counted as lost, by cause, once: nobody is left to be told.

What is counted may be more than what is lost: a commit whose answer never came may have stored its batches, and so may
another agent that its producer sent the same batch to.
"""

from __future__ import annotations

import math

import structlog

from agent.memory_budget import MemoryBudget
from agent.produce.active_buffer import BatchResult, BufferedBatch, Waiting
from agent.produce.request_memory import ELEMENT_BYTES
from agent.telemetry import AgentTelemetry
from sequencer.api import BatchError
from tailrace.clock import Clock

log = structlog.get_logger("agent.flush")

WARNING_SECONDS = 30.0
"""The shortest time between two warnings of what was lost."""
_STORED = (BatchError.NONE, BatchError.DUPLICATE)


class Receipts:
    """All receipts of an agent. Owned by one event loop."""

    def __init__(self, budget: MemoryBudget, telemetry: AgentTelemetry, clock: Clock) -> None:
        self._budget = budget
        self._telemetry = telemetry
        self._clock = clock
        self._warned_at = -math.inf
        self._lost_batches = self._lost_records = 0
        """Since the last warning."""

    def answer(self, topic_name: str, batch: BufferedBatch) -> None:
        """Answer the batch's producer, and take its place."""
        charge = batch.coordinates.length + ELEMENT_BYTES
        self._budget.keep(charge)
        producer = batch.submission
        batch.submission = Receipt(self, topic_name, batch.coordinates.record_count, charge)
        producer.settle(batch.index, BatchResult())

    def close(self, receipt: Receipt, result: BatchResult) -> None:
        """Give the memory back, and count the batch if it is lost."""
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
    """One batch that was answered. `charge`: bytes of the memory budget."""

    __slots__ = ("_is_closed", "_receipts", "charge", "records", "topic_name")

    def __init__(self, receipts: Receipts, topic_name: str, records: int, charge: int) -> None:
        self._receipts = receipts
        self._is_closed = False
        self.topic_name = topic_name
        self.records = records
        self.charge = charge

    def settle(self, index: int, result: BatchResult) -> None:
        """The batch has its result; again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._receipts.close(self, result)
