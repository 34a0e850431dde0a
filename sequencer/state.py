"""The committer's hot state: durable rows in memory, and drafts of what the next transaction changes.

`HotState` holds only what is durable: it changes after the store's write has returned, never before, so
whoever reads it reads nothing that could be lost. Decisions are taken on a `Draft` over it, which sees its
own changes. A draft over a draft is a savepoint: a request that fails leaves nothing behind in its group.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TypeVar, cast
from uuid import UUID

import msgspec

from sequencer.api import AgentInfo, ObjectKind, Run, TransactionState
from sequencer.rows import (
    HOT,
    AbortedRow,
    AgentRow,
    Changes,
    CommitRow,
    CounterRow,
    GroupOffsetRow,
    ObjectRow,
    OpenRangeRow,
    PartitionRow,
    PendingOffsetRow,
    ProducerRow,
    Row,
    RunRow,
    SessionRow,
    TopicRow,
    TransactionRow,
    key_of,
)
from sequencer.sums import Moves
from tailrace.clock import Clock
from tailrace.ids import TopicPartition

R = TypeVar("R", bound=Row)
Key = tuple[object, ...]
Address = tuple[str, int]

TAKEN_AT_ONCE = 2_000
"""Rows that a state takes in one turn of the loop."""

COMMIT_NUMBER = "commit_number"
METADATA_VERSION = "metadata_version"
RING_GENERATION = "ring_generation"
BROKER_ID = "broker_id"
PRODUCER_ID = "producer_id"
LOG_EPOCH = "epoch"

_last_offset = attrgetter("last_offset")
_infos = msgspec.msgpack.Decoder(AgentInfo)
_NO_ROW = object()


class HotState:
    """All hot rows by kind and key, as they are durable, with the indexes that decisions need."""

    def __init__(self, loaded: Mapping[type[Row], Sequence[Row]]) -> None:
        self._rows: dict[type[Row], dict[Key, Row]] = {kind: {} for kind in HOT}
        self.topic_ids: dict[str, UUID] = {}
        self.commits_of: dict[UUID, set[int]] = {}
        self.offsets_of: dict[str, dict[Key, None]] = {}
        self.producers_on: dict[tuple[UUID, int], dict[int, None]] = {}
        self.transactional_ids: dict[int, str] = {}
        """By the producer id that each has now."""
        self.open_transactions: dict[str, None] = {}
        self.open_ranges: dict[tuple[UUID, int], dict[int, int]] = {}
        """First offset by producer id."""
        self.pending_of: dict[tuple[str, int], dict[Key, None]] = {}
        """By group and producer id."""
        self.pending_at: dict[tuple[str, UUID, int], int] = {}
        """How many transactions will change this position of a group."""
        self._aborted_on: dict[tuple[UUID, int], list[AbortedRow]] = {}
        self.agents_at: dict[Address, dict[int, None]] = {}
        """Broker ids by the advertised address, those whose lease is over among them."""
        self.open_sessions: dict[UUID, None] = {}
        self.sessions_of: dict[int, dict[UUID, None]] = {}
        """Open sessions by the broker id."""
        for kind in HOT:
            self.take(kind, loaded.get(kind, ()))

    @classmethod
    async def built(cls, loaded: Mapping[type[Row], Sequence[Row]], clock: Clock) -> HotState:
        """The state of these rows, made in turns of bounded length: the loop's other tasks go on meanwhile."""
        state = cls({})
        for kind in HOT:
            rows = loaded.get(kind, ())
            for first in range(0, len(rows), TAKEN_AT_ONCE):
                state.take(kind, rows[first : first + TAKEN_AT_ONCE])
                await clock.sleep(0)
        return state

    def take(self, kind: type[Row], rows: Sequence[Row]) -> None:
        """Add rows that were loaded."""
        for row in rows:
            self._put(kind, key_of(row), row)

    def get(self, kind: type[R], *key: object) -> R | None:
        """The row under this key."""
        return cast("R | None", self._rows[kind].get(key))

    def all(self, kind: type[R]) -> Iterator[R]:
        """Every row of a kind, in the order of first writing."""
        return cast("Iterator[R]", iter(self._rows[kind].values()))

    def rows(self, kind: type[R], ids: Iterable[object]) -> Iterator[R]:
        """The rows of a kind under these keys, each of one field."""
        rows = self._rows[kind]
        return (cast("R", rows[(each,)]) for each in ids)

    def count(self, kind: type[Row]) -> int:
        """How many rows of a kind there are."""
        return len(self._rows[kind])

    def counter(self, name: str) -> int:
        """A counter's value, 0 before its first use."""
        row = self.get(CounterRow, name)
        return 0 if row is None else row.value

    def topic_named(self, name: str) -> TopicRow | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.get(TopicRow, topic_id)

    def live_partition(self, topic_id: UUID, partition: int) -> PartitionRow | None:
        """The partition's row, if its topic is not deleted."""
        if self.get(TopicRow, topic_id) is None:
            return None
        return self.get(PartitionRow, topic_id, partition)

    def last_stable_offset(self, row: PartitionRow) -> int:
        """The first offset of the partition's oldest open transaction; its end when none is open."""
        firsts = self.open_ranges.get((row.topic_id, row.partition))
        return max(row.log_start_offset, min(firsts.values())) if firsts else row.end_offset

    def aborted_from(self, topic_id: UUID, partition: int, offset: int) -> list[AbortedRow]:
        """A partition's aborted transactions that end at or after `offset`, in the order of their ends."""
        rows = self._aborted_on.get((topic_id, partition))
        return [] if rows is None else rows[bisect_left(rows, offset, key=_last_offset) :]

    def apply(self, changes: Changes) -> None:
        """Take over what was just written."""
        for kind, rows in changes.by_kind.items():
            if kind not in self._rows:
                continue
            for key, row in rows.items():
                if row is None:
                    self._delete(kind, key)
                else:
                    self._put(kind, key, row)

    def _put(self, kind: type[Row], key: Key, row: Row) -> None:
        before = self._rows[kind].get(key)
        self._rows[kind][key] = row
        if isinstance(row, TopicRow):
            if isinstance(before, TopicRow) and before.name != row.name:
                del self.topic_ids[before.name]
            self.topic_ids[row.name] = row.topic_id
        elif isinstance(row, CommitRow):
            self.commits_of.setdefault(row.session_id, set()).add(row.number)
        elif isinstance(row, GroupOffsetRow):
            self.offsets_of.setdefault(row.group_id, {})[key] = None
        elif isinstance(row, ProducerRow):
            self.producers_on.setdefault((row.topic_id, row.partition), {})[row.producer_id] = None
        elif isinstance(row, TransactionRow):
            if isinstance(before, TransactionRow):
                self._forget_transaction(before)
            self.transactional_ids[row.producer_id] = row.transactional_id
            if row.state is TransactionState.ONGOING:
                self.open_transactions[row.transactional_id] = None
        elif isinstance(row, OpenRangeRow):
            self.open_ranges.setdefault((row.topic_id, row.partition), {})[row.producer_id] = row.first_offset
        elif isinstance(row, AbortedRow):
            aborted = self._aborted_on.setdefault((row.topic_id, row.partition), [])
            if isinstance(before, AbortedRow):
                aborted.remove(before)
            insort(aborted, row, key=_last_offset)
        elif isinstance(row, AgentRow):
            if not isinstance(before, AgentRow) or before.info != row.info:
                if isinstance(before, AgentRow):
                    self._forget_agent(before)
                self.agents_at.setdefault(address_of(row), {})[row.broker_id] = None
        elif isinstance(row, SessionRow):
            if row.closed_ms is None:
                self.open_sessions[row.session_id] = None
                self.sessions_of.setdefault(row.broker_id, {})[row.session_id] = None
            else:
                self._forget_open_session(row)
        elif isinstance(row, PendingOffsetRow):
            self.pending_of.setdefault((row.group_id, row.producer_id), {})[key] = None
            if before is None:
                place = (row.group_id, row.topic_id, row.partition)
                self.pending_at[place] = self.pending_at.get(place, 0) + 1

    def _forget_transaction(self, row: TransactionRow) -> None:
        if self.transactional_ids.get(row.producer_id) == row.transactional_id:
            del self.transactional_ids[row.producer_id]
        self.open_transactions.pop(row.transactional_id, None)

    def _forget_agent(self, row: AgentRow) -> None:
        address = address_of(row)
        there = self.agents_at[address]
        del there[row.broker_id]
        if not there:
            del self.agents_at[address]

    def _forget_open_session(self, row: SessionRow) -> None:
        if self.open_sessions.pop(row.session_id, _NO_ROW) is _NO_ROW:
            return
        there = self.sessions_of[row.broker_id]
        del there[row.session_id]
        if not there:
            del self.sessions_of[row.broker_id]

    def _delete(self, kind: type[Row], key: Key) -> None:
        row = self._rows[kind].pop(key, None)
        if isinstance(row, TopicRow):
            if self.topic_ids.get(row.name) == row.topic_id:
                del self.topic_ids[row.name]
        elif isinstance(row, CommitRow):
            numbers = self.commits_of[row.session_id]
            numbers.discard(row.number)
            if not numbers:
                del self.commits_of[row.session_id]
        elif isinstance(row, GroupOffsetRow):
            offsets = self.offsets_of[row.group_id]
            offsets.pop(key, None)
            if not offsets:
                del self.offsets_of[row.group_id]
        elif isinstance(row, ProducerRow):
            place = (row.topic_id, row.partition)
            self.producers_on[place].pop(row.producer_id, None)
            if not self.producers_on[place]:
                del self.producers_on[place]
        elif isinstance(row, TransactionRow):
            self._forget_transaction(row)
        elif isinstance(row, OpenRangeRow):
            place = (row.topic_id, row.partition)
            del self.open_ranges[place][row.producer_id]
            if not self.open_ranges[place]:
                del self.open_ranges[place]
        elif isinstance(row, AbortedRow):
            place = (row.topic_id, row.partition)
            aborted = self._aborted_on[place]
            aborted.remove(row)
            if not aborted:
                del self._aborted_on[place]
        elif isinstance(row, AgentRow):
            self._forget_agent(row)
        elif isinstance(row, SessionRow):
            self._forget_open_session(row)
        elif isinstance(row, PendingOffsetRow):
            owner = (row.group_id, row.producer_id)
            del self.pending_of[owner][key]
            if not self.pending_of[owner]:
                del self.pending_of[owner]
            position = (row.group_id, row.topic_id, row.partition)
            self.pending_at[position] -= 1
            if not self.pending_at[position]:
                del self.pending_at[position]


class Draft:
    """Changes on top of the durable state (or of another draft), not yet durable and seen by nobody else.

    `now_ms` is the database's clock, one reading for the whole transaction. `objects` are object rows looked
    up from the store beforehand. `news` is what the feed will tell: runs added per partition, in order.
    """

    __slots__ = ("changes", "durable", "moves", "news", "now_ms", "objects", "places", "_aborted", "_parent")

    def __init__(self, durable: HotState, now_ms: int, parent: Draft | None = None) -> None:
        self.durable = durable
        self.now_ms = now_ms
        self.changes = Changes()
        self.moves = Moves()
        """Of runs only: what it does to objects is seen in their rows, once all is decided."""
        self.news: dict[TopicPartition, list[Run]] = {}
        self.objects: dict[UUID, ObjectRow] = {} if parent is None else parent.objects
        self.places: dict[int, tuple[list[tuple[UUID, int]], frozenset[tuple[UUID, int]]]] = (
            {} if parent is None else parent.places
        )
        """By producer id, what `sequencer.transactions` keeps to look partitions of a transaction up."""
        self._aborted: dict[tuple[object, object], dict[Key, None]] = {}
        """The keys of aborted rows changed here, by partition."""
        self._parent = parent

    def savepoint(self) -> Draft:
        """A draft on top of this one; `keep` makes its changes this one's."""
        return Draft(self.durable, self.now_ms, self)

    def keep(self) -> None:
        """Hand this savepoint's changes to the draft below."""
        parent = self._parent
        assert parent is not None, "only a savepoint is kept; the whole draft is written"
        for kind, rows in self.changes.by_kind.items():
            parent.changes.by_kind.setdefault(kind, {}).update(rows)
        parent.moves.take(self.moves)
        for partition, keys in self._aborted.items():
            parent._aborted.setdefault(partition, {}).update(keys)
        for place, runs in self.news.items():
            parent.tell(*place)
            for run in runs:
                parent.tell(*place, run)

    def get(self, kind: type[R], *key: object) -> R | None:
        """The row under this key as this draft leaves it."""
        layer: Draft | None = self
        while layer is not None:
            rows = layer.changes.by_kind.get(kind)
            if rows is not None and key in rows:
                return cast("R | None", rows[key])
            layer = layer._parent
        if kind is ObjectRow:
            return cast("R | None", self.objects.get(cast("UUID", key[0])))
        return self.durable.get(kind, *key)

    def all(self, kind: type[R]) -> list[R]:
        """Every hot row of a kind as this draft leaves them."""
        merged: dict[Key, Row | None] = {}
        layer: Draft | None = self
        layers: list[Draft] = []
        while layer is not None:
            layers.append(layer)
            layer = layer._parent
        for layer in reversed(layers):
            merged.update(layer.changes.by_kind.get(kind, {}))
        if not merged:
            return list(self.durable.all(kind))
        kept = [row for row in self.durable.all(kind) if key_of(row) not in merged]
        return kept + [cast("R", row) for row in merged.values() if row is not None]

    def count(self, kind: type[Row]) -> int:
        """How many hot rows of a kind this draft leaves."""
        changed: dict[Key, Row | None] = {}
        layer: Draft | None = self
        while layer is not None:
            changed = {**layer.changes.by_kind.get(kind, {}), **changed}
            layer = layer._parent
        added = sum(
            (row is not None) - (self.durable.get(kind, *key) is not None) for key, row in changed.items()
        )
        return self.durable.count(kind) + added

    def put(self, row: Row) -> None:
        self.changes.put(row)
        if isinstance(row, AbortedRow):
            self._aborted.setdefault((row.topic_id, row.partition), {})[key_of(row)] = None

    def delete(self, kind: type[Row], *key: object) -> None:
        self.changes.delete(kind, key)
        if kind is AbortedRow:
            self._aborted.setdefault((key[0], key[1]), {})[key] = None

    def counter(self, name: str) -> int:
        row = self.get(CounterRow, name)
        return 0 if row is None else row.value

    def count_up(self, name: str) -> int:
        """Raise a counter by one and give its new value."""
        value = self.counter(name) + 1
        self.put(CounterRow(name=name, value=value))
        return value

    def raise_once(self, name: str) -> int:
        """Raise a counter by one for the whole transaction, however often this is asked."""
        value = self.durable.counter(name) + 1
        if self.counter(name) != value:
            self.put(CounterRow(name=name, value=value))
        return value

    def visible_change(self) -> int:
        """The commit number of this transaction, which changes what readers see."""
        return self.raise_once(COMMIT_NUMBER)

    def tell(self, topic_id: UUID, partition: int, run: Run | None = None) -> None:
        """Have the feed say that this partition's bounds changed, or that it has one more run.

        A run told again, longer (markers share one), takes the place of the first.
        """
        runs = self.news.setdefault(TopicPartition(topic_id, partition), [])
        if run is None:
            return
        if runs and runs[-1].base_offset == run.base_offset:
            runs[-1] = run
        else:
            runs.append(run)

    def last_told(self, topic_id: UUID, partition: int) -> Run | None:
        """The newest run that this transaction adds to a partition."""
        layer: Draft | None = self
        while layer is not None:
            runs = layer.news.get(TopicPartition(topic_id, partition))
            if runs:
                return runs[-1]
            layer = layer._parent
        return None

    def among(self, kind: type[R], durable: Iterable[Key], is_wanted: Callable[[Key], bool]) -> list[R]:
        """The rows under these keys, and under those changed here that are wanted, as this draft leaves them."""
        keys = dict.fromkeys(durable)
        layer: Draft | None = self
        while layer is not None:
            keys.update((key, None) for key in layer.changes.by_kind.get(kind, ()) if is_wanted(key))
            layer = layer._parent
        found = (self.get(kind, *key) for key in keys)
        return [row for row in found if row is not None]

    def aborted_on(self, topic_id: UUID, partition: int) -> list[AbortedRow]:
        """A partition's aborted transactions."""
        keys = dict.fromkeys(map(key_of, self.durable.aborted_from(topic_id, partition, 0)))
        layer: Draft | None = self
        while layer is not None:
            keys.update(layer._aborted.get((topic_id, partition), {}))
            layer = layer._parent
        found = (self.get(AbortedRow, *key) for key in keys)
        return [row for row in found if row is not None]

    def agents_at(self, address: Address) -> list[AgentRow]:
        """The agents that are or were advertised at an address."""
        keys = ((broker_id,) for broker_id in self.durable.agents_at.get(address, ()))
        return [row for row in self.among(AgentRow, keys, lambda key: True) if address_of(row) == address]

    def open_sessions_of(self, broker_id: int) -> list[SessionRow]:
        """An agent's upload sessions that are not closed."""
        keys = ((session_id,) for session_id in self.durable.sessions_of.get(broker_id, ()))
        rows = self.among(SessionRow, keys, lambda key: True)
        return [row for row in rows if row.broker_id == broker_id and row.closed_ms is None]

    def open_sessions(self) -> list[SessionRow]:
        """All upload sessions that are not closed."""
        keys = ((session_id,) for session_id in self.durable.open_sessions)
        return [row for row in self.among(SessionRow, keys, lambda key: True) if row.closed_ms is None]

    def offsets_of(self, group_id: str) -> list[GroupOffsetRow]:
        """A group's positions."""
        durable = self.durable.offsets_of.get(group_id, {})
        return self.among(GroupOffsetRow, durable, lambda key: key[0] == group_id)

    def pending_of(self, group_id: str, producer_id: int) -> list[PendingOffsetRow]:
        """A group's positions that a producer's open transaction will change."""
        durable = self.durable.pending_of.get((group_id, producer_id), {})
        return self.among(PendingOffsetRow, durable, lambda key: key[0] == group_id and key[3] == producer_id)

    def live_partition(self, topic_id: UUID, partition: int) -> PartitionRow | None:
        """The partition's row, if its topic is not deleted."""
        if self.get(TopicRow, topic_id) is None:
            return None
        return self.get(PartitionRow, topic_id, partition)

    def topic_named(self, name: str) -> TopicRow | None:
        return next((topic for topic in self.all(TopicRow) if topic.name == name), None)

    def put_run(self, row: RunRow) -> None:
        """Add a run; markers that share a row with those before them take its place."""
        before = self._changed_run(key_of(row))
        if before is not None:
            self.moves.run(before.kind, before.length, -1)
        self.moves.run(row.kind, row.length, 1)
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
        self.moves.run(run.kind, run.length, -1)
        self.delete(RunRow, run.topic_id, run.partition, run.base_offset)

    def settle_sums(self) -> None:
        """Write the sums that this transaction moves. Last of all, and once."""
        assert self._parent is None, "sums are of the whole draft"
        for key, row in self.changes.by_kind.get(ObjectRow, {}).items():
            self.moves.object(self.objects.get(cast("UUID", key[0])), cast("ObjectRow | None", row))
        for name, by in self.moves.by_name.items():
            if by:
                self.put(CounterRow(name=name, value=self.durable.counter(name) + by))

    def release_object(self, object_id: UUID, runs: int) -> bool:
        """Lower an object's live runs; True when it has none left and is retired by this."""
        stored = self.get(ObjectRow, object_id)
        assert stored is not None, f"object {object_id} has run rows but no row of its own"
        assert stored.live_runs >= runs, f"object {object_id}: {runs} runs of {stored.live_runs} removed"
        live = stored.live_runs - runs
        is_retired = live == 0
        self.put(replace_row(stored, live_runs=live, retired_ms=self.now_ms if is_retired else None))
        return is_retired

    def remove_runs(self, runs: Sequence[Run]) -> int:
        """Delete run rows and lower their objects (looked up into `objects` before); how many retired."""
        counts: dict[UUID, int] = {}
        for run in runs:
            self.delete_run(run)
            if run.kind is ObjectKind.MARKERS:
                continue
            counts[run.object_id] = counts.get(run.object_id, 0) + 1
        return sum(self.release_object(object_id, count) for object_id, count in counts.items())


def address_of(row: AgentRow) -> Address:
    """Where clients reach the agent."""
    info = agent_info(row)
    return info.host, info.port


def agent_info(row: AgentRow) -> AgentInfo:
    """How the agent is reached."""
    return _infos.decode(row.info)


def replace_row(row: R, **changes: object) -> R:
    """A copy of a row with some fields changed."""
    return msgspec.structs.replace(row, **changes)
