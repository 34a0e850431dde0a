"""Rules of groups' positions: a fetched position was committed, and is not older than what was acknowledged before.

A position is a register, and its deletion a write of -1. A fetch may return a write if the write was asked before the
fetch was answered, and if no write that was asked after it had completed had itself completed when the fetch was asked.
A client may move a position back by committing a lower one: that is a write like any other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from math import inf

from tests.support.history.events import OffsetFetched
from tests.support.history.view import HistoryView, PositionWrite
from tests.support.history.violations import Kind, Violation


def learn_from_fetches(view: HistoryView) -> None:
    """Conclude that a write with an unknown outcome took effect, if a fetch returned a value that only it can have
    written."""
    for place, fetches in view.fetches.items():
        writes = view.writes.get(place, [])
        for fetch in fetches:
            able = [write for write in writes if _may_be(write, fetch)]
            if fetch.offset >= 0 and len(able) == 1 and able[0].done_at > fetch.at:
                able[0].done_at = fetch.at
                if able[0].transaction is not None:
                    able[0].transaction.was_seen_committed = True


def positions_are_what_was_committed(view: HistoryView) -> Iterator[Violation]:
    for (group, topic, partition), fetches in view.fetches.items():
        writes = [write for write in view.writes.get((group, topic, partition), ()) if not write.is_refused]
        done = sorted((write for write in writes if write.done_at < inf), key=lambda write: write.done_at)
        times = [write.done_at for write in done]
        newest = list(accumulate((write.asked_at for write in done), max))
        dropped_at = view.groups_dropped.get(group, inf)
        for fetch in fetches:
            count = bisect_left(times, fetch.asked)
            asked_last = newest[count - 1] if count else -inf
            if fetch.offset < 0 and (not count or dropped_at <= fetch.at or topic in view.dropped_at):
                continue
            if any(_may_be(write, fetch) and write.done_at >= asked_last for write in writes):
                continue
            ever = any(_may_be(write, fetch) for write in writes)
            before = max(done[:count], key=lambda write: write.asked_at).offset if count else -1
            is_back = fetch.offset < before and (ever or fetch.offset < 0)
            yield Violation(
                Kind.COMMITTED_OFFSET_MOVED_BACK if is_back else Kind.COMMITTED_OFFSET_WRONG,
                f"{fetch.client} was told that group {group} is at {fetch.offset}; {before} had been committed before"
                + ("" if ever or fetch.offset < 0 else f", {fetch.offset} never"),
                topic,
                partition,
                fetch.offset,
                at=fetch.at,
            )


def _may_be(write: PositionWrite, fetch: OffsetFetched) -> bool:
    return write.offset == fetch.offset and write.asked_at <= fetch.at and not write.is_refused
