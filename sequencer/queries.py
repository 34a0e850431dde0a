"""What readers are told: bounds out of the durable state, runs out of the store, as of one commit number.

Runs are removed only below a log start that is already durable and visible (sequencer.rules.retention), so a
look-up in the store fits the bounds it was started with, unless the log start moved meanwhile: then it is
done again. So it is when a run was found that is newer than the bounds (a swap has been written and is not yet
shown): aborted ranges must be those of the very runs that are answered.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from sequencer.api import (
    AbortedTransaction,
    ActiveProducer,
    BatchStatus,
    EpochAnswer,
    EpochRequest,
    EpochResult,
    FindAnswer,
    FindPartition,
    FindRequest,
    FoundPartition,
    ObjectDescription,
    ObjectKind,
    ObjectRecord,
    ObjectsAnswer,
    ObjectsRequest,
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
    Statistics,
)
from sequencer.bounds import MAX_PAGE, AnswerRoom
from sequencer.recent_runs import RecentRuns
from sequencer.store.rows import (
    AbortedRow,
    GroupRow,
    ObjectRow,
    OpenRangeRow,
    PartitionBytes,
    PartitionRow,
    ProducerRow,
    RowStore,
    ScannedRuns,
    SessionRow,
    TopicRow,
    TransactionRow,
    key_of,
)
from sequencer.store.state import COMMIT_NUMBER, HotState
from sequencer.store.sums import statistics_of
from tailrace.turns import Turns

PLACES_AT_ONCE = 32
"""Partitions whose runs are looked up by one query, with a fair share each of what the answer has room for."""
LEAST_RUNS = 64
LEAST_BYTES = 1 << 16
"""No partition's share is less, so that a large range isn't read in tiny steps."""
LOOK_UPS_AT_ONCE = 4
"""Look-ups by time that one request has under way: half of the connections to the database."""
MAX_LOOK_UPS = 200
"""Of one answer of `list_offsets`."""
MAX_SCANNED = 10_000
"""Runs that one look-up by time looks at by their own timestamps before it is stopped; once the look-ups of an answer
have looked at so many together, it ends."""
ANSWERED_IN_A_TURN = 2_000
RANGES_AS_A_PARTITION = 20
"""As many aborted ranges take as long to look through as a partition's bounds."""
_ATTEMPTS = 10
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
        """Bounds of each partition, and the runs from the offset on, for as many as there is room for."""
        for _ in range(_ATTEMPTS):
            state = self._current()
            number = state.counter(COMMIT_NUMBER)
            turns = Turns(ANSWERED_IN_A_TURN)
            places: list[_Place] = []
            for asked in request.partitions:
                places.append(_Place.of(self._current(), asked))
                await turns.did()
            if await self._look_up([place for place in places if place.has_runs], request.max_bytes):
                found: list[FoundPartition] = []
                for place in places:
                    found.append(place.found())
                    await turns.did(1 + len(place.aborted) // RANGES_AS_A_PARTITION)
                return FindAnswer(number, found)
        raise SequencerUnavailable("the log changed at each attempt to read; ask again")

    async def _look_up(self, places: Sequence[_Place], max_bytes: int) -> bool:
        """Bring the runs of the places, in order, until the answer is full; False where the log changed meanwhile."""
        room = AnswerRoom(max_bytes)
        for first in range(0, len(places), PLACES_AT_ONCE):
            if room.is_full:
                break
            if not await self._look_up_some(places[first : first + PLACES_AT_ONCE], room):
                return False
        return True

    async def _look_up_some(self, places: Sequence[_Place], room: AnswerRoom) -> bool:
        # Aborted ranges are taken before the runs: where a swap has shortened them since, it left a newer run.
        state = self._current()
        number = state.counter(COMMIT_NUMBER)
        for place in places:
            place.aborted = state.aborted_from(
                place.asked.topic_id, place.asked.partition, place.asked.offset
            )
        runs = await self._runs_of(places, room)
        if not all(self._has_kept_log_start(place.row) for place in places):
            return False
        for place, found in zip(places, runs, strict=True):
            place.runs = room.take(found, place.asked.max_bytes)
        if any(run.commit_number > number for place in places for run in place.runs):
            await self._catch_up()
            return False
        return True

    async def _runs_of(self, places: Sequence[_Place], room: AnswerRoom) -> list[Sequence[Run]]:
        """Runs of each place: those that are remembered, or a fair share of the room out of the store."""
        runs: list[Sequence[Run]] = []
        older: list[int] = []
        for index, place in enumerate(places):
            asked = place.asked
            recent = self._recent.find(asked.topic_id, asked.partition, asked.offset, asked.max_bytes)
            runs.append(recent or ())
            if recent is None:
                older.append(index)
        if older:
            most = max(LEAST_RUNS, min(1000, room.runs // len(older)))
            share = max(LEAST_BYTES, room.log_bytes // len(older))
            asked_all = [places[index].asked for index in older]
            found = await self._store.runs_from_many(
                [(one.topic_id, one.partition, one.offset, min(one.max_bytes, share)) for one in asked_all],
                most,
            )
            for index, each in zip(older, found, strict=True):
                runs[index] = each
        return runs

    def _has_kept_log_start(self, row: PartitionRow | None) -> bool:
        assert row is not None, "only live partitions are looked up"
        now = self._current().live_partition(row.topic_id, row.partition)
        return now is not None and now.log_start_offset == row.log_start_offset

    async def list_offsets(self, request: OffsetsRequest) -> OffsetsAnswer:
        """The offset, or the run to look into, for each query."""
        number = self._current().counter(COMMIT_NUMBER)
        room, turns = AnswerRoom(), Turns(ANSWERED_IN_A_TURN)
        results: list[OffsetResult] = []
        look_ups = 0
        work = _Scanned()
        while (
            len(results) < len(request.queries)
            and look_ups < MAX_LOOK_UPS
            and work.runs < MAX_SCANNED
            and not room.is_full
        ):
            some = request.queries[len(results) : len(results) + LOOK_UPS_AT_ONCE]
            bounds = [self._offset_of_bounds(query) for query in some]
            behind = [query for query, known in zip(some, bounds, strict=True) if known is None]
            by_time = [self._offset_by_time(query, work) for query in behind]
            found = await asyncio.gather(*by_time) if behind else []
            looked_up = iter(found)
            for known in bounds:
                result = known if known is not None else next(looked_up)
                results.append(result)
                if result.run is not None:
                    room.take_all([result.run])
            look_ups += len(behind)
            await turns.did(len(some))
        return OffsetsAnswer(number, results)

    def _offset_of_bounds(self, query: OffsetQuery) -> OffsetResult | None:
        """What the partition's bounds alone answer; None where a run must be looked up."""
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
            found = await self._store.run_of_max_timestamp(
                row.topic_id, row.partition, from_offset, MAX_SCANNED
            )
        else:
            found = await self._first_reaching(row, query.timestamp, from_offset)
        work.runs += found.scanned
        run = found.run
        end = stable if query.read_committed else row.end_offset
        if run is None or run.base_offset >= end or run.kind is ObjectKind.MARKERS:
            run = None
        result = _offset_result(row, stable, -1, run)
        if found.next_offset is None or found.next_offset >= end:
            return result
        return msgspec.structs.replace(result, next_offset=found.next_offset)

    async def _first_reaching(self, row: PartitionRow, timestamp: int, from_offset: int) -> ScannedRuns:
        found = await self._store.first_run_reaching(
            row.topic_id, row.partition, timestamp, from_offset, MAX_SCANNED
        )
        run = found.run
        if run is not None and run.batches and run.base_offset < from_offset:
            # Only what is left of the run at and above log start counts.
            left = [
                batch.max_timestamp
                for batch in run.batches
                if batch.status is BatchStatus.STORED and batch.base_offset + batch.record_count > from_offset
            ]
            if max(left, default=-1) < timestamp:
                return await self._store.first_run_reaching(
                    row.topic_id, row.partition, timestamp, run.end_offset, MAX_SCANNED
                )
        return found

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
        ids = state.producers_on.get(request.topic_id, request.partition) or {}
        chosen = heapq.nsmallest(MAX_PAGE + 1, (number for number in ids if number > request.after))
        rows = [state.get(ProducerRow, request.topic_id, request.partition, number) for number in chosen]
        return ProducersAnswer(
            PartitionError.NONE,
            [
                ActiveProducer(
                    producer_id=row.producer_id,
                    producer_epoch=row.producer_epoch,
                    last_sequence=row.recent[-1].last_sequence,
                    last_timestamp=row.last_timestamp,
                    transaction_start_offset=-1
                    if (began := state.get(OpenRangeRow, *key_of(row))) is None
                    else began.first_offset,
                )
                for row in rows[:MAX_PAGE]
                if row is not None
            ],
            chosen[MAX_PAGE - 1] if len(chosen) > MAX_PAGE else -1,
        )

    async def sizes(self, request: SizesRequest) -> SizesAnswer:
        """Bounds, bytes and runs of partitions, by topic id and partition."""
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
        held = {
            (size.topic_id, size.partition): size
            for size in await self._store.partition_bytes(list(dict.fromkeys(row.topic_id for row in page)))
        }
        return SizesAnswer(
            [_size_of(row, held.get((row.topic_id, row.partition))) for row in page],
            (page[-1].topic_id, page[-1].partition) if len(rows) > MAX_PAGE else None,
        )

    async def objects(self, request: ObjectsRequest) -> ObjectsAnswer:
        """Objects in the order of their keys."""
        rows = await self._store.objects_after(request.after_key, max(1, min(request.limit, MAX_PAGE)))
        return ObjectsAnswer([ObjectRecord(_description(row), row.live_runs, row.retired_ms) for row in rows])

    async def statistics(self) -> Statistics:
        """Counts and bytes, for metrics."""
        state = self._current()
        sums = statistics_of(state.counter)
        now_ms = await self._store.now_ms()
        open_rows = (state.get(TransactionRow, name) for name in state.open_transactions)
        started = [row.started_ms for row in open_rows if row is not None]
        open_sessions = len(state.open_sessions)
        return Statistics(
            runs=sums.runs,
            objects=sums.objects,
            retired_objects=sums.retired_objects,
            retired_bytes=sums.retired_bytes,
            live_bytes=sums.live_bytes,
            open_sessions=open_sessions,
            dead_sessions=state.count(SessionRow) - open_sessions,
            producers=state.count(ProducerRow),
            groups=state.count(GroupRow),
            commit_number=state.counter(COMMIT_NUMBER),
            uncompacted_bytes=sums.uncompacted_bytes,
            open_transactions=len(started),
            oldest_transaction_ms=max(0, now_ms - min(started)) if started else 0,
        )


def _description(row: ObjectRow) -> ObjectDescription:
    return ObjectDescription(
        object_id=row.object_id,
        kind=row.kind,
        key=row.key,
        size=row.size,
        crc=row.crc,
        index_start=row.index_start,
        created_ms=row.created_ms,
        format_version=row.format_version,
        index_crc=row.index_crc,
    )


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
    """Runs that the look-ups of one answer looked at."""

    runs: int = 0


@dataclass(slots=True)
class _Place:
    """A partition as asked, and as of one commit number (`row` None: there is none); then what was found there."""

    asked: FindPartition
    row: PartitionRow | None
    stable: int
    runs: Sequence[Run] = ()
    aborted: Sequence[AbortedRow] = ()
    """Those that end at or after the offset asked."""

    @classmethod
    def of(cls, state: HotState, asked: FindPartition) -> _Place:
        row = state.live_partition(asked.topic_id, asked.partition)
        return cls(asked, row, -1 if row is None else state.last_stable_offset(row))

    @property
    def has_runs(self) -> bool:
        row = self.row
        return row is not None and row.log_start_offset <= self.asked.offset < row.end_offset

    def found(self) -> FoundPartition:
        row, offset = self.row, self.asked.offset
        if row is None:
            return _UNKNOWN_PARTITION
        visible = [run for run in self.runs if run.end_offset <= row.end_offset]
        end_offset = visible[-1].end_offset if visible else offset
        ranges = [
            AbortedTransaction(one.producer_id, one.first_offset, one.last_offset)
            for one in self.aborted
            if one.first_offset < end_offset
        ]
        return FoundPartition(
            error=PartitionError.NONE
            if row.log_start_offset <= offset <= row.end_offset
            else PartitionError.OFFSET_OUT_OF_RANGE,
            log_start_offset=row.log_start_offset,
            high_watermark=row.end_offset,
            last_stable_offset=self.stable,
            leader_epoch=row.epochs[-1].epoch,
            runs=visible,
            aborted=sorted(ranges, key=lambda one: one.first_offset) if visible else [],
        )


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
