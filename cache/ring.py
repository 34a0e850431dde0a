"""The ring decides which agent owns a chunk in a zone, is shown as leader of a partition, or coordinates a group.

It uses rendezvous hashing (Thaler and Ravishankar, 1996): each (key, member) pair has a score, and the member with the
highest score wins. A member that joins takes 1/n of each other member's keys. A member that leaves gives its keys
evenly to the others. No other key moves, and there are no virtual nodes to tune. The cost is one score per member of a
zone, and a zone has tens of members.

Pure: the same ring gives the same answers on every agent and in every process (`hash` is not used).
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from itertools import cycle, islice
from uuid import UUID

from cache.chunk import ChunkId
from sequencer.api.agents import Member, Ring

NO_LEADER = -1
"""The leader id in Kafka metadata for a partition without a leader."""

_MASK = (1 << 64) - 1
_MEMO_ENTRIES = 8192
MAX_RANKED = 200_000
"""Limit of remembered replica lists: about 50 MB."""
MAX_REMEMBERED_REPLICAS = 8
MEMBERS_AS_A_PARTITION = 10
"""Scoring this many members takes as long as the rest of the work for one partition in metadata: some 5 us."""


class ZoneRing:
    """The ring as one agent sees it: chunks are owned by the live agents of the agent's own zone.

    A member that is draining or does not serve peers (port 0) owns nothing. The viewing agent itself needs no port.
    """

    __slots__ = ("_members", "_memo", "broker_id", "generation", "zone")

    def __init__(self, ring: Ring, zone: str, broker_id: int) -> None:
        self.generation = ring.generation
        self.zone = zone
        self.broker_id = broker_id
        self._members = [
            (_mix(member.broker_id), member)
            for member in ring.members
            if member.info.zone == zone
            and not member.draining
            and (member.info.peer_port or member.broker_id == broker_id)
        ]
        self._memo: dict[ChunkId, Member | None] = {}

    def owner(self, chunk: ChunkId) -> Member | None:
        """Return the one agent of the zone that owns the chunk; None if no agent of the zone can."""
        try:
            return self._memo[chunk]
        except KeyError:
            pass
        key = _hash(f"{chunk.number}@{chunk.key}".encode())
        best = max(self._members, key=lambda agent: (_mix(key ^ agent[0]), agent[1].broker_id), default=None)
        owner = best[1] if best is not None else None
        if len(self._memo) >= _MEMO_ENTRIES:
            self._memo.clear()
        self._memo[chunk] = owner
        return owner

    def is_mine(self, chunk: ChunkId) -> bool:
        """Whether the viewing agent owns the chunk."""
        owner = self.owner(chunk)
        return owner is not None and owner.broker_id == self.broker_id


class Replicas:
    """The replicas that metadata shows for partitions under one ring. Each list is computed once and remembered.

    Replicas only express affinity: any agent can serve any partition.
    """

    __slots__ = ("_of_zone", "_ranked", "ring")

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        eligible = [(_mix(member.broker_id), member) for member in _eligible(ring.members)]
        everywhere = [(mixed, member.broker_id) for mixed, member in eligible]
        self._of_zone: dict[str | None, list[tuple[int, int]]] = {None: everywhere}
        for mixed, member in eligible:
            self._of_zone.setdefault(member.info.zone, []).append((mixed, member.broker_id))
        self._ranked: dict[tuple[str | None, UUID, int, int], list[int]] = {}

    def of(self, zone: str | None, topic_id: UUID, partition: int, count: int) -> list[int]:
        """Return the `count` broker ids that a client of `zone` is shown, the leader first. Don't modify the list.

        They are the live agents of the zone, or of all zones if the zone is unknown or has no agents. Draining agents
        are used only if all agents drain. If there are fewer agents than `count`, they repeat: the object store keeps
        the copies, and the topic's creator asked for this number. Empty for an empty ring.
        """
        zone = self.zone_of(zone)
        asked = (zone, topic_id, partition, count)
        known = self._ranked.get(asked)
        if known is None:
            known = self._rank(zone, _partition_key(topic_id, partition), count)
            if count <= MAX_REMEMBERED_REPLICAS:
                if len(self._ranked) >= MAX_RANKED:
                    self._ranked.clear()
                self._ranked[asked] = known
        return known

    def coordinator(self, group_id: str) -> int:
        """Return the first of `group_candidates`; NO_LEADER for an empty ring."""
        return next(iter(self._rank(None, _group_key(group_id), 1)), NO_LEADER)

    def in_a_turn(self, zone: str | None, partitions: int) -> int:
        """Return how many partitions can be placed for a client of `zone` in the time that a small ring needs for
        `partitions`."""
        return max(1, partitions // (1 + len(self._of_zone[self.zone_of(zone)]) // MEMBERS_AS_A_PARTITION))

    def zone_of(self, zone: str | None) -> str | None:
        """Return the zone whose replicas a client of `zone` is shown; None for all zones. Clients may name unknown
        zones."""
        return zone if zone in self._of_zone else None

    def _rank(self, zone: str | None, key: int, count: int) -> list[int]:
        scored = ((_mix(key ^ mixed), broker_id) for mixed, broker_id in self._of_zone[zone])
        if count == 1:
            best = max(scored, default=None)
            return [] if best is None else [best[1]]
        return list(islice(cycle(broker_id for _, broker_id in sorted(scored, reverse=True)), count))


def group_candidates(ring: Ring, group_id: str) -> list[int]:
    """Return the agents that should coordinate a group without a live owner, best first: all agents that are not
    draining, or all agents if every one drains."""
    return _ranked(_eligible(ring.members), _group_key(group_id))


def _eligible(members: list[Member]) -> list[Member]:
    return [member for member in members if not member.draining] or members


def _partition_key(topic_id: UUID, partition: int) -> int:
    return _hash(topic_id.bytes + partition.to_bytes(4, "big", signed=True))


def _group_key(group_id: str) -> int:
    return _hash(b"group\0" + group_id.encode())


def _ranked(members: Iterable[Member], key: int) -> list[int]:
    scored = [(_mix(key ^ _mix(member.broker_id)), member.broker_id) for member in members]
    return [broker_id for _, broker_id in sorted(scored, reverse=True)]


def _hash(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


def _mix(value: int) -> int:
    """The finalizer of splitmix64 (Steele et al., 2014): each input bit changes half of the output bits."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
