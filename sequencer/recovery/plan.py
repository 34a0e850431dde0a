"""The plan of a recovery: the rows of the database that replaces the lost one, and a report.

Invariants:
- records of the checkpoint keep their offsets; later records start at the reserved end, an offset that no record ever
  had;
- runs have no gaps: between the two kinds of records is a hole, which is a run without markers;
- a producer's batches are checked as they were at their commit (`assign_offsets`), so none is stored twice;
- no session, agent or producer of the lost database can change this one.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from sequencer.api.commits import BatchError, ObjectKind
from sequencer.api.transactions import AbortProducer, TransactionState
from sequencer.checkpoint import format as checkpoint
from sequencer.checkpoint.format import CheckpointedRows
from sequencer.recovery.bucket_scan import (
    FoundCheckpoints,
    FoundObjects,
    LaterObject,
    in_order,
    later_topics,
    reserved_ends,
)
from sequencer.recovery.report import PartitionReport, RecoveryReport, ResequencedCounts, what_is_lost
from sequencer.rules import transactions
from sequencer.rules.assign import Assignment, RunChecks, assign_offsets
from sequencer.rules.levels import SMALL_BYTES
from sequencer.rules.producers import ProducerState, producer_row, resume_at, state_of
from sequencer.rules.topics import empty_partition
from sequencer.store import rows
from sequencer.store.batch_table import EMPTY_TABLE, NO_OBJECT, encode_markers, encode_table
from sequencer.store.draft import Draft
from sequencer.store.row_store import DatabaseIdentity
from sequencer.store.state import (
    BROKER_ID,
    COMMIT_NUMBER,
    METADATA_VERSION,
    PRODUCER_ID,
    RING_GENERATION,
    HotState,
    replace_row,
)
from sequencer.store.sums import SUMS, SumDeltas
from tailrace.batches.mixed_object import BatchCoordinates, Footer
from tailrace.ids import NO_PRODUCER_ID
from tailrace.turns import at_once

COUNTER_STEPS = {
    COMMIT_NUMBER: 1 << 32,
    METADATA_VERSION: 1 << 20,
    RING_GENERATION: 1 << 16,
    BROKER_ID: 1 << 10,
    PRODUCER_ID: 1 << 32,
}
"""How far counters are raised above the checkpoint's values: past all values that may have been assigned since."""


MAY_CLOSE = (BatchError.SEQUENCE_GAP, BatchError.UNKNOWN_PRODUCER_ID)
MAY_BE_STORED = (BatchError.NONE, *MAY_CLOSE)


@dataclass(slots=True)
class RecoveryPlan:
    """The rows of the recovered database."""

    rows: CheckpointedRows
    report: RecoveryReport


@dataclass(slots=True)
class _Log:
    """A partition during planning."""

    topic: rows.TopicRow
    row: rows.PartitionRow
    report: PartitionReport


@dataclass(slots=True, eq=False)
class _Waiting:
    """A batch with a sequence gap before it, which a later object may close.

    `was_refused`: the checkpoint has the batch as refused; it waits because it may have been retried since.
    """

    log: _Log
    object_id: UUID
    start: int
    batch: BatchCoordinates
    was_refused: bool = False


def plan_recovery(
    checkpoints: FoundCheckpoints, objects: FoundObjects, identity: DatabaseIdentity, now_ms: int
) -> RecoveryPlan:
    """Return the recovered rows and their report. `identity` is that of the recovered database."""
    assert checkpoints.chain is not None, "a recovery starts from a checkpoint"
    return _Planner(checkpoints, objects, identity, now_ms).plan()


class _Planner:
    def __init__(
        self, checkpoints: FoundCheckpoints, objects: FoundObjects, identity: DatabaseIdentity, now_ms: int
    ) -> None:
        assert checkpoints.chain is not None
        head = checkpoints.chain.last
        self._found = checkpoints
        self._objects = objects
        self._rows = checkpoints.rows
        self._now_ms = now_ms
        self._reserved = reserved_ends(checkpoints)
        self._logs: dict[tuple[UUID, int], _Log] = {}
        self._topics: dict[UUID, rows.TopicRow] = {row.topic_id: row for row in self._rows.all(rows.TopicRow)}
        self._commit_number = self._counter(COMMIT_NUMBER) + COUNTER_STEPS[COMMIT_NUMBER]
        self._waiting: list[_Waiting] = []
        self._live_runs: dict[UUID, int] = {}
        self._highest_producer = self._counter(PRODUCER_ID)
        self._count = ResequencedCounts()
        self._report = RecoveryReport(
            cluster_id=identity.cluster_id,
            incarnation=identity.incarnation,
            checkpoint=checkpoint.head_key(head.cluster_id, head.head_id),
            checkpoint_ms=head.created_ms,
            commit_number=head.commit_number,
            is_exact=False,
            certain={},
            resequenced=self._count,
            partitions=[],
            aborted_transactions=[],
            made_up_topics=[],
            lost=[],
            notes=list(checkpoints.problems),
        )

    def plan(self) -> RecoveryPlan:
        self._count_certain()
        self._add_later_topics()
        for row in sorted(self._rows.all(rows.PartitionRow), key=lambda row: (row.topic_id, row.partition)):
            topic = self._topics.get(row.topic_id)
            if topic is not None:
                self._resume(topic, row)
        for later in in_order(self._objects.later):
            self._resequence(later)
        for footer in self._objects.retriable if not self._is_final() else ():
            self._add_retriable(footer)
        self._resequence_waiting()
        self._put_later_objects()
        self._settle_leases()
        self._settle_counters()
        self._settle_live_runs()
        self._settle_small_objects()
        self._abort_transactions()
        self._settle_sums()  # last, because markers of aborted transactions are runs too
        self._add_notes()
        return RecoveryPlan(self._rows, self._report)

    # --- rows

    def _put(self, row: rows.Row) -> None:
        self._rows.by_kind.setdefault(type(row), {})[rows.key_of(row)] = row

    def _counter(self, name: str) -> int:
        row = self._rows.by_kind[rows.CounterRow].get((name,))
        return row.value if isinstance(row, rows.CounterRow) else 0

    def _count_certain(self) -> None:
        names: dict[str, type[rows.Row]] = {
            "topics": rows.TopicRow,
            "partitions": rows.PartitionRow,
            "runs": rows.RunRow,
            "objects": rows.ObjectRow,
            "producers": rows.ProducerRow,
            "transactional ids": rows.TransactionRow,
            "groups": rows.GroupRow,
            "group offsets": rows.GroupOffsetRow,
        }
        certain = {name: len(self._rows.by_kind[kind]) for name, kind in names.items()}
        certain["offsets"] = sum(
            row.end_offset - row.log_start_offset for row in self._rows.all(rows.PartitionRow)
        )
        self._report.certain = certain

    def _add_later_topics(self) -> None:
        for topic in later_topics(self._found):
            if any(other.name == topic.name for other in self._topics.values()):
                continue  # deleted and created again, or the reverse: the topic of the checkpoint is certain
            self._add_topic(topic)
            self._report.notes.append(
                f"topic {topic.name!r} was made after the last complete checkpoint; it is kept"
            )

    def _add_topic(self, topic: rows.TopicRow) -> None:
        self._topics[topic.topic_id] = topic
        self._put(topic)
        for number in range(topic.partitions):
            self._put(empty_partition(topic.topic_id, number, epoch=0))

    def _resume(self, topic: rows.TopicRow, row: rows.PartitionRow) -> _Log:
        """Continue the log at its reserved end, under a higher epoch."""
        resumed_at = self._reserved(row.topic_id, row.partition)
        assert resumed_at >= row.end_offset, f"{row}: reserved only up to {resumed_at}"
        report = PartitionReport(
            topic=topic.name,
            partition=row.partition,
            log_start_offset=row.log_start_offset,
            certain_end=row.end_offset,
            resumed_at=resumed_at,
            end_offset=resumed_at,
        )
        log = self._logs[row.topic_id, row.partition] = _Log(topic, row, report)
        if resumed_at > row.end_offset:
            # Also in an empty log: consumers that have read all of it are at the start of the hole.
            self._put(self._hole(row, resumed_at))
            row = replace_row(row, end_offset=resumed_at)
        log.row = replace_row(row, epochs=[*row.epochs, rows.LogEpoch(row.epochs[-1].epoch + 1, resumed_at)])
        self._put(log.row)
        return log

    def _hole(self, row: rows.PartitionRow, end_offset: int) -> rows.RunRow:
        """Return a run without markers, which keeps runs without gaps and which readers skip."""
        return rows.RunRow(
            topic_id=row.topic_id,
            partition=row.partition,
            base_offset=row.end_offset,
            end_offset=end_offset,
            object_id=NO_OBJECT,
            start=0,
            length=0,
            max_timestamp=-1,
            running_max_timestamp=row.running_max_timestamp,
            commit_number=self._commit_number,
            created_ms=self._now_ms,
            kind=ObjectKind.MARKERS,
            batches=EMPTY_TABLE,
            markers=encode_markers([]),
        )

    # --- what came after the checkpoint

    def _resequence(self, later: LaterObject) -> None:
        footer = later.footer
        for run in footer.runs:
            log = self._log_of(run.topic_id, run.topic_name, run.partition)
            if log is None:
                self._count.of_deleted_topics += len(run.batches)
                continue
            assigned = self._assign(log, run.batches)
            start = run.start
            for batch, outcome in zip(run.batches, assigned.outcomes, strict=True):
                if outcome.error in MAY_CLOSE:
                    self._waiting.append(_Waiting(log, footer.object_id, start, batch))
                start += batch.length
            self._put_run(log, footer.object_id, run.start, assigned)

    def _add_retriable(self, footer: Footer) -> None:
        """Let batches wait that the checkpoint has as refused: agents retry them with the same object."""
        for run in footer.runs:
            log = self._logs.get((run.topic_id, run.partition))
            if log is None:
                continue
            start = run.start
            for batch in run.batches:
                if batch.producer_id != NO_PRODUCER_ID and self._error_of(log, batch) in MAY_BE_STORED:
                    self._waiting.append(_Waiting(log, footer.object_id, start, batch, was_refused=True))
                start += batch.length

    def _resequence_waiting(self) -> None:
        """Store waiting batches whose gap has been closed, until no batch closes another's gap."""
        is_loose = bool(self._objects.corrupt or self._objects.missing)
        while self._waiting:
            left: list[_Waiting] = []
            for waiting in self._waiting:
                assigned = self._assign(waiting.log, [waiting.batch])
                if assigned.outcomes[0].error in MAY_CLOSE:
                    left.append(waiting)
                else:
                    self._put_run(waiting.log, waiting.object_id, waiting.start, assigned)
            if len(left) == len(self._waiting):
                forced = next((waiting for waiting in left if not waiting.was_refused), None)
                if forced is None or not is_loose:
                    break
                # The batch before it may be in an object that can't be read. A duplicate batch is better than a lost
                # one.
                left.remove(forced)
                self._put_run(forced.log, forced.object_id, forced.start, self._assign_forced(forced))
            self._waiting = left
        self._count.out_of_sequence += len(self._waiting)

    def _log_of(self, topic_id: UUID, name: str, partition: int) -> _Log | None:
        """Return the partition's log; create it if its topic is unknown. Return None if the topic was deleted."""
        log = self._logs.get((topic_id, partition))
        if log is not None:
            return log
        topic = self._topics.get(topic_id)
        if topic is None:
            if any(row.topic_id == topic_id for row in self._rows.all(rows.PartitionRow)):
                return None  # deleted, but its runs were not removed yet
            topic = self._make_topic(topic_id, name, partition)
        for number in range(topic.partitions, partition + 1):
            self._put(empty_partition(topic_id, number, epoch=0))
        if partition >= topic.partitions:
            topic = replace_row(topic, partitions=partition + 1)
            self._topics[topic_id] = topic
            self._put(topic)
        for number in range(topic.partitions):
            if (topic_id, number) not in self._logs:
                row = self._rows.by_kind[rows.PartitionRow][topic_id, number]
                assert isinstance(row, rows.PartitionRow)
                self._resume(topic, row)
        return self._logs[topic_id, partition]

    def _make_topic(self, topic_id: UUID, name: str, partition: int) -> rows.TopicRow:
        is_free = bool(name) and all(other.name != name for other in self._topics.values())
        made_up = name if is_free else f"{name or 'topic'}.recovered-{topic_id.hex[:8]}"
        self._report.made_up_topics.append(made_up)
        self._report.notes.append(
            f"topic {topic_id} ({name!r} by its objects) is in no checkpoint: it is {made_up!r} now, without configs"
        )
        topic = rows.TopicRow(
            topic_id=topic_id, name=made_up, partitions=partition + 1, configs={}, created_ms=self._now_ms
        )
        self._add_topic(topic)
        return topic

    def _assign(self, log: _Log, batches: Sequence[BatchCoordinates]) -> Assignment:
        """Return the offsets that batches would get at the log's end. Changes nothing."""
        return assign_offsets(log.row.end_offset, batches, lambda: RunChecks(self._states_on(log)))

    def _assign_forced(self, waiting: _Waiting) -> Assignment:
        """The same for a batch whose gap stays open: it is stored as if the batches before it had been stored."""
        batch = waiting.batch
        state = self._states_on(waiting.log)(batch.producer_id)
        resumed = resume_at(state, batch.producer_epoch, batch.base_sequence)
        return assign_offsets(
            waiting.log.row.end_offset, [batch], lambda: RunChecks(lambda producer_id: resumed)
        )

    def _error_of(self, log: _Log, batch: BatchCoordinates) -> BatchError:
        return self._assign(log, [batch]).outcomes[0].error

    def _states_on(self, log: _Log) -> Callable[[int], ProducerState | None]:
        def state(producer_id: int) -> ProducerState | None:
            self._highest_producer = max(self._highest_producer, producer_id)
            row = self._rows.by_kind[rows.ProducerRow].get((log.row.topic_id, log.row.partition, producer_id))
            assert row is None or isinstance(row, rows.ProducerRow)
            return state_of(row)

        return state

    def _put_run(self, log: _Log, object_id: UUID, start: int, assigned: Assignment) -> None:
        """Count the outcomes, and put the rows of the stored batches."""
        self._count_outcomes(log, assigned)
        if not assigned.has_stored:
            return
        topic_id, partition = log.row.topic_id, log.row.partition
        for producer_id, state in assigned.producers.items():
            self._put(
                producer_row(
                    state,
                    topic_id=topic_id,
                    partition=partition,
                    producer_id=producer_id,
                    last_timestamp=assigned.max_timestamp,
                    updated_ms=self._now_ms,
                )
            )
        log.row = replace_row(
            log.row,
            end_offset=assigned.end_offset,
            running_max_timestamp=max(log.row.running_max_timestamp, assigned.max_timestamp),
        )
        self._put(log.row)
        log.report.end_offset = assigned.end_offset
        self._live_runs[object_id] = self._live_runs.get(object_id, 0) + 1
        self._put(
            rows.RunRow(
                topic_id=topic_id,
                partition=partition,
                base_offset=assigned.base_offset,
                end_offset=assigned.end_offset,
                object_id=object_id,
                start=start,
                length=sum(batch.length for batch in assigned.table),
                max_timestamp=assigned.max_timestamp,
                running_max_timestamp=log.row.running_max_timestamp,
                commit_number=self._commit_number,
                created_ms=self._now_ms,
                kind=ObjectKind.MIXED,
                batches=encode_table(assigned.table),
            )
        )

    def _count_outcomes(self, log: _Log, assigned: Assignment) -> None:
        count = self._count
        for batch, outcome in zip(assigned.table, assigned.outcomes, strict=True):
            if outcome.error is BatchError.NONE:
                count.batches += 1
                count.records += batch.record_count
                log.report.batches += 1
                log.report.records += batch.record_count
            elif outcome.error is BatchError.DUPLICATE:
                count.duplicates += 1
            elif outcome.error is BatchError.TRANSACTION_CLOSED:
                count.transactional += 1
            elif outcome.error not in MAY_CLOSE:
                count.refused += 1

    def _put_later_objects(self) -> None:
        for row in self._rows.all(rows.ObjectRow):
            added = self._live_runs.get(row.object_id, 0)
            if added:
                self._put(replace_row(row, live_runs=row.live_runs + added, retired_ms=None))
        for later in self._objects.later:
            footer = later.footer
            if footer.object_id not in self._live_runs:
                continue  # none of its batches is stored: the collector deletes it with its session's prefix
            self._count.objects += 1
            self._put(
                rows.ObjectRow(
                    object_id=footer.object_id,
                    kind=ObjectKind.MIXED,
                    key=later.key,
                    size=later.size,
                    crc=later.crc,
                    index_start=footer.data_length,
                    created_ms=footer.created_ms,
                    format_version=footer.version,
                    live_runs=self._live_runs[footer.object_id],
                    retired_ms=None,
                )
            )

    # --- everything else

    def _settle_leases(self) -> None:
        """End everything that was alive under the lost database: agents, sessions, leases, owners of groups."""
        for row in self._rows.all(rows.AgentRow):
            self._put(replace_row(row, expires_ms=0))
        for row in self._rows.all(rows.LeaseRow):
            self._put(replace_row(row, expires_ms=0))
        self._settle_groups()
        known = set()
        for row in self._rows.all(rows.SessionRow):
            known.add(row.session_id)
            closed_ms = self._now_ms if row.closed_ms is None else row.closed_ms
            # It is swept an interval from now: until then the objects that the recovery left out still exist.
            self._put(replace_row(row, closed_ms=closed_ms, empty_sweeps=0, swept_ms=self._now_ms))
        for session_id, prefix in sorted(self._objects.prefixes.items()):
            if session_id not in known:
                self._put(
                    rows.SessionRow(
                        session_id=session_id,
                        broker_id=-1,
                        prefix=prefix,
                        predecessor=None,
                        next_number=0,
                        expires_ms=0,
                        closed_ms=self._now_ms,
                        empty_sweeps=0,
                        swept_ms=self._now_ms,
                    )
                )

    def _settle_counters(self) -> None:
        for name, step in COUNTER_STEPS.items():
            value = self._highest_producer if name == PRODUCER_ID else self._counter(name)
            self._put(rows.CounterRow(name=name, value=value + step))

    def _settle_live_runs(self) -> None:
        """Set each object's run count to the number of runs that name it. The checkpoint should have the same
        number."""
        counted: dict[UUID, int] = {}
        for row in self._rows.all(rows.RunRow):
            if row.kind is not ObjectKind.MARKERS:
                counted[row.object_id] = counted.get(row.object_id, 0) + 1
        for row in self._rows.all(rows.ObjectRow):
            live = counted.pop(row.object_id, 0)
            if live != row.live_runs:
                self._report.notes.append(
                    f"object {row.key}: {live} runs name it, its row said {row.live_runs}"
                )
                retired_ms = None if live else (row.retired_ms or self._now_ms)
                self._put(replace_row(row, live_runs=live, retired_ms=retired_ms))
        for object_id, count in counted.items():
            self._report.lost.append(
                f"{count} runs name object {object_id}, which the checkpoint doesn't have"
            )
            for row in self._rows.all(rows.RunRow):
                if row.object_id == object_id:
                    del self._rows.by_kind[rows.RunRow][rows.key_of(row)]

    def _settle_groups(self) -> None:
        """Take groups from their owners, and count their positions, whose number older checkpoints do not have."""
        positions, with_expiries = Counter[str](), set[str]()
        for position in self._rows.all(rows.GroupOffsetRow):
            positions[position.group_id] += 1
            if position.expires_ms is not None:
                with_expiries.add(position.group_id)
        for row in self._rows.all(rows.GroupRow):
            self._put(
                replace_row(
                    row,
                    owner=-1,
                    owner_epoch=-1,
                    positions=positions[row.group_id],
                    has_expiries=row.group_id in with_expiries,
                )
            )

    def _settle_small_objects(self) -> None:
        """Make the rows of small objects again, from the runs."""
        ended: dict[tuple[UUID, UUID], int] = {}
        for run in self._rows.all(rows.RunRow):
            if run.kind is ObjectKind.PARQUET:
                place = run.topic_id, run.object_id
                ended[place] = max(ended.get(place, 0), run.created_ms)
        sizes = {row.object_id: row.size for row in self._rows.all(rows.ObjectRow)}
        self._rows.by_kind[rows.SmallObjectRow].clear()
        for (topic_id, object_id), ended_ms in ended.items():
            if sizes[object_id] < SMALL_BYTES:
                self._put(rows.SmallObjectRow(topic_id, object_id, ended_ms, sizes[object_id]))

    def _settle_sums(self) -> None:
        sum_deltas = SumDeltas()
        for run in self._rows.all(rows.RunRow):
            sum_deltas.runs(run.kind, 1, run.length)
        for row in self._rows.all(rows.ObjectRow):
            sum_deltas.object(None, row)
        for row in self._rows.all(rows.ProducerRow):
            sum_deltas.producer(None, row)
        for name in SUMS:
            self._put(rows.CounterRow(name=name, value=sum_deltas.by_name.get(name, 0)))

    def _abort_transactions(self) -> None:
        """Abort transactions without a known end, and fence every producer with a transactional id."""
        for row in self._rows.all(rows.TransactionRow):
            if row.state is TransactionState.ONGOING:
                self._report.aborted_transactions.append(row.transactional_id)
                self._put(replace_row(row, started_ms=0, timeout_ms=0))
        state = HotState({kind: self._rows.all(kind) for kind in checkpoint.KEPT_HOT})
        draft = Draft(state, self._now_ms)
        at_once(transactions.abort_timed_out(draft))
        for opened in draft.all(rows.OpenRangeRow):
            place = (opened.topic_id, opened.partition)
            at_once(transactions.abort_producer(draft, AbortProducer(opened.producer_id, 0, [place])))
        for kind, changed in draft.changes.by_kind.items():
            for key, row_after in changed.items():
                if row_after is None:
                    self._rows.by_kind[kind].pop(key, None)
                elif isinstance(row_after, rows.RunRow):
                    self._put(replace_row(row_after, commit_number=self._commit_number))
                elif not isinstance(row_after, rows.CounterRow) or row_after.name == PRODUCER_ID:
                    self._put(row_after)
        for row in self._rows.all(rows.TransactionRow):
            # Its client may be epochs ahead of the checkpoint, so the next InitProducerId gets a new producer id. It
            # may also be transactions ahead, so no end that it requests is a known one.
            timeout_ms = row.timeout_ms or 60_000
            fenced = replace_row(row, producer_epoch=transactions.LAST_EPOCH, timeout_ms=timeout_ms)
            self._put(fenced.with_previous(None).with_last_end(None))
        for place, log in self._logs.items():
            ended = self._rows.by_kind[rows.PartitionRow][place]
            assert isinstance(ended, rows.PartitionRow)
            log.row = ended
            log.report.end_offset = ended.end_offset

    def _is_final(self) -> bool:
        """Whether the committer ended with a head which says that the checkpoint has everything."""
        checkpoints = self._found
        assert checkpoints.chain is not None
        head = checkpoints.chain.last
        return not checkpoints.unreadable and head.reservation == 0 and head.head_id == max(checkpoints.heads)

    def _add_notes(self) -> None:
        report, checkpoints = self._report, self._found
        report.partitions = sorted(
            (log.report for log in self._logs.values()), key=lambda log: (log.topic, log.partition)
        )
        assert checkpoints.chain is not None
        last = checkpoints.chain.last.head_id
        report.is_exact = self._is_final() and not self._objects.later
        newer = sum(head_id > last for head_id in [*checkpoints.heads, *checkpoints.unreadable])
        if newer:
            report.notes.append(f"{newer} newer checkpoints are not complete; their rows are not used")
        if self._count.out_of_sequence:
            report.notes.append(
                f"{self._count.out_of_sequence} batches are left out: the batches before them never arrived"
            )
        if self._rows.all(rows.TransactionRow):
            report.notes.append(
                f"{len(self._rows.all(rows.TransactionRow))} transactional ids are fenced: producers must be restarted"
            )
        if self._objects.garbage:
            report.notes.append(f"{len(self._objects.garbage)} objects were garbage already")
        report.lost += self._lost_runs()
        report.lost += what_is_lost(report, self._objects.corrupt)

    def _lost_runs(self) -> Iterator[str]:
        """Describe the runs whose objects are gone."""
        gone = {row.object_id: row for row in self._objects.missing}
        for run in self._rows.all(rows.RunRow) if gone else ():
            if run.object_id in gone:
                topic = self._topics.get(run.topic_id)
                yield (
                    f"{topic.name if topic else run.topic_id}-{run.partition}, offsets {run.base_offset} to"
                    f" {run.end_offset - 1}: object {gone[run.object_id].key} is missing, or has another size"
                )
