"""The chain of heads that one committer writes: what is saved, what may be exported next, which offsets are reserved.

    phase      from                  on                                offsets may be assigned
    NEW        -                     a state was loaded (new term)     none
    CHECKED    NEW                   the bucket is this database's     none
               CHECKED, OPEN         a state was loaded (same term),   none
                                     or the chain was broken off
    OPEN       CHECKED               the first head is durable         as many as the heads reserve
    FINISHED   OPEN                  the last head was made            no more
    REFUSED    any                   the bucket is ahead of this       no more
                                     database

`successor` makes the chain that follows when a state is reloaded. Code that awaited something for the previous chain
finds the new one in its place. FINISHED and REFUSED are permanent: successors stay in these phases.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sequencer.api.errors import SequencerError, SequencerUnavailable
from sequencer.checkpoint import format as checkpoint
from sequencer.checkpoint.format import Head, HeadId, Part, Table
from sequencer.store.row_store import DatabaseIdentity
from sequencer.store.rows import AgentRow, Changes, LeaseRow, PartitionRow, Row, SessionRow, TopicRow
from sequencer.store.state import COMMIT_NUMBER, HotState, Key
from tailrace.turns import Steps

MAX_UNSAVED_ROWS = 200_000
"""If more unsaved rows than this accumulate because the bucket accepts none, the chain is broken off and a new one
begins."""
MIN_SNAPSHOT_BYTES = 4 << 20
CHEAP_SNAPSHOT_BYTES = 64 << 20
HEADS_FOR_CHEAP = 200
MAX_HEADS = 5_000
"""A snapshot is due when the heads since the last one are as large as it in total, or when there are this many of them
(HEADS_FOR_CHEAP if the snapshot is small)."""
IDLE_INTERVAL_MS = 60_000
"""If only leases were renewed, heads are exported at most this often."""
_VOLATILE: frozenset[type[Row]] = frozenset({AgentRow, SessionRow, LeaseRow})


class Phase(enum.Enum):
    """See the module."""

    NEW = "new"
    CHECKED = "checked"
    OPEN = "open"
    FINISHED = "finished"
    REFUSED = "refused"


@dataclass(slots=True)
class Export:
    """A head in transit to the bucket, and the rows that are saved with it.

    `head` has no tables: they are encoded from `changes` and `hot`. `data`: the head as it is stored, once it is
    encoded.
    """

    head: Head
    changes: Changes
    hot: list[Table]
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class LastSnapshot:
    """The newest durable snapshot: the size of its parts, and the head from which its chain is replayed."""

    size: int
    replay_from: HeadId


class ChainState:
    """See the module. `ChainState.unknown()` belongs to no database; `successor` begins a chain for one.

    Attributes:
        next_number: the number of the next head.
        begins: the number from which on this chain has no gap.
        exporting: the head in transit; nothing else is exported before it.
        snapshot: the newest durable snapshot of this chain.
        refusal: the reason for the phase REFUSED.
    """

    def __init__(
        self, identity: DatabaseIdentity, epoch: int, state: HotState, phase: Phase, next_number: int
    ) -> None:
        self.identity: Final = identity
        self.epoch: Final = epoch
        self.state: Final = state
        self.phase = phase
        self.begins = self.next_number = next_number
        self.exporting: Export | None = None
        self.snapshot: LastSnapshot | None = None
        self.refusal: SequencerError | None = None
        self._unsaved = Changes()
        self._unsaved_rows = 0
        self._saved_ends: dict[Key, int] = {}
        """The ends of partitions in durable heads. A partition without an entry has the same end as in the first head:
        `check_reserved` adds one before the end moves, so that idle partitions have none."""
        self._heads_since = 0
        self._bytes_since = 0

    @classmethod
    def unknown(cls) -> ChainState:
        """Return the chain of no database."""
        identity = DatabaseIdentity(cluster_id="", incarnation=0)
        return cls(identity, -1, HotState({}), phase=Phase.NEW, next_number=0)

    # --- transitions

    def successor(self, identity: DatabaseIdentity, epoch: int, state: HotState) -> ChainState:
        """Return the chain that follows when this state was loaded under this epoch."""
        is_same_term = (identity, epoch) == (self.identity, self.epoch)
        number = self.next_number if is_same_term else 0
        if is_same_term and self.exporting is not None:
            number += 1  # it is unknown whether that head was stored, so its number is used up
        phase = self.phase
        if phase not in (Phase.FINISHED, Phase.REFUSED):
            phase = Phase.CHECKED if is_same_term and phase is not Phase.NEW else Phase.NEW
        following = ChainState(identity, epoch, state, phase=phase, next_number=number)
        following.refusal = self.refusal
        return following

    def broken_off(self) -> ChainState:
        """Return the chain that follows when too many rows are unsaved; it begins again with all rows."""
        return self.successor(self.identity, self.epoch, self.state)

    def bucket_is_ours(self, last_number: int | None) -> None:
        """Note that the bucket was checked. `last_number`: the highest number of a head of this same epoch in the
        bucket, if there is one."""
        assert self.phase is Phase.NEW, self.phase
        if last_number is not None:
            # A previous process wrote that head. It stays, and so does the next number, whose head may still be in
            # transit.
            self.begins = self.next_number = max(self.next_number, last_number + 2)
        self.phase = Phase.CHECKED

    def open(self) -> None:
        """Note that the first head is durable, so that offsets are reserved."""
        assert self.phase is Phase.CHECKED, self.phase
        self.phase = Phase.OPEN

    def finish(self) -> None:
        """Note that the next head is the last one."""
        assert self.phase is Phase.OPEN, self.phase
        self.phase = Phase.FINISHED

    def refuse(self, error: SequencerError) -> None:
        """Note that nothing may ever be written to this bucket."""
        self.phase, self.refusal = Phase.REFUSED, error

    # --- what was written, and what is saved of it

    def written(self, changes: Changes) -> None:
        """Note changes that are durable in the database and shown."""
        for kind, rows in changes.by_kind.items():
            if kind in checkpoint.LEFT_OUT:
                continue
            mine = self._unsaved.by_kind.setdefault(kind, {})
            before = len(mine)
            mine.update(rows)
            self._unsaved_rows += len(mine) - before

    @property
    def unsaved_rows(self) -> int:
        """Number of rows that are in no head yet."""
        return self._unsaved_rows

    @property
    def is_too_long(self) -> bool:
        """Whether so many rows are unsaved that the chain must be broken off."""
        return self._unsaved_rows > MAX_UNSAVED_ROWS

    @property
    def is_all_saved(self) -> bool:
        """Whether a durable head has everything that was written."""
        is_open = self.phase in (Phase.OPEN, Phase.FINISHED)
        return is_open and not self._unsaved and self.exporting is None

    def is_saved(self, kind: type[Row], key: Key) -> bool:
        """Whether the current row (or its absence) is in a durable checkpoint."""
        if self.snapshot is None or key in self._unsaved.by_kind.get(kind, {}):
            return False
        return self.exporting is None or key not in self.exporting.changes.by_kind.get(kind, {})

    def check_reserved(self, changes: Changes, reservation: int) -> None:
        """Check that all offsets that a request's changes assign are reserved. Raises SequencerUnavailable, or the
        refusal."""
        for row in changes.by_kind.get(PartitionRow, {}).values():
            if not isinstance(row, PartitionRow):
                continue
            before = self.state.get(PartitionRow, row.topic_id, row.partition)
            if before is None or before.end_offset == row.end_offset:
                continue
            if self.refusal is not None:
                raise self.refusal
            if self.phase is not Phase.OPEN:
                raise SequencerUnavailable(
                    "no offsets are reserved yet: no checkpoint of this committer is durable"
                )
            key = (row.topic_id, row.partition)
            reserved = self._saved_ends.setdefault(key, before.end_offset) + reservation
            if row.end_offset > reserved:
                raise SequencerUnavailable(
                    f"partition {row.topic_id}-{row.partition}: offsets up to {reserved} are reserved, {row.end_offset}"
                    " is requested; the next checkpoint reserves more"
                )

    # --- exporting

    def head(
        self,
        *,
        created_ms: int,
        interval_ms: int,
        reservation: int,
        replay_from: int = -1,
        parts: Iterable[Part] = (),
    ) -> Head:
        """Return a head as of now, without its tables."""
        return Head(
            version=checkpoint.VERSION,
            cluster_id=self.identity.cluster_id,
            incarnation=self.identity.incarnation,
            epoch=self.epoch,
            number=self.next_number,
            begins=self.begins,
            commit_number=self.state.counter(COMMIT_NUMBER),
            created_ms=created_ms,
            interval_ms=interval_ms,
            reservation=reservation,
            tables=[],
            replay_from=replay_from,
            parts=list(parts),
        )

    def export_first(self, head: Head) -> None:
        """Begin to export the first head, with all topics and partitions. Changes since the state was loaded stay
        unsaved."""
        assert self.phase is Phase.CHECKED and self.exporting is None, self.phase
        changes = Changes()
        for kind in (TopicRow, PartitionRow):
            changes.by_kind[kind] = self.state.by_key(kind)
        self.exporting = Export(head, changes, [])

    def export(self, head: Head, hot: list[Table]) -> None:
        """Begin to export a head with all unsaved changes, and with the hot rows of a snapshot."""
        assert self.phase in (Phase.OPEN, Phase.FINISHED) and self.exporting is None, self.phase
        self.exporting = Export(head, self._unsaved, hot)
        self._unsaved, self._unsaved_rows = Changes(), 0

    def reserve(self, export: Export) -> Steps[None]:
        """Reserve offsets from the ends in this head, which is durable. Call `exported` next."""
        if self.phase is Phase.CHECKED:
            return  # the first head has the ends of the state, which do not move before the phase OPEN
        for key, row in export.changes.by_kind.get(PartitionRow, {}).items():
            if isinstance(row, PartitionRow):
                self._saved_ends[key] = row.end_offset
            else:
                self._saved_ends.pop(key, None)
            yield 1

    def exported(self, size: int) -> bool:
        """Note that the head in transit is durable, with this size. Return whether everything that was written is
        saved."""
        assert self.exporting is not None, "a head is on its way"
        self.exporting = None
        self.next_number += 1
        self._heads_since += 1
        self._bytes_since += size
        return not self._unsaved

    def snapshot_exported(self, head: Head) -> HeadId | None:
        """Note that a snapshot's head is durable. Return the place before which no object is needed any more.

        The previous snapshot is kept, and all heads since then: they lead to the same rows if a part is corrupt.
        """
        before = self.snapshot
        replay_from = HeadId(head.incarnation, head.epoch, head.replay_from)
        self.snapshot = LastSnapshot(sum(part.size for part in head.parts), replay_from)
        self._heads_since = self._bytes_since = 0
        return None if before is None else before.replay_from

    @property
    def has_unsaved(self) -> bool:
        """Whether something was written that is in no head yet."""
        return bool(self._unsaved)

    @property
    def is_snapshot_due(self) -> bool:
        """Whether reading the heads since the last snapshot would cost as much as reading a snapshot."""
        if self.phase is not Phase.OPEN:
            return False
        if self.snapshot is None:
            return True
        most_heads = HEADS_FOR_CHEAP if self.snapshot.size < CHEAP_SNAPSHOT_BYTES else MAX_HEADS
        return (
            self._bytes_since > max(self.snapshot.size, MIN_SNAPSHOT_BYTES) or self._heads_since >= most_heads
        )

    def is_idle(self, now_ms: int, last_head: Head | None) -> bool:
        """Whether only leases were renewed and the last head is young enough to export nothing."""
        if self.phase is not Phase.OPEN or self._unsaved.by_kind.keys() - _VOLATILE or last_head is None:
            return False
        return now_ms - last_head.created_ms < IDLE_INTERVAL_MS
