"""Invariants among the rows of one database; a violation is a finding.

Pure: rows in, findings out. `sequencer.recovery.audit` reads the rows, and reads them again before it reports a
finding, because rows change while they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from uuid import UUID

import msgspec

from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.reads import Marker, RunBatch
from sequencer.api.transactions import TransactionState
from sequencer.store.batch_table import NO_OBJECT, decode_markers, decode_table
from sequencer.store.rows import (
    AbortedRow,
    CommitRow,
    GroupOffsetRow,
    GroupRow,
    ObjectRow,
    PartitionRow,
    PendingOffsetRow,
    ProducerRow,
    RunRow,
    SessionRow,
    ShareRow,
    TopicRow,
    TransactionRow,
)
from sequencer.store.state import COMMIT_NUMBER, HotState


class Finding(msgspec.Struct, frozen=True, order=True):
    """A violated invariant. `kind` is for programs, `subject` says where it is, `detail` what was found."""

    kind: str
    subject: str
    detail: str


def partition_name(state: HotState, topic_id: UUID, partition: int) -> str:
    """Return a partition's name for people."""
    topic = state.get(TopicRow, topic_id)
    return f"{topic.name if topic else topic_id}-{partition}"


def is_of_deleted_topic(state: HotState, topic_id: UUID, partition: int) -> bool:
    """Whether the rows of this partition are being removed: the partition's own row is removed last."""
    return state.get(TopicRow, topic_id) is None and state.get(PartitionRow, topic_id, partition) is not None


# --- one partition ----------------------------------------------------------------------------------------


def check_partition(state: HotState, key: tuple[UUID, int], runs: Sequence[RunRow]) -> list[Finding]:
    """Check the runs of one partition, in order of base offset, against its row and each other.

    Runs above the row's end are skipped: they were added after the row was read.
    """
    name = partition_name(state, *key)
    row = state.get(PartitionRow, *key)
    if row is None:
        unknown = Finding("unknown_partition", name, f"{len(runs)} runs of a partition that has no row")
        return [unknown] if runs else []
    if state.get(TopicRow, row.topic_id) is None:
        return []  # deleted: its runs are being removed
    runs = [run for run in runs if run.base_offset < row.end_offset]
    newest_commit = state.counter(COMMIT_NUMBER)
    return [
        *_check_bounds(name, row, runs),
        *_check_tiling(name, row, runs),
        *(finding for run in runs for finding in _check_run(name, run, newest_commit)),
        *_check_running_maximum(name, row, runs),
        *_check_transactions_on(state, name, row, runs),
    ]


def _check_running_maximum(name: str, row: PartitionRow, runs: Sequence[RunRow]) -> Iterator[Finding]:
    running = -1
    for run in runs:
        if run.running_max_timestamp < max(running, run.max_timestamp):
            yield Finding(
                "running_maximum",
                f"{name} at {run.base_offset}",
                f"running maximum {run.running_max_timestamp}, own {run.max_timestamp}, before it {running}",
            )
        running = max(running, run.running_max_timestamp)
    if running > row.running_max_timestamp:
        yield Finding(
            "running_maximum", name, f"{row.running_max_timestamp} in its row, {running} in its runs"
        )


def _check_bounds(name: str, row: PartitionRow, runs: Sequence[RunRow]) -> Iterator[Finding]:
    if not 0 <= row.log_start_offset <= row.end_offset:
        yield Finding("bounds", name, f"log start {row.log_start_offset}, end {row.end_offset}")
    starts = [start for _, start in row.epochs]
    epochs = [epoch for epoch, _ in row.epochs]
    if (
        not row.epochs
        or starts != sorted(starts)
        or epochs != sorted(set(epochs))
        or starts[-1] > row.end_offset
    ):
        yield Finding("epochs", name, f"epochs {row.epochs} of a log that ends at {row.end_offset}")
    if row.log_start_offset < row.end_offset and not runs:
        yield Finding("gap", name, f"no runs of [{row.log_start_offset}, {row.end_offset})")


def _check_tiling(name: str, row: PartitionRow, runs: Sequence[RunRow]) -> Iterator[Finding]:
    at = row.log_start_offset
    for run in runs:
        if run.end_offset <= run.base_offset:
            yield Finding("gap", name, f"a run at {run.base_offset} ends at {run.end_offset}")
        if run.end_offset <= row.log_start_offset:
            continue  # it will be removed
        if run.base_offset > at:
            yield Finding("gap", name, f"no run of [{at}, {run.base_offset})")
        elif run.base_offset < at and at > row.log_start_offset:
            yield Finding(
                "overlap", name, f"the run at {run.base_offset} begins before {at}, where one ended"
            )
        at = run.end_offset
    if runs and at != row.end_offset:
        yield Finding(
            "gap" if at < row.end_offset else "overlap",
            name,
            f"runs end at {at}, the log at {row.end_offset}",
        )


def _check_run(name: str, run: RunRow, commit_number: int) -> Iterator[Finding]:
    subject = f"{name} at {run.base_offset}"
    if run.commit_number > commit_number:
        yield Finding("commit_number", subject, f"commit {run.commit_number}; the newest is {commit_number}")
    try:
        table, markers = decode_table(run.batches), decode_markers(run.markers)
    except msgspec.DecodeError as error:
        yield Finding("batch_table", subject, f"can't be read: {error}")
        return
    if (run.kind is ObjectKind.MARKERS) != (run.object_id == NO_OBJECT):
        yield Finding(
            "batch_table", subject, f"a run of kind {run.kind.name} that names object {run.object_id}"
        )
    if run.kind is ObjectKind.MIXED:
        yield from _check_mixed_table(subject, run, table)
    elif run.kind is ObjectKind.MARKERS:
        yield from _check_markers(subject, run, table, markers)
    elif table:
        yield Finding("batch_table", subject, f"a Parquet run with a table of {len(table)} batches")


def _check_mixed_table(subject: str, run: RunRow, table: Sequence[RunBatch]) -> Iterator[Finding]:
    length = sum(batch.length for batch in table)
    if length != run.length:
        yield Finding("batch_table", subject, f"batches of {length} bytes in a run of {run.length}")
    at = run.base_offset
    stored = [batch for batch in table if batch.status is BatchStatus.STORED]
    for batch in stored:
        if batch.base_offset != at:
            yield Finding("batch_table", subject, f"a batch at {batch.base_offset}; {at} is expected")
            return
        at += batch.record_count
    if at != run.end_offset:
        yield Finding("batch_table", subject, f"batches end at {at}, their run at {run.end_offset}")
    newest = max((batch.max_timestamp for batch in stored), default=-1)
    if newest != run.max_timestamp:
        yield Finding("batch_table", subject, f"newest timestamp {newest}, in the row {run.max_timestamp}")


def _check_markers(
    subject: str, run: RunRow, table: Sequence[RunBatch], markers: Sequence[Marker]
) -> Iterator[Finding]:
    offsets = [marker.offset for marker in markers]
    if offsets != [batch.base_offset for batch in table]:
        yield Finding("batch_table", subject, f"markers at {offsets[:5]}, otherwise in the table")
    # A run without markers is a hole that a recovery left.
    if offsets and offsets != list(range(run.base_offset, run.end_offset)):
        yield Finding(
            "batch_table", subject, f"{len(offsets)} markers in [{run.base_offset}, {run.end_offset})"
        )


def _check_transactions_on(
    state: HotState, name: str, row: PartitionRow, runs: Sequence[RunRow]
) -> Iterator[Finding]:
    """Check that each open range has its transaction and each aborted range its marker, and that the last stable offset
    is within bounds."""
    key = (row.topic_id, row.partition)
    for producer_id, first_offset in (state.open_ranges.get(*key) or {}).items():
        name_of = state.transactional_ids.get(producer_id)
        owner = None if name_of is None else state.get(TransactionRow, name_of)
        if owner is None or owner.state is not TransactionState.ONGOING or key not in owner.partitions:
            yield Finding(
                "open_range",
                name,
                f"producer {producer_id} has no transaction open here, but the range is",
            )
        if first_offset >= row.end_offset:
            yield Finding("open_range", name, f"begins at {first_offset}, past the end {row.end_offset}")
    if not row.log_start_offset <= state.last_stable_offset(row) <= row.end_offset:
        yield Finding("last_stable_offset", name, f"{state.last_stable_offset(row)}, end {row.end_offset}")
    aborted = state.aborted_from(*key, row.log_start_offset)
    if not aborted:
        return
    ends = {
        (marker.offset, marker.producer_id): marker.is_commit
        for run in runs
        if run.kind is ObjectKind.MARKERS
        for marker in decode_markers(run.markers)
    }
    for transaction in aborted:
        if (
            not transaction.first_offset <= transaction.last_offset < row.end_offset
        ):  # equal: only its marker is left
            yield Finding(
                "aborted_range",
                name,
                f"[{transaction.first_offset}, {transaction.last_offset}], end {row.end_offset}",
            )
        elif ends.get((transaction.last_offset, transaction.producer_id)) is not False:
            yield Finding(
                "aborted_range",
                name,
                f"producer {transaction.producer_id} has no abort marker at {transaction.last_offset}",
            )


# --- hot rows ---------------------------------------------------------------------------------------------


def check_hot_rows(state: HotState) -> list[Finding]:
    return [
        *_check_topics(state),
        *check_positions(state, state.all(PendingOffsetRow)),
        *_check_shares(state),
        *_check_sessions(state),
        *_check_transactions(state),
    ]


def _check_topics(state: HotState) -> Iterator[Finding]:
    names: dict[str, UUID] = {}
    for topic in state.all(TopicRow):
        if names.setdefault(topic.name, topic.topic_id) != topic.topic_id:
            yield Finding("topic", topic.name, "two topics have this name")
        missing = [
            number
            for number in range(topic.partitions)
            if state.get(PartitionRow, topic.topic_id, number) is None
        ]
        if missing:
            yield Finding("topic", topic.name, f"partitions {missing[:5]} of {topic.partitions} have no row")


def check_positions(state: HotState, rows: Iterable[GroupOffsetRow | PendingOffsetRow]) -> Iterator[Finding]:
    """Check groups' positions, committed or pending, against the hot rows."""
    for row in rows:
        is_committed = isinstance(row, GroupOffsetRow)
        subject = f"group {row.group_id}, {partition_name(state, row.topic_id, row.partition)}"
        group = state.get(GroupRow, row.group_id)
        if is_committed and group is None:
            yield Finding("group_offset", subject, "a position of a group that has no row")
        elif is_committed and row.expires_ms is not None and group is not None and not group.has_expiries:
            yield Finding(
                "group_offset",
                subject,
                "has its own expiry time; its group's row says that no position has one",
            )
        if is_of_deleted_topic(state, row.topic_id, row.partition):
            continue
        partition = state.live_partition(row.topic_id, row.partition)
        if partition is None:
            if is_committed:
                yield Finding("group_offset", subject, "a position in a partition that does not exist")
        elif not 0 <= row.offset <= partition.end_offset:
            yield Finding(
                "group_offset", subject, f"offset {row.offset}; the log ends at {partition.end_offset}"
            )


def check_counts(state: HotState, positions: Mapping[str, int]) -> Iterator[Finding]:
    """Check the number of positions in each group's row against the number that was found."""
    for group in state.all(GroupRow):
        found = positions.get(group.group_id, 0)
        if found != group.positions:
            yield Finding(
                "group_offset",
                f"group {group.group_id}",
                f"has {found} positions; its row counts {group.positions}",
            )


def _check_shares(state: HotState) -> Iterator[Finding]:
    for row in state.all(ShareRow):
        if is_of_deleted_topic(state, row.topic_id, row.partition):
            continue
        subject = f"share group {row.group_id}, {partition_name(state, row.topic_id, row.partition)}"
        if state.live_partition(row.topic_id, row.partition) is None:
            yield Finding("share", subject, "state of a partition that does not exist")
        if state.get(GroupRow, row.group_id) is None:
            yield Finding("share", subject, "what a group knows that has no row")
        ends = [row.start_offset, *(span.end_offset for span in row.spans)]
        if row.start_offset < 0 or any(end <= first for first, end in pairwise(ends)):
            yield Finding("share", subject, f"spans that end at {ends[1:10]} after {row.start_offset}")
        if any(not -1 <= span.lock < len(row.locks) for span in row.spans):
            yield Finding("share", subject, f"a span with none of the {len(row.locks)} locks")


def check_producers(state: HotState, rows: Iterable[ProducerRow]) -> Iterator[Finding]:
    """Check producers' rows against the hot rows."""
    for row in rows:
        if is_of_deleted_topic(state, row.topic_id, row.partition):
            continue
        subject = f"producer {row.producer_id}, {partition_name(state, row.topic_id, row.partition)}"
        partition = state.live_partition(row.topic_id, row.partition)
        offsets = [offset for _, _, offset in row.recent]
        if partition is None:
            yield Finding("producer", subject, "a producer of a partition that does not exist")
        elif not offsets or offsets != sorted(set(offsets)) or offsets[-1] >= partition.end_offset:
            yield Finding(
                "producer", subject, f"remembers offsets {offsets}; the log ends at {partition.end_offset}"
            )


def _check_sessions(state: HotState) -> Iterator[Finding]:
    for row in state.all(CommitRow):
        session = state.get(SessionRow, row.session_id)
        if session is None:
            yield Finding(
                "session", str(row.session_id), f"an answer to number {row.number} of no known session"
            )
        elif row.number >= session.next_number:
            yield Finding(
                "session", str(row.session_id), f"number {row.number} answered; {session.next_number} is next"
            )
    prefixes: dict[str, UUID] = {}
    for session in state.all(SessionRow):
        if prefixes.setdefault(session.prefix, session.session_id) != session.session_id:
            yield Finding(
                "session", str(session.session_id), f"another session has its prefix {session.prefix}"
            )


def _check_transactions(state: HotState) -> Iterator[Finding]:
    for row in state.all(TransactionRow):
        is_open = row.state is TransactionState.ONGOING
        if not is_open and (row.partitions or row.groups or row.started_ms != -1):
            yield Finding("transaction", row.transactional_id, f"{row.state}, with parts of an open one")
    for aborted in state.all(AbortedRow):
        if state.get(PartitionRow, aborted.topic_id, aborted.partition) is None:
            name = partition_name(state, aborted.topic_id, aborted.partition)
            yield Finding("aborted_range", name, "an aborted range of a partition that does not exist")


# --- objects ----------------------------------------------------------------------------------------------


def check_object(row: ObjectRow, runs: int) -> list[Finding]:
    """Check an object's row against the number of runs that name it."""
    findings = []
    if row.live_runs != runs:
        findings.append(Finding("live_runs", row.key, f"{row.live_runs} in its row; {runs} runs name it"))
    elif (row.retired_ms is None) != (runs > 0):
        findings.append(Finding("live_runs", row.key, f"{runs} runs, retired at {row.retired_ms}"))
    return findings
