"""The interface of the stores that hold the sequencer's rows.

The committer is the only writer. It decides in memory, collects the `Changes` and writes them in one transaction. It
sends an answer only when that transaction is durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from uuid import UUID

import msgspec

from sequencer.api.errors import RequestFailed
from sequencer.api.reads import Run
from sequencer.store.rows import Changes, GroupOffsetRow, JournalRow, ObjectRow, Row, RunRow
from tailrace.limits import INT64_MAX

R = TypeVar("R", bound=Row)


class DatabaseIdentity(msgspec.Struct, frozen=True):
    """The identity of a database. A recovery increases `incarnation`."""

    cluster_id: str
    incarnation: int


class PartitionBytes(msgspec.Struct, frozen=True, gc=False):
    topic_id: UUID
    partition: int
    bytes: int
    runs: int
    uncompacted_bytes: int
    oldest_uncompacted_ms: int


@dataclass(frozen=True, slots=True)
class ScannedRuns:
    """The result of a bounded scan of runs by their own timestamps; `scanned` runs were read.

    `next_offset`: where to continue the scan; None if it reached the end.
    """

    run: Run | None
    scanned: int = 0
    next_offset: int | None = None


class StoreStatistics(msgspec.Struct, frozen=True):
    runs: int
    objects: int
    retired_objects: int
    retired_bytes: int
    live_bytes: int
    uncompacted_bytes: int
    producers: int


LONGEST_LEASE_MS = 60_000
"""No committer's lease ends later than this after its last renewal."""


class ObjectRowMissing(RequestFailed):
    """A run names an object that has no row: the rows contradict each other. An object's row is deleted only after the
    last run that names it. Only reads with batches raise this, so that the run can still be removed."""


class RowStore(Protocol):
    """Durable rows. The reference is `sequencer.store.memory.MemoryRowStore`; SQL is
    `sequencer.store.sql.store.SqlRowStore`.

    Raises:
        SequencerUnavailable: the database is unreachable; it is unknown whether a write took effect.
        RequestFailed: the database refuses the values. Nothing was written.
        LeaseLost: by a write; another committer has taken over. Nothing was written.
        ObjectRowMissing: by a read of runs with their batches.
    """

    async def open(self) -> DatabaseIdentity:
        """Connect, migrate if allowed, and return the database's identity (a new one if it is empty)."""

    async def identity(self) -> DatabaseIdentity:
        """Return the database's current identity; the database may have been replaced since `open`."""

    async def adopt(self, cluster_id: str, incarnation: int, committer_epoch: int) -> None:
        """Give this (empty) database the identity of a recovered one, under the committer's lease. Incarnation 0: a
        recovery is filling the database, and no committer may start. Raises LeaseLost."""

    async def now_ms(self) -> int:
        """Return the time of the database's clock."""

    async def take_committer_lease(self, holder: str, address: str, lease_ms: int) -> int | None:
        """Become the committer: return a new fencing epoch, or None while another holds the lease. Writes that began
        under an older epoch have ended when this returns. A lease of another that ends later than LONGEST_LEASE_MS from
        now ends then: the database's clock went back since it was renewed."""

    async def renew_committer_lease(self, epoch: int, lease_ms: int) -> bool:
        """Extend the lease that was taken with this epoch, even if it has expired. Return False if it was released or
        another committer took it. Does not wait for writes. Never shortens the lease, in whatever order renewals
        arrive, except to LONGEST_LEASE_MS."""

    async def is_lease_free(self, epoch: int) -> bool:
        """Whether nobody has taken the lease since this epoch, as far as a read can tell; the lease may have expired.
        Also False if a read is not conclusive (a standby of the database may lag)."""

    async def committer_address(self) -> str | None:
        """Return the committer's address; None unless its lease is valid and ends within LONGEST_LEASE_MS."""

    async def release_committer_lease(self, epoch: int) -> None: ...

    async def load(self) -> dict[type[Row], list[Row]]:
        """Return all hot rows, by kind."""

    async def rows_under(self, kind: type[R], keys: Sequence[tuple[object, ...]]) -> list[R]:
        """Return those of the rows under these keys that exist. `kind` must be one that is looked up."""

    async def rows_after(self, kind: type[R], key: tuple[object, ...] | None, limit: int) -> list[R]:
        """Return rows in key order, after this key (None: from the first). `kind` must be one that is looked up."""

    async def positions_of(
        self, group_id: str, after: tuple[UUID, int] | None, limit: int
    ) -> list[GroupOffsetRow]:
        """Return a group's positions ordered by topic id and partition, after this one (None: from the first)."""

    async def positions_of_groups(self, group_ids: Sequence[str], limit: int) -> list[GroupOffsetRow]:
        """Return the positions of these groups in any order; if there are more than `limit`, any `limit` of them."""

    async def positions_on(self, topic_id: UUID, limit: int) -> list[GroupOffsetRow]:
        """Return some of the groups' positions in a topic."""

    async def journal_from(self, number: int, limit: int) -> list[JournalRow]:
        """Return the journal's rows from this number on, in order."""

    async def journal_sizes(self) -> dict[int, int]:
        """Return the length of the changes of every row of the journal, by number, in order."""

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        """Write all changes or none, provided that the committer's epoch is still the newest. A run of kind MIXED must
        be new: it is appended to its log; runs of other kinds may replace a run. An object keeps its key: a row with
        the id of a stored object and another key raises RequestFailed."""

    async def runs_from(
        self,
        topic_id: UUID,
        partition: int,
        offset: int,
        max_bytes: int,
        max_runs: int = 1000,
        *,
        with_batches: bool = True,
    ) -> list[Run]:
        """Return runs in order, from the first with end_offset > offset on; stop when `max_bytes` are reached.

        Without batches, the runs' batches and markers are empty: a run may have 100,000 of them. A run whose object has
        no row then has the key "".
        """

    async def runs_from_many(
        self,
        queries: Sequence[tuple[UUID, int, int, int]],
        max_runs: int = 1000,
        *,
        with_batches: bool = True,
    ) -> list[list[Run]]:
        """`runs_from` for many (topic_id, partition, offset, max_bytes) at once, with `max_runs` for each."""

    async def first_run_reaching(
        self, topic_id: UUID, partition: int, timestamp: int, from_offset: int, max_scanned: int
    ) -> ScannedRuns:
        """Find the first run with end_offset > from_offset whose own max_timestamp >= timestamp. It is found by the
        index of the running maximum, then by its own maximum, so that a record from 2099 does not hide what follows."""

    async def run_of_max_timestamp(
        self, topic_id: UUID, partition: int, from_offset: int, max_scanned: int, end_offset: int = INT64_MAX
    ) -> ScannedRuns:
        """Find the first run with the largest own max_timestamp among all that begin below `end_offset`, or among those
        that were scanned."""

    async def partition_bytes(self, topic_ids: Sequence[UUID] | None) -> list[PartitionBytes]:
        """Return bytes and counts of runs per partition, for retention, compaction and sizes."""

    async def partition_bytes_within(self, topic_id: UUID, first: int, end: int) -> list[PartitionBytes]:
        """The same for the partitions [first, end) of one topic."""

    async def object_rows(self, object_ids: Sequence[UUID]) -> list[ObjectRow]: ...

    async def runs_of_object(self, object_id: UUID) -> list[Run]: ...

    async def run_rows_after(self, key: tuple[UUID, int, int] | None, limit: int) -> list[RunRow]:
        """Return run rows of all partitions in key order, after this key (None: from the first)."""

    async def objects_after(self, key: str, limit: int) -> list[ObjectRow]:
        """Return objects in key order, after this key."""

    async def retired_before(self, retired_ms: int, parquet_ms: int, limit: int) -> list[ObjectRow]:
        """Return objects without live runs that were retired before `retired_ms`; Parquet objects also before
        `parquet_ms`."""

    async def keys_known(self, keys: Sequence[str]) -> list[str]: ...

    async def statistics(self) -> StoreStatistics: ...

    async def close(self) -> None: ...
