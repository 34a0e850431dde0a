"""Decides when a connection's client is told to look for the new leaders (decision 16).

Any agent serves any partition. But a client that never learns of a new agent doesn't use it until its metadata expires
(five minutes by default), and loses all agents that it knows when this one dies. So after the ring has changed, a
connection refuses its produce and fetch requests once if another agent now leads one of its partitions. It refuses all
of them for WINDOW_SECONDS, because requests in flight belong together, and none for PAUSE_SECONDS after the first. In a
small ring it also refuses when an agent has joined: a client must know more than one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from cache.ring import Replicas
from sequencer.api.agents import Ring
from tailrace.ids import TopicPartition

WINDOW_SECONDS = 0.1
PAUSE_SECONDS = 30.0
SMALL_RING = 4
MAX_USED = 100
"""The most written partitions that a connection remembers. A new leader of any other causes no refusal."""


class KnownLeadership:
    """What one connection's client knows of the ring. It is assumed to know the ring as of its first request."""

    __slots__ = ("_known", "_last", "_refused_until", "_silent_until", "_used")

    def __init__(self) -> None:
        self._known: Ring | None = None
        self._used: set[TopicPartition] = set()
        self._last: TopicPartition | None = None
        self._refused_until = 0.0
        self._silent_until = 0.0

    def note(self, partition: TopicPartition) -> None:
        """Note that the client has written to this partition."""
        if partition != self._last and len(self._used) < MAX_USED:
            self._used.add(partition)
            self._last = partition

    def knows(self, ring: Ring) -> bool:
        """Whether the client knows this ring, so that `sends_away` would return False."""
        return self._known is not None and self._known.generation == ring.generation

    def sends_away(
        self,
        replicas: Replicas,
        broker_id: int,
        zone: str,
        now: float,
        partitions: Iterable[TopicPartition] = (),
    ) -> bool:
        """Whether to refuse a request: the ring has changed, and another agent now leads a partition that the client
        has written to, or one of `partitions`."""
        ring = replicas.ring
        before = self._known or ring
        if now < self._refused_until:
            return True
        if self._known is None or (ring.generation != before.generation and now >= self._silent_until):
            self._known = ring
        if self._known is before:
            return False
        if not _has_joined(before, ring) and not any(
            replicas.of(zone, partition.topic_id, partition.partition, 1) != [broker_id]
            for partition in chain(self._used, partitions)
        ):
            return False
        self._used.clear()
        self._last = None
        self._refused_until, self._silent_until = now + WINDOW_SECONDS, now + PAUSE_SECONDS
        return True


def _has_joined(before: Ring, ring: Ring) -> bool:
    """Whether an agent has joined, and the ring is small."""
    known = {member.broker_id for member in before.members}
    joined = [member for member in ring.members if member.broker_id not in known and not member.draining]
    return bool(joined) and len(ring.members) <= SMALL_RING
