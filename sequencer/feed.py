"""The commit feed: a bounded memory of what was committed, and whoever waits for more of it.

The feed is a hint: it tells each change once per subscriber, in commit order, without a hole; where it cannot
go on from a subscriber's commit number it says so (`reset`), and the truth is `find_batches`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sequencer.api import FeedAnswer, FeedRequest, PartitionUpdate, Run, SequencerOverloaded
from sequencer.bounds import MAX_PAGE, AnswerRoom
from sequencer.store.state import COMMIT_NUMBER, HotState
from tailrace.clock import Clock, wait_for
from tailrace.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class FeedCommit:
    """The runs that one commit number added, per partition (none where only the bounds moved)."""

    number: int
    runs: Mapping[TopicPartition, Sequence[Run]]
    run_count: int


class CommitFeed:
    """The last commits, from `floor` (exclusive) to the newest, both in commit numbers."""

    def __init__(self, clock: Clock, *, max_commits: int, max_runs: int, max_waiters: int) -> None:
        self._clock = clock
        self._max_commits = max_commits
        self._max_runs = max_runs
        self._max_waiters = max_waiters
        self._commits: deque[FeedCommit] = deque()
        self._run_count = 0
        self._floor = 0
        self._newest = 0
        self._state: HotState | None = None
        self._waiting: dict[TopicPartition, dict[asyncio.Future[None], None]] = {}
        self._waiting_for_all: dict[asyncio.Future[None], None] = {}
        self._waiters = 0

    def restart(self, state: HotState) -> None:
        """Follow a state that was loaded anew; history is kept only if it ends where the state stands."""
        newest = state.counter(COMMIT_NUMBER)
        if newest != self._newest or self._state is None:
            self._commits.clear()
            self._run_count = 0
            self._floor = self._newest = newest
        self._state = state
        self.wake_all()

    def publish(self, number: int, runs: Mapping[TopicPartition, Sequence[Run]]) -> None:
        """Add what a commit number changed, now that it is durable, and wake whom it concerns."""
        if number == self._newest:
            assert not runs, f"commit {number} was published before"
            return
        assert number == self._newest + 1, f"commit {number} after {self._newest}"
        self._newest = number
        commit = FeedCommit(number, runs, sum(map(len, runs.values())))
        self._commits.append(commit)
        self._run_count += commit.run_count
        while len(self._commits) > self._max_commits or self._run_count > self._max_runs:
            dropped = self._commits.popleft()
            self._run_count -= dropped.run_count
            self._floor = dropped.number
        changed, waiting = runs.keys(), self._waiting.keys()
        fewer, more = (changed, waiting) if len(changed) < len(waiting) else (waiting, changed)
        for partition in [each for each in fewer if each in more]:
            _wake(self._waiting[partition])
        if runs:
            _wake(self._waiting_for_all)

    def wake_all(self) -> None:
        """Have every waiting subscriber answered with what there is."""
        _wake(self._waiting_for_all)
        for waiters in self._waiting.values():
            _wake(waiters)

    async def follow(self, request: FeedRequest, max_wait_ms: int) -> FeedAnswer:
        """What came after `request.after`; waits until there is something, or answers the current number."""
        answer = self._answer(request)
        if answer.updates or answer.reset or max_wait_ms <= 0:
            return answer
        if self._waiters >= self._max_waiters:
            raise SequencerOverloaded(f"{self._waiters} feeds wait already (max_feed_waiters)")
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        places = [TopicPartition(*partition) for partition in request.partitions]
        for place in places:
            self._waiting.setdefault(place, {})[woken] = None
        if not places:
            self._waiting_for_all[woken] = None
        self._waiters += 1
        try:
            await wait_for(self._clock, woken, max_wait_ms / 1000)
        finally:
            self._waiters -= 1
            self._waiting_for_all.pop(woken, None)
            for place in places:
                waiters = self._waiting.get(place)
                if waiters is not None:
                    waiters.pop(woken, None)
                    if not waiters:
                        del self._waiting[place]
        return self._answer(request)

    def _answer(self, request: FeedRequest) -> FeedAnswer:
        if not self._floor <= request.after <= self._newest:
            return FeedAnswer(self._newest, True, [])
        wanted = {TopicPartition(*partition) for partition in request.partitions}
        gathered: dict[TopicPartition, list[Run]] = {}
        upto, room = request.after, AnswerRoom()
        for index in range(len(self._commits) - (self._newest - request.after), len(self._commits)):
            if room.is_full or len(gathered) > MAX_PAGE:
                break
            commit = self._commits[index]
            for partition, runs in commit.runs.items():
                if not wanted or partition in wanted:
                    told = gathered.setdefault(partition, [])
                    if request.wants_runs:
                        told.extend(room.take_all(runs))
            upto = commit.number
        updates = [self._update_of(partition, runs) for partition, runs in gathered.items()]
        return FeedAnswer(upto, False, [update for update in updates if update is not None])

    def _update_of(self, place: TopicPartition, runs: list[Run]) -> PartitionUpdate | None:
        assert self._state is not None, "publish comes after restart"
        topic_id: UUID = place.topic_id
        row = self._state.live_partition(topic_id, place.partition)
        if row is None:
            return None
        return PartitionUpdate(
            topic_id=topic_id,
            partition=place.partition,
            log_start_offset=row.log_start_offset,
            high_watermark=row.end_offset,
            last_stable_offset=self._state.last_stable_offset(row),
            leader_epoch=row.epochs[-1].epoch,
            runs=runs,
        )


def _wake(waiters: Iterable[asyncio.Future[None]]) -> None:
    for woken in waiters:
        if not woken.done():
            woken.set_result(None)
