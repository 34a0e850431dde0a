"""Share sessions (KIP-932): what a member of a share group fetches from this agent, so that it need not say it again.

A session ends when its client says so or with the connection that it was opened on. It holds no state that matters:
records that a member acquired are locked in the sequencer, whichever agent handed them out. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from agent.fetch.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH
from tailrace.clock import Entropy
from tailrace.ids import TopicPartition
from tailrace.kafka.error_codes import ErrorCode

MAX_SESSION_PARTITIONS = 100_000
"""Partitions kept for all sessions together."""
MAX_OF_CONNECTION = 16
"""Sessions that one connection has open; Kafka's clients open one."""
Member = tuple[str, str]
"""A group's id and its member's."""


@dataclass(slots=True)
class Outlook:
    """What the sequencer said last of a partition: the stretch that could be acquired, as far as the log has it. None
    while nothing can be, or before it was asked. `is_new`: nothing ever could, so the group may not have begun there.
    `is_hole`: nothing was found there by a read within its bounds. `is_acquired`: something may have been handed out in
    this session."""

    available: tuple[int, int] | None = None
    is_new: bool = True
    is_hole: bool = False
    is_acquired: bool = False


@dataclass(slots=True)
class ShareSession:
    """A member's; `partitions` in the order in which they are served (those that gave records go last). `number`: tells
    it from all others of the cluster. `epoch`: that of its next request."""

    number: int
    connection: object
    epoch: int = INITIAL_EPOCH + 1
    partitions: OrderedDict[TopicPartition, Outlook] = field(default_factory=OrderedDict)


class ShareSessions:
    """All share sessions of an agent, at most `limit` of them; no other is opened before one ends, as in Kafka."""

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
        added: Iterable[TopicPartition],
        forgotten: Iterable[TopicPartition],
        connection: object,
    ) -> ShareSession | ErrorCode:
        """The session after this fetch of a member: a new one at epoch 0; one that is ended by epoch -1, with what it
        had."""
        session = self._open(member, connection) if epoch == INITIAL_EPOCH else self.turn(member, epoch)
        if isinstance(session, ErrorCode) or epoch == FINAL_EPOCH:
            return session
        before = len(session.partitions)
        for partition in added:
            session.partitions.setdefault(partition, Outlook())
        for partition in forgotten:
            session.partitions.pop(partition, None)
        self._partition_count += len(session.partitions) - before
        if self._partition_count > MAX_SESSION_PARTITIONS:
            self._drop(member)
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        return session

    def turn(self, member: Member, epoch: int) -> ShareSession | ErrorCode:
        """The session of the next request of this member, of which this is the epoch; -1 ends it."""
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
        """End the sessions that were opened on a connection."""
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
        self._partition_count -= len(session.partitions)
        members = self._of_connection[session.connection]
        members.discard(member)
        if not members:
            del self._of_connection[session.connection]
        return session
