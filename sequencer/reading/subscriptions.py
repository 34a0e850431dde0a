"""Subscriptions to partitions: what each subscriber watches, and the changes that it has not taken yet.

Invariants:
- a subscriber is sent every change of its partitions, once, in commit order, and nothing about other partitions;
- a change stays queued until the subscriber confirms it, so a lost answer loses nothing;
- a queue is limited in bytes. A subscriber that is too slow for the limit, silent for SILENCE_S, or from another term
  is dropped as a whole, and its next call says so: changes are never left out;
- a dropped subscription never begins again in the same term, even if a copy of its first call arrives late; otherwise
  its subscriber would continue it without the commits in between. In another term the epoch tells the subscriber.

A commit costs as much as its partitions have subscribers, and is queued in as many turns of the event loop as that
takes. A subscriber that is answered in between gets a part of the commit's changes, and a commit number below it. The
partitions of dropped subscribers are unwatched some at a time, because many agents may fall silent at once, with a
million partitions. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from sequencer.api.errors import InvalidRequest, SequencerOverloaded
from sequencer.api.reads import AbortedTransaction, PartitionChange, Run, WatchAnswer, WatchRequest
from sequencer.bounds import ABORTED_BYTES, MAX_ANSWER_BYTES, MAX_ANSWER_RUNS, MAX_PAGE, run_bytes
from sequencer.reading.recent_runs import RecentRuns
from sequencer.settings import SequencerSettings
from sequencer.store.rows import PartitionRow
from sequencer.store.state import COMMIT_NUMBER, HotState
from tailrace.clock import Clock, wait_for
from tailrace.ids import TopicPartition
from tailrace.turns import Steps

SILENCE_S = 10.0
"""A subscriber that is silent for this long is dropped; this is many times the pause between its calls."""
OVER_S = 600.0
"""How long a dropped subscription is remembered: much longer than a call can be in transit."""
MAX_START_BYTES = 1 << 16
"""Limit of the first runs of a window, in encoded bytes."""
MAX_START_RUNS = 256
START_SHARE = 0.5
"""The part of a subscriber's queue up to which windows begin with runs. Otherwise a subscriber of many partitions with
open transactions would exceed its limit each time it begins, and begin again for ever."""
UNWATCHED_AT_ONCE = MAX_PAGE
"""Partitions of dropped subscribers that one call or commit unwatches: as many as a call may add."""
CHANGE_AS_QUEUED = 10
"""Making a change costs as much as queueing it for this many subscribers: some 3 us."""
_CHANGE_BYTES = 120


@dataclass(slots=True, eq=False)
class _Subscriber:
    """One subscriber. `last_sent`: the commit number of its last answer. `size`: of `changes`, which follow the first
    `taken`."""

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
        """Drop the changes that the subscriber has taken. Return False if it claims more than it was sent."""
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
        """The subscriber that called longest ago comes first."""
        self._watching: dict[TopicPartition, dict[_Subscriber, int]] = {}
        """The subscribers of each partition, with the commit that was shown when they began."""
        self._count = 0
        self._forgotten: deque[_Subscriber] = deque()
        """Dropped subscribers that still watch some partitions."""
        self._over: OrderedDict[UUID, float] = OrderedDict()
        """The dropped subscriptions of this term and when they were dropped, earliest first."""

    @property
    def count(self) -> int:
        """Number of watched partitions, counted once per subscriber."""
        return self._count

    def restart(self, state: HotState, epoch: int) -> None:
        """Follow a state that was just loaded. Subscriptions continue only if there was no commit in between."""
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
        """Queue the changes of a commit for the subscribers of its partitions. It begins in the turn in which the state
        shows the commit, and ends before the state changes again. Yields after each partition the work done, in queued
        changes.

        `replaced`: the offsets below which the commit replaced runs.
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
        """Queue a partition's change for the subscribers that did not begin with it. Return the work done, in queued
        changes."""
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
        """Answer one call of a subscriber: wait until there are changes or the time is over.

        Raises SequencerOverloaded if there are too many subscribers.
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
        """Return the subscriber that calls, if it is known and the call continues the earlier ones."""
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
                # The rest of this commit's changes is not in this answer.
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
                return  # its first partitions exceed the limit of its queue
            if partition not in subscriber.partitions:
                change = self._begin(subscriber, partition)
                self._queue(subscriber, change, _size_of(change))

    def _begin(self, subscriber: _Subscriber, partition: TopicPartition) -> PartitionChange:
        """Watch a partition from now on; return its first change, which says where its window begins."""
        settings = self._settings
        is_room = (
            len(subscriber.partitions) < settings.max_watched_partitions
            and self._count < settings.max_subscriptions
        )
        assert self._state is not None, "restart comes first"
        row = self._state.live_partition(*partition)
        if row is None or not is_room:
            return self._deletion(partition)
        partition = TopicPartition(row.topic_id, row.partition)  # all of a topic share its id object
        subscriber.partitions[partition] = None
        self._watching.setdefault(partition, {})[subscriber] = self._shown
        self._count += 1
        runs = self._unstable_runs(row)
        change = self._bounds_of(row, runs, is_start=True)
        if runs and subscriber.size + _size_of(change) > settings.max_subscriber_bytes * START_SHARE:
            change = self._bounds_of(row, [], is_start=True)
        return change

    def _unstable_runs(self, row: PartitionRow) -> list[Run]:
        """Return the runs from the last stable offset on, if they are in memory: read_committed consumers are there."""
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
            return self._deletion(partition)
        return self._bounds_of(row, runs, replaced_below=replaced_below)

    def _deletion(self, partition: TopicPartition) -> PartitionChange:
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

    # --- dropped subscribers

    def _forget(self, subscriber: _Subscriber) -> None:
        """Drop a subscriber; its next call is told so."""
        subscriber.is_forgotten = True
        self._count -= len(subscriber.partitions)
        self._forgotten.append(subscriber)
        self._subscribers.pop(subscriber.subscriber_id, None)
        self._over[subscriber.subscriber_id] = self._clock.monotonic()
        subscriber.wake()

    def _unwatch_forgotten(self) -> None:
        """Unwatch some partitions of the first dropped subscriber; its changes are freed with its last partition."""
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
    """Return an upper bound of the change's encoded size."""
    return _CHANGE_BYTES + sum(map(run_bytes, change.runs)) + ABORTED_BYTES * len(change.aborted)
