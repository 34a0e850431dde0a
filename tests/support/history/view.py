"""A history in order: its records, transactions, readers' passes and groups' positions, indexed for the rules.

This module itself reports only events that contradict each other (`Kind.BAD_HISTORY`), and faults that are easiest to
detect while loading (a reader whose offsets do not grow).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeAlias

from tests.support.history.events import (
    Acked,
    AnyEvent,
    Begun,
    BoundsSeen,
    CommitAsked,
    Ended,
    Failed,
    GroupDropped,
    Guarantee,
    Isolation,
    LogStartMoved,
    OffsetCommitAsked,
    OffsetCommitEnded,
    OffsetFetched,
    OffsetsAdded,
    Outcome,
    Positioned,
    Read,
    Sent,
    TopicDropped,
    TopicMade,
)
from tests.support.history.violations import Kind, Violation

Place: TypeAlias = tuple[str, int]
"""(topic, partition)"""


@dataclass(slots=True, eq=False)
class RecordView:
    """Everything known about one record."""

    identity: str
    client: str
    place: Place
    number: int
    guarantee: Guarantee
    transaction: str
    batch: str
    source: str
    key: str
    sent_at: float
    times: int
    sendings: int = 1
    failures: int = 0
    acked_at: float = inf
    acked_offsets: list[int] = field(default_factory=list)
    read_offsets: dict[int, float] = field(default_factory=dict)
    """Offset -> when it was first read there."""
    committed_read_at: float = inf
    """When a read_committed reader first received it."""

    @property
    def is_acked(self) -> bool:
        return self.acked_at < inf

    @property
    def is_failed(self) -> bool:
        """Whether its producer was told, each time it was sent, that it is not stored."""
        return self.failures >= self.sendings and not self.is_acked

    @property
    def copies_allowed(self) -> int:
        return self.times if self.guarantee == "plain" else 1


@dataclass(slots=True, eq=False)
class TransactionView:
    """Everything known about one transaction."""

    name: str
    client: str
    records: list[RecordView] = field(default_factory=list)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """(group, topic, partition) -> the position that it commits."""
    commit_asked_at: float = inf
    ended_at: float = inf
    told: Outcome = "unknown"
    was_seen_committed: bool = False
    """A read_committed reader received one of its records, or a group's position can only come from it."""

    @property
    def is_commit_possible(self) -> bool:
        return self.told != "aborted" and self.commit_asked_at < inf

    @property
    def is_committed(self) -> bool:
        """Whether it is committed, as its client was told or as a reader saw."""
        return self.told == "committed" or (self.was_seen_committed and self.is_commit_possible)

    @property
    def is_aborted(self) -> bool:
        return not self.is_commit_possible


@dataclass(slots=True, eq=False)
class Pass:
    """The records that one reader received from a partition, from its seek to its last position: [start, position)."""

    client: str
    place: Place
    isolation: Isolation
    start: int
    began_at: float
    position: int
    last_at: float
    offsets: list[int] = field(default_factory=list)
    records: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class PositionWrite:
    """A commit of a group's position: when it was sent, and when it completed, if known."""

    offset: int
    asked_at: float
    done_at: float
    transaction: TransactionView | None = None
    is_refused: bool = False


class HistoryView:
    """The index. `load` takes all events of a history, in any order."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.event_count = 0
        self.records: dict[str, RecordView] = {}
        self.transactions: dict[str, TransactionView] = {}
        self.passes: list[Pass] = []
        self.bounds: dict[Place, list[BoundsSeen]] = defaultdict(list)
        self.log_starts: dict[Place, list[LogStartMoved]] = defaultdict(list)
        self.topics: dict[str, TopicMade] = {}
        self.dropped_at: dict[str, float] = {}
        self.writes: dict[tuple[str, str, int], list[PositionWrite]] = defaultdict(list)
        self.fetches: dict[tuple[str, str, int], list[OffsetFetched]] = defaultdict(list)
        self.groups_dropped: dict[str, float] = {}
        self.contents: dict[Place, dict[int, str]] = defaultdict(dict)
        """The record at an offset, as first reported or read."""
        self.contradictions: list[tuple[Place, int, str, str, float]] = []
        """(place, offset, record before, record now, when): for the rule of reused offsets."""
        self.unsent_reads: list[Read] = []
        self._open_passes: dict[tuple[str, str, int], Pass] = {}
        self._commits: dict[str, PositionWrite] = {}
        self._takers: dict[type[Any], Callable[[Any], None]] = {
            Sent: self._sent,
            Acked: self._acked,
            Failed: self._failed,
            Begun: self._begun,
            CommitAsked: self._commit_asked,
            Ended: self._ended,
            OffsetsAdded: self._offsets_added,
            OffsetCommitAsked: self._offset_commit_asked,
            OffsetCommitEnded: self._offset_commit_ended,
            OffsetFetched: self._offset_fetched,
            Positioned: self._positioned,
            Read: self._read,
            BoundsSeen: self._bounds_seen,
            LogStartMoved: self._log_start_moved,
            TopicMade: self._topic_made,
            TopicDropped: self._topic_dropped,
            GroupDropped: self._group_dropped,
        }

    def load(self, events: Iterable[AnyEvent]) -> None:
        # Sorting is stable: what a client saw at one time stays in the order in which it was recorded.
        ordered = sorted(events, key=lambda event: event.at)
        takers = self._takers
        for event in ordered:
            taker = takers.get(type(event))
            if taker is not None:  # an Unanswered or AbortAsked adds nothing to its absence
                taker(event)
        self.event_count += len(ordered)
        self._finish()

    def transaction_of(self, record: RecordView) -> TransactionView | None:
        return self.transactions.get(record.transaction) if record.transaction else None

    def allowed_log_start(self, place: Place, at: float) -> int:
        """Return the offset below which records may be missing for a reader at the time `at`."""
        moved = self.log_starts.get(place)
        return max((each.offset for each in moved if each.at <= at), default=0) if moved else 0

    # -- below: one method per event -----------------------------------------------------------------------

    def _bad(self, message: str, at: float, record: str = "") -> None:
        self.violations.append(Violation(Kind.BAD_HISTORY, message, record=record, at=at))

    def _sent(self, event: Sent) -> None:
        known = self.records.get(event.record)
        place = (event.topic, event.partition)
        if known is None:
            record = RecordView(
                event.record,
                event.client,
                place,
                event.number,
                event.guarantee,
                event.transaction,
                event.batch,
                event.source,
                event.key,
                event.at,
                event.times,
            )
            self.records[event.record] = record
            if event.transaction:
                self._transaction(event.transaction, event.client).records.append(record)
        elif known.client != event.client or known.place != place:
            self._bad(
                f"{event.record} was sent by {known.client} to {known.place} and by {event.client} to {place}: "
                "a record's identity must be unique",
                event.at,
                event.record,
            )
        else:
            known.times += event.times
            known.sendings += 1

    def _acked(self, event: Acked) -> None:
        record = self.records.get(event.record)
        if record is None:
            self._bad(f"{event.record} was acknowledged but not sent", event.at, event.record)
            return
        record.acked_at = min(record.acked_at, event.at)
        if event.offset >= 0:
            record.acked_offsets.append(event.offset)
            self._stands(record.place, event.offset, event.record, event.at)

    def _failed(self, event: Failed) -> None:
        record = self.records.get(event.record)
        if record is None:
            self._bad(f"{event.record} failed but was not sent", event.at, event.record)
        else:
            record.failures += 1

    def _stands(self, place: Place, offset: int, record: str, at: float) -> None:
        before = self.contents[place].setdefault(offset, record)
        if before != record:
            self.contradictions.append((place, offset, before, record, at))

    def _transaction(self, name: str, client: str) -> TransactionView:
        known = self.transactions.get(name)
        if known is None:
            known = self.transactions[name] = TransactionView(name, client)
        return known

    def _begun(self, event: Begun) -> None:
        self._transaction(event.transaction, event.client)

    def _commit_asked(self, event: CommitAsked) -> None:
        transaction = self._transaction(event.transaction, event.client)
        transaction.commit_asked_at = min(transaction.commit_asked_at, event.at)

    def _ended(self, event: Ended) -> None:
        transaction = self._transaction(event.transaction, event.client)
        if event.outcome == "unknown":
            return
        if transaction.told not in ("unknown", event.outcome):
            self._bad(f"transaction {event.transaction} ended as both", event.at)
        if event.outcome == "committed" and transaction.commit_asked_at > event.at:
            self._bad(f"transaction {event.transaction} was committed but that was not asked", event.at)
        transaction.told = event.outcome
        transaction.ended_at = min(transaction.ended_at, event.at)

    def _offsets_added(self, event: OffsetsAdded) -> None:
        transaction = self._transaction(event.transaction, event.client)
        transaction.offsets[event.group, event.topic, event.partition] = event.offset

    def _offset_commit_asked(self, event: OffsetCommitAsked) -> None:
        write = PositionWrite(event.offset, event.at, inf)
        self._commits[event.commit] = write
        self.writes[event.group, event.topic, event.partition].append(write)

    def _offset_commit_ended(self, event: OffsetCommitEnded) -> None:
        write = self._commits.get(event.commit)
        if write is None:
            self._bad(f"offset commit {event.commit} was answered but not asked", event.at)
        elif event.answer == "done":
            write.done_at = event.at
        elif event.answer == "refused":
            write.is_refused = True

    def _offset_fetched(self, event: OffsetFetched) -> None:
        self.fetches[event.group, event.topic, event.partition].append(event)

    def _positioned(self, event: Positioned) -> None:
        key = event.client, event.topic, event.partition
        current = self._open_passes.get(key)
        if current is None or event.is_seek:
            begun = Pass(
                event.client,
                (event.topic, event.partition),
                event.isolation,
                event.offset,
                event.at,
                event.offset,
                event.at,
            )
            self._open_passes[key] = begun
            self.passes.append(begun)
            return
        if event.offset < current.position:
            self._went_back(current, event.offset, f"its position became {event.offset}", event.at)
        current.position = max(current.position, event.offset)
        current.last_at = event.at

    def _read(self, event: Read) -> None:
        key = event.client, event.topic, event.partition
        current = self._open_passes.get(key)
        place = event.topic, event.partition
        if current is None:
            current = Pass(
                event.client, place, event.isolation, event.offset, event.at, event.offset, event.at
            )
            self._open_passes[key] = current
            self.passes.append(current)
        if event.offset < current.position:
            self._went_back(current, event.offset, f"it then got {event.record}", event.at)
        else:
            current.position = event.offset + 1
            current.offsets.append(event.offset)
            current.records.append(event.record)
        current.last_at = event.at
        self._stands(place, event.offset, event.record, event.at)
        record = self.records.get(event.record)
        if record is None:
            self.unsent_reads.append(event)
            return
        if record.place != place:
            self.violations.append(
                Violation(
                    Kind.MISPLACED,
                    f"{event.client} read {event.record}, which was sent to {record.place[0]}-{record.place[1]}",
                    *place,
                    event.offset,
                    event.record,
                    event.at,
                )
            )
            return
        record.read_offsets.setdefault(event.offset, event.at)
        if event.isolation == "committed" and record.committed_read_at == inf:
            record.committed_read_at = event.at

    def _went_back(self, current: Pass, offset: int, what: str, at: float) -> None:
        self.violations.append(
            Violation(
                Kind.NON_MONOTONIC_READ,
                f"{current.client} had come to {current.position}, {what} at {offset} without seeking",
                *current.place,
                offset,
                at=at,
            )
        )

    def _bounds_seen(self, event: BoundsSeen) -> None:
        self.bounds[event.topic, event.partition].append(event)

    def _log_start_moved(self, event: LogStartMoved) -> None:
        self.log_starts[event.topic, event.partition].append(event)

    def _topic_made(self, event: TopicMade) -> None:
        self.topics[event.topic] = event

    def _topic_dropped(self, event: TopicDropped) -> None:
        self.dropped_at.setdefault(event.topic, event.at)

    def _group_dropped(self, event: GroupDropped) -> None:
        self.groups_dropped.setdefault(event.group, event.at)

    def _finish(self) -> None:
        """Derive the transactions that readers saw committed, the positions that transactions set, and reads from
        before sending."""
        for event in self.unsent_reads:
            self.violations.append(
                Violation(
                    Kind.PHANTOM,
                    f"{event.client} read {event.record!r}, which had not been sent",
                    event.topic,
                    event.partition,
                    event.offset,
                    event.record,
                    event.at,
                )
            )
        for transaction in self.transactions.values():
            transaction.was_seen_committed = any(
                record.committed_read_at < inf for record in transaction.records
            )
            for place, offset in transaction.offsets.items():
                done_at = transaction.ended_at if transaction.told == "committed" else inf
                self.writes[place].append(
                    PositionWrite(
                        offset,
                        transaction.commit_asked_at,
                        done_at,
                        transaction,
                        is_refused=transaction.is_aborted,
                    )
                )
