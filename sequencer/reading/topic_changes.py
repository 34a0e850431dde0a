"""Metadata for agents: all topics and the ring once, then only the changes.

It accompanies the committer's state, as of the newest change that readers see. It is only in memory: a committer
remembers the changes that it made itself and the rings that it sent; an agent that knows less gets everything.
"""

from __future__ import annotations

from uuid import UUID

from sequencer.api.agents import Ring, RingChange
from sequencer.api.topics import Metadata, MetadataRequest, Topic
from sequencer.ring_changes import ring_change
from sequencer.rules import leases
from sequencer.rules.topics import topic_value
from sequencer.store.row_store import DatabaseIdentity
from sequencer.store.rows import AgentRow, Changes, TopicRow
from sequencer.store.state import (
    CLIENT_CONFIGS_VERSION,
    METADATA_VERSION,
    RING_GENERATION,
    SECURITY_VERSION,
    HotState,
)

MAX_CHANGES = 10_000
"""Limit of topics whose last change is remembered; an agent that missed an older change gets everything."""


MAX_RINGS = 16
"""Limit of remembered rings; an agent that missed more changes gets the whole ring."""


class TopicChanges:
    """The metadata of one loaded state. Call `apply` after each change of that state."""

    def __init__(self, state: HotState) -> None:
        self._state = state
        self._known_from = state.counter(METADATA_VERSION)
        """All changes after this version are remembered."""
        self._changed: dict[UUID, int] = {}
        """The version at which each topic last changed, oldest first."""
        self._all: tuple[int, list[Topic]] = -1, []
        self._rings: dict[int, Ring] = {}
        """The rings that were sent last, by generation, oldest first."""
        self._ring_changes: dict[int, RingChange] = {}
        """The changes to the newest ring, by the generation of the older ring."""

    def apply(self, changes: Changes) -> None:
        """Remember which topics a transaction changed."""
        version = self._state.counter(METADATA_VERSION)
        for key in changes.by_kind.get(TopicRow, ()):
            topic_id = key[0]
            assert isinstance(topic_id, UUID), "topics are known by their id"
            self._changed.pop(topic_id, None)
            self._changed[topic_id] = version
        while len(self._changed) > MAX_CHANGES:
            self._known_from = self._changed.pop(next(iter(self._changed)))

    def answer(self, request: MetadataRequest, identity: DatabaseIdentity) -> Metadata:
        """Return what the caller does not know yet."""
        version = self._state.counter(METADATA_VERSION)
        topics: list[Topic] | None = None
        changed: list[Topic] = []
        deleted: list[UUID] = []
        if request.takes_changes and self._known_from <= request.known_version <= version:
            for topic_id in self._changed_since(request.known_version):
                row = self._state.get(TopicRow, topic_id)
                if row is None:
                    deleted.append(topic_id)
                else:
                    changed.append(topic_value(row))
        elif request.known_version != version:
            topics = self._topics(version)
        ring = self._current_ring()
        is_known = request.known_generation == ring.generation
        change = self._ring_change(request.known_generation, ring) if request.takes_ring_changes else None
        return Metadata(
            cluster_id=identity.cluster_id,
            incarnation=identity.incarnation,
            version=version,
            topics=topics,
            ring=None if is_known or change is not None else ring,
            changed=changed,
            deleted=deleted,
            security_version=self._state.counter(SECURITY_VERSION),
            client_configs_version=self._state.counter(CLIENT_CONFIGS_VERSION),
            ring_change=None if is_known else change,
        )

    def _changed_since(self, version: int) -> list[UUID]:
        topic_ids: list[UUID] = []
        for topic_id, changed_at in reversed(self._changed.items()):
            if changed_at <= version:
                break
            topic_ids.append(topic_id)
        return topic_ids[::-1]

    def _topics(self, version: int) -> list[Topic]:
        if self._all[0] != version:
            rows = sorted(self._state.all(TopicRow), key=lambda row: row.name)
            self._all = version, [topic_value(row) for row in rows]
        return self._all[1]

    def _current_ring(self) -> Ring:
        generation = self._state.counter(RING_GENERATION)
        ring = self._rings.get(generation)
        if ring is None:
            ring = self._rings[generation] = leases.ring_of(generation, self._state.all(AgentRow))
            self._ring_changes.clear()
            while len(self._rings) > MAX_RINGS:
                del self._rings[next(iter(self._rings))]
        return ring

    def _ring_change(self, since: int, ring: Ring) -> RingChange | None:
        """Return the change since a ring that was sent recently; None if the caller must get the whole ring."""
        before = self._rings.get(since)
        if before is not None and since not in self._ring_changes:
            self._ring_changes[since] = ring_change(before, ring)
        return self._ring_changes.get(since)
