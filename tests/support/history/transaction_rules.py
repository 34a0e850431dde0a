"""Rules of transactions: read_committed sees all of a transaction or nothing of it; inputs are processed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import inf

from tests.support.history.log_rules import find_coverage
from tests.support.history.view import HistoryView, Place, RecordView
from tests.support.history.violations import Kind, Violation


def read_committed_sees_committed_only(view: HistoryView) -> Iterator[Violation]:
    """No read_committed reader sees a record of an aborted transaction, or of one that nobody has asked to commit
    yet."""
    for record in view.records.values():
        transaction = view.transaction_of(record)
        if transaction is None or record.committed_read_at == inf:
            continue
        at, offset = record.committed_read_at, min(record.read_offsets, default=-1)
        if at < transaction.commit_asked_at and transaction.told != "aborted":
            yield Violation(
                Kind.OPEN_SEEN,
                f"{record.identity} was read before transaction {transaction.name} was asked to commit",
                *record.place,
                offset,
                record.identity,
                at,
            )
        elif transaction.told == "aborted":
            yield Violation(
                Kind.ABORTED_SEEN,
                f"{record.identity} is of transaction {transaction.name}, which was aborted",
                *record.place,
                offset,
                record.identity,
                at,
            )


def inputs_are_processed_once(view: HistoryView) -> Iterator[Violation]:
    """A consume-transform-produce loop has one committed output for each input below the group's position.

    The rule applies to groups whose positions are set by transactions that have outputs with a `source`. A loop makes
    one output for each input, and begins where its inputs' logs begin.
    """
    outputs: dict[tuple[str, str], list[RecordView]] = defaultdict(list)
    positions: dict[tuple[str, str, int], int] = defaultdict(int)
    targets: dict[str, set[Place]] = defaultdict(set)
    last_end: dict[str, float] = defaultdict(float)
    for transaction in view.transactions.values():
        made = [record for record in transaction.records if record.source]
        for group in {group for group, _, _ in transaction.offsets}:
            targets[group].update(record.place for record in made)
            if not transaction.is_committed:
                continue
            if transaction.ended_at < inf:
                last_end[group] = max(last_end[group], transaction.ended_at)
            for record in made:
                outputs[group, record.source].append(record)
        if transaction.is_committed:
            for place, offset in transaction.offsets.items():
                positions[place] = max(positions[place], offset)
    for (group, source), records in outputs.items():
        origin = view.records.get(source)
        # A plain producer's input may be in the log more than once: each of its copies is an input.
        copies = 1 if origin is None else max(1, len(origin.read_offsets.keys() | set(origin.acked_offsets)))
        if len(records) > copies:
            yield Violation(
                Kind.PROCESSED_TWICE,
                f"group {group} made {[record.identity for record in records[:4]]} of {source}",
                *records[1].place,
                min(records[1].read_offsets, default=-1),
                source,
            )
    whole = find_coverage(view, committed_only=True)
    for (group, topic, partition), position in positions.items():
        if not targets[group] or not all(
            place in whole and whole[place].complete_at > last_end[group] and whole[place].since == -inf
            for place in targets[group]
        ):
            continue  # an output that no reader passed may be in the log
        start = view.allowed_log_start((topic, partition), inf)
        for offset, identity in view.contents.get((topic, partition), {}).items():
            record_there = view.records.get(identity)
            if record_there is None or not start <= offset < position or (group, identity) in outputs:
                continue
            made_in = view.transaction_of(record_there)
            if record_there.is_failed or (made_in is not None and not made_in.is_committed):
                continue
            yield Violation(
                Kind.NOT_PROCESSED,
                f"group {group} is at {position}; no committed output of {identity}",
                topic,
                partition,
                offset,
                identity,
            )
