"""Drafts: the changes of the next transaction, on top of the durable state. Decisions are made on them.

A draft over a draft is a savepoint: a request that fails leaves no changes in its group. A decision may take as many
turns as it needs on its draft, because nobody else reads the draft and the state below it does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeVar, cast
from uuid import UUID

from sequencer.api.commits import ObjectKind
from sequencer.api.reads import Run, RunBatch
from sequencer.store.batch_table import join_run
from sequencer.store.ordered import NO_PARTITION_KEYS
from sequencer.store.rows import (
    LOOKED_UP,
    AbortedRow,
    AgentRow,
    Changes,
    CounterRow,
    DelegationTokenRow,
    GroupOffsetRow,
    ObjectRow,
    PartitionRow,
    PendingOffsetRow,
    PositionKey,
    ProducerRow,
    Row,
    RunRow,
    SessionRow,
    ShareRow,
    SmallObjectRow,
    TopicRow,
    key_of,
)
from sequencer.store.state import COMMIT_NUMBER, Address, HotState, Key, address_of, replace_row
from sequencer.store.sums import SumDeltas
from tailrace.ids import TopicPartition
from tailrace.turns import Steps

R = TypeVar("R", bound=Row)

NOTED_IN_A_STEP = 50
"""The number of looked-up rows that are noted in the time of one run of a commit."""

_PLACES: Mapping[type[Row], slice] = {AbortedRow: slice(2), PendingOffsetRow: slice(1)}
"""The kinds whose changed rows a draft finds by the beginning of their keys: by partition, and by group."""
_NO_KEYS: Mapping[Key, None] = {}
_UNCHANGED = object()


class Draft:
    """Changes on top of the durable state or of another draft. They are not yet durable, and nobody else sees them.

    `now_ms` is the database's clock, read once for the whole transaction. `objects` and `looked_up` are rows that were
    looked up in the store; `positions_of` has the keys of all positions of some groups. `published` is what the feed
    sends: the added runs per partition, in order.
    """

    __slots__ = (
        "changes",
        "durable",
        "live_topic",
        "sum_deltas",
        "published",
        "now_ms",
        "objects",
        "looked_up",
        "positions_of",
        "partition_sets",
        "_commit_number",
        "_group_bytes",
        "_parent",
        "_placed",
    )

    def __init__(self, durable: HotState, now_ms: int, parent: Draft | None = None) -> None:
        self.durable = durable
        self.now_ms = now_ms
        self.changes = Changes()
        self.sum_deltas = SumDeltas()
        """Of runs only: `settle_sums` derives the changes of objects and producers from their rows."""
        self.published: dict[TopicPartition, list[Run]] = {}
        self.objects: dict[UUID, ObjectRow] = {} if parent is None else parent.objects
        self.looked_up: dict[type[Row], dict[Key, Row | None]] = (
            {kind: {} for kind in LOOKED_UP} if parent is None else parent.looked_up
        )
        self.positions_of: dict[str, list[PositionKey]] = {} if parent is None else parent.positions_of
        self.partition_sets: dict[int, tuple[list[tuple[UUID, int]], frozenset[tuple[UUID, int]]]] = (
            {} if parent is None else parent.partition_sets
        )
        """By producer id: the cache of `sequencer.rules.transactions` for look-ups of a transaction's partitions."""
        self._placed: dict[Key, dict[Key, None]] = {}
        """The keys that this draft changes of the kinds in _PLACES, by kind and place."""
        self._commit_number: int | None = None
        self._group_bytes = 0
        self.live_topic: UUID | None = None
        """The topic that `live_partition` last found not to be deleted: its row's own id object, so that thousands of
        rows share it."""
        self._parent = parent

    def note_rows(
        self, keys: Mapping[type[Row], Iterable[Key]], rows: Iterable[Iterable[Row]]
    ) -> Steps[None]:
        """Note that these keys, by kind, were looked up, and that these rows, in the order of the kinds, were found."""
        for (kind, keys_of_kind), rows_of_kind in zip(keys.items(), rows, strict=True):
            noted, missing, found = self.looked_up[kind], iter(keys_of_kind), iter(rows_of_kind)
            while some := list(islice(missing, NOTED_IN_A_STEP)):
                noted.update(dict.fromkeys(some))
                yield len(some) // NOTED_IN_A_STEP
            while some_rows := list(islice(found, NOTED_IN_A_STEP)):
                noted.update((key_of(row), row) for row in some_rows)
                yield len(some_rows) // NOTED_IN_A_STEP

    def note_groups(self, group_ids: Iterable[str]) -> None:
        """Note that all positions of these groups were looked up. `note_position` follows for each position found."""
        self.positions_of.update((group_id, []) for group_id in group_ids)

    def note_position(self, row: GroupOffsetRow) -> None:
        """Note a position that was found in such a group."""
        self.positions_of[row.group_id].append(row.key)
        self.looked_up[GroupOffsetRow][row.key] = row

    def savepoint(self) -> Draft:
        """Return a draft on top of this one; its `merge` moves its changes into this one."""
        return Draft(self.durable, self.now_ms, self)

    def merge(self) -> None:
        """Move this savepoint's changes into the draft below."""
        parent = self._parent
        assert parent is not None, "only a savepoint is merged; the whole draft is written"
        parent.live_topic = None
        for kind, rows in self.changes.by_kind.items():
            parent.changes.by_kind.setdefault(kind, {}).update(rows)
        parent.sum_deltas.add(self.sum_deltas)
        parent._group_bytes += self._group_bytes
        for place, keys in self._placed.items():
            parent._placed.setdefault(place, {}).update(keys)
        if not parent.published:
            parent.published.update(self.published)
            return
        for topic_partition, runs in self.published.items():
            published = parent.published.setdefault(topic_partition, runs)
            if published is not runs:
                for run in runs:
                    _append(published, run)

    def get(self, kind: type[R], *key: object) -> R | None:
        """Return the row under this key as this draft leaves it."""
        layer: Draft | None = self
        found: Any
        while layer is not None:
            rows = layer.changes.by_kind.get(kind)
            if rows and (found := rows.get(key, _UNCHANGED)) is not _UNCHANGED:
                return found  # type: ignore[no-any-return]
            layer = layer._parent
        if kind is ObjectRow:
            return cast("R | None", self.objects.get(cast("UUID", key[0])))
        if kind in self.looked_up:
            return cast("R | None", self._durable_row(kind, key))
        return self.durable.get(kind, *key)

    def _durable_row(self, kind: type[Row], key: Key) -> Row | None:
        """Return the row below this draft, of a kind that is looked up. A decision must name beforehand the rows that
        it needs."""
        row = self.durable.recent[kind].get(key)
        if row is None:
            assert key in self.looked_up[kind], f"{kind.__name__} {key} was not looked up"
            row = self.looked_up[kind][key]
        return row

    def _layers(self) -> Iterator[Draft]:
        """Iterate over this draft and those below it, the newest first."""
        layer: Draft | None = self
        while layer is not None:
            yield layer
            layer = layer._parent

    def _changes_of(self, kind: type[Row]) -> list[dict[Key, Row | None]]:
        """Return their changes of a kind, the newest first."""
        changes: list[dict[Key, Row | None]] = []
        layer: Draft | None = self
        while layer is not None:
            rows = layer.changes.by_kind.get(kind)
            if rows:
                changes.append(rows)
            layer = layer._parent
        return changes

    def all(self, kind: type[R]) -> list[R]:
        """Return all hot rows of a kind as this draft leaves them."""
        merged = self.changed(kind)
        if not merged:
            return list(self.durable.all(kind))
        kept = [row for row in self.durable.all(kind) if key_of(row) not in merged]
        return kept + [cast("R", row) for row in merged.values() if row is not None]

    def count(self, kind: type[Row]) -> int:
        """Return the number of hot rows of a kind that this draft leaves."""
        changed = self.changed(kind)
        left = len(changed) - list(changed.values()).count(None)
        return self.durable.count(kind) - self.durable.count_matching(kind, changed.keys()) + left

    def changed(self, kind: type[Row]) -> dict[Key, Row | None]:
        """Return the rows of a kind that this draft changes, by key; None for a deleted row."""
        rows_by_key: dict[Key, Row | None] = {}
        for rows in self._changes_of(kind):
            rows_by_key = {**rows, **rows_by_key}
        return rows_by_key

    def put(self, row: Row) -> None:
        self.changes.put(row)
        if type(row) in _PLACES:
            self._note_place(type(row), key_of(row))

    def delete(self, kind: type[Row], *key: object) -> None:
        self.changes.delete(kind, key)
        self.live_topic = None
        if kind in _PLACES:
            self._note_place(kind, key)

    def _note_place(self, kind: type[Row], key: Key) -> None:
        self._placed.setdefault((kind, *key[_PLACES[kind]]), {})[key] = None

    def _changed_at(self, kind: type[Row], *place: object) -> Iterator[Mapping[Key, None]]:
        """Iterate over the changed keys at a place, layer by layer."""
        return (layer._placed.get((kind, *place), _NO_KEYS) for layer in self._layers())

    def counter(self, name: str) -> int:
        row = self.get(CounterRow, name)
        return 0 if row is None else row.value

    def next_value(self, name: str) -> int:
        """Increase a counter by one and return its new value."""
        value = self.counter(name) + 1
        self.put(CounterRow(name=name, value=value))
        return value

    def bump_once(self, name: str) -> int:
        """Increase a counter by one for the whole transaction, however often this is called."""
        value = self.durable.counter(name) + 1
        if self.counter(name) != value:
            self.put(CounterRow(name=name, value=value))
        return value

    def grow_groups(self, more: int) -> int:
        """Note that a group's state grows by `more` bytes. Return an upper bound of the bytes of all groups: what this
        draft deletes is not subtracted."""
        self._group_bytes += more
        return self.durable.group_bytes + sum(layer._group_bytes for layer in self._layers())

    def visible_change(self) -> int:
        """Return the commit number of this transaction, and mark the transaction as one that changes what readers
        see."""
        if self._commit_number is None:
            self._commit_number = self.bump_once(COMMIT_NUMBER)
        return self._commit_number

    def publish(self, topic_id: UUID, partition: int, run: Run | None = None) -> None:
        """Make the feed announce that this partition's bounds have changed, or that it has another run.

        A run that is published again after it has grown (markers share one run) replaces the first.
        """
        runs = self.published.setdefault(TopicPartition(topic_id, partition), [])
        if run is None:
            return
        _append(runs, run)

    def last_published(self, topic_id: UUID, partition: int) -> Run | None:
        """Return the newest run that this transaction adds to a partition."""
        for layer in self._layers():
            runs = layer.published.get(TopicPartition(topic_id, partition))
            if runs:
                return runs[-1]
        return None

    def delete_positions_of(self, group_id: str) -> Iterator[None]:
        """Delete what a group stores about partitions: its positions, pending positions, and its share partitions.
        Yield after each row."""
        known = self.durable
        pending = (key for keys in known.pending_of.get(group_id, {}).values() for key in keys)
        for kind, durable in (
            (GroupOffsetRow, self._all_positions_of(group_id)),
            (PendingOffsetRow, pending),
            (ShareRow, known.shares_of.get(group_id, NO_PARTITION_KEYS)),
        ):
            yield from self._delete_of(kind, group_id, durable)

    def _delete_of(self, kind: type[Row], group_id: str, durable: Iterable[Key]) -> Iterator[None]:
        changed = [key for rows in self._changes_of(kind) for key in rows if key[0] == group_id]
        for key in chain(durable, changed):
            if self.get(kind, *key) is not None:
                self.delete(kind, *key)
                yield

    def matching(self, kind: type[R], durable: Iterable[Key], is_wanted: Callable[[Key], bool]) -> list[R]:
        """Return the rows under these keys, and under keys changed by this draft that are wanted, as this draft leaves
        them."""
        keys = dict.fromkeys(durable)
        for changed in self._changes_of(kind):
            keys.update((key, None) for key in changed if is_wanted(key))
        rows = (self.get(kind, *key) for key in keys)
        return [row for row in rows if row is not None]

    def aborted_within(self, topic_id: UUID, partition: int, begin: int, end: int) -> list[AbortedRow]:
        """Return a partition's aborted transactions that have offsets in [begin, end), and all of its that this draft
        changes."""
        durable = self.durable.aborted_from(topic_id, partition, begin)
        keys = dict.fromkeys(key_of(row) for row in durable if row.first_offset < end)
        for changed in self._changed_at(AbortedRow, topic_id, partition):
            keys.update(changed)
        rows = (self.get(AbortedRow, *key) for key in keys)
        return [row for row in rows if row is not None]

    def agents_at(self, address: Address) -> list[AgentRow]:
        """Return the agents that are or were advertised at an address."""
        keys = ((broker_id,) for broker_id in self.durable.agents_at.get(address, ()))
        return [row for row in self.matching(AgentRow, keys, lambda key: True) if address_of(row) == address]

    def open_sessions_of(self, broker_id: int) -> list[SessionRow]:
        """Return an agent's open upload sessions."""
        keys = ((session_id,) for session_id in self.durable.sessions_of.get(broker_id, ()))
        rows = self.matching(SessionRow, keys, lambda key: True)
        return [row for row in rows if row.broker_id == broker_id and row.closed_ms is None]

    def open_sessions(self) -> list[SessionRow]:
        keys = ((session_id,) for session_id in self.durable.open_sessions)
        return [row for row in self.matching(SessionRow, keys, lambda key: True) if row.closed_ms is None]

    def _all_positions_of(self, group_id: str) -> list[PositionKey]:
        """Return the keys of all positions of a group below this draft. A decision must name such groups beforehand."""
        assert group_id in self.positions_of, f"the positions of group {group_id!r} were not looked up"
        return self.positions_of[group_id]

    def shares_of(self, group_id: str, limit: int) -> list[ShareRow]:
        """Return rows of the partitions that a share group has read: at least `limit` of them, or all."""
        durable = self.durable.shares_of.get(group_id, NO_PARTITION_KEYS)
        deleted = sum(key[0] == group_id for rows in self._changes_of(ShareRow) for key in rows)
        return self.matching(ShareRow, islice(durable, limit + deleted), lambda key: key[0] == group_id)

    def tokens_of(self, owner: str) -> list[DelegationTokenRow]:
        rows = self.matching(DelegationTokenRow, self.durable.tokens_of.get(owner, {}), lambda key: True)
        return [row for row in rows if row.owner == owner]

    def pending_of(self, group_id: str, producer_id: int) -> list[PendingOffsetRow]:
        """Return a group's positions that a producer's open transaction will change."""
        durable = self.durable.pending_of.get(group_id, {}).get(producer_id, {})
        return self._pending(group_id, durable, lambda key: key[3] == producer_id)

    def live_partition(self, topic_id: UUID, partition: int) -> PartitionRow | None:
        """Return the partition's row, unless its topic is deleted. Sets `live_topic`."""
        live = self.live_topic
        if live is None or live.int != topic_id.int:
            topic = self.get(TopicRow, topic_id)
            if topic is None:
                return None
            live = self.live_topic = topic.topic_id
        # The same as `get`, without what concerns other kinds: a commit calls it for each of its runs.
        key = live, partition
        layer: Draft | None = self
        while layer is not None:
            rows = layer.changes.by_kind.get(PartitionRow)
            if rows and (row := rows.get(key, _UNCHANGED)) is not _UNCHANGED:
                return row  # type: ignore[return-value]
            layer = layer._parent
        return self.durable.get(PartitionRow, live, partition)

    def producers_on(self, topic_id: UUID, partition: int) -> Callable[[int], ProducerRow | None]:
        """Return a function that returns the row of a producer in this partition: the same as `get`, but faster."""
        layers = self._changes_of(ProducerRow)
        durable = self.durable.recent[ProducerRow].get

        def row_of(producer_id: int) -> Any:
            key = topic_id, partition, producer_id
            for rows in layers:
                row = rows.get(key, _UNCHANGED)
                if row is not _UNCHANGED:
                    return row
            found = durable(key)
            return self._durable_row(ProducerRow, key) if found is None else found

        return row_of

    def pending_at(self, group_id: str, keys: Collection[Key]) -> list[PendingOffsetRow]:
        """Return the changes that open transactions will make to these positions of a group (group, topic id,
        partition)."""
        known = self.durable.pending_at
        durable = [(*key, producer) for key in keys for producer in known.get(key, ())]
        return self._pending(group_id, durable, lambda key: key[:3] in keys)

    def _pending(
        self, group_id: str, durable: Iterable[Key], is_wanted: Callable[[Key], bool]
    ) -> list[PendingOffsetRow]:
        keys = dict.fromkeys(durable)
        for changed in self._changed_at(PendingOffsetRow, group_id):
            keys.update((key, None) for key in changed if is_wanted(key))
        rows = (self.get(PendingOffsetRow, *key) for key in keys)
        return [row for row in rows if row is not None]

    def may_have_pending(self, group_id: str) -> bool:
        """Whether an open transaction will change a position of the group, or would do so if this draft did not end
        it."""
        return group_id in self.durable.pending_of or any(self._changed_at(PendingOffsetRow, group_id))

    def topic_named(self, name: str) -> TopicRow | None:
        changed = self.changed(TopicRow)
        for row in changed.values():
            if isinstance(row, TopicRow) and row.name == name:
                return row
        durable = self.durable.topic_named(name)
        return None if durable is None or key_of(durable) in changed else durable

    def append_run(
        self, partition: TopicPartition, row: RunRow, stored: ObjectRow, batches: list[RunBatch]
    ) -> None:
        """Add and publish a run of a mixed object, which is new and at the end of its log; `batches`: the row's decoded
        batch table. The caller adds it to the sums."""
        self.changes.of(RunRow)[row.topic_id, row.partition, row.base_offset] = row
        run = join_run(row, stored, batches)
        runs = self.published.setdefault(partition, [run])
        if runs[-1] is not run:
            _append(runs, run)

    def put_run(self, row: RunRow) -> None:
        """Put a run. Markers that share a row with earlier ones replace that row."""
        before = self._changed_run(key_of(row))
        if before is not None:
            self.sum_deltas.runs(before.kind, -1, -before.length)
        self.sum_deltas.runs(row.kind, 1, row.length)
        self.put(row)

    def _changed_run(self, key: Key) -> RunRow | None:
        for rows in self._changes_of(RunRow):
            if key in rows:
                return cast("RunRow | None", rows[key])
        return None

    def delete_run(self, run: Run) -> None:
        """Delete a run that was looked up."""
        self.sum_deltas.runs(run.kind, -1, -run.length)
        self.delete(RunRow, run.topic_id, run.partition, run.base_offset)

    def settle_sums(self) -> None:
        """Put the counters of the sums that this transaction changes. Call it once, as the last step."""
        assert self._parent is None, "sums are of the whole draft"
        for key, row in self.changes.by_kind.get(ObjectRow, {}).items():
            self.sum_deltas.object(self.objects.get(cast("UUID", key[0])), cast("ObjectRow | None", row))
        recent = self.durable.recent[ProducerRow].get
        for key, row in self.changes.by_kind.get(ProducerRow, {}).items():
            if row is None or recent(key) is None:
                self.sum_deltas.producer(self._durable_row(ProducerRow, key), row)
        for name, by in self.sum_deltas.by_name.items():
            if by:
                self.put(CounterRow(name=name, value=self.durable.counter(name) + by))

    def release_object(self, object_id: UUID, runs: int) -> bool:
        """Lower an object's run count. Return True if it has no runs left and is retired by this."""
        stored = self.get(ObjectRow, object_id)
        assert stored is not None, f"object {object_id} has run rows but no row of its own"
        assert stored.live_runs >= runs, f"object {object_id}: {runs} runs of {stored.live_runs} removed"
        live = stored.live_runs - runs
        is_retired = live == 0
        self.put(replace_row(stored, live_runs=live, retired_ms=self.now_ms if is_retired else None))
        return is_retired

    def remove_runs(self, runs: Sequence[Run]) -> Steps[int]:
        """Delete run rows and lower the run counts of their objects (looked up into `objects` before). Return how many
        objects this retires."""
        counts: dict[UUID, int] = {}
        topic_of: dict[UUID, UUID] = {}
        for run in runs:
            yield 1
            self.delete_run(run)
            if run.kind is ObjectKind.MARKERS:
                continue
            counts[run.object_id] = counts.get(run.object_id, 0) + 1
            if run.kind is ObjectKind.PARQUET:
                topic_of[run.object_id] = run.topic_id
        retired = 0
        for object_id, count in counts.items():
            yield 1
            if not self.release_object(object_id, count):
                continue
            retired += 1
            topic_id = topic_of.get(object_id)
            if topic_id is not None and self.get(SmallObjectRow, topic_id, object_id) is not None:
                self.delete(SmallObjectRow, topic_id, object_id)
        return retired


def _append(runs: list[Run], run: Run) -> None:
    """Append a run; if the last one is the same run before it has grown, replace it."""
    if runs and runs[-1].base_offset == run.base_offset:
        runs[-1] = run
    else:
        runs.append(run)
