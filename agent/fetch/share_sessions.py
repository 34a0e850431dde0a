"""Share sessions (KIP-932): what a member of a share group fetches from this agent, so that it need not say it again.

A session is the member's, not the connection's. It holds no state that matters: records that a member acquired are
locked in the sequencer, whichever agent handed them out. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from agent.fetch.sessions import FINAL_EPOCH, INITIAL_EPOCH
from tailrace.kafka.error_codes import ErrorCode

MAX_SESSION_PARTITIONS = 100_000
"""Partitions kept for all sessions together."""


class SharePlace(NamedTuple):
    """A partition, by its topic's id."""

    topic_id: UUID
    partition: int


@dataclass(slots=True)
class Outlook:
    """What the sequencer said last of a partition: the stretch that could be acquired, as far as the log has it. None
    while nothing can be, or before it was asked. `is_hole`: nothing was found there by a read within its bounds."""

    available: tuple[int, int] | None = None
    is_hole: bool = False


@dataclass(slots=True)
class ShareSession:
    """A member's; `partitions` in the order in which they are served (those that gave records go last). `epoch`: that
    of its next request."""

    epoch: int = INITIAL_EPOCH + 1
    partitions: OrderedDict[SharePlace, Outlook] = field(default_factory=OrderedDict)


class ShareSessions:
    """All share sessions of an agent, at most `limit` of them; the least recently used goes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sessions: OrderedDict[tuple[str, str], ShareSession] = OrderedDict()
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def fetch(
        self,
        member: tuple[str, str],
        epoch: int,
        added: Iterable[SharePlace],
        forgotten: Iterable[SharePlace],
    ) -> ShareSession | ErrorCode:
        """The session after this fetch of a member (group and member id): a new one at epoch 0; one that is ended by
        epoch -1, with what it had."""
        if epoch == INITIAL_EPOCH:
            self._drop(member)
            session = ShareSession()
        else:
            known = self.turn(member, epoch)
            if isinstance(known, ErrorCode) or epoch == FINAL_EPOCH:
                return known
            session = known
        before = len(session.partitions) if member in self._sessions else 0
        for place in added:
            session.partitions.setdefault(place, Outlook())
        for place in forgotten:
            session.partitions.pop(place, None)
        if len(session.partitions) > MAX_SESSION_PARTITIONS or not self._limit:
            self._drop(member)
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        self._partition_count += len(session.partitions) - before
        self._sessions[member] = session
        while len(self._sessions) > self._limit or self._partition_count > MAX_SESSION_PARTITIONS:
            self._drop(next(iter(self._sessions)))
        return session

    def turn(self, member: tuple[str, str], epoch: int) -> ShareSession | ErrorCode:
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
        self._sessions.move_to_end(member)
        return session

    def _drop(self, member: tuple[str, str]) -> None:
        session = self._sessions.pop(member, None)
        if session is not None:
            self._partition_count -= len(session.partitions)
