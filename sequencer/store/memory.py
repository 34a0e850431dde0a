"""The reference row store: rows in memory, complete and deterministic, for tests and the simulation."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from sequencer.api.commits import ObjectKind
from sequencer.api.errors import LeaseLost, RequestFailed
from sequencer.api.reads import Run
from sequencer.store.batch_table import EMPTY_TABLE, join_run
from sequencer.store.row_store import (
    LONGEST_LEASE_MS,
    DatabaseIdentity,
    PartitionBytes,
    ScannedRuns,
    StoreStatistics,
)
from sequencer.store.rows import (
    HOT,
    JOURNALED,
    KEYS,
    Changes,
    GroupOffsetRow,
    JournalRow,
    ObjectRow,
    ProducerRow,
    Row,
    RunRow,
    key_of,
)
from tailrace.clock import Clock
from tailrace.limits import INT64_MAX

R = TypeVar("R", bound=Row)
_base_offset = attrgetter("base_offset")
_end_offset = attrgetter("end_offset")
_running_max = attrgetter("running_max_timestamp")
_own_max = attrgetter("max_timestamp")


class MemoryRowStore:
    """The rows of one database. They survive `close`: a store that is opened again has everything that was written."""

    def __init__(self, clock: Clock, cluster_id: str = "memory") -> None:
        self._clock = clock
        self._identity = DatabaseIdentity(cluster_id=cluster_id, incarnation=1)
        self._hot: dict[type[Row], dict[tuple[object, ...], Row]] = {kind: {} for kind in JOURNALED}
        self._objects: dict[UUID, ObjectRow] = {}
        self._runs: dict[tuple[UUID, int], list[RunRow]] = {}
        self._journal: dict[int, JournalRow] = {}
        self._holder: str | None = None
        self._address = ""
        self._epoch = 0
        self._expires_ms = 0

    # --- identity and the committer's lease

    async def open(self) -> DatabaseIdentity:
        return self._identity

    async def identity(self) -> DatabaseIdentity:
        return self._identity

    async def adopt(self, cluster_id: str, incarnation: int, committer_epoch: int) -> None:
        if committer_epoch != self._epoch:
            raise LeaseLost(f"committer epoch {committer_epoch}; {self._epoch} has taken over")
        self._identity = DatabaseIdentity(cluster_id=cluster_id, incarnation=incarnation)

    async def now_ms(self) -> int:
        return self._clock.wall_ms()

    async def take_committer_lease(self, holder: str, address: str, lease_ms: int) -> int | None:
        now = self._clock.wall_ms()
        if self._holder not in (None, holder) and now < self._expires_ms:
            self._expires_ms = min(self._expires_ms, now + LONGEST_LEASE_MS)
            return None
        self._epoch += 1
        self._holder = holder
        self._address = address
        self._expires_ms = now + lease_ms
        return self._epoch

    async def renew_committer_lease(self, epoch: int, lease_ms: int) -> bool:
        if epoch != self._epoch or self._holder is None:
            return False
        now = self._clock.wall_ms()
        longest_ms = max(lease_ms, LONGEST_LEASE_MS)
        self._expires_ms = min(max(self._expires_ms, now + lease_ms), now + longest_ms)
        return True

    async def is_lease_free(self, epoch: int) -> bool:
        return epoch == self._epoch and self._holder is not None

    async def committer_address(self) -> str | None:
        left_ms = self._expires_ms - self._clock.wall_ms()
        is_live = self._holder is not None and 0 < left_ms <= LONGEST_LEASE_MS
        return self._address if is_live else None

    async def release_committer_lease(self, epoch: int) -> None:
        if epoch == self._epoch:
            self._holder = None

    # --- hot rows and writing

    async def load(self) -> dict[type[Row], list[Row]]:
        return {kind: list(self._hot[kind].values()) for kind in HOT}

    async def rows_under(self, kind: type[R], keys: Sequence[tuple[object, ...]]) -> list[R]:
        rows = self._hot[kind]
        return [cast("R", rows[key]) for key in keys if key in rows]

    async def rows_after(self, kind: type[R], key: tuple[object, ...] | None, limit: int) -> list[R]:
        rows = cast("dict[Any, R]", self._hot[kind])
        return [
            rows[known] for known in sorted(known for known in rows if key is None or known > key)[:limit]
        ]

    def _positions(self) -> Iterable[GroupOffsetRow]:
        return cast("Iterable[GroupOffsetRow]", self._hot[GroupOffsetRow].values())

    async def positions_of(
        self, group_id: str, after: tuple[UUID, int] | None, limit: int
    ) -> list[GroupOffsetRow]:
        rows = [row for row in self._positions() if row.group_id == group_id]
        following = (row for row in rows if after is None or row.key[1:] > after)
        return sorted(following, key=attrgetter("key"))[:limit]

    async def positions_of_groups(self, group_ids: Sequence[str], limit: int) -> list[GroupOffsetRow]:
        return [row for row in self._positions() if row.group_id in group_ids][:limit]

    async def positions_on(self, topic_id: UUID, limit: int) -> list[GroupOffsetRow]:
        return [row for row in self._positions() if row.topic_id == topic_id][:limit]

    async def journal_from(self, number: int, limit: int) -> list[JournalRow]:
        return [self._journal[known] for known in sorted(self._journal) if known >= number][:limit]

    async def journal_sizes(self) -> dict[int, int]:
        return {number: len(row.changes) for number, row in sorted(self._journal.items())}

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        if committer_epoch != self._epoch:
            raise LeaseLost(f"committer epoch {committer_epoch}; {self._epoch} has taken over")
        self._check(changes)
        for kind, rows in changes.by_kind.items():
            for key, row in rows.items():
                self._apply(kind, key, row)

    def _check(self, changes: Changes) -> None:
        for kind, rows in changes.by_kind.items():
            assert kind in KEYS, f"{kind.__name__} is no row"
            for key, row in rows.items():
                assert row is None or (type(row) is kind and key_of(row) == key), f"{row} under {key}"
        objects = changes.by_kind.get(ObjectRow, {})
        for row in objects.values():
            known = self._objects.get(row.object_id) if isinstance(row, ObjectRow) else None
            if isinstance(row, ObjectRow) and known is not None and known.key != row.key:
                raise RequestFailed(f"object {row.object_id} is stored as {known.key!r}, not {row.key!r}")
        for row in changes.by_kind.get(RunRow, {}).values():
            if isinstance(row, RunRow) and row.kind is not ObjectKind.MARKERS:
                named = (row.object_id,)
                stored = objects[named] if named in objects else self._objects.get(row.object_id)
                assert stored is not None, f"run {key_of(row)} names object {row.object_id}, which has no row"

    def _apply(self, kind: type[Row], key: tuple[object, ...], row: Row | None) -> None:
        if kind is RunRow:
            self._apply_run(key, row)
        elif kind is JournalRow:
            number = key[0]
            assert isinstance(number, int)
            if isinstance(row, JournalRow):
                self._journal[number] = row
            else:
                self._journal.pop(number, None)
        elif kind is ObjectRow:
            object_id = key[0]
            assert isinstance(object_id, UUID)
            if isinstance(row, ObjectRow):
                self._objects[object_id] = row
            else:
                self._objects.pop(object_id, None)
        elif row is None:
            self._hot[kind].pop(key, None)
        else:
            self._hot[kind][key] = row

    def _apply_run(self, key: tuple[object, ...], row: Row | None) -> None:
        topic_id, partition, base_offset = key
        assert isinstance(topic_id, UUID) and isinstance(partition, int) and isinstance(base_offset, int)
        runs = self._runs.setdefault((topic_id, partition), [])
        index = bisect_left(runs, base_offset, key=_base_offset)
        is_present = index < len(runs) and runs[index].base_offset == base_offset
        if isinstance(row, RunRow):
            runs[index : index + is_present] = [row]
        elif is_present:
            del runs[index]
        if not runs:
            del self._runs[topic_id, partition]

    # --- cold rows

    def _joined(self, row: RunRow, *, with_batches: bool = True) -> Run:
        plain = row if with_batches else msgspec.structs.replace(row, batches=EMPTY_TABLE, markers=b"")
        return join_run(plain, self._objects.get(row.object_id), may_lack_object=not with_batches)

    def _index_at(self, runs: list[RunRow], offset: int) -> int:
        return bisect_right(runs, offset, key=_end_offset)

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
        runs = self._runs.get((topic_id, partition), [])
        page: list[Run] = []
        size = 0
        for index in range(self._index_at(runs, offset), len(runs)):
            if page and (size >= max_bytes or len(page) >= max_runs):
                break
            page.append(self._joined(runs[index], with_batches=with_batches))
            size += runs[index].length
        return page

    async def runs_from_many(
        self,
        queries: Sequence[tuple[UUID, int, int, int]],
        max_runs: int = 1000,
        *,
        with_batches: bool = True,
    ) -> list[list[Run]]:
        return [await self.runs_from(*query, max_runs, with_batches=with_batches) for query in queries]

    async def first_run_reaching(
        self, topic_id: UUID, partition: int, timestamp: int, from_offset: int, max_scanned: int
    ) -> ScannedRuns:
        runs = self._runs.get((topic_id, partition), [])
        start = max(bisect_left(runs, timestamp, key=_running_max), self._index_at(runs, from_offset))
        looked_at = runs[start : start + max_scanned]
        for count, row in enumerate(looked_at, 1):
            if row.max_timestamp >= timestamp:
                return ScannedRuns(self._joined(row), count)
        return self._scanned(None, looked_at, max_scanned)

    async def run_of_max_timestamp(
        self, topic_id: UUID, partition: int, from_offset: int, max_scanned: int, end_offset: int = INT64_MAX
    ) -> ScannedRuns:
        runs = self._runs.get((topic_id, partition), [])
        start = self._index_at(runs, from_offset)
        end = bisect_left(runs, end_offset, key=_base_offset)
        looked_at = runs[start : min(end, start + max_scanned)]
        best = max(looked_at, key=_own_max, default=None)
        return self._scanned(best, looked_at, max_scanned)

    def _scanned(self, best: RunRow | None, looked_at: list[RunRow], max_scanned: int) -> ScannedRuns:
        is_stopped = len(looked_at) == max_scanned
        return ScannedRuns(
            None if best is None else self._joined(best),
            len(looked_at),
            looked_at[-1].base_offset + 1 if is_stopped else None,
        )

    async def partition_bytes(self, topic_ids: Sequence[UUID] | None) -> list[PartitionBytes]:
        wanted = None if topic_ids is None else set(topic_ids)
        return self._partition_bytes(lambda topic_id, _: wanted is None or topic_id in wanted)

    async def partition_bytes_within(self, topic_id: UUID, first: int, end: int) -> list[PartitionBytes]:
        return self._partition_bytes(lambda topic, partition: topic == topic_id and first <= partition < end)

    def _partition_bytes(self, is_wanted: Callable[[UUID, int], bool]) -> list[PartitionBytes]:
        sizes: list[PartitionBytes] = []
        for (topic_id, partition), runs in sorted(self._runs.items()):
            if not is_wanted(topic_id, partition):
                continue
            mixed = [row for row in runs if row.kind is ObjectKind.MIXED]
            sizes.append(
                PartitionBytes(
                    topic_id=topic_id,
                    partition=partition,
                    bytes=sum(row.length for row in runs),
                    runs=len(runs),
                    uncompacted_bytes=sum(row.length for row in mixed),
                    oldest_uncompacted_ms=min((row.created_ms for row in mixed), default=0),
                )
            )
        return sizes

    async def object_rows(self, object_ids: Sequence[UUID]) -> list[ObjectRow]:
        return [self._objects[object_id] for object_id in object_ids if object_id in self._objects]

    async def runs_of_object(self, object_id: UUID) -> list[Run]:
        return [
            self._joined(row)
            for _, runs in sorted(self._runs.items())
            for row in runs
            if row.object_id == object_id
        ]

    async def run_rows_after(self, key: tuple[UUID, int, int] | None, limit: int) -> list[RunRow]:
        page: list[RunRow] = []
        for partition_key in sorted(self._runs):
            if key is not None and partition_key < key[:2]:
                continue
            runs = self._runs[partition_key]
            start = (
                0 if key is None or partition_key != key[:2] else bisect_right(runs, key[2], key=_base_offset)
            )
            page += runs[start : start + limit - len(page)]
            if len(page) >= limit:
                break
        return page

    async def objects_after(self, key: str, limit: int) -> list[ObjectRow]:
        after = sorted((row for row in self._objects.values() if row.key > key), key=attrgetter("key"))
        return after[:limit]

    async def retired_before(self, retired_ms: int, parquet_ms: int, limit: int) -> list[ObjectRow]:
        retired = [
            row
            for row in self._objects.values()
            if row.retired_ms is not None
            and row.retired_ms < retired_ms
            and (row.kind is not ObjectKind.PARQUET or row.retired_ms < parquet_ms)
        ]
        return sorted(retired, key=lambda row: (row.retired_ms or 0, row.key))[:limit]

    async def keys_known(self, keys: Sequence[str]) -> list[str]:
        known = {row.key for row in self._objects.values()}
        return [key for key in keys if key in known]

    async def statistics(self) -> StoreStatistics:
        objects = self._objects.values()
        runs = [row for rows in self._runs.values() for row in rows]
        retired = [row for row in objects if row.retired_ms is not None]
        retired_bytes = sum(row.size for row in retired)
        return StoreStatistics(
            runs=len(runs),
            objects=len(self._objects),
            retired_objects=len(retired),
            retired_bytes=retired_bytes,
            live_bytes=sum(row.size for row in objects) - retired_bytes,
            uncompacted_bytes=sum(row.length for row in runs if row.kind is ObjectKind.MIXED),
            producers=len(self._hot[ProducerRow]),
        )

    async def close(self) -> None:
        """Do nothing; the rows stay."""
