"""Queries: the bounds of partitions from the state, and their runs from the store, as of one commit number.

Runs are removed only below a log start that is already durable and visible (sequencer.rules.retention). So a look-up in
the store matches the bounds that it began with, unless the log start has moved meanwhile; then the look-up is repeated.
It is also repeated if it finds a run that is newer than the bounds (a swap that is written but not yet shown), because
the aborted ranges of an answer must match its runs.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from uuid import UUID

import msgspec

from sequencer.api.commits import BatchStatus, ObjectDescription, ObjectKind
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.objects import (
    ObjectRecord,
    ObjectsAnswer,
    ObjectsRequest,
    PartitionSize,
    SizesAnswer,
    SizesRequest,
    Statistics,
)
from sequencer.api.producers import ActiveProducer, ProducerQuery, ProducersAnswer
from sequencer.api.reads import (
    AbortedTransaction,
    EpochAnswer,
    EpochRequest,
    EpochResult,
    FindAnswer,
    FindPartition,
    FindRequest,
    FoundPartition,
    OffsetQuery,
    OffsetResult,
    OffsetsAnswer,
    OffsetSpec,
    OffsetsRequest,
    PartitionError,
    Run,
)
from sequencer.bounds import MAX_PAGE, AnswerBudget, SummedRuns
from sequencer.reading.recent_runs import RecentRuns
from sequencer.rules.transactions import transaction_of
from sequencer.store.row_store import PartitionBytes, RowStore, ScannedRuns
from sequencer.store.rows import (
    AbortedRow,
    GroupRow,
    ObjectRow,
    OpenRangeRow,
    PartitionRow,
    ProducerRow,
    SessionRow,
    SmallObjectRow,
    TopicRow,
    TransactionRow,
    key_of,
)
from sequencer.store.state import COMMIT_NUMBER, HotState
from sequencer.store.sums import statistics_of
from tailrace.turns import Turns

PARTITIONS_AT_ONCE = 64
"""Partitions whose runs one query looks up. Each gets an equal share of the budget in the answer."""
LEAST_RUNS = 32
LEAST_BYTES = 1 << 16
"""Least share of a partition, so that a large range is not read in tiny steps."""
LOOK_UPS_AT_ONCE = 4
"""Concurrent look-ups by time of one request: half of the connections to the database."""
MAX_LOOK_UPS = 200
"""Limit of look-ups by time in one answer of `list_offsets`."""
MAX_SCANNED = 10_000
"""Limit of runs that one look-up by time examines by their own timestamps before it is stopped. An answer ends when its
look-ups have examined this many in total."""
ANSWERED_IN_A_TURN = 2_000
RANGES_AS_A_PARTITION = 20
"""The number of aborted ranges whose examination costs as much as the bounds of a partition."""
RANGES_AT_ONCE = 10_000
_ATTEMPTS = 10
_end_offset = attrgetter("end_offset")
_first_offset = attrgetter("first_offset")
_commit_number = attrgetter("commit_number")
_NO_RUNS = SummedRuns.of(())
_UNKNOWN_PARTITION = FoundPartition(
    error=PartitionError.UNKNOWN_TOPIC_OR_PARTITION,
    log_start_offset=-1,
    high_watermark=-1,
    last_stable_offset=-1,
    leader_epoch=-1,
    runs=[],
    aborted=[],
)
_UNKNOWN_OFFSET = OffsetResult(
    error=PartitionError.UNKNOWN_TOPIC_OR_PARTITION,
    offset=-1,
    timestamp=-1,
    leader_epoch=-1,
    log_start_offset=-1,
    high_watermark=-1,
    run=None,
)


class Reader:
    """Answers from the state that `current` returns (another one after a reload) and from the store.

    `catch_up` returns when `current` shows everything that was in the store when it was called. `settle` does the same
    for a copy that may be behind the store at any time; it is None if everything in the store is shown at once.
    """

    def __init__(
        self,
        store: RowStore,
        current: Callable[[], HotState],
        catch_up: Callable[[], Awaitable[None]],
        recent: RecentRuns,
        settle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._settle = settle
        self._store = store
        self._recent = recent
        self._current = current
        self._catch_up = catch_up

    async def find_batches(self, request: FindRequest) -> FindAnswer:
        """Return the bounds of each partition, and the runs from the offset on for as many as fit."""
        is_caught_up = False
        for _ in range(_ATTEMPTS):
            number = self._current().counter(COMMIT_NUMBER)
            turns = Turns(ANSWERED_IN_A_TURN)
            look_ups: list[_LookUp] = []
            for requested in request.partitions:
                look_ups.append(_LookUp.of(self._current(), requested))
                await turns.did()
            if not is_caught_up and any(look_up.is_beyond_end for look_up in look_ups):
                # A follower may show a commit whose write this committer does not know to have succeeded yet.
                is_caught_up = True
                await self._catch_up()
                continue
            with_runs = [look_up for look_up in look_ups if look_up.has_runs]
            if await self._look_up(with_runs, request.max_bytes, turns):
                partitions: list[FoundPartition] = []
                for look_up in look_ups:
                    partitions.append(look_up.answer())
                    await turns.did(1 + len(look_up.aborted) // RANGES_AS_A_PARTITION)
                return FindAnswer(number, partitions)
        raise SequencerUnavailable("the log changed at each attempt to read it; retry")

    async def _look_up(self, look_ups: Sequence[_LookUp], max_bytes: int, turns: Turns) -> bool:
        """Look up runs, in order, until the answer is full. Return False if the log has changed meanwhile."""
        budget = AnswerBudget(max_bytes)
        for first in range(0, len(look_ups), PARTITIONS_AT_ONCE):
            if budget.is_full:
                break
            if not await self._look_up_some(look_ups[first : first + PARTITIONS_AT_ONCE], budget, turns):
                return False
        return True

    async def _look_up_some(self, look_ups: Sequence[_LookUp], budget: AnswerBudget, turns: Turns) -> bool:
        # Aborted ranges are read before the runs: if a swap shortens them in between, it leaves a newer run.
        state = self._current()
        number = state.counter(COMMIT_NUMBER)
        for look_up in look_ups:
            requested = look_up.requested
            look_up.aborted = state.aborted_from(requested.topic_id, requested.partition, requested.offset)
        runs = await self._runs_of(look_ups, budget)
        for look_up, found in zip(look_ups, runs, strict=True):
            if look_up.aborted:
                look_up.aborted = await _beginning_below(found.end_offset, look_up.aborted, turns)
        if self._settle is not None:
            await (
                self._settle()
            )  # if a log start has moved, it shows now: runs below it may be gone from the store
        if not all(self._has_kept_log_start(look_up.row) for look_up in look_ups):
            return False
        for look_up, found in zip(look_ups, runs, strict=True):
            aborted = [row.first_offset for row in look_up.aborted]
            look_up.runs = budget.take(found, look_up.requested.max_bytes, aborted)
            if look_up.is_in_memory and look_up.runs:
                look_up.inner_bytes = found.lengths[max(len(look_up.runs) - 1, 1)] - found.lengths[1]
        in_store = (look_up.visible for look_up in look_ups if not look_up.is_in_memory)
        newest = (max(map(_commit_number, visible), default=0) for visible in in_store)
        if max(newest, default=0) > number:
            await self._catch_up()
            return False
        return True

    async def _runs_of(self, look_ups: Sequence[_LookUp], budget: AnswerBudget) -> list[SummedRuns]:
        """Return the runs of each partition: from memory, or from the store with a fair share of the budget."""
        runs: list[SummedRuns] = []
        in_store: list[int] = []
        for index, look_up in enumerate(look_ups):
            requested = look_up.requested
            recent = self._recent.find(
                topic_id=requested.topic_id,
                partition=requested.partition,
                offset=requested.offset,
                max_bytes=requested.max_bytes,
                max_runs=budget.runs,
            )
            look_up.is_in_memory = recent is not None
            runs.append(_NO_RUNS if recent is None else recent)
            if recent is None:
                in_store.append(index)
        if in_store:
            max_runs = max(LEAST_RUNS, min(1000, budget.runs // len(in_store)))
            share = max(LEAST_BYTES, budget.log_bytes // len(in_store))
            partitions = [look_ups[index].requested for index in in_store]
            found = await self._store.runs_from_many(
                [
                    (asked.topic_id, asked.partition, asked.offset, min(asked.max_bytes, share))
                    for asked in partitions
                ],
                max_runs,
            )
            for index, runs_found in zip(in_store, found, strict=True):
                runs[index] = SummedRuns.of(runs_found)
        return runs

    def _has_kept_log_start(self, row: PartitionRow | None) -> bool:
        assert row is not None, "only live partitions are looked up"
        current = self._current().live_partition(row.topic_id, row.partition)
        return current is not None and current.log_start_offset == row.log_start_offset

    async def list_offsets(self, request: OffsetsRequest) -> OffsetsAnswer:
        """Return the offset, or the run to search, for each query."""
        number = self._current().counter(COMMIT_NUMBER)
        budget, turns = AnswerBudget(), Turns(ANSWERED_IN_A_TURN)
        results: list[OffsetResult] = []
        look_ups = 0
        work = _Scanned()
        while (
            len(results) < len(request.queries)
            and look_ups < MAX_LOOK_UPS
            and work.runs < MAX_SCANNED
            and not budget.is_full
        ):
            some = request.queries[len(results) : len(results) + LOOK_UPS_AT_ONCE]
            at_bounds = [self._offset_at_bounds(query) for query in some]
            by_time = [
                self._offset_by_time(query, work)
                for query, known in zip(some, at_bounds, strict=True)
                if known is None
            ]
            looked_up = iter(await asyncio.gather(*by_time) if by_time else ())
            for known in at_bounds:
                result = known if known is not None else next(looked_up)
                results.append(result)
                if result.run is not None:
                    budget.take_all([result.run])
            look_ups += len(by_time)
            await turns.did(len(some))
        return OffsetsAnswer(number, results)

    def _offset_at_bounds(self, query: OffsetQuery) -> OffsetResult | None:
        """Return the answer if the partition's bounds are enough for it; None if a run must be looked up."""
        state = self._current()
        row = state.live_partition(query.topic_id, query.partition)
        if row is None:
            return _UNKNOWN_OFFSET
        if query.timestamp >= 0 or query.timestamp == OffsetSpec.MAX_TIMESTAMP:
            return None
        stable = state.last_stable_offset(row)
        if query.timestamp == OffsetSpec.LATEST:
            return _offset_result(row, stable, stable if query.read_committed else row.end_offset)
        if query.timestamp in (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL):
            return _offset_result(row, stable, row.log_start_offset)
        return _offset_result(row, stable, -1)

    async def _offset_by_time(self, query: OffsetQuery, work: _Scanned) -> OffsetResult:
        state = self._current()
        row = state.live_partition(query.topic_id, query.partition)
        if row is None:
            return _UNKNOWN_OFFSET
        stable = state.last_stable_offset(row)
        from_offset = max(row.log_start_offset, query.from_offset)
        if query.timestamp == OffsetSpec.MAX_TIMESTAMP:
            scanned = await self._store.run_of_max_timestamp(
                row.topic_id, row.partition, from_offset, MAX_SCANNED, end_offset=query.end_offset
            )
            if scanned.run is not None and scanned.run.base_offset >= row.end_offset:
                # The run was committed meanwhile. If it is not shown yet, there would seem to be no record at all.
                await self._catch_up()
                shown = self._current().live_partition(query.topic_id, query.partition)
                if shown is None:
                    return _UNKNOWN_OFFSET
                row, stable = shown, self._current().last_stable_offset(shown)
        else:
            scanned = await self._first_reaching(row, query.timestamp, from_offset)
        work.runs += scanned.scanned
        run = scanned.run
        end = stable if query.read_committed else row.end_offset
        if run is None or run.base_offset >= end or run.kind is ObjectKind.MARKERS:
            result = _offset_result(row, stable, -1)
            if run is not None and query.timestamp == OffsetSpec.MAX_TIMESTAMP:
                result = msgspec.structs.replace(result, timestamp=run.max_timestamp)
        else:
            result = _offset_result(row, stable, -1, run)
        if scanned.next_offset is None or scanned.next_offset >= end:
            return result
        return msgspec.structs.replace(result, next_offset=scanned.next_offset)

    async def _first_reaching(self, row: PartitionRow, timestamp: int, from_offset: int) -> ScannedRuns:
        scanned = await self._store.first_run_reaching(
            topic_id=row.topic_id,
            partition=row.partition,
            timestamp=timestamp,
            from_offset=from_offset,
            max_scanned=MAX_SCANNED,
        )
        run = scanned.run
        if run is not None and run.batches and run.base_offset < from_offset:
            # Only batches that end after `from_offset` count.
            timestamps = [
                batch.max_timestamp
                for batch in run.batches
                if batch.status is BatchStatus.STORED and batch.base_offset + batch.record_count > from_offset
            ]
            if max(timestamps, default=-1) < timestamp:
                return await self._store.first_run_reaching(
                    topic_id=row.topic_id,
                    partition=row.partition,
                    timestamp=timestamp,
                    from_offset=run.end_offset,
                    max_scanned=MAX_SCANNED,
                )
        return scanned

    def offsets_for_epochs(self, request: EpochRequest) -> EpochAnswer:
        """Return the end of each requested epoch of the log."""
        results: list[EpochResult] = []
        for query in request.queries:
            row = self._current().live_partition(query.topic_id, query.partition)
            if row is None:
                results.append(EpochResult(PartitionError.UNKNOWN_TOPIC_OR_PARTITION, -1, -1))
            else:
                results.append(EpochResult(PartitionError.NONE, *_end_of_epoch(row, query.leader_epoch)))
        return EpochAnswer(results)

    async def describe_producers(self, request: ProducerQuery) -> ProducersAnswer:
        """Return the idempotent producers known in a partition."""
        topic_id, partition = request.topic_id, request.partition
        if self._current().live_partition(topic_id, partition) is None:
            return ProducersAnswer(PartitionError.UNKNOWN_TOPIC_OR_PARTITION, [])
        after = (topic_id, partition, request.after)
        page = await self._store.rows_after(ProducerRow, after, MAX_PAGE + 1)
        if self._settle is not None:
            await self._settle()
        state = self._current()
        rows = [row for row in page if (row.topic_id, row.partition) == (topic_id, partition)]
        return ProducersAnswer(
            PartitionError.NONE,
            [_active_producer(state, row) for row in rows[:MAX_PAGE]],
            rows[MAX_PAGE - 1].producer_id if len(rows) > MAX_PAGE else -1,
        )

    async def sizes(self, request: SizesRequest) -> SizesAnswer:
        """Return bounds, bytes and runs of partitions, ordered by topic id and partition."""
        state = self._current()
        after = request.after
        wanted = None if request.topic_ids is None else set(request.topic_ids)
        topics = [
            row
            for row in state.all(TopicRow)
            if (wanted is None or row.topic_id in wanted) and (after is None or row.topic_id >= after[0])
        ]
        rows: list[PartitionRow] = []
        turns = Turns(ANSWERED_IN_A_TURN)
        for topic in sorted(topics, key=lambda topic: topic.topic_id.int):
            first = 0 if after is None or after[0] != topic.topic_id else after[1] + 1
            numbers = range(first, min(topic.partitions, first + MAX_PAGE + 1 - len(rows)))
            for number in numbers:
                row = state.get(PartitionRow, topic.topic_id, number)
                if row is not None:
                    rows.append(row)
                await turns.did()
            if len(rows) > MAX_PAGE:
                break
        page = rows[:MAX_PAGE]
        held = {(size.topic_id, size.partition): size for size in await self._bytes_of(page)}
        return SizesAnswer(
            [_size_of(row, held.get((row.topic_id, row.partition))) for row in page],
            (page[-1].topic_id, page[-1].partition) if len(rows) > MAX_PAGE else None,
        )

    async def _bytes_of(self, page: Sequence[PartitionRow]) -> list[PartitionBytes]:
        """Sum up these partitions, which are adjacent. The first and the last topic may have more partitions than are
        asked for."""
        within: dict[UUID, list[int]] = {}
        for row in page:
            within.setdefault(row.topic_id, []).append(row.partition)
        ends = dict.fromkeys(row.topic_id for row in (*page[:1], *page[-1:]))
        whole = [topic_id for topic_id in within if topic_id not in ends]
        found = await self._store.partition_bytes(whole) if whole else []
        for topic_id in ends:
            numbers = within[topic_id]
            found += await self._store.partition_bytes_within(topic_id, numbers[0], numbers[-1] + 1)
        return found

    async def objects(self, request: ObjectsRequest) -> ObjectsAnswer:
        """Return objects in key order."""
        rows = await self._store.objects_after(request.after_key, max(1, min(request.limit, MAX_PAGE)))
        return ObjectsAnswer([object_record(row) for row in rows])

    async def statistics(self) -> Statistics:
        """Return counts and bytes, for metrics."""
        state = self._current()
        sums = statistics_of(state.counter)
        now_ms = await self._store.now_ms()
        oldest = next(state.rows(TransactionRow, state.open_transactions), None)
        open_sessions = len(state.open_sessions)
        return Statistics(
            runs=sums.runs,
            objects=sums.objects,
            retired_objects=sums.retired_objects,
            retired_bytes=sums.retired_bytes,
            live_bytes=sums.live_bytes,
            open_sessions=open_sessions,
            dead_sessions=state.count(SessionRow) - open_sessions,
            producers=sums.producers,
            groups=state.count(GroupRow),
            commit_number=state.counter(COMMIT_NUMBER),
            uncompacted_bytes=sums.uncompacted_bytes,
            open_transactions=len(state.open_transactions),
            oldest_transaction_ms=0 if oldest is None else max(0, now_ms - oldest.started_ms),
            small_objects=state.count(SmallObjectRow),
            group_bytes=state.group_bytes,
            share_spans=state.share_spans,
        )


def object_record(row: ObjectRow) -> ObjectRecord:
    """Return an object's description from its row."""
    description = msgspec.convert(row, ObjectDescription, from_attributes=True)
    return ObjectRecord(description, row.live_runs, row.retired_ms)


def _size_of(row: PartitionRow, held: PartitionBytes | None) -> PartitionSize:
    return PartitionSize(
        topic_id=row.topic_id,
        partition=row.partition,
        log_start_offset=row.log_start_offset,
        high_watermark=row.end_offset,
        bytes=0 if held is None else held.bytes,
        runs=0 if held is None else held.runs,
    )


@dataclass(slots=True)
class _Scanned:
    """The number of runs that the look-ups of one answer have examined."""

    runs: int = 0


@dataclass(slots=True)
class _LookUp:
    """A requested partition as of one commit number (`row` is None if it does not exist), and what was found in it."""

    requested: FindPartition
    row: PartitionRow | None
    last_stable_offset: int
    runs: list[Run] = field(default_factory=list)
    is_in_memory: bool = False
    """Whether the runs come from memory; such runs are already shown, and none is in a Parquet object."""
    inner_bytes: int = -1
    aborted: Sequence[AbortedRow] = ()
    """Ranges that end at or after the requested offset; later only those that begin below the end of the found runs,
    ordered by first offset."""

    @classmethod
    def of(cls, state: HotState, requested: FindPartition) -> _LookUp:
        row = state.live_partition(requested.topic_id, requested.partition)
        return cls(requested, row, -1 if row is None else state.last_stable_offset(row))

    @property
    def visible(self) -> list[Run]:
        """The runs within the bounds, without runs that were appended since."""
        row, runs = self.row, self.runs
        if row is None or not runs:
            return []
        if runs[-1].end_offset <= row.end_offset:
            return runs
        return runs[: bisect_right(runs, row.end_offset, key=_end_offset)]

    @property
    def has_runs(self) -> bool:
        row = self.row
        return row is not None and row.log_start_offset <= self.requested.offset < row.end_offset

    @property
    def is_beyond_end(self) -> bool:
        return self.row is not None and self.requested.offset > self.row.end_offset

    def answer(self) -> FoundPartition:
        row, offset = self.row, self.requested.offset
        if row is None:
            return _UNKNOWN_PARTITION
        visible = self.visible
        is_whole = len(visible) == len(self.runs)
        count = bisect_left(self.aborted, visible[-1].end_offset, key=_first_offset) if visible else 0
        return FoundPartition(
            error=PartitionError.NONE
            if row.log_start_offset <= offset <= row.end_offset
            else PartitionError.OFFSET_OUT_OF_RANGE,
            log_start_offset=row.log_start_offset,
            high_watermark=row.end_offset,
            last_stable_offset=self.last_stable_offset,
            leader_epoch=row.epochs[-1].epoch,
            runs=visible,
            aborted=[
                AbortedTransaction(aborted.producer_id, aborted.first_offset, aborted.last_offset)
                for aborted in self.aborted[:count]
            ],
            inner_bytes=self.inner_bytes if is_whole else -1,
        )


async def _beginning_below(offset: int, rows: Sequence[AbortedRow], turns: Turns) -> list[AbortedRow]:
    """Return the ranges that begin below this offset, ordered by first offset."""
    below: list[AbortedRow] = []
    for first in range(0, len(rows), RANGES_AT_ONCE):
        some = rows[first : first + RANGES_AT_ONCE]
        below += [row for row in some if row.first_offset < offset]
        await turns.did(1 + len(some) // RANGES_AS_A_PARTITION)
    return sorted(below, key=_first_offset)


def _offset_result(row: PartitionRow, stable: int, offset: int, run: Run | None = None) -> OffsetResult:
    return OffsetResult(
        error=PartitionError.NONE,
        offset=offset,
        timestamp=-1,
        leader_epoch=row.epochs[-1].epoch,
        log_start_offset=row.log_start_offset,
        high_watermark=row.end_offset,
        run=run,
        last_stable_offset=stable,
    )


def _end_of_epoch(row: PartitionRow, epoch: int) -> tuple[int, int]:
    current = row.epochs[-1].epoch
    if epoch > current or epoch < row.epochs[0].epoch:
        return -1, -1
    ends = [start for _, start in row.epochs[1:]] + [row.end_offset]
    known = [(number, end) for (number, _), end in zip(row.epochs, ends, strict=True) if number <= epoch]
    return known[-1]


def _active_producer(state: HotState, row: ProducerRow) -> ActiveProducer:
    """Return the producer, whose row was read before. If it has an open transaction, the epoch is the one in the state,
    because an abort must name it."""
    began = state.get(OpenRangeRow, *key_of(row))
    owner = None if began is None else transaction_of(state, row.producer_id)
    return ActiveProducer(
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch if owner is None else owner.producer_epoch,
        last_sequence=row.recent[-1].last_sequence,
        last_timestamp=row.last_timestamp,
        transaction_start_offset=-1 if began is None else began.first_offset,
    )
