"""Internal invariants, independent of what clients see: at each transaction of the database, and at the end of a run.

They read rows through the store's interface, so any implementation of it can be checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from uuid import UUID

from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.reads import Run
from sequencer.engine.follower import Follower
from sequencer.rules.deleted_topics import TOPIC_IN_ANY_KEY
from sequencer.rules.levels import SMALL_BYTES
from sequencer.store.row_store import RowStore
from sequencer.store.rows import (
    HOT,
    LOOKED_UP,
    Changes,
    CounterRow,
    GroupOffsetRow,
    GroupRow,
    ObjectRow,
    PartitionRow,
    Row,
    RunRow,
    SessionRow,
    ShareRow,
    SmallObjectRow,
    TopicRow,
    key_of,
)
from sequencer.store.state import COMMIT_NUMBER, JOURNAL_NUMBER, METADATA_VERSION, RING_GENERATION
from sequencer.store.sums import statistics_of
from tailrace.object_store.memory import MemoryStore

MANY = 1 << 30
NAMED_BY_NO_ROW = ("/meta/", "/cluster.json", "/erasures/")
"""Checkpoints, the object that names the bucket's cluster, and the log of erasures."""
RESETTERS = "resetters"
"""A share group whose start is reset now and then."""
STANDALONE = "standalone"
"""The group without members: no generation fences its commits, so a late commit moves its position back."""
NEVER_FALL = (COMMIT_NUMBER, METADATA_VERSION, RING_GENERATION, JOURNAL_NUMBER)


class RowWatch:
    """Checks each written transaction: what may only grow only grows."""

    def __init__(
        self,
        violated: Callable[[str], None],
        may_fall: Callable[[GroupOffsetRow, GroupOffsetRow], bool] = lambda before, row: False,
    ) -> None:
        """`may_fall`: whether this lower position of a group may follow."""
        self._violated, self._may_fall = violated, may_fall
        self._partitions: dict[tuple[UUID, int], PartitionRow] = {}
        self._counters: dict[str, int] = {}
        self._ends: dict[tuple[UUID, int], int] = {}
        self._closed: set[UUID] = set()
        self._positions: dict[tuple[object, ...], GroupOffsetRow] = {}
        self._share_starts: dict[tuple[object, ...], int] = {}

    async def after_recovery(self, rows: RowStore) -> RowWatch:
        """Return a watch for the recovered database: no offset that was assigned before may be assigned again."""
        watch = RowWatch(self._violated, self._may_fall)
        loaded = await rows.load()
        for counter in loaded[CounterRow]:
            assert isinstance(counter, CounterRow)
            watch._counters[counter.name] = counter.value
        for row in loaded[PartitionRow]:
            assert isinstance(row, PartitionRow)
            place = (row.topic_id, row.partition)
            if row.end_offset < self._ends.get(place, 0):
                self._violated(
                    f"{place}: {self._ends[place]} offsets were given out, {row.end_offset} recovered"
                )
            watch._partitions[place], watch._ends[place] = row, row.end_offset
        return watch

    def __call__(self, changes: Changes) -> None:
        for row in changes.by_kind.get(CounterRow, {}).values():
            if isinstance(row, CounterRow):
                self._see_counter(row)
        for row in changes.by_kind.get(PartitionRow, {}).values():
            if isinstance(row, PartitionRow):
                self._see_partition(row)
        for row in changes.by_kind.get(RunRow, {}).values():
            if isinstance(row, RunRow):
                self._see_run(row)
        for row in changes.by_kind.get(SessionRow, {}).values():
            if isinstance(row, SessionRow):
                self._see_session(row)
        for key, position in changes.by_kind.get(GroupOffsetRow, {}).items():
            self._see_position(key, position)
        for key, share in changes.by_kind.get(ShareRow, {}).items():
            self._see_share(key, share)

    def _see_counter(self, row: CounterRow) -> None:
        before = self._counters.get(row.name, 0)
        if row.name in NEVER_FALL and row.value < before:
            self._violated(f"counter {row.name} fell from {before} to {row.value}")
        if row.name == COMMIT_NUMBER and row.value > before + 1:
            self._violated(f"commit number {row.value} after {before}")
        self._counters[row.name] = row.value

    def _see_partition(self, row: PartitionRow) -> None:
        place = (row.topic_id, row.partition)
        before = self._partitions.get(place)
        self._partitions[place] = row
        if before is not None and row.end_offset < before.end_offset:
            self._violated(f"{place}: the end fell from {before.end_offset} to {row.end_offset}")
        if before is not None and row.log_start_offset < before.log_start_offset:
            self._violated(
                f"{place}: log start fell from {before.log_start_offset} to {row.log_start_offset}"
            )
        if row.log_start_offset > row.end_offset:
            self._violated(f"{place}: log start {row.log_start_offset} above the end {row.end_offset}")

    def _see_run(self, row: RunRow) -> None:
        place = (row.topic_id, row.partition)
        end = self._ends.get(place, 0)
        if row.kind is not ObjectKind.PARQUET and row.base_offset != end and row.end_offset > end:
            self._violated(f"{place}: a run [{row.base_offset}, {row.end_offset}) after the end {end}")
        if row.kind is ObjectKind.PARQUET and row.end_offset > end:
            self._violated(f"{place}: a compacted run to {row.end_offset} above the end {end}")
        self._ends[place] = max(end, row.end_offset)

    def _see_session(self, row: SessionRow) -> None:
        if row.closed_ms is not None:
            self._closed.add(row.session_id)
        elif row.session_id in self._closed:
            self._violated(f"session {row.session_id} was closed and is open again")

    def _see_position(self, key: tuple[object, ...], row: Row | None) -> None:
        """Check that a group's positions never fall: simulated members only read on, from the positions that they were
        given."""
        if not isinstance(row, GroupOffsetRow):
            self._positions.pop(key, None)
            return
        before = self._positions.get(key, row)
        is_lower = row.offset < before.offset and row.group_id != STANDALONE
        if is_lower and not self._may_fall(before, row):
            self._violated(f"{key}: the group's position fell from {before.offset} to {row.offset}")
        self._positions[key] = row

    def _see_share(self, key: tuple[object, ...], row: Row | None) -> None:
        """Check that a record with which a share group is done stays done, unless the group is reset."""
        start = row.start_offset if isinstance(row, ShareRow) else -1
        before = self._share_starts.get(key, 0)
        if start < before and key[0] != RESETTERS:
            self._violated(f"{key}: the share group's start fell from {before} to {start}")
        self._share_starts[key] = start


async def all_objects(rows: RowStore) -> list[ObjectRow]:
    """Return every object's row."""
    return await rows.objects_after("", MANY)


async def looked_up(rows: RowStore) -> dict[type[Row], list[Row]]:
    """Return every row of the kinds that are not all in memory."""
    return {kind: await rows.rows_after(kind, None, MANY) for kind in LOOKED_UP}


async def garbage_left(rows: RowStore, objects: MemoryStore, *, may_leave_orphans: bool = False) -> list[str]:
    """Return as text what the collector has still to delete, or will never delete: empty if everything is clean.

    `may_leave_orphans`: the database's clock jumped, maybe over a sweep's interval. Then a late upload may have arrived
    after the second sweep.
    """
    hot = await rows.load()
    left = [f"session {row.session_id} has a row" for row in hot[SessionRow] if isinstance(row, SessionRow)]
    topics = {row.topic_id for row in hot[TopicRow] if isinstance(row, TopicRow)}
    all_rows = {**hot, **await looked_up(rows)}
    for kind, topic_at in TOPIC_IN_ANY_KEY.items():
        keys = [key_of(row) for row in all_rows[kind]]
        left += [f"{kind.__name__} {key} of a deleted topic" for key in keys if key[topic_at] not in topics]
    described = await all_objects(rows)
    left += [f"{row.key} is retired" for row in described if row.retired_ms is not None]
    small = {row.object_id for row in hot[SmallObjectRow] if isinstance(row, SmallObjectRow)}
    expected = {row.object_id for row in described if _is_small(row)}
    left += [f"object {object_id} is small in one row only" for object_id in small ^ expected]
    if may_leave_orphans:
        return left
    keys = {row.key for row in described}
    left += [
        f"{info.key} is an orphan"
        async for info in objects.list("")
        if info.key not in keys and not any(part in info.key for part in NAMED_BY_NO_ROW)
    ]
    return left


def _is_small(row: ObjectRow) -> bool:
    return row.kind is ObjectKind.PARQUET and row.size < SMALL_BYTES and row.live_runs > 0


async def faults_in_copy(follower: Follower, rows: RowStore) -> list[str]:
    """Return the rows of a follower's copy that differ from the database's at the same number of the journal."""
    loaded, others = await rows.load(), await looked_up(rows)
    while follower.state is not None:
        numbers = [
            row.value
            for row in loaded[CounterRow]
            if isinstance(row, CounterRow) and row.name == JOURNAL_NUMBER
        ]
        if follower.number >= max(numbers, default=0):
            break
        await follower.catch_up()
    state = follower.state
    if state is None or [follower.number] != numbers:
        return []  # nothing to compare: the follower has no copy, or is ahead of the rows read here
    outdated = [
        row for kind in LOOKED_UP for row in {*map(repr, state.recent[kind])} - {*map(repr, others[kind])}
    ]
    return [f"a follower's {row} is not the database's" for row in sorted(outdated)] + [
        f"a follower's {kind.__name__} {sorted(different)[0]} is not the database's"
        for kind in HOT
        if (different := {*map(repr, state.all(kind))} ^ {*map(repr, loaded[kind])})
    ]


async def faults_in_rows(rows: RowStore, objects: MemoryStore, crc_of: Callable[[bytes], int]) -> list[str]:
    """Return contradictions between rows, or between rows and the store."""
    faults: list[str] = []
    hot = await rows.load()
    present = {info.key: info.size async for info in objects.list("")}
    runs_of: dict[UUID, int] = {}
    for row in hot[PartitionRow]:
        assert isinstance(row, PartitionRow)
        place = f"{row.topic_id}-{row.partition}"
        runs = await rows.runs_from(row.topic_id, row.partition, 0, 1 << 62, MANY)
        offset = runs[0].base_offset if runs else row.end_offset
        if offset > row.log_start_offset and row.log_start_offset < row.end_offset:
            faults.append(f"{place}: log start {row.log_start_offset}, the first run begins at {offset}")
        for run in runs:
            if run.base_offset != offset:
                faults.append(f"{place}: a run begins at {run.base_offset}, the one before ended at {offset}")
            offset = run.end_offset
            runs_of[run.object_id] = runs_of.get(run.object_id, 0) + 1
            faults += [f"{place}: {fault}" for fault in _faults_of_run(run)]
        if runs and offset != row.end_offset:
            faults.append(f"{place}: runs end at {offset}, the partition at {row.end_offset}")
    for stored in await all_objects(rows):
        if stored.key not in present:
            if stored.retired_ms is None:
                faults.append(f"{stored.key} has a row and no bytes")
            continue
        if present[stored.key] != stored.size:
            faults.append(f"{stored.key} has {present[stored.key]} bytes, its row says {stored.size}")
        elif crc_of(await objects.get(stored.key)) != stored.crc:
            faults.append(f"{stored.key}: the bytes are not those that were committed")
        if runs_of.get(stored.object_id, 0) != stored.live_runs:
            faults.append(
                f"{stored.key}: {runs_of.get(stored.object_id, 0)} runs, its row counts {stored.live_runs}"
            )
    positions = await looked_up(rows)
    faults += _faults_of_groups(hot[GroupRow], positions[GroupOffsetRow])
    counted = {row.name: row.value for row in hot[CounterRow] if isinstance(row, CounterRow)}
    said, summed = statistics_of(lambda name: counted.get(name, 0)), await rows.statistics()
    if said != summed:
        faults.append(f"the counters say {said}, the rows {summed}")
    return faults


def _faults_of_groups(groups: Iterable[Row], positions: Iterable[Row]) -> Iterator[str]:
    """Yield contradictions between groups' rows and their positions."""
    counts, with_expiries = Counter[str](), set[str]()
    for position in positions:
        assert isinstance(position, GroupOffsetRow)
        counts[position.group_id] += 1
        if position.expires_ms is not None:
            with_expiries.add(position.group_id)
    for group in groups:
        assert isinstance(group, GroupRow)
        found = counts.pop(group.group_id, 0)
        if found != group.positions:
            yield f"group {group.group_id} has {found} positions, its row counts {group.positions}"
        if group.group_id in with_expiries and not group.has_expiries:
            yield f"group {group.group_id} has positions with expiries, its row says it has none"
    yield from (
        f"{count} positions of group {group_id}, which has no row" for group_id, count in counts.items()
    )


def _faults_of_run(run: Run) -> list[str]:
    if run.kind is not ObjectKind.MIXED:
        return []
    faults = []
    if sum(batch.length for batch in run.batches) != run.length:
        faults.append(f"run at {run.base_offset}: its batches are not as long as it is")
    offset = run.base_offset
    for batch in run.batches:
        if batch.status is BatchStatus.STORED:
            if batch.base_offset != offset:
                faults.append(f"run at {run.base_offset}: a batch at {batch.base_offset}, not {offset}")
            offset = batch.base_offset + batch.record_count
    if offset != run.end_offset:
        faults.append(f"run at {run.base_offset}: batches end at {offset}, the run at {run.end_offset}")
    return faults
