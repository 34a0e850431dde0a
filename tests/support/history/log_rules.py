"""Rules of one partition's log: which record must be at which offset, in which order, and who must read it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from tests.support.history.events import BoundsSeen
from tests.support.history.view import HistoryView, Pass, Place, RecordView
from tests.support.history.violations import Kind, Violation

WINDOW_LAG_S = 2.0
"""How old an answer from an agent's window may be (agent.fetch.windows.FRESH_S)."""


def offsets_mean_one_record(view: HistoryView) -> Iterator[Violation]:
    """No offset was reported or read with two different records."""
    for place, offset, before, now, at in view.contradictions:
        yield Violation(
            Kind.OFFSET_REUSED, f"it was {before!r} before and is {now!r} now", *place, offset, now, at
        )


def records_stand_once(view: HistoryView) -> Iterator[Violation]:
    """A record has no more copies than were sent, none if it failed, and stands at the acknowledged offset."""
    for record in view.records.values():
        offsets = record.read_offsets
        if offsets and record.is_failed:
            offset, at = next(iter(offsets.items()))
            yield _of(record, Kind.FAILED_SEEN, "its producer was told that it failed", offset, at)
        places = offsets.keys() | set(record.acked_offsets)
        if len(places) <= record.copies_allowed or len(places) == 1:
            continue
        if len(offsets) > 1:
            yield _of(
                record,
                Kind.DUPLICATED,
                f"a record of {record.client} was read at {sorted(offsets)}; "
                f"{record.guarantee}, sent {record.times} times",
                max(offsets),
                max(offsets.values()),
            )
        else:
            yield _of(
                record,
                Kind.OFFSET_MOVED,
                f"acknowledged at {sorted(set(record.acked_offsets))}, read at {sorted(offsets)}",
                max(places),
                record.acked_at,
            )


@dataclass(slots=True)
class Coverage:
    """The time as of which readers have seen all of a partition, from end to end."""

    complete_at: float = -inf
    """A reader of this isolation level has passed everything that was stored by this time..."""
    since: float = -inf
    """...except records sent before this time: these may have been deleted."""


def find_coverage(view: HistoryView, *, committed_only: bool) -> dict[Place, Coverage]:
    """Find per partition the latest time at which readers together had seen the log from its start to its end."""
    spans: dict[Place, list[tuple[int, int]]] = defaultdict(list)
    for each in view.passes:
        if (each.isolation == "committed") == committed_only and each.position >= each.start:
            spans[each.place].append((each.start, each.position))
    coverage: dict[Place, Coverage] = {}
    for place, bounds in view.bounds.items():
        moved = view.log_starts.get(place, ())
        reach = max((each.offset for each in moved), default=0)
        for start, end in sorted(spans.get(place, ())):
            if start > reach:
                break
            reach = max(reach, end)
        found = Coverage(since=max((each.at for each in moved), default=-inf))
        for seen in bounds:
            end = seen.last_stable if committed_only and seen.last_stable >= 0 else seen.high_watermark
            if 0 <= end <= reach:
                found.complete_at = max(found.complete_at, _true_at(seen))
        coverage[place] = found
    return coverage


def passes_miss_nothing(view: HistoryView) -> Iterator[Violation]:
    """A reader that passes an offset gets the record that is known to be there, unless a deletion was allowed."""
    known = {place: sorted(contents) for place, contents in view.contents.items()}
    last_of_key = _last_of_keys(view)
    told: set[tuple[Place, int]] = set()
    for each in view.passes:
        offsets = known.get(each.place, [])
        expected = offsets[bisect_left(offsets, each.start) : bisect_left(offsets, each.position)]
        if len(expected) == len(each.offsets):
            continue  # every record that was read is known, so these are the same
        got = set(each.offsets)
        contents = view.contents[each.place]
        for offset in expected:
            if offset in got or (each.place, offset) in told:
                continue
            record = view.records.get(contents[offset])
            if record is None or not _must_be_seen(view, record, offset, each, last_of_key):
                continue
            told.add((each.place, offset))
            yield _missed(view, record, offset, each)


def passes_have_no_holes(view: HistoryView) -> Iterator[Violation]:
    """A log without transactions and compaction has a record at every offset from its start to its end."""
    with_markers = {record.place for record in view.records.values() if record.transaction}
    told: set[tuple[Place, int]] = set()
    for each in view.passes:
        if each.position - each.start == len(each.offsets) or each.place in with_markers:
            continue
        made = view.topics.get(each.place[0])
        if made is not None and (made.is_compacted or made.may_expire):
            continue
        first = max(each.start, view.allowed_log_start(each.place, each.last_at))
        got, contents = set(each.offsets), view.contents[each.place]
        missing = [
            offset for offset in range(first, each.position) if offset not in got and offset not in contents
        ]
        if missing and (each.place, missing[0]) not in told and not _is_gone(view, each):
            told.add((each.place, missing[0]))
            yield Violation(
                Kind.HOLE,
                f"{each.client} read on past {len(missing)} offsets that hold nothing: {missing[:5]}",
                *each.place,
                missing[0],
                at=each.last_at,
            )


def what_must_be_stored_is_found(view: HistoryView) -> Iterator[Violation]:
    """A record without a known offset is somewhere in the log if it is acknowledged, or its transaction is
    committed."""
    by_isolation = {
        True: find_coverage(view, committed_only=True),
        False: find_coverage(view, committed_only=False),
    }
    for record in view.records.values():
        if record.read_offsets or record.acked_offsets or record.is_failed:
            continue
        transaction = view.transaction_of(record)
        if transaction is None:
            since = record.acked_at
        elif transaction.is_committed:
            since = min(
                transaction.ended_at,
                min((each.committed_read_at for each in transaction.records), default=inf),
            )
        else:
            continue
        made = view.topics.get(record.place[0])
        if (
            since == inf
            or record.place[0] in view.dropped_at
            or (made and (made.is_compacted or made.may_expire))
        ):
            continue
        whole = [found[record.place] for found in by_isolation.values() if record.place in found]
        if any(each.complete_at > since and each.since < record.sent_at for each in whole):
            in_part = transaction is not None and any(each.read_offsets for each in transaction.records)
            yield _of(
                record,
                Kind.PARTIAL_TRANSACTION if in_part else Kind.LOST,
                "it must be stored, and the whole log was read without it",
                -1,
                since,
            )


def order_is_kept(view: HistoryView) -> Iterator[Violation]:
    """A producer's records are in the order of its numbers; a record acknowledged before another was sent comes
    first."""
    unsteady = {
        record.client
        for record in view.records.values()
        if record.guarantee == "plain" and (not record.is_acked or record.times != 1)
    }
    for place, contents in view.contents.items():
        last: dict[str, tuple[int, int, str]] = {}
        stored: list[tuple[int, RecordView]] = []
        for offset in sorted(contents):
            record = view.records.get(contents[offset])
            if record is None or record.place != place:
                continue
            stored.append((offset, record))
            if record.guarantee == "plain" and record.client in unsteady:
                continue  # its own retries may come late, so only acknowledged offsets count
            if offset != min(record.read_offsets, default=offset):
                continue  # a second copy, which another rule reports
            before = last.get(record.client)
            if before is not None and before[0] > record.number:
                yield _of(
                    record,
                    Kind.REORDERED,
                    f"number {record.number} of {record.client} stands after number {before[0]}, {before[2]} "
                    f"at {before[1]}",
                    offset,
                    record.sent_at,
                )
            else:
                last[record.client] = record.number, offset, record.identity
        yield from _order_in_time(stored)


def batches_are_whole(view: HistoryView) -> Iterator[Violation]:
    """The records of a batch are adjacent, or none of them is stored."""
    batches: dict[tuple[Place, str, str], list[RecordView]] = defaultdict(list)
    for record in view.records.values():
        if record.batch and record.sendings == 1 and record.place[0] not in view.dropped_at:
            batches[record.place, record.client, record.batch].append(record)
    passes: dict[Place, list[Pass]] = defaultdict(list)
    for each in view.passes:
        passes[each.place].append(each)
    for (place, client, batch), records in batches.items():
        made = view.topics.get(place[0])
        if len(records) == 1 or (made is not None and (made.is_compacted or made.may_expire)):
            continue
        records.sort(key=lambda record: record.number)
        placed = [
            (index, min(record.read_offsets)) for index, record in enumerate(records) if record.read_offsets
        ]
        if not placed:
            continue
        bases = {offset - index for index, offset in placed}
        if len(bases) > 1:
            yield Violation(
                Kind.TORN,
                f"batch {batch} of {client} stands at {[offset for _, offset in placed]}",
                *place,
                min(bases),
            )
            continue
        base = bases.pop()
        for index, record in enumerate(records):
            offset = base + index
            if record.read_offsets or offset < view.allowed_log_start(place, inf):
                continue
            if any(
                each.start <= offset < each.position and _may_see(view, record, each)
                for each in passes[place]
            ):
                yield _of(
                    record, Kind.TORN, f"only a part of batch {batch} of {client} is there", offset, 0.0
                )
                break


def bounds_only_grow(view: HistoryView) -> Iterator[Violation]:
    """Log start, high watermark and last stable offset never fall, and agree with the known records.

    Bounds from an agent's window may be as old as a window may be, but are not below what that agent returned before.
    """
    evidence: dict[Place, list[tuple[float, int]]] = defaultdict(list)
    for record in view.records.values():
        evidence[record.place].extend((record.acked_at, offset + 1) for offset in record.acked_offsets)
        evidence[record.place].extend((at, offset + 1) for offset, at in record.read_offsets.items())
    for place, bounds in view.bounds.items():
        made, dropped_at = view.topics.get(place[0]), view.dropped_at.get(place[0], inf)
        ordered = [seen for seen in sorted(bounds, key=lambda seen: seen.at) if seen.at < dropped_at]
        ends = evidence[place] + [(seen.at, seen.high_watermark) for seen in ordered]
        for name, known in (
            ("high_watermark", sorted(ends)),
            ("last_stable", [(seen.at, seen.last_stable) for seen in ordered]),
            ("log_start", [(seen.at, seen.log_start) for seen in ordered]),
        ):
            everywhere = _Highest(known)
            by_source = {
                source: _Highest(
                    [(seen.at, getattr(seen, name)) for seen in ordered if seen.source == source]
                )
                for source in {seen.source: None for seen in ordered}
            }
            for seen in ordered:
                told = getattr(seen, name)
                highest = max(everywhere.before(_true_at(seen)), by_source[seen.source].before(seen.asked))
                if 0 <= told < highest:
                    yield Violation(
                        Kind.BOUNDS_MOVED_BACK,
                        f"{seen.client} was told {name} {told} when it was known to be {highest}"
                        + (f", by {seen.source}" if seen.source else ""),
                        *place,
                        told,
                        at=seen.at,
                    )
        for seen in ordered:
            if 0 <= seen.high_watermark < max(seen.log_start, seen.last_stable):
                yield Violation(
                    Kind.BOUNDS_MOVED_BACK,
                    f"log start {seen.log_start} and last stable offset {seen.last_stable} are not below the "
                    f"high watermark {seen.high_watermark}",
                    *place,
                    at=seen.at,
                )
            allowed = view.allowed_log_start(place, seen.at)
            if seen.log_start > allowed and not (made is not None and (made.may_expire or made.is_compacted)):
                yield Violation(
                    Kind.UNASKED_DELETION,
                    f"the log starts at {seen.log_start}; deletion was asked up to {allowed}",
                    *place,
                    seen.log_start,
                    at=seen.at,
                )


def deleted_records_stay_deleted(view: HistoryView) -> Iterator[Violation]:
    """A reader that starts after a deletion was answered gets no deleted record."""
    for each in view.passes:
        gone = max(
            (
                moved.offset
                for moved in view.log_starts.get(each.place, ())
                if moved.is_done and moved.at < each.began_at - WINDOW_LAG_S
            ),
            default=0,
        )
        if each.offsets and each.offsets[0] < gone:
            yield Violation(
                Kind.DELETED_SEEN,
                f"{each.client} began after records below {gone} had been deleted and got {each.records[0]}",
                *each.place,
                each.offsets[0],
                each.records[0],
                each.began_at,
            )


# -- below: details ------------------------------------------------------------------------------------


def _true_at(seen: BoundsSeen) -> float:
    """Return since when at least the bounds hold: they must reflect what was known before then."""
    return seen.asked - (WINDOW_LAG_S if seen.source else 0.0)


class _Highest:
    """The highest of the offsets that became known over time."""

    def __init__(self, known: Sequence[tuple[float, int]]) -> None:
        self._times = [at for at, _ in known]
        self._highest = list(accumulate((offset for _, offset in known), max))

    def before(self, at: float) -> int:
        count = bisect_left(self._times, at)
        return self._highest[count - 1] if count else -1


def _of(record: RecordView, kind: Kind, message: str, offset: int, at: float) -> Violation:
    return Violation(kind, f"{record.identity}: {message}", *record.place, offset, record.identity, at)


def _order_in_time(stored: list[tuple[int, RecordView]]) -> Iterator[Violation]:
    earliest, by = inf, ""
    for offset, record in reversed(stored):
        if earliest < record.sent_at:
            yield _of(
                record,
                Kind.REORDERED,
                f"it stands before {by}, which had been acknowledged before this one was sent",
                offset,
                record.sent_at,
            )
            return
        if record.acked_at < earliest and offset in record.acked_offsets:
            earliest, by = record.acked_at, record.identity


def _may_see(view: HistoryView, record: RecordView, each: Pass) -> bool:
    """Return whether a pass would have to include the record if it were there."""
    transaction = view.transaction_of(record)
    return transaction is None or transaction.is_committed


def _is_gone(view: HistoryView, each: Pass) -> bool:
    return view.dropped_at.get(each.place[0], inf) <= each.last_at


def _must_be_seen(
    view: HistoryView, record: RecordView, offset: int, each: Pass, last_of_key: dict[tuple[Place, str], int]
) -> bool:
    transaction = view.transaction_of(record)
    if transaction is not None and not transaction.is_committed:
        return False
    if record.is_failed or record.place != each.place or _is_gone(view, each):
        return False
    if offset < view.allowed_log_start(each.place, each.last_at):
        return False
    made = view.topics.get(each.place[0])
    if made is not None and made.may_expire:
        return offset >= max((seen.log_start for seen in view.bounds.get(each.place, ())), default=0)
    if made is not None and made.is_compacted and record.key:
        return last_of_key.get((each.place, record.key), -1) <= offset
    return True


def _last_of_keys(view: HistoryView) -> dict[tuple[Place, str], int]:
    """Return the highest offset of each key, aborted or not. An aborted record replaces none, so this is lenient."""
    last: dict[tuple[Place, str], int] = {}
    for place, contents in view.contents.items():
        made = view.topics.get(place[0])
        if made is None or not made.is_compacted:
            continue
        for offset, identity in contents.items():
            record = view.records.get(identity)
            if record is not None and record.key:
                last[place, record.key] = max(last.get((place, record.key), -1), offset)
    return last


def _missed(view: HistoryView, record: RecordView, offset: int, each: Pass) -> Violation:
    transaction = view.transaction_of(record)
    elsewhere = sorted(record.read_offsets.keys() - {offset})
    if elsewhere and offset not in record.read_offsets:
        return _of(
            record,
            Kind.OFFSET_MOVED,
            f"acknowledged at {offset}, where {each.client} got nothing; read at {elsewhere}",
            offset,
            each.last_at,
        )
    if transaction is not None and any(other.committed_read_at < inf for other in transaction.records):
        return _of(
            record,
            Kind.PARTIAL_TRANSACTION,
            f"{each.client} passed it by, though transaction {transaction.name} is committed",
            offset,
            each.last_at,
        )
    evidence = "acknowledged" if record.is_acked else "read by another"
    return _of(
        record,
        Kind.LOST,
        f"{evidence} at {offset}; {each.client} read from {each.start} to {each.position} without it",
        offset,
        each.last_at,
    )
