"""Subscriptions to partitions: what each subscriber watches, and the changes that it has not taken yet.

Invariants:
- a subscriber is sent every change of its partitions, once, in commit order, and nothing of other partitions;
- a change stays queued until the subscriber confirms it, so a lost answer loses nothing;
- a queue is bounded in bytes. A subscriber that is too slow for the bound, silent for SILENCE_S, or of another term
  is dropped as a whole and told so by its next call: changes are never left out;
- a dropped subscription never begins again in its term, whatever copy of its first call comes late: its subscriber
  would go on in it without what was committed between. In another term the epoch tells the subscriber.

A commit costs as much as its partitions have subscribers, and is queued in as many turns of the loop as that takes. A
subscriber that is answered in between gets a part of the commit's changes, and a commit number below it. Who is dropped
is unwatched some partitions at a time: agents fall silent together, with a million partitions. All runs on one loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from sequencer.api import (
    AbortedTransaction,
    InvalidRequest,
    PartitionChange,
    Run,
    SequencerOverloaded,
    WatchAnswer,
    WatchRequest,
)
from sequencer.bounds import ABORTED_BYTES, MAX_ANSWER_BYTES, MAX_ANSWER_RUNS, MAX_PAGE, run_bytes
from sequencer.reading.recent_runs import RecentRuns
from sequencer.settings import SequencerSettings
from sequencer.store.rows import PartitionRow
from sequencer.store.state import COMMIT_NUMBER, HotState
from tailrace.clock import Clock, wait_for
from tailrace.ids import TopicPartition
from tailrace.turns import Steps

SILENCE_S = 10.0
"""A subscriber that is silent for this long is dropped: many times the pause between its calls."""
OVER_S = 600.0
"""For so long after its end a dropped subscription is known to be over: much longer than a call is under way."""
MAX_START_BYTES = 1 << 16
"""Encoded bytes of the first runs of a window."""
MAX_START_RUNS = 256
UNWATCHED_AT_ONCE = MAX_PAGE
"""Partitions of dropped subscribers that one call or commit unwatches: as many as a call adds."""
CHANGE_AS_QUEUED = 10
"""A change takes as long to make as to queue for so many subscribers: some 3 us."""
_CHANGE_BYTES = 120


@dataclass(slots=True, eq=False)
class _Subscriber:
    """`last_sent`: the commit number of its last answer. `size`: of `changes`, which begin after the first `taken`."""

    subscriber_id: UUID
    turn: int = 0
    taken: int = 0
    last_sent: int = 0
    heard: float = 0.0
    size: int = 0
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    changes: deque[tuple[PartitionChange, int]] = field(default_factory=deque)
    woken: asyncio.Future[None] | None = None
    is_forgotten: bool = False

    def wake(self) -> None:
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)

    def take(self, taken: int) -> bool:
        """Drop what the subscriber has taken. False if it claims more than it was sent."""
        if not self.taken <= taken <= self.taken + len(self.changes):
            return False
        while self.taken < taken:
            _, size = self.changes.popleft()
            self.size -= size
            self.taken += 1
        return True


class Subscriptions:
    """All subscribers of one committer's term."""

    def __init__(self, clock: Clock, settings: SequencerSettings, recent: RecentRuns) -> None:
        self._clock = clock
        self._settings = settings
        self._recent = recent
        self._state: HotState | None = None
        self._epoch = 0
        self._number = 0
        """The newest commit whose changes are all queued."""
        self._shown = 0
        """The newest commit that the state shows."""
        self._subscribers: OrderedDict[UUID, _Subscriber] = OrderedDict()
        """The least recent caller first."""
        self._watching: dict[TopicPartition, dict[_Subscriber, int]] = {}
        """Who watches a partition, and the commit that was shown when it began."""
        self._count = 0
        self._forgotten: deque[_Subscriber] = deque()
        """Those that were dropped and still stand under some partitions."""
        self._over: OrderedDict[UUID, float] = OrderedDict()
        """Subscriptions of this term that were dropped, and when; the earliest first."""

    @property
    def count(self) -> int:
        """Watched partitions, counted once for each subscriber."""
        return self._count

    def restart(self, state: HotState, epoch: int) -> None:
        """Follow a state that was just loaded. Subscriptions continue only if no commit came between."""
        number = state.counter(COMMIT_NUMBER)
        if (epoch, number) != (self._epoch, self._number):
            for subscriber in list(self._subscribers.values()):
                self._forget(subscriber)
        if epoch != self._epoch:
            self._over.clear()
        self._state, self._epoch, self._number, self._shown = state, epoch, number, number

    def wake_all(self) -> None:
        """Answer every waiting call with the changes so far."""
        for subscriber in self._subscribers.values():
            subscriber.wake()

    def publish(
        self,
        number: int,
        runs: Mapping[TopicPartition, Sequence[Run]],
        replaced: Mapping[TopicPartition, int],
    ) -> Steps[None]:
        """Queue what a commit changed for those who watch its partitions, from the turn on in which the state shows it.
        It ends before the state changes again. Pauses after each partition, with what that took in queued changes.

        `replaced`: the offsets below which it replaced runs.
        """
        if number == self._number:
            return
        self._shown = number
        self._forget_silent()
        self._unwatch_forgotten()
        changed, watched = runs.keys(), self._watching.keys()
        fewer, more = (changed, watched) if len(changed) < len(watched) else (watched, changed)
        for partition in [partition for partition in fewer if partition in more]:
            yield self._queue_for_all(partition, runs[partition], replaced.get(partition, -1))
        self._number = number

    def _queue_for_all(self, partition: TopicPartition, runs: Sequence[Run], replaced_below: int) -> int:
        """Queue a partition's change for those who did not begin with it. Returns what that took, in queued changes."""
        watching = [
            agent for agent, began in self._watching.get(partition, {}).items() if began < self._shown
        ]
        if not watching:
            return 1
        change = self._change_of(partition, runs, replaced_below)
        size = _size_of(change)
        for subscriber in watching:
            self._queue(subscriber, change, size)
            if change.is_gone:
                self._unwatch(subscriber, partition)
        return CHANGE_AS_QUEUED + len(watching)

    async def watch(self, request: WatchRequest, max_wait_ms: int) -> WatchAnswer:
        """The answer to one call of a subscriber: waits until there is something to say, or until the time is over.

        Raises SequencerOverloaded: too many subscribers.
        """
        self._forget_silent()
        self._unwatch_forgotten()
        subscriber = self._caller(request)
        if subscriber is None:
            return self._reset(request)
        if request.turn == subscriber.turn + 1:
            subscriber.turn = request.turn
            self._change_subscription(subscriber, request)
        if not subscriber.changes and not subscriber.is_forgotten and max_wait_ms > 0:
            subscriber.wake()
            woken = subscriber.woken = asyncio.get_running_loop().create_future()
            await wait_for(self._clock, woken, min(max_wait_ms / 1000, SILENCE_S / 2))
        return self._reset(request) if subscriber.is_forgotten else self._answer(subscriber)

    def _caller(self, request: WatchRequest) -> _Subscriber | None:
        """Who calls, if it is known and the call continues what it said before."""
        subscriber = self._subscribers.get(request.subscriber)
        if subscriber is None:
            if request.turn != 1 or request.taken != 0 or request.subscriber in self._over:
                return None
            if len(self._subscribers) >= self._settings.max_feed_waiters:
                raise SequencerOverloaded(f"{len(self._subscribers)} subscribers (max_feed_waiters)")
            subscriber = _Subscriber(request.subscriber, last_sent=self._number)
            self._subscribers[request.subscriber] = subscriber
        if not 0 <= request.turn - subscriber.turn <= 1 or not subscriber.take(request.taken):
            return None
        subscriber.heard = self._clock.monotonic()
        self._subscribers.move_to_end(request.subscriber)
        return subscriber

    def _reset(self, request: WatchRequest) -> WatchAnswer:
        return WatchAnswer(
            epoch=self._epoch, commit_number=self._number, taken=request.taken, changes=[], is_reset=True
        )

    def _answer(self, subscriber: _Subscriber) -> WatchAnswer:
        changes: list[PartitionChange] = []
        number, size, runs = self._number, 0, 0
        for change, change_size in subscriber.changes:
            if changes and (size + change_size > MAX_ANSWER_BYTES or runs >= MAX_ANSWER_RUNS):
                # What follows of the same commit is not in this answer.
                number = max(subscriber.last_sent, change.commit_number - 1)
                break
            changes.append(change)
            size += change_size
            runs += len(change.runs)
        subscriber.last_sent = number
        return WatchAnswer(
            epoch=self._epoch,
            commit_number=number,
            taken=subscriber.taken,
            changes=changes,
            pause_ms=1000 * len(self._subscribers) // self._settings.max_watch_calls_per_second,
        )

    # --- what is watched

    def _change_subscription(self, subscriber: _Subscriber, request: WatchRequest) -> None:
        if max(len(request.added), len(request.removed)) > MAX_PAGE:
            self._forget(subscriber)
            raise InvalidRequest(f"a call changes the subscription to at most {MAX_PAGE} partitions")
        for removed in request.removed:
            self._unwatch(subscriber, TopicPartition(*removed))
        for added in request.added:
            partition = TopicPartition(*added)
            if subscriber.is_forgotten:
                return  # what its first partitions need is more than it may have
            if partition not in subscriber.partitions:
                change = self._begin(subscriber, partition)
                self._queue(subscriber, change, _size_of(change))

    def _begin(self, subscriber: _Subscriber, partition: TopicPartition) -> PartitionChange:
        """Watch a partition from now on; its first change says where its window begins."""
        settings = self._settings
        is_room = (
            len(subscriber.partitions) < settings.max_watched_partitions
            and self._count < settings.max_subscriptions
        )
        assert self._state is not None, "restart comes first"
        row = self._state.live_partition(*partition)
        if row is None or not is_room:
            return self._gone(partition)
        subscriber.partitions[partition] = None
        self._watching.setdefault(partition, {})[subscriber] = self._shown
        self._count += 1
        return self._bounds_of(row, self._unstable_runs(row), is_start=True)

    def _unstable_runs(self, row: PartitionRow) -> list[Run]:
        """The runs from the last stable offset on, where they are in memory: those who read committed stand there."""
        assert self._state is not None, "restart comes first"
        stable = self._state.last_stable_offset(row)
        recent = self._recent.find(
            topic_id=row.topic_id,
            partition=row.partition,
            offset=stable,
            max_bytes=1 << 62,
            max_runs=MAX_START_RUNS,
        )
        if recent is None or recent.end_offset != row.end_offset:
            return []
        return recent.runs if recent.sizes[-1] - recent.sizes[0] <= MAX_START_BYTES else []

    def _unwatch(self, subscriber: _Subscriber, partition: TopicPartition) -> None:
        if partition not in subscriber.partitions:
            return
        del subscriber.partitions[partition]
        self._count -= not subscriber.is_forgotten
        watching = self._watching[partition]
        del watching[subscriber]
        if not watching:
            del self._watching[partition]

    # --- what is queued

    def _queue(self, subscriber: _Subscriber, change: PartitionChange, size: int) -> None:
        if subscriber.is_forgotten:
            return
        subscriber.changes.append((change, size))
        subscriber.size += size
        if subscriber.size > self._settings.max_subscriber_bytes:
            self._forget(subscriber)
        else:
            subscriber.wake()

    def _change_of(
        self, partition: TopicPartition, runs: Sequence[Run], replaced_below: int
    ) -> PartitionChange:
        assert self._state is not None, "restart comes first"
        row = self._state.live_partition(*partition)
        if row is None:
            return self._gone(partition)
        return self._bounds_of(row, runs, replaced_below=replaced_below)

    def _gone(self, partition: TopicPartition) -> PartitionChange:
        return PartitionChange(
            topic_id=partition.topic_id,
            partition=partition.partition,
            commit_number=self._shown,
            is_gone=True,
        )

    def _bounds_of(
        self, row: PartitionRow, runs: Sequence[Run], *, replaced_below: int = -1, is_start: bool = False
    ) -> PartitionChange:
        state = self._state
        assert state is not None, "restart comes first"
        aborted = state.aborted_from(row.topic_id, row.partition, runs[0].base_offset) if runs else ()
        return PartitionChange(
            topic_id=row.topic_id,
            partition=row.partition,
            commit_number=self._shown,
            log_start_offset=row.log_start_offset,
            high_watermark=row.end_offset,
            last_stable_offset=state.last_stable_offset(row),
            leader_epoch=row.epochs[-1].epoch,
            runs=list(runs),
            aborted=[
                AbortedTransaction(span.producer_id, span.first_offset, span.last_offset) for span in aborted
            ],
            replaced_below=replaced_below,
            is_start=is_start,
        )

    # --- who is forgotten

    def _forget(self, subscriber: _Subscriber) -> None:
        """Drop a subscriber; its next call learns it."""
        subscriber.is_forgotten = True
        self._count -= len(subscriber.partitions)
        self._forgotten.append(subscriber)
        self._subscribers.pop(subscriber.subscriber_id, None)
        self._over[subscriber.subscriber_id] = self._clock.monotonic()
        subscriber.wake()

    def _unwatch_forgotten(self) -> None:
        """Free some of what the first dropped subscriber had: its changes go with its last partition."""
        if self._forgotten:
            subscriber = self._forgotten[0]
            for partition in list(islice(reversed(subscriber.partitions), UNWATCHED_AT_ONCE)):
                self._unwatch(subscriber, partition)
            if not subscriber.partitions:
                self._forgotten.popleft()

    def _forget_silent(self) -> None:
        now = self._clock.monotonic()
        while self._subscribers:
            subscriber = next(iter(self._subscribers.values()))
            if subscriber.heard >= now - SILENCE_S:
                break
            self._forget(subscriber)
        while self._over and next(iter(self._over.values())) < now - OVER_S:
            self._over.popitem(last=False)


def _size_of(change: PartitionChange) -> int:
    """An upper bound of the change's encoded size."""
    return _CHANGE_BYTES + sum(map(run_bytes, change.runs)) + ABORTED_BYTES * len(change.aborted)
