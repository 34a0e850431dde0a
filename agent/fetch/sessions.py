"""Fetch sessions (KIP-227): what a client fetches, kept here so that it need not be sent again. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from uuid import UUID

from tailrace.clock import Entropy
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.fetch import FetchRequest, PartitionData

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_SESSION_PARTITIONS = 500_000
"""Partitions kept for all sessions together: some 300 bytes each."""
SessionKey = tuple[str, UUID, int]
"""(name, id, partition): a session is by names (to v12) or by ids (from v13)."""


@dataclass(slots=True)
class FetchWish:
    """What is wanted of one partition, and what the client was last told of it."""

    key: SessionKey
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    told: tuple[int, int, int, int] | None = None


@dataclass(slots=True)
class FetchSession:
    """A session; `wishes` in the order in which they are served (those that got data go last)."""

    session_id: int
    epoch: int
    wishes: OrderedDict[SessionKey, FetchWish] = field(default_factory=OrderedDict)
    client: str = ""


@dataclass(frozen=True, slots=True)
class FetchContext:
    """One fetch as it is to be done: all its partitions, and the session it belongs to, if any."""

    wishes: list[FetchWish]
    session: FetchSession | None
    is_incremental: bool

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session is not None else 0

    def must_tell(self, wish: FetchWish, data: PartitionData) -> bool:
        """Whether the response needs this partition: always, but incrementally only what changed."""
        if not self.is_incremental:
            return True
        now = (data.error_code, data.high_watermark, data.last_stable_offset, data.log_start_offset)
        return bool(data.records) or data.error_code != 0 or wish.told != now

    def told(self, wish: FetchWish, data: PartitionData) -> None:
        """Remember what was sent; a partition that gave records goes to the end of the line."""
        if self.session is None:
            return
        wish.told = (data.error_code, data.high_watermark, data.last_stable_offset, data.log_start_offset)
        if data.records and wish.key in self.session.wishes:
            self.session.wishes.move_to_end(wish.key)


class FetchSessions:
    """All fetch sessions of an agent, at most `limit` of them with MAX_SESSION_PARTITIONS; the least recently used
    goes. A fetch of more partitions than that gets no session.

    Ids are random per agent, so that another agent's id is not found rather than mistaken.
    """

    def __init__(self, limit: int, entropy: Entropy) -> None:
        self._limit = limit
        self._entropy = entropy
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, client: str) -> FetchContext | ErrorCode:
        """The fetch to be done, or why it can't be."""
        wishes = _wishes_of(request)
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if request.session_id in self._sessions:
                self._drop(request.session_id)
            session = None
            may_open = self._limit and len(wishes) <= MAX_SESSION_PARTITIONS
            if request.session_epoch == INITIAL_EPOCH and may_open:
                session = self._open(wishes, client)
            return FetchContext(wishes, session, is_incremental=False)
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if request.session_epoch != session.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        self._sessions.move_to_end(session.session_id)
        session.epoch = 1 if session.epoch == 2**31 - 1 else session.epoch + 1
        before = len(session.wishes)
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                session.wishes.pop((topic.topic, topic.topic_id, partition), None)
        for wish in wishes:
            known = session.wishes.get(wish.key)
            if known is not None:
                wish.told = known.told
            session.wishes[wish.key] = wish
        self._partitions += len(session.wishes) - before
        self._make_room(0, 0)
        return FetchContext(list(session.wishes.values()), session, is_incremental=True)

    def _open(self, wishes: list[FetchWish], client: str) -> FetchSession:
        self._make_room(1, len(wishes))
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._entropy.below(2**31)
        session = FetchSession(session_id, 1, OrderedDict((wish.key, wish) for wish in wishes), client)
        self._sessions[session_id] = session
        self._partitions += len(session.wishes)
        return session

    def _make_room(self, sessions: int, partitions: int) -> None:
        while self._sessions and (
            len(self._sessions) + sessions > self._limit
            or self._partitions + partitions > MAX_SESSION_PARTITIONS
        ):
            self._drop(next(iter(self._sessions)))

    def _drop(self, session_id: int) -> None:
        self._partitions -= len(self._sessions.pop(session_id).wishes)


def _wishes_of(request: FetchRequest) -> list[FetchWish]:
    return [
        FetchWish(
            (topic.topic, topic.topic_id, partition.partition),
            partition.fetch_offset,
            partition.partition_max_bytes,
            partition.current_leader_epoch,
            partition.last_fetched_epoch,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
