"""Share sessions (KIP-932): they remember what a member of a share group fetches, so that it need not send it again.

A session ends when its client ends it, or with the connection on which it was opened. It holds no state that matters:
the sequencer holds the locks of acquired records, whichever agent handed them out. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.fetch.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH
from tailrace.clock import Entropy
from tailrace.ids import TopicPartition
from tailrace.kafka.error_codes import ErrorCode
from tailrace.turns import Steps, in_parts

MAX_SESSION_PARTITIONS = 100_000
"""The most partitions of all sessions together."""
PARTITIONS_IN_A_STEP = 1_000
MAX_OF_CONNECTION = 16
"""The most open sessions of one connection. Kafka's clients open one."""
Member = tuple[str, str]
"""A group id and a member id."""


@dataclass(slots=True)
class AcquirableOffsets:
    """The sequencer's latest answer for a partition. `available`: the offsets that could be acquired, as far as the log
    has them; None if none can be, or before the first answer. `is_new`: nothing was ever available, so the group may
    not have begun to read the partition. `is_hole`: a read within these offsets found nothing. `is_acquired`: records
    may have been acquired in this session."""

    available: tuple[int, int] | None = None
    is_new: bool = True
    is_hole: bool = False
    is_acquired: bool = False


@dataclass(slots=True)
class ShareSession:
    """A member's session. `partitions` are in the order in which they are served: those that returned records move to
    the end. `number` is unique in the cluster. `epoch`: the epoch of its next request. `counted`: its partitions among
    those of all sessions."""

    number: int
    connection: object
    epoch: int = INITIAL_EPOCH + 1
    partitions: OrderedDict[TopicPartition, AcquirableOffsets] = field(default_factory=OrderedDict)
    counted: int = 0


class ShareSessions:
    """All share sessions of an agent, at most `limit`. At the limit none is opened until another ends, as in Kafka."""

    def __init__(self, limit: int, entropy: Entropy) -> None:
        self._limit = limit
        self._entropy = entropy
        self._sessions: dict[Member, ShareSession] = {}
        self._of_connection: dict[object, set[Member]] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def fetch(
        self,
        member: Member,
        epoch: int,
        added: Sequence[TopicPartition],
        forgotten: Sequence[TopicPartition],
        connection: object,
    ) -> Steps[ShareSession | ErrorCode]:
        """Return the session after this fetch of a member: a new one for epoch 0, the ended one for epoch -1."""
        session = self._open(member, connection) if epoch == INITIAL_EPOCH else self.turn(member, epoch)
        if isinstance(session, ErrorCode) or epoch == FINAL_EPOCH:
            return session
        for some in in_parts(added, PARTITIONS_IN_A_STEP):
            for partition in some:
                session.partitions.setdefault(partition, AcquirableOffsets())
            yield len(some)
        for some in in_parts(forgotten, PARTITIONS_IN_A_STEP):
            for partition in some:
                session.partitions.pop(partition, None)
            yield len(some)
        if self._sessions.get(member) is not session:
            return ErrorCode.SHARE_SESSION_NOT_FOUND  # it ended in a turn of others
        self._partition_count += len(session.partitions) - session.counted
        session.counted = len(session.partitions)
        if self._partition_count > MAX_SESSION_PARTITIONS:
            self._drop(member)
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        return session

    def turn(self, member: Member, epoch: int) -> ShareSession | ErrorCode:
        """Return the member's session for a request of this epoch; epoch -1 ends the session."""
        session = self._sessions.get(member)
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch == FINAL_EPOCH:
            self._drop(member)
            return session
        if epoch != session.epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        session.epoch = 1 if epoch == 2**31 - 1 else epoch + 1
        return session

    def end_of(self, connection: object) -> list[tuple[Member, ShareSession]]:
        """End the sessions that were opened on a connection, and return them."""
        members = sorted(self._of_connection.get(connection, ()))
        return [(member, self._drop(member)) for member in members]

    def _open(self, member: Member, connection: object) -> ShareSession | ErrorCode:
        if member in self._sessions:
            self._drop(member)
        of_connection = self._of_connection.get(connection, set())
        if len(self._sessions) >= self._limit or len(of_connection) >= MAX_OF_CONNECTION:
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        session = self._sessions[member] = ShareSession(1 + self._entropy.below(2**62), connection)
        self._of_connection.setdefault(connection, set()).add(member)
        return session

    def _drop(self, member: Member) -> ShareSession:
        session = self._sessions.pop(member)
        self._partition_count -= session.counted
        members = self._of_connection[session.connection]
        members.discard(member)
        if not members:
            del self._of_connection[session.connection]
        return session
