"""The commit feed: a bounded memory of the last commits, and the subscribers that wait for more.

The feed is a hint. A subscriber gets each change once, in commit order, without gaps. If the feed can't continue from a
subscriber's commit number, it answers `reset`; the authoritative answer is that of `find_batches`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from sequencer.api.errors import SequencerOverloaded
from sequencer.api.reads import FeedAnswer, FeedRequest, PartitionUpdate, Run
from sequencer.bounds import BYTES_OF_A_RUN, MAX_PAGE, AnswerBudget, run_bytes
from sequencer.store.state import COMMIT_NUMBER, HotState
from tailrace.clock import Clock, wait_for
from tailrace.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class FeedCommit:
    """The runs that one commit number added, per partition (empty if only the bounds moved)."""

    number: int
    runs: Mapping[TopicPartition, Sequence[Run]]
    run_count: int
    size: int
    """Bytes of the runs."""


class CommitFeed:
    """The last commits, from `floor` (exclusive) to the newest, both in commit numbers."""

    def __init__(self, clock: Clock, *, max_commits: int, max_runs: int, max_waiters: int) -> None:
        self._clock = clock
        self._max_commits = max_commits
        self._max_runs = max_runs
        self._max_waiters = max_waiters
        self._commits: deque[FeedCommit] = deque()
        self._run_count = 0
        self._bytes = 0
        self._floor = 0
        self._newest = 0
        self._state: HotState | None = None
        self._waiting: dict[TopicPartition, dict[asyncio.Future[None], None]] = {}
        self._waiting_for_all: dict[asyncio.Future[None], None] = {}
        self._waiters = 0

    def restart(self, state: HotState) -> None:
        """Follow a state that was just loaded. History is kept only if it ends at the state's commit number."""
        newest = state.counter(COMMIT_NUMBER)
        if newest != self._newest or self._state is None:
            self._commits.clear()
            self._run_count = self._bytes = 0
            self._floor = self._newest = newest
        self._state = state
        self.wake_all()

    def publish(self, number: int, runs: Mapping[TopicPartition, Sequence[Run]]) -> None:
        """Add the changes of a commit number that is now durable, and wake the subscribers of its partitions."""
        if number == self._newest:
            assert not runs, f"commit {number} was published before"
            return
        assert number == self._newest + 1, f"commit {number} after {self._newest}"
        self._newest = number
        size = sum(map(run_bytes, chain.from_iterable(runs.values())))
        commit = FeedCommit(number, runs, sum(map(len, runs.values())), size)
        self._commits.append(commit)
        self._run_count += commit.run_count
        self._bytes += size
        while (
            len(self._commits) > self._max_commits
            or self._run_count > self._max_runs
            or self._bytes > self._max_runs * BYTES_OF_A_RUN
        ):
            dropped = self._commits.popleft()
            self._run_count -= dropped.run_count
            self._bytes -= dropped.size
            self._floor = dropped.number
        changed, waiting = runs.keys(), self._waiting.keys()
        fewer, more = (changed, waiting) if len(changed) < len(waiting) else (waiting, changed)
        for partition in [partition for partition in fewer if partition in more]:
            _wake(self._waiting[partition])
        if runs:
            _wake(self._waiting_for_all)

    def wake_all(self) -> None:
        """Answer every waiting subscriber with what there is."""
        _wake(self._waiting_for_all)
        for waiters in self._waiting.values():
            _wake(waiters)

    async def follow(self, request: FeedRequest, max_wait_ms: int) -> FeedAnswer:
        """Return the changes after `request.after`; wait until there are some, or until the time is over."""
        answer = self._answer(request)
        if answer.updates or answer.reset or max_wait_ms <= 0:
            return answer
        if self._waiters >= self._max_waiters:
            raise SequencerOverloaded(f"{self._waiters} feeds wait already (max_feed_waiters)")
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partitions = [TopicPartition(*partition) for partition in request.partitions]
        for partition in partitions:
            self._waiting.setdefault(partition, {})[woken] = None
        if not partitions:
            self._waiting_for_all[woken] = None
        self._waiters += 1
        try:
            await wait_for(self._clock, woken, max_wait_ms / 1000)
        finally:
            self._waiters -= 1
            self._waiting_for_all.pop(woken, None)
            for partition in partitions:
                waiters = self._waiting.get(partition)
                if waiters is not None:
                    waiters.pop(woken, None)
                    if not waiters:
                        del self._waiting[partition]
        return self._answer(request)

    def _answer(self, request: FeedRequest) -> FeedAnswer:
        if not self._floor <= request.after <= self._newest:
            return FeedAnswer(self._newest, True, [])
        wanted = {TopicPartition(*partition) for partition in request.partitions}
        gathered: dict[TopicPartition, list[Run]] = {}
        last_number, budget = request.after, AnswerBudget()
        for index in range(len(self._commits) - (self._newest - request.after), len(self._commits)):
            if budget.is_full or len(gathered) > MAX_PAGE:
                break
            commit = self._commits[index]
            for partition, runs in commit.runs.items():
                if not wanted or partition in wanted:
                    gathered_runs = gathered.setdefault(partition, [])
                    if request.wants_runs:
                        gathered_runs.extend(budget.take_all(runs))
            last_number = commit.number
        updates = [self._update_of(partition, runs) for partition, runs in gathered.items()]
        return FeedAnswer(last_number, False, [update for update in updates if update is not None])

    def _update_of(self, topic_partition: TopicPartition, runs: list[Run]) -> PartitionUpdate | None:
        assert self._state is not None, "publish comes after restart"
        row = self._state.live_partition(*topic_partition)
        if row is None:
            return None
        return PartitionUpdate(
            topic_id=topic_partition.topic_id,
            partition=topic_partition.partition,
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
