"""All windows of an agent: which partitions its clients read, and what is known of each.

The rules, without I/O: the caller sends `next_request`, passes the answer to `apply`, and passes the time in seconds.

- A partition is watched from the time a fetch reaches its end until no client has read it for IDLE_S.
- A window answers only while it is fresh: the last answered call was sent at most FRESH_S ago. So an answer was true
  when the fetch arrived, or at most FRESH_S before.
- Until a partition has its window, the sequencer's last answer about its end serves further fetches there, for FRESH_S
  after it was asked for (`EmptyAnswer`). So while many agents wait for their windows, fetches that find nothing do not
  crowd out the calls that bring the windows.
- A client that has the acknowledgement of this agent for a batch finds it: a fetch that waits no longer is not answered
  from a window that ends before the batch.
- A client that has this agent's answer to DeleteRecords reads none of these records: no window with an earlier log
  start answers.
- Answers never go back. A window whose commit number is below that of an answer already given for its partition does
  not answer until it has caught up.
- After a reset, a new term of the committer, or a change that does not follow the previous ones, all windows are
  dropped and a new subscription begins.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from agent.fetch.window import SubscriptionEnded, Window, WindowOutOfSync, begin, emptied, find, follow
from sequencer.api.reads import FoundPartition, PartitionChange, PartitionError, WatchAnswer, WatchRequest
from tailrace.ids import TopicPartition

IDLE_S = 60.0
FRESH_S = 2.0
"""More than three calls of an idle subscription take."""
REFUSED_S = 10.0
"""How long the agent waits before it asks again to watch a partition that the sequencer refused."""
MAX_WINDOWS = 20_000
ADDED_AT_ONCE = 1_000
"""The most partitions that one call adds, and the most that it removes."""
ADDED_AT_FIRST = 16
"""Partitions added by a subscription's first call. After a failover all agents add all their partitions, and a
committer needs some 20 us for each: it must answer the first calls of all agents before they time out."""
PROMPT_S = FRESH_S / 2
"""If adding took no longer than this, the next call adds twice as many partitions, otherwise half as many. So windows
stay fresh while more are added."""
MAX_WINDOWS_BYTES = 64 * 1024 * 1024
"""The limit of all windows' runs, in encoded bytes. In memory they take about three times as much."""


@dataclass(frozen=True, slots=True)
class EmptyAnswer:
    """The sequencer's answer that nothing follows `offset`, as of a commit. `until`: when it expires."""

    offset: int
    found: FoundPartition
    number: int
    until: float

    @classmethod
    def of(cls, offset: int, found: FoundPartition, number: int, *, asked_at: float) -> EmptyAnswer | None:
        """Return the reusable answer to a request sent at `asked_at`; None if it has something to send."""
        if found.error is not PartitionError.NONE or found.runs or offset != found.high_watermark:
            return None
        return cls(offset, found, number, asked_at + FRESH_S)


@dataclass(slots=True)
class _WatchedPartition:
    """`last_sent`: the commit number of the newest answer for this partition. `readers`: how many fetches wait for it.
    `is_added`: whether the sequencer was asked to watch it. `nothing`: the answer to fetches at its end until it has a
    window. `stored_end`: the end of the batches that this agent stored there. `deleted_end`: the end of the records
    that were deleted through this agent."""

    read_at: float
    last_sent: int
    window: Window | None = None
    is_added: bool = False
    readers: int = 0
    nothing: EmptyAnswer | None = None
    stored_end: int = 0
    deleted_end: int = 0


class Windows:
    """See the module. `subscriber`: the id of the first subscription."""

    def __init__(self, subscriber: UUID) -> None:
        self._watched: OrderedDict[TopicPartition, _WatchedPartition] = OrderedDict()
        """The least recently read partition first."""
        self._subscriber = subscriber
        self._turn = 0
        self._epoch: int | None = None
        self._taken = 0
        self._commit_number = -1
        self._newest_sent = -1
        self._fresh_until = 0.0
        self._size = 0
        self._to_add: dict[TopicPartition, None] = {}
        self._added_at_once = ADDED_AT_FIRST
        self._refused: OrderedDict[TopicPartition, float] = OrderedDict()
        """Refused partitions, each with the time of the next attempt; the first refused first."""

    @property
    def count(self) -> int:
        """How many partitions are watched, or will be."""
        return len(self._watched)

    @property
    def has_additions(self) -> bool:
        """Whether the next call adds partitions to the subscription."""
        return bool(self._to_add)

    @property
    def commit_number(self) -> int:
        """The commit up to which the windows are complete."""
        return self._commit_number

    def live(self) -> dict[TopicPartition, Window]:
        """Return the windows, fresh or not."""
        return {
            partition: watched.window
            for partition, watched in self._watched.items()
            if watched.window is not None
        }

    # --- for fetches

    def find(
        self, partition: TopicPartition, offset: int, max_bytes: int, now: float, *, is_last: bool = False
    ) -> tuple[FoundPartition, int] | None:
        """Return the window's answer for this offset and its commit number, or without a window the kept `EmptyAnswer`;
        None if the sequencer must be asked. `is_last`: the fetch waits no longer."""
        watched = self._watched.get(partition)
        if watched is None:
            return None
        answer = self._find(watched, partition, offset, max_bytes=max_bytes, now=now)
        if answer is not None and answer[0].log_start_offset < watched.deleted_end:
            return None
        if answer is not None and is_last and answer[0].high_watermark < watched.stored_end:
            return None
        return answer

    def _find(
        self, watched: _WatchedPartition, partition: TopicPartition, offset: int, max_bytes: int, now: float
    ) -> tuple[FoundPartition, int] | None:
        watched.read_at = now
        self._watched.move_to_end(partition)
        window, nothing = self._usable(watched, now), watched.nothing
        if window is None and nothing is not None:
            is_good = (
                nothing.offset == offset and now <= nothing.until and watched.last_sent <= nothing.number
            )
            return (nothing.found, nothing.number) if is_good else None
        answer = None if window is None else find(window, offset, max_bytes)
        if window is None or answer is None:
            return None
        watched.last_sent = self._number_of(window)
        return answer, watched.last_sent

    def note_stored(self, partition: TopicPartition, end_offset: int) -> None:
        """Note that this agent has stored batches up to `end_offset`, before their producers are answered."""
        watched = self._watched.get(partition)
        if watched is not None and end_offset > watched.stored_end:
            watched.stored_end = end_offset

    def note_deleted(self, partition: TopicPartition, log_start_offset: int) -> None:
        """Note that records below this offset were deleted through this agent, before the client is answered."""
        watched = self._watched.get(partition)
        if watched is not None and log_start_offset > watched.deleted_end:
            watched.deleted_end = log_start_offset

    def note_sent(self, partition: TopicPartition, number: int) -> None:
        """Note the commit number of the sequencer's answer about a partition."""
        self._newest_sent = max(self._newest_sent, number)
        watched = self._watched.get(partition)
        if watched is not None:
            watched.last_sent = max(watched.last_sent, number)

    def want(self, partition: TopicPartition, now: float, nothing: EmptyAnswer | None = None) -> None:
        """Start to watch a partition after a fetch that the sequencer answered reached its end. `nothing`: if the fetch
        began at the end.

        Earlier answers for this partition were not kept. So its window does not answer until it has reached the newest
        answer for any partition: a follower that reads the database may be ahead of the committer.
        """
        while self._refused and next(iter(self._refused.values())) <= now:
            self._refused.popitem(last=False)
        may_add = partition not in self._refused and len(self._watched) < MAX_WINDOWS
        if may_add and partition not in self._watched:
            self._watched[partition] = _WatchedPartition(now, self._newest_sent)
            self._to_add[partition] = None
        if (watched := self._watched.get(partition)) is not None:
            watched.nothing = nothing

    def is_changed(self, partition: TopicPartition, number: int, now: float) -> bool:
        """Whether the partition is known to have changed after commit `number`."""
        watched = self._watched.get(partition)
        window = None if watched is None else self._usable(watched, now)
        return window is not None and window.commit_number > number

    def is_live(self, partition: TopicPartition, now: float) -> bool:
        """Whether the windows will report changes of the partition."""
        watched = self._watched.get(partition)
        return watched is not None and self._usable(watched, now) is not None

    def count_reader(self, partition: TopicPartition, by: int) -> None:
        """Count a fetch that begins (1) or ends (-1) to wait for the partition."""
        watched = self._watched.get(partition)
        if watched is not None:
            watched.readers = max(0, watched.readers + by)

    def _usable(self, watched: _WatchedPartition, now: float) -> Window | None:
        window = watched.window
        if window is None or now > self._fresh_until or watched.last_sent > self._number_of(window):
            return None
        return window

    def _number_of(self, window: Window) -> int:
        """Return the commit number as of which the window is true. An answer of the subscription may end within the
        window's last commit; then the window's own number is the higher one."""
        return max(window.commit_number, self._commit_number)

    # --- the subscription

    def next_request(self, now: float, max_wait_ms: int) -> WatchRequest:
        removed = self._drop_idle(now)
        added = list(islice(self._to_add, self._added_at_once))
        for partition in added:
            del self._to_add[partition]
            self._watched[partition].is_added = True
        if added or removed or self._turn == 0:
            self._turn += 1
        return WatchRequest(
            subscriber=self._subscriber,
            turn=self._turn,
            taken=self._taken,
            added=[*added],
            removed=[*removed],
            max_wait_ms=max_wait_ms,
        )

    def note_added(self, seconds: float) -> None:
        """Note how long a call that added partitions took."""
        if seconds <= PROMPT_S:
            self._added_at_once = min(2 * self._added_at_once, ADDED_AT_ONCE)
        else:
            self._added_at_once = max(self._added_at_once // 2, ADDED_AT_FIRST)

    def _drop_idle(self, now: float) -> list[TopicPartition]:
        """Drop partitions that no client reads any more. Return those that the sequencer watches: the same call removes
        them, so that none is added again before it is removed."""
        removed: list[TopicPartition] = []
        while self._watched and len(removed) < ADDED_AT_ONCE:
            partition, watched = next(iter(self._watched.items()))
            if watched.read_at > now - IDLE_S:
                break
            if watched.readers:
                watched.read_at = now
                self._watched.move_to_end(partition)
                continue
            if watched.is_added:
                removed.append(partition)
            self._leave(partition)
        return removed

    def _leave(self, partition: TopicPartition) -> None:
        self._put(self._watched.pop(partition), None)
        self._to_add.pop(partition, None)

    def apply(self, answer: WatchAnswer, sent_at: float) -> list[TopicPartition]:
        """Apply the answer to a call that was sent at `sent_at`. Return the partitions whose windows changed.

        Raises WindowOutOfSync; then call `restart`.
        """
        self._check(answer)
        self._epoch = answer.epoch
        changed: list[TopicPartition] = []
        for change in answer.changes:
            partition = TopicPartition(change.topic_id, change.partition)
            self._taken += 1
            watched = self._watched.get(partition)
            if watched is not None and self._changed(partition, watched, change, sent_at):
                changed.append(partition)
        self._commit_number = answer.commit_number
        self._fresh_until = sent_at + FRESH_S
        self._shrink()
        return changed

    def _check(self, answer: WatchAnswer) -> None:
        if answer.is_reset:
            raise SubscriptionEnded("the sequencer does not know this subscription")
        if self._epoch is not None and answer.epoch != self._epoch:
            raise SubscriptionEnded(f"the committer's epoch is {answer.epoch}, it was {self._epoch}")
        if answer.taken != self._taken:
            raise WindowOutOfSync(f"the changes start at {answer.taken}, but {self._taken} was expected")
        if answer.commit_number < self._commit_number:
            raise WindowOutOfSync(
                f"the commit number fell from {self._commit_number} to {answer.commit_number}"
            )

    def _changed(
        self, partition: TopicPartition, watched: _WatchedPartition, change: PartitionChange, now: float
    ) -> bool:
        if change.is_gone:
            self._leave(partition)
            self._refused[partition] = now + REFUSED_S
        elif change.is_start:
            self._put(watched, begin(change))
            watched.nothing = None
        elif watched.window is not None:
            self._put(watched, follow(watched.window, change))
        else:
            return False  # dropped and wanted again: its new start is on the way
        return True

    def _put(self, watched: _WatchedPartition, window: Window | None) -> None:
        self._size += (0 if window is None else window.size) - (
            0 if watched.window is None else watched.window.size
        )
        watched.window = window

    def _shrink(self) -> None:
        """Empty the least recently read windows until all together are within three quarters of the limit."""
        if self._size <= MAX_WINDOWS_BYTES:
            return
        for watched in self._watched.values():
            if watched.window is not None and watched.window.runs:
                self._put(watched, emptied(watched.window))
            if self._size <= MAX_WINDOWS_BYTES * 3 // 4:
                break

    def restart(self, subscriber: UUID) -> None:
        """Drop all windows and subscribe again to the same partitions."""
        self._subscriber = subscriber
        self._added_at_once = ADDED_AT_FIRST
        self._turn = self._taken = 0
        self._epoch = None
        self._commit_number = -1
        self._fresh_until = 0.0
        for partition, watched in self._watched.items():
            self._put(watched, None)
            watched.is_added = False
            self._to_add[partition] = None
