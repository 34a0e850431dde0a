"""The committer's hot state: durable rows in memory.

`HotState` contains only durable rows. It changes after the store's write has returned and never before, so a reader
sees nothing that could be lost. Decisions are made on a draft over it (sequencer.store.draft).

Invariant: `apply` takes over a whole transaction in one turn of the event loop, so that nobody reads half of it.
Therefore it must be cheap per row; other code limits the number of rows in a transaction.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

import msgspec

from sequencer.api.agents import AgentInfo
from sequencer.api.transactions import TransactionState
from sequencer.store.ordered import Names, PartitionKeys
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
    GroupRow,
    OpenRangeRow,
    PartitionRow,
    PendingOffsetRow,
    Row,
    SessionRow,
    ShareRow,
    TopicRow,
    TransactionRow,
    key_of,
)
from tailrace.clock import Clock
from tailrace.gc_freeze import GcFreezer

R = TypeVar("R", bound=Row)
V = TypeVar("V")
Key = tuple[object, ...]
Address = tuple[str, int]
_Index = tuple[Callable[["HotState", Key, Any, Any], None], Callable[["HotState", Key, Any], None]]

TAKEN_AT_ONCE = 2_000
"""Rows that are added to a state in one turn of the event loop."""
TOKENS_AT_ONCE = 500
"""The same for delegation tokens, each of which may concern a hundred principals."""

COMMIT_NUMBER = "commit_number"
JOURNAL_NUMBER = "journal_number"
METADATA_VERSION = "metadata_version"
RING_GENERATION = "ring_generation"
BROKER_ID = "broker_id"
PRODUCER_ID = "producer_id"
LOG_EPOCH = "epoch"
SECURITY_VERSION = "security_version"
CLIENT_CONFIGS_VERSION = "client_configs_version"

_last_offset = attrgetter("last_offset")
_started_ms = attrgetter("started_ms")
_infos = msgspec.msgpack.Decoder(AgentInfo)
_NO_ROW = object()
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
        """Transactional ids, those with the oldest transactions first."""
        self.open_ranges: ByPartition[dict[int, int]] = ByPartition()
        """First offset by producer id."""
        self.pending_of: dict[str, dict[int, dict[Key, None]]] = {}
        """By group, then by producer id."""
        self.pending_at: dict[Key, dict[int, None]] = {}
        """The producer ids whose open transactions will change this position of a group."""
        self._aborted_on: ByPartition[list[AbortedRow]] = ByPartition()
        self.agents_at: dict[Address, dict[int, None]] = {}
        """Broker ids by advertised address, including agents without a live lease."""
        self.groups_of: dict[int, Names] = {}
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
        self.topic_config_bytes = 0
        """Total size of the configs of all topics."""
        self.share_spans = 0
        """Spans of records in all share groups, and ranges in the answers that they keep."""
        self.answer_bytes = 0
        """Total size of the answers that are kept for retries."""
        self.refusals: dict[UUID, None] = {}
        """Those of these answers that are refusals."""
        self._watchers: dict[type[Row], Callable[[Any], None]] = {}
        for kind in HOT:
            self.add_loaded(kind, _in_order(kind, loaded.get(kind, ())))

    @classmethod
    async def built(cls, loaded: Mapping[type[Row], Sequence[Row]], clock: Clock) -> HotState:
        """Build the state of these rows in turns of bounded length, so that other tasks run in between."""
        state, added = cls({}), GcFreezer()
        for kind in HOT:
            rows = _in_order(kind, loaded.get(kind, ()))
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
        self.topic_config_bytes += config_bytes(row.configs) - config_bytes(
            {} if before is None else before.configs
        )

    def _delete_topic(self, key: Key, row: Any) -> None:
        self.topic_config_bytes -= config_bytes(row.configs)
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
        self.share_spans += _spans_in(row) - (0 if before is None else _spans_in(before))
        if before is None:
            _add_partition_key(self.shares_of, key)

    def _delete_share(self, key: Key, row: Any) -> None:
        self.share_spans -= _spans_in(row)
        _remove_partition_key(self.shares_of, key)

    def _put_transaction(self, key: Key, row: Any, before: Any) -> None:
        if before is None:
            self.transaction_names.add(row.transactional_id)
        elif not _is_same_open(before, row):
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
            owned = self.groups_of.get(row.owner)
            if owned is None:
                owned = self.groups_of[row.owner] = Names()
            owned.add(row.group_id)

    def _delete_group(self, key: Key, row: Any) -> None:
        self.group_bytes -= len(row.blob)
        self.group_ids.remove(row.group_id)
        self._remove_owned(row)

    def _remove_owned(self, row: Any) -> None:
        owned = self.groups_of[row.owner]
        owned.remove(row.group_id)
        if not owned:
            del self.groups_of[row.owner]

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


def _in_order(kind: type[Row], rows: Sequence[Row]) -> Sequence[Row]:
    """Return loaded rows in the order in which a state lists them: transactions by their beginnings."""
    return sorted(rows, key=_started_ms) if kind is TransactionRow else rows


def _is_same_open(before: TransactionRow, row: TransactionRow) -> bool:
    """Whether both rows have the same open transaction of the same producer."""
    return before.state is row.state is TransactionState.ONGOING and (before.number, before.producer_id) == (
        row.number,
        row.producer_id,
    )


def _concerned(row: DelegationTokenRow) -> Iterable[str]:
    return dict.fromkeys((row.owner, row.requester, *row.renewers))


def _take_from(members_of: dict[Any, dict[Any, None]], owner: object, member: object) -> None:
    """Delete a member; delete its owner with the last member."""
    members = members_of[owner]
    del members[member]
    if not members:
        del members_of[owner]


def config_bytes(configs: Mapping[str, str]) -> int:
    """Return the size of these configs."""
    return sum(len(name) + len(value.encode()) for name, value in configs.items())


def _spans_in(row: Any) -> int:
    return len(row.spans) + sum(len(answer.acquired) for answer in row.answered)


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


def replace_row(row: R, **changes: object) -> R:
    """Return a copy of a row with some fields changed."""
    return msgspec.structs.replace(row, **changes)
