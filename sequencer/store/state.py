"""The committer's hot state: durable rows in memory, and drafts of the changes of the next transaction.

`HotState` contains only durable rows. It changes after the store's write has returned and never before, so a reader
sees nothing that could be lost. Decisions are made on a `Draft` over it, which sees its own changes. A draft over a
draft is a savepoint: a request that fails leaves no changes in its group.

Invariant: `apply` takes over a whole transaction in one turn of the event loop, so that nobody reads half of it. A
decision may take as many turns as it needs on its draft, because nobody else reads the draft and the state below it
does not change. So `apply` must be cheap per row. Other code limits the number of rows in a transaction.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar, cast
from uuid import UUID

import msgspec

from sequencer.api.agents import AgentInfo
from sequencer.api.commits import ObjectKind
from sequencer.api.reads import Run, RunBatch
from sequencer.api.transactions import TransactionState
from sequencer.store.batch_table import join_run
from sequencer.store.ordered import NO_PARTITION_KEYS, Names, PartitionKeys
from sequencer.store.recent_rows import RecentRows
from sequencer.store.rows import (
    HOT,
    LOOKED_UP,
    AbortedRow,
    AgentRow,
    AnswerRow,
    Changes,
    CommitRow,
    CounterRow,
    DelegationTokenRow,
    GroupOffsetRow,
    GroupRow,
    ObjectRow,
    OpenRangeRow,
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
    TransactionRow,
    key_of,
)
from sequencer.store.sums import SumDeltas
from tailrace.clock import Clock
from tailrace.gc_freeze import GcFreezer
from tailrace.ids import TopicPartition
from tailrace.turns import Steps

R = TypeVar("R", bound=Row)
V = TypeVar("V")
Key = tuple[object, ...]
Address = tuple[str, int]
_Index = tuple[Callable[["HotState", Key, Any, Any], None], Callable[["HotState", Key, Any], None]]

TAKEN_AT_ONCE = 2_000
"""Rows that are added to a state in one turn of the event loop."""
TOKENS_AT_ONCE = 500
"""The same for delegation tokens, each of which may concern a hundred principals."""

ADDED_IN_A_STEP = 32
"""Runs that a draft adds per step."""
NOTED_IN_A_STEP = 50
"""The number of looked-up rows that are noted in the time of one run of a commit."""

COMMIT_NUMBER = "commit_number"
METADATA_VERSION = "metadata_version"
RING_GENERATION = "ring_generation"
BROKER_ID = "broker_id"
PRODUCER_ID = "producer_id"
LOG_EPOCH = "epoch"
SECURITY_VERSION = "security_version"
CLIENT_CONFIGS_VERSION = "client_configs_version"

_last_offset = attrgetter("last_offset")
_infos = msgspec.msgpack.Decoder(AgentInfo)
_NO_ROW = object()
_UNCHANGED = object()
_NO_INDEX: _Index = (lambda state, key, row, before: None, lambda state, key, row: None)


class HotState:
    """All hot rows by kind and key, as they are durable, with the indexes that decisions need.

    It has no reference cycles: it may have millions of rows, which the garbage collector skips (tailrace.gc_freeze).
    """

    def __init__(self, loaded: Mapping[type[Row], Sequence[Row]]) -> None:
        self._rows: dict[type[Row], dict[Key, Row]] = {kind: {} for kind in HOT}
        self.topic_ids: dict[str, UUID] = {}
        self.commits_of: dict[UUID, set[int]] = {}
        self.shares_of: dict[str, PartitionKeys] = {}
        """The partitions that a share group has read."""
        self.recent: dict[type[Row], RecentRows] = {kind: RecentRows(kind) for kind in LOOKED_UP}
        """Only some of their rows; see its module."""
        self.transactional_ids: dict[int, str] = {}
        """Transactional ids by their current producer id."""
        self.transaction_names = Names()
        self.open_transactions: dict[str, None] = {}
        self.open_ranges: ByPartition[dict[int, int]] = ByPartition()
        """First offset by producer id."""
        self.pending_of: dict[str, dict[int, dict[Key, None]]] = {}
        """By group, then by producer id."""
        self.pending_at: dict[Key, dict[int, None]] = {}
        """The producer ids whose open transactions will change this position of a group."""
        self._aborted_on: ByPartition[list[AbortedRow]] = ByPartition()
        self.agents_at: dict[Address, dict[int, None]] = {}
        """Broker ids by advertised address, including agents without a live lease."""
        self.groups_of: dict[int, dict[str, None]] = {}
        """Group ids by their owner, -1 for none."""
        self.group_ids = Names()
        self.open_sessions: dict[UUID, None] = {}
        self.sessions_of: dict[int, dict[UUID, None]] = {}
        """Open sessions by broker id."""
        self.tokens_of: dict[str, dict[Key, None]] = {}
        """Delegation tokens by their owner."""
        self.tokens_concerning: dict[str, dict[str, None]] = {}
        """Fingerprints by each principal that is the owner, the requester or a renewer of the token."""
        self.token_names = Names()
        """The fingerprints of all tokens."""
        self.group_bytes = 0
        """Total size of the states of all groups."""
        self.answer_bytes = 0
        """Total size of the answers that are kept for retries."""
        self.refusals: dict[UUID, None] = {}
        """Those of these answers that are refusals."""
        self._watchers: dict[type[Row], Callable[[Any], None]] = {}
        for kind in HOT:
            self.add_loaded(kind, loaded.get(kind, ()))

    @classmethod
    async def built(cls, loaded: Mapping[type[Row], Sequence[Row]], clock: Clock) -> HotState:
        """Build the state of these rows in turns of bounded length, so that other tasks run in between."""
        state, added = cls({}), GcFreezer()
        for kind in HOT:
            rows = loaded.get(kind, ())
            at_once = TOKENS_AT_ONCE if kind is DelegationTokenRow else TAKEN_AT_ONCE
            for first in range(0, len(rows), at_once):
                some = rows[first : first + at_once]
                state.add_loaded(kind, some)
                added.add(len(some))
                await clock.sleep(0)
        return state

    def add_loaded(self, kind: type[Row], rows: Sequence[Row]) -> None:
        """Add rows that were loaded."""
        self._apply_rows(kind, {key_of(row): row for row in rows})

    def watch_new(self, kind: type[R], watcher: Callable[[R], None]) -> None:
        """Call `watcher` with each row of this kind whose key is new. It must not take long."""
        self._watchers[kind] = watcher

    def moved(self) -> HotState:
        """Move everything into a new state and return it; this state is empty afterwards for all who still hold it."""
        other = HotState({})
        self.__dict__, other.__dict__ = other.__dict__, self.__dict__
        return other

    def unwatch(self) -> None:
        """Remove all watchers."""
        self._watchers.clear()

    def get(self, kind: type[R], *key: object) -> R | None:
        """Return the row under this key."""
        row: Any = self._rows[kind].get(key)
        return row  # type: ignore[no-any-return]

    def all(self, kind: type[R]) -> Iterator[R]:
        """Iterate over the rows of a kind, in the order in which they were first written."""
        return cast("Iterator[R]", iter(self._rows[kind].values()))

    def rows(self, kind: type[R], ids: Iterable[object]) -> Iterator[R]:
        """Iterate over the rows of a kind under these keys; for kinds whose key is one field."""
        rows = self._rows[kind]
        return (cast("R", rows[(row_id,)]) for row_id in ids)

    def keys(self, kind: type[Row]) -> list[Key]:
        """Return the keys of all rows of a kind."""
        return list(self._rows[kind])

    def rows_after(self, kind: type[R], after: Key | None, count: int) -> list[R]:
        """Return the first `count` rows of a kind after this key, in key order."""
        keys: Iterable[Any] = self._rows[kind]
        following = nsmallest(count, keys if after is None else [key for key in keys if key > after])
        return cast("list[R]", [self._rows[kind][key] for key in following])

    def by_key(self, kind: type[Row]) -> dict[Key, Row | None]:
        """Return a copy of the current rows of a kind. It is cheap, because it does not hash any key."""
        return {**self._rows[kind]}

    def count(self, kind: type[Row]) -> int:
        """Return the number of rows of a kind."""
        return len(self._rows[kind])

    def count_matching(self, kind: type[Row], keys: Collection[Key]) -> int:
        """Return how many of these keys have a row."""
        return len(self._rows[kind].keys() & keys)

    def counter(self, name: str) -> int:
        """Return a counter's value; 0 before its first use."""
        row = self.get(CounterRow, name)
        return 0 if row is None else row.value

    def tokens_after(self, principal: str | None, after: str | None) -> Iterator[DelegationTokenRow]:
        """Iterate over the tokens that concern a principal, or all tokens, in fingerprint order, after this one."""
        if principal is None:
            return self.rows(DelegationTokenRow, self.token_names.after(after))
        concerning = self.tokens_concerning.get(principal, {})
        return self.rows(
            DelegationTokenRow, sorted(token for token in concerning if after is None or token > after)
        )

    def topic_named(self, name: str) -> TopicRow | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.get(TopicRow, topic_id)

    def live_partition(self, topic_id: UUID, partition: int) -> PartitionRow | None:
        """Return the partition's row, unless its topic is deleted."""
        if self.get(TopicRow, topic_id) is None:
            return None
        return self.get(PartitionRow, topic_id, partition)

    def last_stable_offset(self, row: PartitionRow) -> int:
        """Return the first offset of the partition's oldest open transaction; the end of the log if none is open."""
        firsts = self.open_ranges.get(row.topic_id, row.partition)
        return max(row.log_start_offset, min(firsts.values())) if firsts else row.end_offset

    def aborted_from(self, topic_id: UUID, partition: int, offset: int) -> list[AbortedRow]:
        """Return a partition's aborted transactions that end at or after `offset`, ordered by their ends."""
        rows = self._aborted_on.get(topic_id, partition)
        return [] if rows is None else rows[bisect_left(rows, offset, key=_last_offset) :]

    def apply(self, changes: Changes) -> None:
        """Take over the changes that were just written, all in this turn of the event loop."""
        for kind, rows in changes.by_kind.items():
            if kind in self._rows:
                self._apply_rows(kind, rows)
            elif kind in self.recent:
                self.recent[kind].apply(rows)

    def _apply_rows(self, kind: type[Row], rows: Mapping[Key, Row | None]) -> None:
        mine = self._rows[kind]
        index, watcher = _INDEXES.get(kind), self._watchers.get(kind)
        if index is None and watcher is None:
            mine.update(cast("Mapping[Key, Row]", rows))
            for key in [key for key, row in rows.items() if row is None]:
                del mine[key]
            return
        put, delete = index or _NO_INDEX
        for key, row in rows.items():
            if row is not None:
                before = mine.get(key)
                mine[key] = row
                put(self, key, row, before)
                if before is None and watcher is not None:
                    watcher(row)
            elif (gone := mine.pop(key, None)) is not None:
                delete(self, key, gone)

    # --- indexes: `before` is the row that was under the key, if any

    def _put_topic(self, key: Key, row: Any, before: Any) -> None:
        if before is not None and before.name != row.name:
            del self.topic_ids[before.name]
        self.topic_ids[row.name] = row.topic_id

    def _delete_topic(self, key: Key, row: Any) -> None:
        if self.topic_ids.get(row.name) == row.topic_id:
            del self.topic_ids[row.name]

    def _put_commit(self, key: Key, row: Any, before: Any) -> None:
        self.commits_of.setdefault(row.session_id, set()).add(row.number)

    def _delete_commit(self, key: Key, row: Any) -> None:
        numbers = self.commits_of[row.session_id]
        numbers.discard(row.number)
        if not numbers:
            del self.commits_of[row.session_id]

    def _put_share(self, key: Key, row: Any, before: Any) -> None:
        if before is None:
            _add_partition_key(self.shares_of, key)

    def _delete_share(self, key: Key, row: Any) -> None:
        _remove_partition_key(self.shares_of, key)

    def _put_transaction(self, key: Key, row: Any, before: Any) -> None:
        if before is None:
            self.transaction_names.add(row.transactional_id)
        else:
            self._close_transaction(before)
        self.transactional_ids[row.producer_id] = row.transactional_id
        if row.state is TransactionState.ONGOING:
            self.open_transactions[row.transactional_id] = None

    def _delete_transaction(self, key: Key, row: Any) -> None:
        self.transaction_names.remove(row.transactional_id)
        self._close_transaction(row)

    def _close_transaction(self, row: Any) -> None:
        if self.transactional_ids.get(row.producer_id) == row.transactional_id:
            del self.transactional_ids[row.producer_id]
        self.open_transactions.pop(row.transactional_id, None)

    def _put_group(self, key: Key, row: Any, before: Any) -> None:
        self.group_bytes += len(row.blob) - (0 if before is None else len(before.blob))
        if before is None or before.owner != row.owner:
            if before is None:
                self.group_ids.add(row.group_id)
            else:
                self._remove_owned(before)
            self.groups_of.setdefault(row.owner, {})[row.group_id] = None

    def _delete_group(self, key: Key, row: Any) -> None:
        self.group_bytes -= len(row.blob)
        self.group_ids.remove(row.group_id)
        self._remove_owned(row)

    def _remove_owned(self, row: Any) -> None:
        _take_from(self.groups_of, row.owner, row.group_id)

    def _put_agent(self, key: Key, row: Any, before: Any) -> None:
        if before is None or before.info != row.info:
            if before is not None:
                self._delete_agent(key, before)
            self.agents_at.setdefault(address_of(row), {})[row.broker_id] = None

    def _delete_agent(self, key: Key, row: Any) -> None:
        _take_from(self.agents_at, address_of(row), row.broker_id)

    def _put_session(self, key: Key, row: Any, before: Any) -> None:
        if row.closed_ms is None:
            self.open_sessions[row.session_id] = None
            self.sessions_of.setdefault(row.broker_id, {})[row.session_id] = None
        else:
            self._delete_session(key, row)

    def _delete_session(self, key: Key, row: Any) -> None:
        if self.open_sessions.pop(row.session_id, _NO_ROW) is not _NO_ROW:
            _take_from(self.sessions_of, row.broker_id, row.session_id)

    def _put_range(self, key: Key, row: Any, before: Any) -> None:
        by_partition = self.open_ranges.of(row.topic_id)
        first_offsets = by_partition.get(row.partition)
        if first_offsets is None:
            by_partition[row.partition] = {row.producer_id: row.first_offset}
        else:
            first_offsets[row.producer_id] = row.first_offset

    def _delete_range(self, key: Key, row: Any) -> None:
        first_offsets = self.open_ranges.of(row.topic_id)[row.partition]
        del first_offsets[row.producer_id]
        if not first_offsets:
            self.open_ranges.drop(row.topic_id, row.partition)

    def _put_aborted(self, key: Key, row: Any, before: Any) -> None:
        by_partition = self._aborted_on.of(row.topic_id)
        aborted = by_partition.get(row.partition)
        if aborted is None:
            by_partition[row.partition] = [row]
            return
        if before is not None:
            _take_out(aborted, before)
        if not aborted or aborted[-1].last_offset <= row.last_offset:
            aborted.append(row)
        else:
            insort(aborted, row, key=_last_offset)

    def _delete_aborted(self, key: Key, row: Any) -> None:
        aborted = self._aborted_on.of(row.topic_id)[row.partition]
        _take_out(aborted, row)
        if not aborted:
            self._aborted_on.drop(row.topic_id, row.partition)

    def _put_token(self, key: Key, row: Any, before: Any) -> None:
        if before is None:  # the principals that a token concerns never change
            self.tokens_of.setdefault(row.owner, {})[key] = None
            self.token_names.add(row.fingerprint)
            for principal in _concerned(row):
                self.tokens_concerning.setdefault(principal, {})[row.fingerprint] = None

    def _delete_token(self, key: Key, row: Any) -> None:
        _take_from(self.tokens_of, row.owner, key)
        self.token_names.remove(row.fingerprint)
        for principal in _concerned(row):
            _take_from(self.tokens_concerning, principal, row.fingerprint)

    def _put_answer(self, key: Key, row: Any, before: Any) -> None:
        self.answer_bytes += len(row.answer) - (0 if before is None else len(before.answer))
        if row.is_refusal:
            self.refusals[row.request_id] = None

    def _delete_answer(self, key: Key, row: Any) -> None:
        self.answer_bytes -= len(row.answer)
        self.refusals.pop(row.request_id, None)

    def _put_pending(self, key: Key, row: Any, before: Any) -> None:
        if before is None:
            self.pending_of.setdefault(row.group_id, {}).setdefault(row.producer_id, {})[key] = None
            self.pending_at.setdefault(key[:3], {})[row.producer_id] = None

    def _delete_pending(self, key: Key, row: Any) -> None:
        of_group = self.pending_of[row.group_id]
        _take_from(of_group, row.producer_id, key)
        if not of_group:
            del self.pending_of[row.group_id]
        _take_from(self.pending_at, key[:3], row.producer_id)


_INDEXES: dict[type[Row], _Index] = {
    TopicRow: (HotState._put_topic, HotState._delete_topic),
    CommitRow: (HotState._put_commit, HotState._delete_commit),
    ShareRow: (HotState._put_share, HotState._delete_share),
    TransactionRow: (HotState._put_transaction, HotState._delete_transaction),
    OpenRangeRow: (HotState._put_range, HotState._delete_range),
    AbortedRow: (HotState._put_aborted, HotState._delete_aborted),
    GroupRow: (HotState._put_group, HotState._delete_group),
    AgentRow: (HotState._put_agent, HotState._delete_agent),
    SessionRow: (HotState._put_session, HotState._delete_session),
    PendingOffsetRow: (HotState._put_pending, HotState._delete_pending),
    AnswerRow: (HotState._put_answer, HotState._delete_answer),
    DelegationTokenRow: (HotState._put_token, HotState._delete_token),
}
"""For each kind of row with further indexes: the functions that put a row into them and delete it from them. They are
functions and not bound methods, because bound methods would form a reference cycle through the state, which nothing
would free (see tailrace.gc_freeze)."""


def _concerned(row: DelegationTokenRow) -> Iterable[str]:
    return dict.fromkeys((row.owner, row.requester, *row.renewers))


def _take_from(members_of: dict[Any, dict[Any, None]], owner: object, member: object) -> None:
    """Delete a member; delete its owner with the last member."""
    members = members_of[owner]
    del members[member]
    if not members:
        del members_of[owner]


def _add_partition_key(keys_of: dict[str, PartitionKeys], key: Any) -> None:
    keys = keys_of.get(key[0])
    if keys is None:
        keys = keys_of[key[0]] = PartitionKeys()
    keys.add(key)


def _remove_partition_key(keys_of: dict[str, PartitionKeys], key: Any) -> None:
    keys = keys_of[key[0]]
    keys.remove(key)
    if not keys:
        del keys_of[key[0]]


class ByPartition(Generic[V]):
    """Values by topic id and partition.

    They are nested by topic: if thousands of partitions of a topic change at once, hashing its id for each would take
    most of the time.
    """

    __slots__ = ("_last", "_last_id", "_topics")

    def __init__(self) -> None:
        self._topics: dict[UUID, dict[int, V]] = {}
        self._last_id: UUID | None = None
        self._last: dict[int, V] = {}

    def get(self, topic_id: UUID, partition: int) -> V | None:
        by_partition = self._topics.get(topic_id)
        return None if by_partition is None else by_partition.get(partition)

    def items(self) -> Iterator[tuple[tuple[UUID, int], V]]:
        for topic_id, by_partition in self._topics.items():
            for partition, value in by_partition.items():
                yield (topic_id, partition), value

    def of(self, topic_id: UUID) -> dict[int, V]:
        """Return a topic's values by partition; the caller may add and change values. Only `drop` removes one."""
        if topic_id is not self._last_id:
            self._last = self._topics.setdefault(topic_id, {})
            self._last_id = topic_id
        return self._last

    def drop(self, topic_id: UUID, partition: int) -> None:
        """Remove a partition's value; remove the topic with its last value."""
        by_partition = self.of(topic_id)
        del by_partition[partition]
        if not by_partition:
            del self._topics[topic_id]
            self._last_id = None


class AddedRun(NamedTuple):
    """A run that is appended to a partition: its row, and the row's decoded batch table."""

    partition: TopicPartition
    row: RunRow
    batches: list[RunBatch]


class Draft:
    """Changes on top of the durable state or of another draft. They are not yet durable, and nobody else sees them.

    `now_ms` is the database's clock, read once for the whole transaction. `objects` and `looked_up` are rows that were
    looked up in the store; `positions_of` has the keys of all positions of some groups. `published` is what the feed
    sends: the added runs per partition, in order.
    """

    __slots__ = (
        "changes",
        "durable",
        "sum_deltas",
        "published",
        "now_ms",
        "objects",
        "looked_up",
        "positions_of",
        "partition_sets",
        "_aborted",
        "_commit_number",
        "_group_bytes",
        "_live_topic",
        "_parent",
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
        self._aborted: dict[tuple[object, object], dict[Key, None]] = {}
        """The keys of the aborted rows that this draft changes, by partition."""
        self._commit_number: int | None = None
        self._group_bytes = 0
        self._live_topic: UUID | None = None
        """The topic that was last found not to be deleted."""
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
        parent._live_topic = None
        for kind, rows in self.changes.by_kind.items():
            parent.changes.by_kind.setdefault(kind, {}).update(rows)
        parent.sum_deltas.add(self.sum_deltas)
        parent._group_bytes += self._group_bytes
        for partition, keys in self._aborted.items():
            parent._aborted.setdefault(partition, {}).update(keys)
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
        layer: Draft | None = self
        while layer is not None:
            rows_by_key = {**layer.changes.by_kind.get(kind, {}), **rows_by_key}
            layer = layer._parent
        return rows_by_key

    def put(self, row: Row) -> None:
        self.changes.put(row)
        if isinstance(row, AbortedRow):
            self._aborted.setdefault((row.topic_id, row.partition), {})[key_of(row)] = None

    def delete(self, kind: type[Row], *key: object) -> None:
        self.changes.delete(kind, key)
        self._live_topic = None
        if kind is AbortedRow:
            self._aborted.setdefault((key[0], key[1]), {})[key] = None

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
        size = self.durable.group_bytes
        layer: Draft | None = self
        while layer is not None:
            size += layer._group_bytes
            layer = layer._parent
        return size

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
        layer: Draft | None = self
        while layer is not None:
            runs = layer.published.get(TopicPartition(topic_id, partition))
            if runs:
                return runs[-1]
            layer = layer._parent
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
        changed: list[Key] = []
        layer: Draft | None = self
        while layer is not None:
            changed += [key for key in layer.changes.by_kind.get(kind, ()) if key[0] == group_id]
            layer = layer._parent
        for key in chain(durable, changed):
            if self.get(kind, *key) is not None:
                self.delete(kind, *key)
                yield

    def matching(self, kind: type[R], durable: Iterable[Key], is_wanted: Callable[[Key], bool]) -> list[R]:
        """Return the rows under these keys, and under keys changed by this draft that are wanted, as this draft leaves
        them."""
        keys = dict.fromkeys(durable)
        layer: Draft | None = self
        while layer is not None:
            keys.update((key, None) for key in layer.changes.by_kind.get(kind, ()) if is_wanted(key))
            layer = layer._parent
        rows = (self.get(kind, *key) for key in keys)
        return [row for row in rows if row is not None]

    def aborted_within(self, topic_id: UUID, partition: int, begin: int, end: int) -> list[AbortedRow]:
        """Return a partition's aborted transactions that have offsets in [begin, end), and all of its that this draft
        changes."""
        durable = self.durable.aborted_from(topic_id, partition, begin)
        keys = dict.fromkeys(key_of(row) for row in durable if row.first_offset < end)
        layer: Draft | None = self
        while layer is not None:
            keys.update(layer._aborted.get((topic_id, partition), {}))
            layer = layer._parent
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
        """Return all open upload sessions."""
        keys = ((session_id,) for session_id in self.durable.open_sessions)
        return [row for row in self.matching(SessionRow, keys, lambda key: True) if row.closed_ms is None]

    def _all_positions_of(self, group_id: str) -> list[PositionKey]:
        """Return the keys of all positions of a group below this draft. A decision must name such groups beforehand."""
        assert group_id in self.positions_of, f"the positions of group {group_id!r} were not looked up"
        return self.positions_of[group_id]

    def shares_of(self, group_id: str) -> list[ShareRow]:
        """Return the rows of the partitions that a share group has read."""
        durable = self.durable.shares_of.get(group_id, NO_PARTITION_KEYS)
        return self.matching(ShareRow, durable, lambda key: key[0] == group_id)

    def tokens_of(self, owner: str) -> list[DelegationTokenRow]:
        """Return an owner's delegation tokens."""
        rows = self.matching(DelegationTokenRow, self.durable.tokens_of.get(owner, {}), lambda key: True)
        return [row for row in rows if row.owner == owner]

    def pending_of(self, group_id: str, producer_id: int) -> list[PendingOffsetRow]:
        """Return a group's positions that a producer's open transaction will change."""
        durable = self.durable.pending_of.get(group_id, {}).get(producer_id, {})
        return self.matching(
            PendingOffsetRow, durable, lambda key: key[0] == group_id and key[3] == producer_id
        )

    def live_partition(self, topic_id: UUID, partition: int) -> PartitionRow | None:
        """Return the partition's row, unless its topic is deleted."""
        live = self._live_topic
        if live is None or live.int != topic_id.int:
            topic = self.get(TopicRow, topic_id)
            if topic is None:
                return None
            live = self._live_topic = topic.topic_id
        return self.get(PartitionRow, live, partition)

    def producers_on(self, topic_id: UUID, partition: int) -> Callable[[int], ProducerRow | None]:
        """Return a function that returns the row of a producer in this partition: the same as `get`, but faster."""
        layers = self._layers_changing(ProducerRow)
        durable = self.durable.recent[ProducerRow].producers_on(topic_id, partition)

        def row_of(producer_id: int) -> Any:
            for rows in layers:
                row = rows.get((topic_id, partition, producer_id), _UNCHANGED)
                if row is not _UNCHANGED:
                    return row
            found = durable(producer_id)
            return (
                self._durable_row(ProducerRow, (topic_id, partition, producer_id)) if found is None else found
            )

        return row_of

    def _layers_changing(self, kind: type[Row]) -> list[dict[Key, Row | None]]:
        """Return the changes of a kind in this draft and in those below it, the newest first."""
        layers: list[dict[Key, Row | None]] = []
        layer: Draft | None = self
        while layer is not None:
            if rows := layer.changes.by_kind.get(kind):
                layers.append(rows)
            layer = layer._parent
        return layers

    def shared_id(self, topic_id: UUID) -> UUID:
        """Return the topic row's own id object if `live_partition` found this topic last, else the given id. Comparing
        ids by identity is three times as fast, and thousands of rows can share one id object."""
        live = self._live_topic
        return topic_id if live is None or live.int != topic_id.int else live

    def pending_at(self, keys: Collection[Key]) -> list[PendingOffsetRow]:
        """Return the changes that open transactions will make to these positions (group, topic id, partition)."""
        known = self.durable.pending_at
        durable = [(*key, producer) for key in keys for producer in known.get(key, ())]
        return self.matching(PendingOffsetRow, durable, lambda key: key[:3] in keys)

    def groups_may_have_pending(self) -> bool:
        """Whether any open transaction will change a position, or would do so if this draft did not end it."""
        return bool(self.durable.pending_at) or bool(self.changed(PendingOffsetRow))

    def groups_with_pending(self) -> set[str]:
        """Return the groups that have such positions."""
        put = {
            row.group_id
            for row in self.changed(PendingOffsetRow).values()
            if isinstance(row, PendingOffsetRow)
        }
        return put.union(self.durable.pending_of)

    def open_transactions(self) -> list[TransactionRow]:
        """Return the rows of the transactional ids with an open transaction."""
        names = [(name,) for name in self.durable.open_transactions]
        rows = self.matching(TransactionRow, names, lambda key: True)
        return [row for row in rows if row.state is TransactionState.ONGOING]

    def topic_named(self, name: str) -> TopicRow | None:
        changed = self.changed(TopicRow)
        for row in changed.values():
            if isinstance(row, TopicRow) and row.name == name:
                return row
        durable = self.durable.topic_named(name)
        return None if durable is None or key_of(durable) in changed else durable

    def add_runs(self, added: Sequence[AddedRun], stored: ObjectRow) -> Steps[None]:
        """Add and publish the runs of one mixed object; each is new and at the end of its log."""
        if not added:
            return
        changed, published = self.changes.of(RunRow), self.published
        for first in range(0, len(added), ADDED_IN_A_STEP):
            step = added[first : first + ADDED_IN_A_STEP]
            for partition, row, batches in step:
                changed[row.topic_id, row.partition, row.base_offset] = row
                run = join_run(row, stored, batches)
                runs = published.setdefault(partition, [run])
                if runs[-1] is not run:
                    _append(runs, run)
            self.sum_deltas.runs(ObjectKind.MIXED, len(step), sum(run.row.length for run in step))
            yield len(step)

    def put_run(self, row: RunRow) -> None:
        """Put a run. Markers that share a row with earlier ones replace that row."""
        before = self._changed_run(key_of(row))
        if before is not None:
            self.sum_deltas.runs(before.kind, -1, -before.length)
        self.sum_deltas.runs(row.kind, 1, row.length)
        self.put(row)

    def _changed_run(self, key: Key) -> RunRow | None:
        layer: Draft | None = self
        while layer is not None:
            rows = layer.changes.by_kind.get(RunRow)
            if rows is not None and key in rows:
                return cast("RunRow | None", rows[key])
            layer = layer._parent
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
        recent = self.durable.recent[ProducerRow]
        for key, row in self.changes.by_kind.get(ProducerRow, {}).items():
            if row is None or key not in recent:
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


def _take_out(aborted: list[AbortedRow], row: AbortedRow) -> None:
    """Remove a row from a list that is ordered by last offset."""
    at = bisect_left(aborted, row.last_offset, key=_last_offset)
    while aborted[at] != row:
        at += 1
    del aborted[at]


def address_of(row: AgentRow) -> Address:
    """Return the address at which clients reach the agent."""
    info = agent_info(row)
    return info.host, info.port


def agent_info(row: AgentRow) -> AgentInfo:
    """Return the addresses of the agent."""
    return _infos.decode(row.info)


def _append(runs: list[Run], run: Run) -> None:
    """Append a run; if the last one is the same run before it has grown, replace it."""
    if runs and runs[-1].base_offset == run.base_offset:
        runs[-1] = run
    else:
        runs.append(run)


def replace_row(row: R, **changes: object) -> R:
    """Return a copy of a row with some fields changed."""
    return msgspec.structs.replace(row, **changes)
