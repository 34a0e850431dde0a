"""Idempotent producers that the sequencer does not know in a partition: which of them it has forgotten. Pure.

UNKNOWN_PRODUCER_ID has two causes. The producer's state has expired, or its first batch has not arrived: another agent
may still have it. Java's producer recovers from the first: if the answer has the log start, it raises its epoch and
sends the batch again (without it, it sends the batch again as it is). In the second case that would be wrong. A batch
that another agent stores under the old epoch after that would be stored twice.

So the answer has the log start only once the producer has been refused for longer than an upload session lives without
a renewal. By then no other agent can commit what it received before the first refusal.
"""

from __future__ import annotations

from collections import OrderedDict

from tailrace.ids import TopicPartition

MAX_KNOWN = 10_000
"""The most producers, each in one partition, for which refusals are remembered; the longest unrefused are dropped."""
LEASES = 1.5
"""How long a producer must be refused, in leases of an upload session."""
QUIET_LEASES = 1.0
"""A refusal that comes so much later than the last one, in leases, is counted as the first."""


class UnknownProducers:
    """When producers were first and last refused (monotonic seconds), by partition and producer id."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: OrderedDict[tuple[TopicPartition, int], tuple[float, float]] = OrderedDict()

    def is_forgotten(
        self, partition: TopicPartition, producer_id: int, *, now: float, lease_seconds: float
    ) -> bool:
        """Note a refusal, and return whether the producer's state has certainly expired."""
        key = (partition, producer_id)
        first, last = self._refused.pop(key, (now, now))
        if now - last > QUIET_LEASES * lease_seconds:
            first = now
        self._refused[key] = (first, now)
        if len(self._refused) > MAX_KNOWN:
            self._refused.popitem(last=False)
        return now - first >= LEASES * lease_seconds
