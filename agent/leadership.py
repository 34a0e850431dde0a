"""What one connection's client is told of leadership that moved to another agent.

Any agent serves any partition, but a client that is never told of an agent that joined doesn't use it before its
metadata is old (five minutes by default), and is cut off from all agents that it knows when this one dies. So after the
ring has changed, a connection's produce and fetch requests for partitions that another agent leads now are refused
once: for WINDOW_SECONDS, so that what is in flight together is refused together, and not again for PAUSE_SECONDS.
"""

from __future__ import annotations

from collections.abc import Iterable

from cache.ring import replicas_of
from sequencer.api import Ring
from tailrace.ids import TopicPartition

WINDOW_SECONDS = 0.1
PAUSE_SECONDS = 30.0
MAX_CHECKED = 1_000
"""Partitions that a connection remembers to have looked at; the client is told of no more of one change."""


class LeadershipTold:
    """One connection's. The ring as it was at its first request counts as known to the client."""

    __slots__ = ("_checked", "_generation", "_known", "_refused_until", "_silent_until")

    def __init__(self) -> None:
        self._known: int | None = None
        self._generation = -1
        self._checked: set[TopicPartition] = set()
        self._refused_until = 0.0
        self._silent_until = 0.0

    def moved(
        self, ring: Ring, broker_id: int, zone: str, partitions: Iterable[TopicPartition], now: float
    ) -> set[TopicPartition]:
        """Those of `partitions` whose client is to ask for metadata, as another agent leads them."""
        if self._known is None:
            self._known = ring.generation
        is_open = now < self._refused_until
        if ring.generation == self._known or (not is_open and now < self._silent_until):
            return set()
        if ring.generation != self._generation:
            self._generation = ring.generation
            self._checked.clear()
        found = set()
        for partition in partitions:
            if partition in self._checked and not is_open:
                continue
            if len(self._checked) < MAX_CHECKED:
                self._checked.add(partition)
                if replicas_of(ring, zone, partition.topic_id, partition.partition, 1) != [broker_id]:
                    found.add(partition)
        if found and not is_open:
            self._refused_until, self._silent_until = now + WINDOW_SECONDS, now + PAUSE_SECONDS
        return found
