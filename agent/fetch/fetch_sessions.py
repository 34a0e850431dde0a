"""Fetch sessions (KIP-227): they remember what a client fetches, so that it need not send it again. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from tailrace.clock import Clock, Entropy
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.fetch import FetchRequest, PartitionData
from tailrace.tenants import Tenant
from tailrace.turns import Steps, in_parts

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_SESSION_PARTITIONS = 500_000
"""The most partitions of all sessions together, some 300 bytes each. Longer topic names count more."""
PARTITION_BYTES = 300
IDLE_SECONDS = 120.0
"""A session that was not used for so long makes room for others. Kafka has the same constant."""

PARTITIONS_IN_A_STEP = 1_000
"""Requested partitions that are processed between two yields."""


class PartitionKey(NamedTuple):
    """A partition as a client names it: by its topic's name (to v12) or by its id (from v13)."""

    topic_name: str
    topic_id: UUID
    partition: int


class SentBounds(NamedTuple):
    """What a response contained for a partition, except its records."""

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int

    @classmethod
    def of(cls, data: PartitionData) -> SentBounds:
        return cls(data.error_code, data.high_watermark, data.last_stable_offset, data.log_start_offset)


@dataclass(slots=True)
class RequestedPartition:
    """What the client requests of one partition, and what it was last sent."""

    key: PartitionKey
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    last_sent: SentBounds | None = None


@dataclass(slots=True)
class FetchSession:
    """A session. `partitions`: in the order of service; those that returned records move to the end. `last_used`: by
    the monotonic clock, in seconds."""

    session_id: int
    epoch: int
    last_used: float
    partitions: dict[PartitionKey, RequestedPartition] = field(default_factory=dict)
    client: str = ""
    weight: int = 0
    tenant: Tenant | None = None
    """The tenant whose clients may use it: anyone can guess a session id."""
    names_ids: bool = False
    """Whether its requests name topics by their ids."""


@dataclass(frozen=True, slots=True)
class FetchContext:
    """One fetch: all its partitions, and its session, if any."""

    partitions: list[RequestedPartition]
    session: FetchSession | None
    is_incremental: bool

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session is not None else 0

    def include_in_response(self, requested: RequestedPartition, data: PartitionData) -> bool:
        """Whether the response needs this partition: all do, except unchanged ones in an incremental response."""
        if not self.is_incremental:
            return True
        return bool(data.records) or data.error_code != 0 or requested.last_sent != SentBounds.of(data)

    def note_sent(self, requested: RequestedPartition, data: PartitionData) -> None:
        """Remember what was sent. A partition that returned records moves to the end of the session's order."""
        if self.session is None:
            return
        requested.last_sent = SentBounds.of(data)
        if data.records and requested.key in self.session.partitions:
            self.session.partitions[requested.key] = self.session.partitions.pop(requested.key)


class FetchSessions:
    """All fetch sessions of an agent: at most `limit` sessions and MAX_SESSION_PARTITIONS partitions. If there is no
    room, sessions that were idle for IDLE_SECONDS are dropped. If that is not enough, a fetch is served without a
    session, and a session that grew is dropped itself: if clients took the sessions of each other, all of them would
    get more errors than records.

    Ids are random per agent, so a session id of another agent is not found instead of naming the wrong session.
    """

    def __init__(self, limit: int, clock: Clock, entropy: Entropy) -> None:
        self._limit = limit
        self._clock = clock
        self._entropy = entropy
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, request: FetchRequest, client: str, tenant: Tenant | None = None, *, names_ids: bool = False
    ) -> Steps[FetchContext | ErrorCode]:
        """Return the fetch to serve, or why it can't be served. `names_ids`: the request's version names topics by
        their ids."""
        requested, weight = yield from _requested(request)
        session = self._sessions.get(request.session_id)
        if session is not None and session.tenant != tenant:
            session = None
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session is not None:
                self._drop(request.session_id)
            session = None
            if request.session_epoch == INITIAL_EPOCH:
                session = self._open(requested, weight, client, tenant)
            if session is not None:
                session.names_ids = names_ids
            return FetchContext(list(requested.values()), session, is_incremental=False)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if request.session_epoch != session.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if names_ids is not session.names_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        self._sessions.move_to_end(session.session_id)
        session.last_used = self._clock.monotonic()
        session.epoch = 1 if session.epoch == 2**31 - 1 else session.epoch + 1
        for topic in request.forgotten_topics_data:
            for some in in_parts(topic.partitions, PARTITIONS_IN_A_STEP):
                self._forget(session, [PartitionKey(topic.topic, topic.topic_id, number) for number in some])
                yield len(some)
        for changed in in_parts(list(requested.values()), PARTITIONS_IN_A_STEP):
            self._change(session, changed)
            yield len(changed)
        if self._sessions.get(session.session_id) is not session:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND  # it grew too large, or was ended meanwhile
        return FetchContext(list(session.partitions.values()), session, is_incremental=True)

    def _forget(self, session: FetchSession, keys: Sequence[PartitionKey]) -> None:
        weight = 0
        for key in keys:
            if session.partitions.pop(key, None) is not None:
                weight += _weight(key.topic_name)
        self._grow(session, -weight)

    def _change(self, session: FetchSession, changed: Sequence[RequestedPartition]) -> None:
        """Replace what the session requests of these partitions."""
        weight = 0
        for partition in changed:
            known = session.partitions.get(partition.key)
            if known is not None:
                partition.last_sent = known.last_sent
            else:
                weight += _weight(partition.key.topic_name)
            session.partitions[partition.key] = partition
        self._grow(session, weight)

    def _grow(self, session: FetchSession, weight: int) -> None:
        session.weight += weight
        if self._sessions.get(session.session_id) is session:
            self._weight += weight
            if not self._has_room(0, 0):
                self._drop(session.session_id)

    def _open(
        self,
        requested: dict[PartitionKey, RequestedPartition],
        weight: int,
        client: str,
        tenant: Tenant | None,
    ) -> FetchSession | None:
        if weight > MAX_SESSION_PARTITIONS or not self._has_room(1, weight):
            return None
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._entropy.below(2**31)
        session = FetchSession(
            session_id,
            1,
            self._clock.monotonic(),
            requested,
            client=client,
            weight=weight,
            tenant=tenant,
        )
        self._sessions[session_id] = session
        self._weight += weight
        return session

    def _has_room(self, sessions: int, weight: int) -> bool:
        """Whether so many more fit in. Idle sessions are dropped for them, the least recently used first."""
        since = self._clock.monotonic() - IDLE_SECONDS
        while len(self._sessions) + sessions > self._limit or self._weight + weight > MAX_SESSION_PARTITIONS:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or oldest.last_used > since:
                return False
            self._drop(oldest.session_id)
        return True

    def _drop(self, session_id: int) -> None:
        self._weight -= self._sessions.pop(session_id).weight


def _weight(topic_name: str) -> int:
    """Return how many partitions a partition of this topic counts as: a client may send any name, up to 32 KiB."""
    return 1 + len(topic_name) // PARTITION_BYTES


def _requested(request: FetchRequest) -> Steps[tuple[dict[PartitionKey, RequestedPartition], int]]:
    """Return the partitions of a request, and how many they count as. If one is named repeatedly, its last entry
    counts: Kafka makes a map of them, too."""
    by_key: dict[PartitionKey, RequestedPartition] = {}
    weight = 0
    for topic in request.topics:
        before = len(by_key)
        for some in in_parts(topic.partitions, PARTITIONS_IN_A_STEP):
            for partition in some:
                key = PartitionKey(topic.topic, topic.topic_id, partition.partition)
                by_key[key] = RequestedPartition(
                    key=key,
                    fetch_offset=partition.fetch_offset,
                    max_bytes=partition.partition_max_bytes,
                    current_leader_epoch=partition.current_leader_epoch,
                    last_fetched_epoch=partition.last_fetched_epoch,
                )
            yield len(some)
        weight += (len(by_key) - before) * _weight(topic.topic)
    return by_key, weight
