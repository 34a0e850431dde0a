"""Compaction in the sequencer: choose runs to compact, and swap old runs for new ones.

Invariants of a swap:
- a retry with the same id gets the first answer;
- readers see either all old runs or all new ones;
- only runs that are exactly as the compactor read them are replaced; what was deleted meanwhile stays deleted;
- running maxima stay monotone;
- only stable offsets are replaced, and an aborted range loses exactly the part that was replaced: it is deleted
  together with its marker, never before and never after.

Merges of small objects (sequencer.rules.levels) replace Parquet runs in the same way. In addition:
- the new run has exactly the offsets of the old ones, and keeps the time of the newest of them, so a merge makes no
  record younger;
- an object has a SmallObjectRow as long as it is live and small, and at no other time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec
import structlog

from sequencer.api.commits import ObjectKind
from sequencer.api.compaction import (
    CompactionCandidate,
    CompactionCandidates,
    CompactionRequest,
    MergeCandidate,
    ReplacementRun,
    SwapAnswer,
    SwapRequest,
)
from sequencer.api.errors import InvalidRequest, SwapRefused
from sequencer.api.reads import AbortedTransaction, Run
from sequencer.bounds import ABORTED_BYTES, run_bytes
from sequencer.rules.cleaning import check_drops, check_lease, least_merged_age_ms
from sequencer.rules.garbage import release_runs
from sequencer.rules.levels import SMALL_BYTES, to_merge
from sequencer.rules.retention import TopicLimits
from sequencer.rules.sizes import sums_of
from sequencer.rules.topics import topic_value
from sequencer.rules.upload_sessions import check_object, live_session, object_row
from sequencer.settings import SequencerSettings
from sequencer.store.batch_table import EMPTY_TABLE
from sequencer.store.draft import Draft
from sequencer.store.row_store import ObjectRowMissing, PartitionBytes, RowStore
from sequencer.store.rows import AbortedRow, PartitionRow, RunRow, SmallObjectRow, SwapRow, TopicRow, key_of
from sequencer.store.state import COMMIT_NUMBER, HotState, replace_row
from tailrace.turns import Turns, in_parts

_log = structlog.get_logger(__name__)

MAX_PAGE_BYTES = 4 << 20
"""Limit of a page of candidates, and of one candidate's runs, in encoded bytes; the last run may exceed it."""
MAX_LOOKED_AT = 500
"""Limit of partitions whose runs are read for one page."""
MAX_SUMMED_UP = 20_000
"""Partitions whose sizes are summed up for one page, about; so a page of a million partitions with nothing to do does
not take minutes, and time out."""
RANGES_IN_A_TURN = 10_000
ROWS_IN_A_TURN = 10_000
LEAST_AT_ONCE, MOST_AT_ONCE = 16, 1_000
"""Runs that one statement reads: the first for a partition about whose runs nothing is known yet; the second is the
limit."""
RUNS_OF_A_STATEMENT = 2_000
"""Runs that one statement of a swap reads, of several partitions."""
_ALL_BYTES = 1 << 62


@dataclass(slots=True)
class _PageBudget:
    """The space left in a page, in runs and in encoded bytes."""

    runs: int
    bytes: int = MAX_PAGE_BYTES

    @property
    def is_full(self) -> bool:
        return self.runs <= 0 or self.bytes <= 0

    def take(self, candidate: CompactionCandidate) -> None:
        self.runs -= len(candidate.runs)
        self.bytes -= sum(map(run_bytes, candidate.runs)) + ABORTED_BYTES * len(candidate.aborted)


async def find_candidates(
    state: HotState, store: RowStore, request: CompactionRequest, settings: SequencerSettings
) -> CompactionCandidates:
    """Return a page of partitions worth compacting, each with its oldest replaceable sequence of runs; or a page of
    merges."""
    if request.max_runs < 1:
        raise InvalidRequest(f"max_runs {request.max_runs}; at least 1")
    commit_number = state.counter(COMMIT_NUMBER)
    find = _find_merges if request.is_of_merges else _find_uncompacted
    page = await find(state, store, request, settings)
    return msgspec.structs.replace(page, commit_number=commit_number)


async def _find_uncompacted(
    state: HotState, store: RowStore, request: CompactionRequest, settings: SequencerSettings
) -> CompactionCandidates:
    """Return a page of partitions whose oldest mixed runs are due. It may be empty and have a next page, because it
    ends after a limited number of partitions, due or not."""
    now = await store.now_ms()
    candidates: list[CompactionCandidate] = []
    skipped = set(request.skip)
    budget = _PageBudget(request.max_runs)
    looked_at = summed_up = 0
    before = request.after
    async for summed in sums_of(store, state.all(TopicRow), request.after):
        for size in summed.sizes:
            topic = state.get(TopicRow, size.topic_id)
            row = state.get(PartitionRow, size.topic_id, size.partition)
            if _is_due(size, request, now) and topic is not None and row is not None:
                most_runs = _runs_of_one(request, topic)
                has_room = budget.runs >= most_runs
                own = _PageBudget(min(budget.runs, most_runs), budget.bytes)
                try:
                    candidate = await _candidate(
                        state, store, topic=topic, row=row, budget=own, skipped=skipped
                    )
                except ObjectRowMissing as error:
                    _log.error("a partition can't be compacted: run `tailrace audit`", reason=str(error))
                    candidate = None
                looked_at += 1
                if candidate is not None:
                    budget.take(candidate)
                    if candidates and budget.is_full and not (has_room and budget.bytes > 0):
                        return CompactionCandidates(candidates, before)  # it goes whole into the next page
                    candidates.append(candidate)
            before = (size.topic_id, size.partition)
            if budget.is_full or looked_at >= MAX_LOOKED_AT:
                return CompactionCandidates(candidates, before)
        summed_up += summed.partitions
        if summed_up >= MAX_SUMMED_UP:
            return CompactionCandidates(candidates, summed.last)
    return CompactionCandidates(candidates)


def _is_due(size: PartitionBytes, request: CompactionRequest, now_ms: int) -> bool:
    return size.uncompacted_bytes > 0 and (
        size.uncompacted_bytes >= request.min_bytes
        or size.oldest_uncompacted_ms <= now_ms - request.min_age_ms
    )


async def _find_merges(
    state: HotState, store: RowStore, request: CompactionRequest, settings: SequencerSettings
) -> CompactionCandidates:
    """Return a page of small objects to merge. Only their runs are read."""
    now_ms = await store.now_ms()
    limits = TopicLimits(state, settings)
    merges: list[MergeCandidate] = []
    budget = _PageBudget(request.max_runs)
    small = await _small_objects(state, request.after)
    for topic_id, objects in small.items():
        retention_ms = limits.of(topic_id).retention_ms
        newest_ms = now_ms - least_merged_age_ms(state, topic_id)
        old = (small for small in objects if small.ended_ms <= newest_ms)
        for group in to_merge(topic_id, old, now_ms=now_ms, retention_ms=retention_ms):
            runs = await _runs_to_merge(state, store, group, budget)
            topic = state.get(TopicRow, topic_id)
            if topic is not None and len({run.object_id for run in runs}) > 1:
                merges.append(MergeCandidate(topic_value(topic), runs))
        if budget.is_full:
            return CompactionCandidates([], (topic_id, 0), merges)
    return CompactionCandidates([], None, merges)


async def _small_objects(state: HotState, after: tuple[UUID, int] | None) -> dict[UUID, list[SmallObjectRow]]:
    """Return the small objects of topics that have several, ordered by topic id."""
    turns = Turns(ROWS_IN_A_TURN)
    of_topics: dict[UUID, list[SmallObjectRow]] = {}
    for topic_id, object_id in state.keys(SmallObjectRow):
        row = state.get(SmallObjectRow, topic_id, object_id)
        if row is not None and (after is None or row.topic_id > after[0]):
            of_topics.setdefault(row.topic_id, []).append(row)
        await turns.did()
    return {topic_id: rows for topic_id, rows in sorted(of_topics.items()) if len(rows) > 1}


async def _runs_to_merge(
    state: HotState, store: RowStore, group: Iterable[SmallObjectRow], budget: _PageBudget
) -> list[Run]:
    """Return the live runs of the group's first objects, in order: at least two objects, then as many as the budget
    allows."""
    runs: list[Run] = []
    for count, small in enumerate(group):
        if count > 1 and budget.is_full:
            break
        for run in await store.runs_of_object(small.object_id):
            row = state.live_partition(run.topic_id, run.partition)
            if row is not None and run.end_offset > row.log_start_offset:
                runs.append(run)
                budget.runs -= 1
                budget.bytes -= run_bytes(run)
    return runs


def _runs_of_one(request: CompactionRequest, topic: TopicRow) -> int:
    """Return how many runs a candidate of the topic may have."""
    if request.runs_each < 1:
        return request.max_runs
    return max(request.runs_each, request.max_runs // topic.partitions)


async def _candidate(
    state: HotState,
    store: RowStore,
    topic: TopicRow,
    row: PartitionRow,
    budget: _PageBudget,
    skipped: set[tuple[UUID, int, int]],
) -> CompactionCandidate | None:
    # Read this before the runs: a transaction that ends in between is above this last stable offset.
    stable = state.last_stable_offset(row)
    aborted = state.aborted_from(row.topic_id, row.partition, row.log_start_offset)
    runs = await _oldest_stretch(store, row, stable=stable, budget=budget, skipped=skipped)
    if not runs:
        return None
    turns = Turns(RANGES_IN_A_TURN)
    ranges: list[AbortedTransaction] = []
    for transaction in aborted:
        if transaction.last_offset >= runs[0].base_offset and transaction.first_offset < runs[-1].end_offset:
            ranges.append(
                AbortedTransaction(transaction.producer_id, transaction.first_offset, transaction.last_offset)
            )
        await turns.did()
    ranges.sort(key=lambda transaction: transaction.first_offset)
    return CompactionCandidate(
        topic=topic_value(topic),
        partition=row.partition,
        log_start_offset=row.log_start_offset,
        last_stable_offset=stable,
        runs=runs,
        aborted=ranges,
    )


async def _oldest_stretch(
    store: RowStore, row: PartitionRow, stable: int, budget: _PageBudget, skipped: set[tuple[UUID, int, int]]
) -> list[Run]:
    """Return the first consecutive mixed and marker runs between log start and `stable`, at least one of them mixed, as
    many as the budget allows."""
    together: list[Run] = []
    has_mixed = False
    size = 0
    offset = row.log_start_offset
    most = min(LEAST_AT_ONCE, budget.runs)
    while offset < stable:
        page = await store.runs_from(row.topic_id, row.partition, offset, max_bytes=_ALL_BYTES, max_runs=most)
        if not page:
            break
        for run in page:
            is_skipped = (run.topic_id, run.partition, run.base_offset) in skipped
            if run.kind is not ObjectKind.PARQUET and run.end_offset <= stable and not is_skipped:
                has_mixed = has_mixed or run.kind is ObjectKind.MIXED
                together.append(run)
                size += run_bytes(run)
                if len(together) < budget.runs and size < budget.bytes:
                    continue
                if has_mixed:
                    return together
                size -= run_bytes(together.pop(0))
            elif has_mixed:
                return together
            else:
                together.clear()
                size = 0
        offset = page[-1].end_offset
        # Runs may have many batches, so that few of them fill the budget; or Parquet and marker runs may come first.
        most = min(MOST_AT_ONCE, _still_fit(budget, len(together), size) if has_mixed else 2 * most)
    return together if has_mixed else []


def _still_fit(budget: _PageBudget, runs: int, size: int) -> int:
    """Return how many more runs fit if they are as large as these on average."""
    return max(1, min(budget.runs - runs, 1 + (budget.bytes - size) * runs // size))


async def swap(draft: Draft, store: RowStore, request: SwapRequest) -> SwapAnswer:
    """Replace runs by those of the Parquet object that was made from them."""
    answered = draft.get(SwapRow, request.swap_id)
    if answered is not None:
        return SwapAnswer(answered.commit_number)
    check_lease(draft, request.lease_epoch)
    session = live_session(draft, request.session_id)
    described = request.object
    check_object(described, session.prefix)
    if described.kind is not ObjectKind.PARQUET:
        raise InvalidRequest(
            f"object {described.key!r} is of kind {described.kind.name}; a Parquet object is expected"
        )
    if await store.object_rows([described.object_id]):
        raise InvalidRequest(f"object {described.object_id} is stored already; each swap brings its own")
    topics = {replacement.topic_id for replacement in request.runs}
    if len(topics) > 1:
        raise InvalidRequest(f"object {described.object_id} is for {len(topics)} topics; one is expected")
    added = ended_ms = 0
    number = draft.visible_change()
    pages = await _first_pages(draft, store, request.runs)
    for replacement, page in zip(request.runs, pages, strict=True):
        old = await _runs_to_replace(draft, store, replacement, page)
        if not old:
            continue
        check_drops(draft, replacement)
        await _shorten_aborted(draft, store, replacement)
        await release_runs(draft, store, old)
        row = _replacement_row(draft, replacement, old=old, object_id=described.object_id, number=number)
        draft.put_run(row)
        draft.publish(replacement.topic_id, replacement.partition)
        added += 1
        ended_ms = max(ended_ms, row.created_ms)
    if added and described.size < SMALL_BYTES:
        (topic_id,) = topics
        draft.put(SmallObjectRow(topic_id, described.object_id, ended_ms, described.size))
    stored = object_row(described)
    draft.put(replace_row(stored, live_runs=added, retired_ms=None if added else draft.now_ms))
    draft.put(SwapRow(swap_id=request.swap_id, commit_number=number, created_ms=draft.now_ms))
    return SwapAnswer(number)


async def _first_pages(
    draft: Draft, store: RowStore, replacements: Sequence[ReplacementRun]
) -> list[list[Run]]:
    """Return the first runs at the place of each replacement: at most one more than it replaces, and at most
    MOST_AT_ONCE.

    Commits wait meanwhile. So replacements of equally many runs share a statement: a swap over thousands of partitions
    takes few.
    """
    pages: list[list[Run]] = [[] for _ in replacements]
    by_count: dict[int, list[int]] = {}
    for index, replacement in enumerate(replacements):
        if draft.live_partition(replacement.topic_id, replacement.partition) is not None:
            by_count.setdefault(_most_read(replacement), []).append(index)
    for most, indexes in by_count.items():
        for some in in_parts(indexes, max(1, RUNS_OF_A_STATEMENT // most)):
            queries = [
                (replacement.topic_id, replacement.partition, replacement.base_offset, _ALL_BYTES)
                for replacement in (replacements[index] for index in some)
            ]
            found = await store.runs_from_many(queries, most, with_batches=False)
            for index, page in zip(some, found, strict=True):
                pages[index] = page
    return pages


def _most_read(replacement: ReplacementRun, known: int = 0) -> int:
    """Return how many runs one statement reads for a replacement of which so many are known."""
    return min(MOST_AT_ONCE, len(replacement.replaced) + 1 - known)


async def _runs_to_replace(
    draft: Draft, store: RowStore, replacement: ReplacementRun, page: Sequence[Run]
) -> list[Run]:
    """Return the runs to replace that still exist; none if all were deleted. Raises SwapRefused if there are other
    runs.

    `page`: the first runs there. Commits wait meanwhile, so at most one other run is read.
    """
    subject = f"{replacement.topic_id}-{replacement.partition}"
    row = draft.live_partition(replacement.topic_id, replacement.partition)
    if row is None or replacement.end_offset <= row.log_start_offset:
        return []
    stable = draft.durable.last_stable_offset(row)
    if replacement.end_offset > stable:
        raise SwapRefused(f"{subject}: offsets from {stable} on are not stable; plan again")
    if not replacement.replaced or replacement.replaced[0][0] != replacement.base_offset:
        raise InvalidRequest(f"{subject}: a replacement begins where the first run it replaces began")
    runs = [run for run in page if run.base_offset < replacement.end_offset]
    while page and page[-1].end_offset < replacement.end_offset and len(runs) <= len(replacement.replaced):
        page = await store.runs_from(
            row.topic_id,
            row.partition,
            page[-1].end_offset,
            max_bytes=_ALL_BYTES,
            max_runs=_most_read(replacement, len(runs)),
            with_batches=False,
        )
        runs += [run for run in page if run.base_offset < replacement.end_offset]
    expected = [
        (base_offset, object_id)
        for index, (base_offset, object_id) in enumerate(replacement.replaced)
        if _end_of(replacement, index) > row.log_start_offset
    ]
    # Runs below the log start may still exist or may already be removed.
    kept = [(run.base_offset, run.object_id) for run in runs if run.end_offset > row.log_start_offset]
    below = [(run.base_offset, run.object_id) for run in runs if run.end_offset <= row.log_start_offset]
    if kept != expected or not set(below) <= set(replacement.replaced):
        raise SwapRefused(f"{subject}: found runs {kept[:3]}..., expected {expected[:3]}...; plan again")
    if runs[-1].end_offset != replacement.end_offset:
        raise SwapRefused(f"{subject}: the runs end at {runs[-1].end_offset}, not {replacement.end_offset}")
    return runs


async def _shorten_aborted(draft: Draft, store: RowStore, replacement: ReplacementRun) -> None:
    """Remove the replaced offsets from aborted ranges: their records and markers do not exist after the swap."""
    row = draft.live_partition(replacement.topic_id, replacement.partition)
    assert row is not None, "its runs are there"
    begin, end = replacement.base_offset, replacement.end_offset
    for aborted in draft.aborted_within(row.topic_id, row.partition, begin, end):
        first = max(aborted.first_offset, row.log_start_offset)
        is_begun_before = first < replacement.base_offset
        if aborted.last_offset < replacement.base_offset or first >= replacement.end_offset:
            continue
        if aborted.last_offset >= replacement.end_offset:
            if not is_begun_before:
                draft.delete(AbortedRow, *key_of(aborted))
                draft.put(replace_row(aborted, first_offset=replacement.end_offset))
        elif is_begun_before and await _has_mixed_run(store, row, first, replacement.base_offset):
            raise SwapRefused(
                f"{row.topic_id}-{row.partition}: producer {aborted.producer_id}'s aborted records from {first} on"
                f" stand before {replacement.base_offset}, their marker does not; replace older runs first"
            )
        else:
            draft.delete(AbortedRow, *key_of(aborted))


async def _has_mixed_run(store: RowStore, row: PartitionRow, begin: int, end: int) -> bool:
    """Whether a run between the offsets may hold records of an aborted producer; markers and Parquet runs hold none."""
    while begin < end:
        page = await store.runs_from(
            row.topic_id,
            row.partition,
            begin,
            max_bytes=_ALL_BYTES,
            max_runs=MOST_AT_ONCE,
            with_batches=False,
        )
        if any(run.kind is ObjectKind.MIXED and run.base_offset < end for run in page):
            return True
        if not page:
            break
        begin = page[-1].end_offset
    return False


def _end_of(replacement: ReplacementRun, index: int) -> int:
    """Return the end of a replaced run: the next run begins where it ends."""
    if index + 1 < len(replacement.replaced):
        return replacement.replaced[index + 1][0]
    return replacement.end_offset


def _replacement_row(
    draft: Draft, replacement: ReplacementRun, old: list[Run], object_id: UUID, number: int
) -> RunRow:
    # The running maximum before the first old run is not above that run's own, so the new value is never too low. The
    # running maximum of the next run is not below that of the last old run, so the new value is never too high.
    running_max = max(replacement.max_timestamp, old[0].running_max_timestamp)
    if replacement.max_timestamp > old[-1].running_max_timestamp:
        raise InvalidRequest(
            f"max_timestamp {replacement.max_timestamp} is above all that was replaced:"
            f" {old[-1].running_max_timestamp}"
        )
    is_merge = all(run.kind is ObjectKind.PARQUET for run in old)
    return RunRow(
        topic_id=replacement.topic_id,
        partition=replacement.partition,
        base_offset=replacement.base_offset,
        end_offset=replacement.end_offset,
        object_id=object_id,
        start=0,
        length=replacement.length,
        max_timestamp=replacement.max_timestamp,
        running_max_timestamp=running_max,
        commit_number=number,
        created_ms=max(run.created_ms for run in old) if is_merge else draft.now_ms,
        kind=ObjectKind.PARQUET,
        batches=EMPTY_TABLE,
    )
