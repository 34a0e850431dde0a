"""The states of the records of one partition in one share group (KIP-932), without I/O and clock.

    record      | who may have it                          | leaves this state when
    (untouched) | anybody: it is at or after `end`         | it is acquired, or skipped as no record for members
    AVAILABLE   | anybody                                  | it is acquired
    ACQUIRED    | its member, until the lock expires       | its member acknowledges it, or the lock expires
    REFUSED     | an agent, until the lock expires: it was | it is in the group's dead-letter topic
                | given up, and the group has such a topic |
    DONE        | nobody: accepted, given up, skipped, or  | never
                | not a record at all                      |

A record is given up when its member rejects it or when it was delivered too often.

Invariants:
- the spans cover [start, end) in order and without gaps; the first is not done, and neighbours differ;
- an acquired record belongs to one member until its lock expires;
- a done record stays done, and `start` never decreases;
- if the group has a dead-letter topic, a given-up record is done only when it is in that topic; it may be there twice;
- no record is delivered more often than the limit, and none is acquired for the first time while `end` is too far from
  `start` (`max_in_flight`).

Offsets are acquired, not records: if compaction left gaps, the member finds no record there and says so (GAP).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple, TypeVar

from sequencer.api.share_groups import (
    Acknowledged,
    AcknowledgeType,
    AcquiredRecords,
    AcquireSpan,
    ShareLimits,
)
from sequencer.store.rows import ShareLock


class SpanState(IntEnum):
    """The state of a record; the numbers are stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    DONE = 2
    REFUSED = 3


class Span(NamedTuple):
    """Offsets [first, end) in the same state. `deliveries`: how often they were delivered."""

    first: int
    end: int
    state: SpanState
    deliveries: int = 0
    lock: ShareLock | None = None

    def within(self, first: int, end: int) -> Span:
        """Return the part between two offsets; if there is none, its `first` is not before its `end`."""
        return self._replace(first=max(first, self.first), end=min(end, self.end))


class NotAcquired(Exception):
    """A member acknowledges records that it has not acquired or no longer holds."""


Change = Callable[[Span], Span]
L = TypeVar("L")
NO_LIMITS = ShareLimits()


@dataclass(slots=True)
class SharePartition:
    """The state of a share partition, with the group's limits and whether it has a dead-letter topic. Each call keeps
    the invariants, or raises and changes nothing."""

    start: int
    end: int
    spans: list[Span] = field(default_factory=list)
    limits: ShareLimits = NO_LIMITS
    has_dead_letters: bool = False

    def trim(self, log_start: int) -> None:
        """Mark everything below the log start as done."""
        if log_start > self.start:
            self.end = max(self.end, log_start)
            gone = [(self.start, log_start, True)]
            self._set(span for span, is_gone in _labelled(self.spans, gone) if not is_gone)

    def expire(self, now_ms: int) -> None:
        """Release records whose locks have expired. If the group has no dead-letter topic, mark records as done that
        wait for it."""
        self._change_all(
            lambda span: span.lock is not None and span.lock.until_ms <= now_ms,
            lambda span: (
                self._given_back(span) if span.state is SpanState.ACQUIRED else span._replace(lock=None)
            ),
        )
        if not self.has_dead_letters:
            self._change_all(lambda span: span.state is SpanState.REFUSED, _done)

    def release(self, member_id: str, session: int) -> None:
        """Release what a member holds in a session, or in all sessions if `session` is 0. The deliveries count, as in
        Kafka (KAFKA-19972): a record that every member crashes at is given up."""
        self._change_all(
            lambda span: (
                span.lock is not None
                and span.lock.member_id == member_id
                and session in (0, span.lock.session)
            ),
            self._given_back,
        )

    def acknowledge(self, acknowledged: Sequence[Acknowledged], lock: ShareLock) -> None:
        """Apply a member's acknowledgements of records that it holds; renewed records get `lock`. Offsets before
        `start` are done already. Raises NotAcquired."""
        if acknowledged and acknowledged[-1].last_offset >= max(self.start, self.end):
            raise NotAcquired(
                f"offset {acknowledged[-1].last_offset} is not acquired: no record from {self.end} on has been acquired"
            )
        changed: list[Span] = []
        stretches = (stretch for part in acknowledged for stretch in _stretches(part))
        for span, kind in _labelled(self.spans, stretches):
            if kind is None:
                changed.append(span)
            elif span.lock is None or span.lock.member_id != lock.member_id:
                raise NotAcquired(f"offset {span.first} is not acquired by {lock.member_id!r}")
            else:
                changed.append(self._acknowledged(span, kind, lock))
        self._set(changed)

    def refused(self, lock: ShareLock) -> list[AcquiredRecords]:
        """Let an agent write the given-up records; until the lock expires no other agent gets them."""
        waiting = [span for span in self.spans if span.state is SpanState.REFUSED and span.lock is None]
        self._change_all(
            lambda span: span.state is SpanState.REFUSED and span.lock is None,
            lambda span: span._replace(lock=lock),
        )
        return [AcquiredRecords(span.first, span.end - 1, span.deliveries) for span in waiting]

    def written(self, stretches: Iterable[tuple[int, int]]) -> None:
        """Mark records as done that are in the dead-letter topic."""
        labelled = _labelled(self.spans, ((first, end, True) for first, end in stretches))
        self._set(
            _done(span) if is_written and span.state is SpanState.REFUSED else span
            for span, is_written in labelled
        )

    def acquire(self, asked: AcquireSpan, lock: ShareLock) -> list[AcquiredRecords]:
        """Acquire available records among the offsets that were read, within the limits."""
        acquired: list[Span] = []
        left = asked.max_records
        spans: list[Span] = []
        read = _pieces(asked.first_offset, asked.end_offset, asked.skipped)
        for span, is_skipped in _labelled(self.spans, read):
            if is_skipped is None or span.state is not SpanState.AVAILABLE:
                spans.append(span)
            elif is_skipped:
                spans.append(_done(span))
            else:
                taken = _acquired(span.within(span.first, span.first + left), lock)
                left -= taken.end - taken.first
                spans += [part for part in (taken, span.within(taken.end, span.end)) if part.first < part.end]
                acquired += [taken] if taken.first < taken.end else []
        self._set(spans)
        acquired += self._acquire_new(asked, left, lock)
        return [AcquiredRecords(span.first, span.end - 1, span.deliveries) for span in _merged(acquired)]

    def _acquire_new(self, asked: AcquireSpan, left: int, lock: ShareLock) -> list[Span]:
        """Acquire offsets that were never acquired, in order, from `end` on."""
        new: list[Span] = []
        acquired: list[Span] = []
        oldest = self.spans[:1]
        if asked.first_offset > self.end:
            return acquired  # the offsets in between were not read
        for first, end, is_skipped in _pieces(self.end, asked.end_offset, asked.skipped):
            room = self.limits.max_in_flight - (first - oldest[0].first if oldest else 0)
            if room <= 0 or (left <= 0 and not is_skipped):
                break
            if is_skipped:
                new.append(Span(first, end, SpanState.DONE))
                continue
            taken = Span(
                first=first,
                end=min(end, first + min(room, left)),
                state=SpanState.ACQUIRED,
                deliveries=1,
                lock=lock,
            )
            new.append(taken)
            acquired.append(taken)
            oldest = oldest or acquired
            left -= taken.end - taken.first
            if taken.end < end:
                break
        if new:
            self.end = new[-1].end
            self._set([*self.spans, *new])
        return acquired

    def available(self) -> tuple[int, int] | None:
        """Return the first range that could be acquired, as far as the log has it; None while the window is full."""
        first = next((span.first for span in self.spans if span.state is SpanState.AVAILABLE), self.end)
        end = first
        for span in self.spans:
            if span.first == end and span.state is SpanState.AVAILABLE:
                end = span.end
        if end == self.end:
            end = max(end, self.start + self.limits.max_in_flight)
        return (first, end) if first < end else None

    @property
    def done_after_start(self) -> int:
        """Number of done offsets at or after `start`."""
        return sum(span.end - span.first for span in self.spans if span.state is SpanState.DONE)

    def _given_back(self, span: Span) -> Span:
        is_given_up = span.deliveries >= self.limits.max_deliveries
        return self._given_up(span) if is_given_up else _available(span, span.deliveries)

    def _given_up(self, span: Span) -> Span:
        return span._replace(state=SpanState.REFUSED, lock=None) if self.has_dead_letters else _done(span)

    def _acknowledged(self, span: Span, kind: AcknowledgeType, lock: ShareLock) -> Span:
        match kind:
            case AcknowledgeType.RENEW:
                return span._replace(lock=lock)
            case AcknowledgeType.RELEASE:
                return self._given_back(span)
            case AcknowledgeType.REJECT:
                return self._given_up(span)
        return _done(span)

    def _change_all(self, is_meant: Callable[[Span], bool], change: Change) -> None:
        if any(map(is_meant, self.spans)):
            self._set([change(span) if is_meant(span) else span for span in self.spans])

    def _set(self, spans: Iterable[Span]) -> None:
        """Take over these spans: merge equal neighbours, and remove done spans at the front."""
        merged = _merged(spans)
        while merged and merged[0].state is SpanState.DONE:
            del merged[0]
        self.spans = merged
        self.start = merged[0].first if merged else self.end


def _available(span: Span, deliveries: int) -> Span:
    return span._replace(state=SpanState.AVAILABLE, deliveries=deliveries, lock=None)


def _done(span: Span) -> Span:
    return Span(span.first, span.end, SpanState.DONE)


def _acquired(span: Span, lock: ShareLock) -> Span:
    return span._replace(state=SpanState.ACQUIRED, deliveries=span.deliveries + 1, lock=lock)


def _stretches(acknowledged: Acknowledged) -> Iterator[tuple[int, int, AcknowledgeType]]:
    """Yield ranges with the same acknowledgement, as first offset, end and type."""
    first, end = acknowledged.first_offset, acknowledged.last_offset + 1
    if len(acknowledged.types) == 1:
        yield first, end, acknowledged.types[0]
        return
    for kind, alike in groupby(acknowledged.types):
        count = len(list(alike))
        yield first, first + count, kind
        first += count


def _labelled(
    spans: Iterable[Span], stretches: Iterable[tuple[int, int, L]]
) -> Iterator[tuple[Span, L | None]]:
    """Cut the spans where the ranges begin and end; yield each piece with the label of its range, or None. Both inputs
    are in order and are read once."""
    rest = iter(stretches)
    stretch = next(rest, None)
    for span in spans:
        first = span.first
        while stretch is not None and stretch[0] < span.end:
            begin, end = max(stretch[0], first), min(stretch[1], span.end)
            if first < begin < end:
                yield span.within(first, begin), None
            if begin < end:
                yield span.within(begin, end), stretch[2]
                first = end
            if stretch[1] > span.end:
                break
            stretch = next(rest, None)
        if first < span.end:
            yield span.within(first, span.end), None


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for span in spans:
        if merged and merged[-1].end == span.first and merged[-1][2:] == span[2:]:
            merged[-1] = merged[-1]._replace(end=span.end)
        else:
            merged.append(span)
    return merged


def _pieces(first: int, end: int, skipped: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
    """Yield [first, end) in pieces, cut where skipped ranges begin and end; the flag says whether a piece is
    skipped."""
    for skip_first, skip_end in skipped:
        if skip_end <= first:
            continue
        if skip_first >= end:
            break
        if skip_first > first:
            yield first, skip_first, False
            first = skip_first
        yield first, min(skip_end, end), True
        first = min(skip_end, end)
    if first < end:
        yield first, end, False
