"""A window: the newest runs of one partition, and its bounds, as of one commit number.

Invariants:
- the runs are adjacent, and end at the high watermark;
- no bound falls, and the commit number rises, from one change to the next;
- the aborted ranges are all those that end within the runs, as of the same commit.

A change that would break one of these is refused: WindowOutOfSync. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from sequencer.api.reads import AbortedTransaction, FoundPartition, PartitionChange, PartitionError, Run
from sequencer.bounds import run_bytes

MAX_WINDOW_RUNS = 256
MAX_WINDOW_BYTES = 256 * 1024
"""Encoded bytes of the runs that a window keeps; the newest run is always kept."""

_base_offset = attrgetter("base_offset")


class WindowOutOfSync(Exception):
    """A change does not follow the previous ones: a change was lost, or this one is from another committer."""


class SubscriptionEnded(WindowOutOfSync):
    """There is a new committer, or the committer has dropped the subscription. A new subscription must begin."""


@dataclass(frozen=True, slots=True)
class Window:
    """See the module. `commit_number`: that of the last change. `size`: encoded bytes of the runs."""

    commit_number: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    runs: tuple[Run, ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    size: int = 0

    @property
    def start_offset(self) -> int:
        """The first offset that the runs cover, or the high watermark if there are no runs."""
        return self.runs[0].base_offset if self.runs else self.high_watermark


def begin(change: PartitionChange) -> Window:
    """Return the first window of a subscription. Raises WindowOutOfSync."""
    runs = change.runs
    _check_adjacent(runs, runs[0].base_offset if runs else change.high_watermark, change.high_watermark)
    return _window(change, tuple(runs), tuple(change.aborted))


def follow(window: Window, change: PartitionChange) -> Window:
    """Return the window after one more change. Raises WindowOutOfSync."""
    if change.commit_number <= window.commit_number:
        raise WindowOutOfSync(f"commit {change.commit_number} after {window.commit_number}")
    for name in ("log_start_offset", "high_watermark", "last_stable_offset"):
        if getattr(change, name) < getattr(window, name):
            raise WindowOutOfSync(f"{name} fell from {getattr(window, name)} to {getattr(change, name)}")
    _check_adjacent(change.runs, window.high_watermark, change.high_watermark)
    kept = [
        run
        for run in window.runs
        if run.base_offset >= change.replaced_below and run.end_offset > change.log_start_offset
    ]
    return _window(change, (*kept, *change.runs), (*window.aborted, *change.aborted))


def emptied(window: Window) -> Window:
    """Return the window without its runs. Its bounds stay."""
    return replace(window, runs=(), aborted=(), size=0)


def find(window: Window, offset: int, max_bytes: int) -> FoundPartition | None:
    """Return the answer that the sequencer would give for this offset. Return None if the offset is neither in the
    window nor at its end."""
    if not max(window.start_offset, window.log_start_offset) <= offset <= window.high_watermark:
        return None
    runs: list[Run] = []
    left_bytes = max_bytes
    if offset < window.high_watermark:
        for run in window.runs[bisect_right(window.runs, offset, key=_base_offset) - 1 :]:
            runs.append(run)
            left_bytes -= run.length
            if left_bytes <= 0:
                break
    end_offset = runs[-1].end_offset if runs else offset
    return FoundPartition(
        error=PartitionError.NONE,
        log_start_offset=window.log_start_offset,
        high_watermark=window.high_watermark,
        last_stable_offset=window.last_stable_offset,
        leader_epoch=window.leader_epoch,
        runs=runs,
        aborted=[
            aborted
            for aborted in window.aborted
            if aborted.first_offset < end_offset and aborted.last_offset >= offset
        ],
    )


def _check_adjacent(runs: Sequence[Run], begin_offset: int, end_offset: int) -> None:
    at = begin_offset
    for run in runs:
        if run.base_offset != at:
            raise WindowOutOfSync(f"a run begins at {run.base_offset}, but the runs before it end at {at}")
        at = run.end_offset
    if at != end_offset:
        raise WindowOutOfSync(f"the runs end at {at}, the partition at {end_offset}")


def _window(
    change: PartitionChange, runs: tuple[Run, ...], aborted: tuple[AbortedTransaction, ...]
) -> Window:
    runs, size = _newest(runs)
    start_offset = runs[0].base_offset if runs else change.high_watermark
    return Window(
        commit_number=change.commit_number,
        log_start_offset=change.log_start_offset,
        high_watermark=change.high_watermark,
        last_stable_offset=change.last_stable_offset,
        leader_epoch=change.leader_epoch,
        runs=runs,
        aborted=tuple(transaction for transaction in aborted if transaction.last_offset >= start_offset),
        size=size,
    )


def _newest(runs: tuple[Run, ...]) -> tuple[tuple[Run, ...], int]:
    """Return the newest runs that fit into a window, and their encoded bytes."""
    size, first = 0, len(runs)
    while first > 0 and len(runs) - first < MAX_WINDOW_RUNS:
        more = run_bytes(runs[first - 1])
        if first < len(runs) and size + more > MAX_WINDOW_BYTES:
            break
        first, size = first - 1, size + more
    return runs[first:], size
