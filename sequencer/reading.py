"""What readers are told: bounds out of the durable state, runs out of the store, as of one commit number.

Runs are removed only below a log start that is already durable and visible (sequencer.retention), so a
look-up in the store fits the bounds it was started with, unless the log start moved meanwhile: then it is
done again. So it is when a run was found that is newer than the bounds (a swap has been written and is not yet
shown): aborted ranges must be those of the very runs that are answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from sequencer.api import (
    AbortedTransaction,
    ActiveProducer,
    EpochAnswer,
    EpochRequest,
    EpochResult,
    FindAnswer,
    FindPartition,
    FindRequest,
    FoundPartition,
    ObjectKind,
    OffsetQuery,
    OffsetResult,
    OffsetsAnswer,
    OffsetSpec,
    OffsetsRequest,
    PartitionError,
    PartitionSize,
    ProducerQuery,
    ProducersAnswer,
    Run,
    SequencerUnavailable,
    SizesAnswer,
    SizesRequest,
    Verdict,
)
from sequencer.recent_runs import RecentRuns
from sequencer.rows import AbortedRow, OpenRangeRow, PartitionRow, ProducerRow, RowStore, key_of
from sequencer.state import COMMIT_NUMBER, HotState

_ATTEMPTS = 10
_NOBODY = FoundPartition(PartitionError.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1, -1, [], [])
_UNKNOWN_OFFSET = OffsetResult(PartitionError.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1, -1, -1, None)


class Reader:
    """Answers from the state that `current` gives (it is another after a reload) and from the store.

    `catch_up` returns once `current` shows all that was in the store when it was called.
    """

    def __init__(
        self,
        store: RowStore,
        current: Callable[[], HotState],
        catch_up: Callable[[], Awaitable[None]],
        recent: RecentRuns,
    ) -> None:
        self._store = store
        self._recent = recent
        self._current = current
        self._catch_up = catch_up

    async def find_batches(self, request: FindRequest) -> FindAnswer:
        """Bounds of each partition, and the runs from the offset on."""
        for _ in range(_ATTEMPTS):
            state = self._current()
            number = state.counter(COMMIT_NUMBER)
            rows = [state.live_partition(asked.topic_id, asked.partition) for asked in request.partitions]
            bounds = [
                None if row is None else _Bounds.of(state, row, asked.offset)
                for asked, row in zip(request.partitions, rows, strict=True)
            ]
            wanted = [
                index
                for index, (asked, row) in enumerate(zip(request.partitions, rows, strict=True))
                if row is not None and row.log_start_offset <= asked.offset < row.end_offset
            ]
            queries = {index: _query_of(request.partitions[index]) for index in wanted}
            recent = {index: self._recent.find(*query) for index, query in queries.items()}
            runs = {index: found for index, found in recent.items() if found is not None}
            older = [index for index in wanted if index not in runs]
            if older:
                found = await self._store.runs_from_many([queries[index] for index in older])
                runs.update(zip(older, found, strict=True))
            if not all(self._has_kept_log_start(rows[index]) for index in wanted):
                continue
            partitions = [
                _NOBODY if bound is None else bound.found(runs.get(index, []))
                for index, bound in enumerate(bounds)
            ]
            if any(run.commit_number > number for one in partitions for run in one.runs):
                await self._catch_up()
                continue
            return FindAnswer(number, partitions)
        raise SequencerUnavailable("the log changed at each attempt to read; ask again")

    def _has_kept_log_start(self, row: PartitionRow | None) -> bool:
        assert row is not None, "only live partitions are looked up"
        now = self._current().live_partition(row.topic_id, row.partition)
        return now is not None and now.log_start_offset == row.log_start_offset

    async def list_offsets(self, request: OffsetsRequest) -> OffsetsAnswer:
        """The offset, or the run to look into, for each query."""
        number = self._current().counter(COMMIT_NUMBER)
        return OffsetsAnswer(number, [await self._list_offset(query) for query in request.queries])

    async def _list_offset(self, query: OffsetQuery) -> OffsetResult:
        state = self._current()
        row = state.live_partition(query.topic_id, query.partition)
        if row is None:
            return _UNKNOWN_OFFSET
        stable = state.last_stable_offset(row)
        end = stable if query.read_committed else row.end_offset
        if query.timestamp < 0:
            if query.timestamp == OffsetSpec.LATEST:
                return _offset_result(row, stable, end)
            if query.timestamp in (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL):
                return _offset_result(row, stable, row.log_start_offset)
            if query.timestamp != OffsetSpec.MAX_TIMESTAMP:
                return _offset_result(row, stable, -1)
            run = await self._store.run_of_max_timestamp(row.topic_id, row.partition, row.log_start_offset)
        else:
            run = await self._first_reaching(row, query.timestamp)
        if run is None or run.base_offset >= end or run.kind is ObjectKind.MARKERS:
            return _offset_result(row, stable, -1)
        return _offset_result(row, stable, -1, run)

    async def _first_reaching(self, row: PartitionRow, timestamp: int) -> Run | None:
        from_offset = row.log_start_offset
        run = await self._store.first_run_reaching(row.topic_id, row.partition, timestamp, from_offset)
        if run is not None and run.batches and run.base_offset < from_offset:
            # Only what is left of the run at and above log start counts.
            left = [
                batch.max_timestamp
                for batch in run.batches
                if batch.verdict is Verdict.STORED and batch.base_offset + batch.record_count > from_offset
            ]
            if max(left, default=-1) < timestamp:
                return await self._store.first_run_reaching(
                    row.topic_id, row.partition, timestamp, run.end_offset
                )
        return run

    def offsets_for_epochs(self, request: EpochRequest) -> EpochAnswer:
        """Where each of the log's epochs ended."""
        results: list[EpochResult] = []
        for query in request.queries:
            row = self._current().live_partition(query.topic_id, query.partition)
            if row is None:
                results.append(EpochResult(PartitionError.UNKNOWN_TOPIC_OR_PARTITION, -1, -1))
            else:
                results.append(EpochResult(PartitionError.NONE, *_end_of_epoch(row, query.leader_epoch)))
        return EpochAnswer(results)

    def describe_producers(self, request: ProducerQuery) -> ProducersAnswer:
        """The idempotent producers known on a partition."""
        state = self._current()
        if state.live_partition(request.topic_id, request.partition) is None:
            return ProducersAnswer(PartitionError.UNKNOWN_TOPIC_OR_PARTITION, [])
        ids = state.producers_on.get((request.topic_id, request.partition), {})
        rows = [state.get(ProducerRow, request.topic_id, request.partition, number) for number in ids]
        return ProducersAnswer(
            PartitionError.NONE,
            [
                ActiveProducer(
                    row.producer_id,
                    row.producer_epoch,
                    row.recent[-1][1],
                    row.last_timestamp,
                    -1 if (began := state.get(OpenRangeRow, *key_of(row))) is None else began.first_offset,
                )
                for row in rows
                if row is not None
            ],
        )

    async def sizes(self, request: SizesRequest) -> SizesAnswer:
        """Bounds, bytes and runs of partitions."""
        held = {
            (size.topic_id, size.partition): size
            for size in await self._store.partition_bytes(request.topic_ids)
        }
        state = self._current()
        wanted = None if request.topic_ids is None else set(request.topic_ids)
        sizes: list[PartitionSize] = []
        for row in state.all(PartitionRow):
            if wanted is not None and row.topic_id not in wanted:
                continue
            if state.live_partition(row.topic_id, row.partition) is None:
                continue
            size = held.get((row.topic_id, row.partition))
            sizes.append(
                PartitionSize(
                    row.topic_id,
                    row.partition,
                    row.log_start_offset,
                    row.end_offset,
                    0 if size is None else size.bytes,
                    0 if size is None else size.runs,
                )
            )
        return SizesAnswer(sizes)


def _query_of(asked: FindPartition) -> tuple[UUID, int, int, int]:
    return asked.topic_id, asked.partition, asked.offset, asked.max_bytes


@dataclass(frozen=True, slots=True)
class _Bounds:
    """A partition as of one commit number; `aborted`: what ends at or after `offset`."""

    row: PartitionRow
    stable: int
    offset: int
    aborted: list[AbortedRow]

    @classmethod
    def of(cls, state: HotState, row: PartitionRow, offset: int) -> _Bounds:
        aborted = state.aborted_from(row.topic_id, row.partition, offset)
        return cls(row, state.last_stable_offset(row), offset, aborted)

    def found(self, runs: list[Run]) -> FoundPartition:
        row = self.row
        is_inside = row.log_start_offset <= self.offset <= row.end_offset
        visible = [run for run in runs if run.end_offset <= row.end_offset]
        assert is_inside or not visible, "nothing is looked up outside the log"
        end_offset = visible[-1].end_offset if visible else self.offset
        ranges = [
            AbortedTransaction(one.producer_id, one.first_offset, one.last_offset)
            for one in self.aborted
            if one.first_offset < end_offset
        ]
        return FoundPartition(
            PartitionError.NONE if is_inside else PartitionError.OFFSET_OUT_OF_RANGE,
            row.log_start_offset,
            row.end_offset,
            self.stable,
            row.epochs[-1][0],
            visible,
            sorted(ranges, key=lambda one: one.first_offset) if visible else [],
        )


def _offset_result(row: PartitionRow, stable: int, offset: int, run: Run | None = None) -> OffsetResult:
    return OffsetResult(
        PartitionError.NONE, offset, -1, row.epochs[-1][0], row.log_start_offset, row.end_offset, run, stable
    )


def _end_of_epoch(row: PartitionRow, epoch: int) -> tuple[int, int]:
    current = row.epochs[-1][0]
    if epoch > current or epoch < row.epochs[0][0]:
        return -1, -1
    ends = [start for _, start in row.epochs[1:]] + [row.end_offset]
    known = [(number, end) for (number, _), end in zip(row.epochs, ends, strict=True) if number <= epoch]
    return known[-1]
