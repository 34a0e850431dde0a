"""One round of compaction, on the driver: take the lease, open a session, plan, run tasks, swap, repeat until done.

A round is not atomic. Each item is swapped as soon as it and the items before it in its partitions have outcomes. A
failed or refused item does not affect the others, and is left for the next round.

A `TaskRunner` runs the tasks: Spark (compactor.on_spark.job), or this process (`InProcess`) for tests, simulation and
stores that are too small for a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID

import msgspec
import structlog

from compactor.by_key.keyed_cycle import (
    KEY_MEMORY_BYTES,
    KeyedOutcomes,
    KeyedRunner,
    KeyedSummary,
    KeyedWork,
    compact_keys,
)
from compactor.by_key.keyed_rewrite import KeyedItem, try_rewrite_keyed
from compactor.lease import LEASE_MS, HeldLease, held_lease
from compactor.merges import halves, plan_merges
from compactor.order import SwapOrder
from compactor.plan import PlanSettings, WorkItem, parts, plan, waves
from compactor.rewrite import OutputLocation, RewriteFailure, RewriteResult, try_rewrite
from sequencer.api.compaction import (
    CompactionCandidate,
    CompactionCandidates,
    CompactionRequest,
    MarkClean,
    MergeCandidate,
    SwapRequest,
)
from sequencer.api.errors import (
    InvalidRequest,
    LeaseLost,
    SequencerError,
    SequencerOverloaded,
    SequencerUnavailable,
    SwapRefused,
)
from sequencer.api.interface import Sequencer
from sequencer.api.reads import FindPartition, FindRequest, PartitionError
from sequencer.api.topics import BrokerConfigsRequest, MetadataRequest, Topic
from tailrace.background_tasks import log_and_continue
from tailrace.clock import Clock, Entropy
from tailrace.object_store.api import ObjectStore

log = structlog.get_logger("tailrace.compactor")

MAX_UNREADABLE = 10_000
"""The most single runs that a round skips. After that, a partition with another unreadable run waits for the next
round."""
SWAP_PATIENCE_S, SWAP_PAUSE_S = 60.0, 0.2
"""How long a swap is retried while no sequencer answers, and the pause between attempts."""


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """What to compact: partitions with at least `min_bytes` of mixed runs, or with any that is older than `min_age_ms`.

    `topics`: only these, by name; all if it is empty. `max_runs`: the most runs in one page of candidates, over all
    partitions. `wave_bytes`: input that is processed before the next wave starts. `max_rounds`: the most pages of
    compaction, and the most of merges.
    `merges`: whether small Parquet objects are merged after all else.
    `key_memory_bytes`: memory of an index of keys, which spills to disk.
    """

    min_bytes: int = 64 << 20
    min_age_ms: int = 3_600_000
    topics: frozenset[str] = frozenset()
    max_runs: int = 20_000
    wave_bytes: int = 16 << 30
    lease_ms: int = LEASE_MS
    max_rounds: int = 1_000
    merges: bool = True
    key_memory_bytes: int = KEY_MEMORY_BYTES
    plan: PlanSettings = field(default_factory=PlanSettings)

    @property
    def request(self) -> CompactionRequest:
        """Return the request for the first page of candidates."""
        return CompactionRequest(
            min_bytes=self.min_bytes,
            min_age_ms=self.min_age_ms,
            max_runs=self.max_runs,
            runs_each=self.plan.runs_each,
        )


@dataclass(slots=True)
class CompactionSummary:
    """What a round has done so far.

    `refused`: objects that were left as orphans. `failures`: items whose task or store failed, and single runs with
    corrupt bytes. Those stay as they are, and the runs after them are compacted nevertheless.
    `merged_objects`: small Parquet objects that larger ones replaced, with `merged_bytes`. They do not count as runs or
    records.
    `table_failures`: one line for each failed update of a table.
    `aborted_records`, `markers`: dropped records and markers, whose offsets stay empty. `oldest_ms`: when the oldest
    qualifying run was committed, 0 if there was none. `planned_bytes`: input of all planned items, done or not.
    """

    rounds: int = 0
    oldest_ms: int = 0
    objects: int = 0
    runs_replaced: int = 0
    partitions: int = 0
    records: int = 0
    aborted_records: int = 0
    markers: int = 0
    planned_bytes: int = 0
    source_bytes: int = 0
    written_bytes: int = 0
    merged_objects: int = 0
    merged_bytes: int = 0
    refused: list[str] = field(default_factory=list)
    failures: list[RewriteFailure] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    table_failures: list[str] = field(default_factory=list)
    keyed: KeyedSummary = field(default_factory=KeyedSummary)


C = TypeVar("C", CompactionCandidate, MergeCandidate)
Outcomes = AsyncGenerator[RewriteResult | RewriteFailure, None]


class TaskRunner(Protocol):
    """Rewrites items, in any order, in any process. A task that dies is an outcome too."""

    def run(self, items: Sequence[WorkItem], output: OutputLocation) -> Outcomes:
        """Yield each item's outcome once, as soon as it is known. Closing the generator abandons the rest."""


class SwapFollower(Protocol):
    """Brings the tables of topics up to date after swaps. It reports failures, and raises only SequencerError."""

    failures: list[str]
    """The failures of the current round. Each round has a new list."""

    async def begin_round(self) -> None: ...
    async def swapped(self, topic_ids: Iterable[UUID]) -> None: ...
    async def end_round(self) -> None: ...


class InProcess:
    """Runs items one after another on this loop."""

    def __init__(self, store: ObjectStore, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy

    async def run_keyed(self, items: Sequence[KeyedItem], output: OutputLocation) -> KeyedOutcomes:
        """Yield each item's outcome in order."""
        for item in items:
            yield await try_rewrite_keyed(item, self._store, output, clock=self._clock, entropy=self._entropy)

    async def run(self, items: Sequence[WorkItem], output: OutputLocation) -> Outcomes:
        """Yield each item's outcome in order."""
        for item in items:
            yield await try_rewrite(item, self._store, output, clock=self._clock, entropy=self._entropy)


async def run_cycle(
    sequencer: Sequencer,
    runner: TaskRunner,
    *,
    clock: Clock,
    entropy: Entropy,
    settings: CompactionSettings | None = None,
    holder: str | None = None,
    summary: CompactionSummary | None = None,
    tables: SwapFollower | None = None,
    keyed: KeyedRunner | None = None,
) -> CompactionSummary:
    """Compact until nothing qualifies any more, or until another compactor has taken the lease.

    Args:
        summary: updated while the round runs, so that the caller sees its progress.
        keyed: runs passes over the keys of compacted topics, after all else; None means no passes.
        tables: compared with the log at the start, and brought up to date after each swap.

    Raises LeaseLost if another compactor has the lease at the start, SequencerError if the sequencer stays unavailable.
    Earlier swaps remain in effect. If cancelled, it finishes the current swap.
    """
    settings = settings or CompactionSettings()
    summary = CompactionSummary() if summary is None else summary
    metadata = await sequencer.metadata(MetadataRequest())
    name = holder or str(entropy.uuid())
    async with held_lease(sequencer, clock, holder=name, lease_ms=settings.lease_ms) as lease:
        work = _Round(
            sequencer=sequencer,
            runner=runner,
            lease=lease,
            cluster_id=metadata.cluster_id,
            clock=clock,
            summary=summary,
            tables=tables,
        )
        if tables is not None:
            await tables.begin_round()
            summary.table_failures = tables.failures
        await work.work_off(settings.request, settings)
        if keyed is not None:
            await work.compact_keys(keyed, metadata.topics or [], settings)
        if settings.merges:
            await work.work_off(CompactionRequest(0, 0, settings.max_runs, is_of_merges=True), settings)
        if tables is not None:
            await tables.end_round()
    return summary


class _Round:
    """The state of a running round: what it has changed, and what it leaves for the next round."""

    def __init__(
        self,
        sequencer: Sequencer,
        runner: TaskRunner,
        lease: HeldLease,
        cluster_id: str,
        clock: Clock,
        summary: CompactionSummary,
        tables: SwapFollower | None,
    ) -> None:
        self._sequencer = sequencer
        self._runner = runner
        self._lease = lease
        self._cluster_id = cluster_id
        self._clock = clock
        self._summary = summary
        self._tables = tables
        self._left_out: set[tuple[UUID, int]] = set()
        self._compacted: set[tuple[UUID, int]] = set()
        self._unreadable: list[tuple[UUID, int, int]] = []
        self._has_changed = False
        self._has_lost_lease = False
        self._began_at = 0
        """The commit number of the first page."""

    def _output(self) -> OutputLocation:
        return output_under(self._lease, self._cluster_id)

    async def work_off(self, request: CompactionRequest, settings: CompactionSettings) -> None:
        """Process page after page of candidates, and all pages again as long as that changes something.

        It stops after `max_rounds` pages, so that an endless backlog does not block the work that follows.
        """
        after: tuple[UUID, int] | None = None
        self._has_changed = False
        end = self._summary.rounds + settings.max_rounds
        while self._summary.rounds < end and not self._has_lost_lease:
            page = await self._sequencer.compaction_candidates(
                msgspec.structs.replace(request, skip=list(self._unreadable), after=after)
            )
            await self._compact_page(self._of_this_round(page), settings)
            after = page.next
            if after is None:
                if not self._has_changed:
                    break
                self._has_changed = False

    def _of_this_round(self, page: CompactionCandidates) -> CompactionCandidates:
        """Return the page without partitions whose oldest run was committed after the round began.

        So a round ends even if producers go on. Newer runs are compacted together with older runs of their partition.
        """
        self._began_at = self._began_at or page.commit_number
        candidates = [
            candidate for candidate in page.candidates if candidate.runs[0].commit_number <= self._began_at
        ]
        return msgspec.structs.replace(page, candidates=candidates)

    async def _compact_page(self, page: CompactionCandidates, settings: CompactionSettings) -> None:
        """Plan a page of candidates and process it wave by wave."""
        candidates = list(self._chosen(page.candidates, settings))
        oldest = min((candidate.runs[0].created_ms for candidate in candidates), default=0)
        self._summary.oldest_ms = min(filter(None, (self._summary.oldest_ms, oldest)), default=0)
        items = plan(candidates, settings.plan) + plan_merges(
            self._chosen(page.merges, settings), settings.plan
        )
        self._summary.rounds += bool(items)
        self._summary.planned_bytes += sum(item.stored_bytes for item in items)
        for wave in waves(items, settings.wave_bytes):
            if not self._has_lost_lease:
                await self._compact_wave(wave)

    async def compact_keys(
        self, runner: KeyedRunner, topics: Iterable[Topic], settings: CompactionSettings
    ) -> None:
        """Make one pass over each partition whose keys are due."""
        if self._has_lost_lease:
            return
        cluster = (await self._sequencer.broker_configs(BrokerConfigsRequest(""))).configs
        work = KeyedWork(
            self._sequencer,
            runner,
            self._output,
            self._lease.epoch,
            swap=self._swap,
            mark=self._mark,
            fail=self._summary.failures.append,
            is_outdated=self._is_outdated,
            is_over=lambda: self._has_lost_lease,
        )
        chosen = [topic for topic in topics if not settings.topics or topic.name in settings.topics]
        await compact_keys(
            work,
            chosen,
            cluster=cluster,
            plan=settings.plan,
            summary=self._summary.keyed,
            memory_bytes=settings.key_memory_bytes,
        )

    async def _mark(self, mark: MarkClean) -> bool:
        try:
            await patiently(lambda: self._sequencer.mark_clean(mark), self._clock)
        except SwapRefused as error:
            self._summary.refused.append(str(error))
            return False
        return True

    def _chosen(self, candidates: Iterable[C], settings: CompactionSettings) -> Iterator[C]:
        for candidate in candidates:
            is_chosen = not settings.topics or candidate.topic.name in settings.topics
            partitions = {(run.topic_id, run.partition) for run in candidate.runs}
            if is_chosen and not partitions & self._left_out:
                yield candidate

    async def _compact_wave(self, wave: Sequence[WorkItem]) -> None:
        """Rewrite and swap a wave of items.

        An item with corrupt input is split until the corrupt run is alone and blocks no other. A merge is split into
        halves, which are merged separately. If some of the input was deleted since the plan, a later page has the rest.
        """
        order = SwapOrder(wave)
        left: list[WorkItem] = []
        waiting = list(wave)
        while waiting:
            running = {item.positions[0]: item for item in waiting}
            waiting = []
            async with aclosing(self._runner.run(list(running.values()), self._output())) as outcomes:
                async for outcome in outcomes:
                    item = running.pop(outcome.positions[0])
                    is_bad = _has_bad_input(outcome)
                    is_outdated = is_bad and await self._is_outdated(item)
                    is_bad = is_bad and not is_outdated
                    smaller = parts(item) if is_bad else []
                    if item.is_merge and is_bad:
                        left += halves(item)
                    if smaller:
                        order.split(item, smaller)
                        waiting += smaller
                        continue
                    if is_outdated:
                        self._has_changed = True
                    elif isinstance(outcome, RewriteFailure):
                        self._note_failure(outcome, is_merge=item.is_merge)
                    for result in order.add(outcome):
                        await self._swap(result)
                    if self._has_lost_lease:
                        return
            assert not running, f"{len(running)} items without an outcome"
        assert order.is_complete, "every item has an outcome, so every result was swapped"
        if left:
            await self._compact_wave(left)

    async def _is_outdated(self, item: WorkItem) -> bool:
        """Whether the topic, or the first run of a piece, was deleted since the plan, by retention for example. Then
        the object may be gone."""
        queries = [
            FindPartition(piece.runs[0].topic_id, piece.partition, piece.base_offset, 1)
            for piece in item.pieces
        ]
        answer = await self._sequencer.find_batches(FindRequest(queries, max_bytes=1))
        return any(
            seen.error is PartitionError.UNKNOWN_TOPIC_OR_PARTITION
            or seen.log_start_offset >= piece.runs[0].end_offset
            for piece, seen in zip(item.pieces, answer.partitions, strict=True)
        )

    def _note_failure(self, failure: RewriteFailure, *, is_merge: bool) -> None:
        self._summary.failures.append(failure)
        if failure.is_of_input and not is_merge and len(self._unreadable) < MAX_UNREADABLE:
            self._unreadable += failure.positions
            self._has_changed = True
        else:
            self._leave_out(failure)

    def _leave_out(self, outcome: RewriteFailure | RewriteResult) -> None:
        self._left_out.update((topic_id, partition) for topic_id, partition, _ in outcome.positions)

    async def _swap(self, result: RewriteResult) -> bool:
        """Execute a swap. Return False if it was refused."""
        # In a separate task, so that a cancelled round finishes the current swap.
        swap = asyncio.ensure_future(swap_in(self._sequencer, result, self._lease, clock=self._clock))
        try:
            refusal = await asyncio.shield(swap)
        except asyncio.CancelledError:
            with log_and_continue(log, "the last swap before the end of a round failed", SequencerError):
                if await swap is None:
                    _count(self._summary, result)
            raise
        except LeaseLost as error:
            self._summary.refused.append(str(error))
            self._has_lost_lease = True
            return False
        if refusal is not None:
            self._summary.refused.append(refusal)
            self._leave_out(result)
            return False
        self._has_changed = True
        self._compacted.update((run.topic_id, run.partition) for run in result.runs)
        self._summary.partitions = len(self._compacted)
        _count(self._summary, result)
        if self._tables is not None:
            await self._tables.swapped(run.topic_id for run in result.runs)
        return True


def output_under(lease: HeldLease, cluster_id: str) -> OutputLocation:
    """Return where a wave of tasks that starts now may write, and until when.

    A task does not learn when its session ends, which is some time after the session was last seen. Objects that are
    put for a certain time after that are still collected. Half of this time is left for differences between clocks.
    """
    until_ms = lease.session_seen_ms + lease.session.collected_ms // 2
    return OutputLocation(lease.session.prefix, cluster_id, until_ms)


async def swap_in(
    sequencer: Sequencer, result: RewriteResult, lease: HeldLease, *, clock: Clock
) -> str | None:
    """Replace runs by a rewritten object, exactly once. Return None if readers see it, else why it was refused.

    The object's id is the swap's id, so a swap that is retried after a lost response gets the first response. A refused
    object stays under a session that ends with the round, and is swept as an orphan.

    The lease may expire while the sequencer is unavailable, so a refused swap is retried once under a renewed lease. An
    invalid request counts as refused too, because it must not end the round.

    Raises LeaseLost if another compactor has the lease, SequencerUnavailable if no sequencer answered for
    SWAP_PATIENCE_S, SessionClosed.
    """
    request = SwapRequest(
        swap_id=result.object.object_id,
        lease_epoch=lease.epoch,
        session_id=lease.session.session_id,
        object=result.object,
        runs=result.runs,
    )
    has_renewed = False
    while True:
        try:
            await patiently(lambda: sequencer.swap(request), clock)
            return None
        except InvalidRequest as error:
            return str(error)
        except SwapRefused as error:
            if has_renewed:
                return str(error)
            await patiently(lease.renew, clock)
            has_renewed = True


async def patiently(call: Callable[[], Awaitable[object]], clock: Clock) -> None:
    """Make an idempotent call, and retry it for up to SWAP_PATIENCE_S until a sequencer answers."""
    give_up_at = clock.monotonic() + SWAP_PATIENCE_S
    while True:
        try:
            await call()
            return
        except (SequencerUnavailable, SequencerOverloaded):
            if clock.monotonic() >= give_up_at:
                raise
            await clock.sleep(SWAP_PAUSE_S)


def _has_bad_input(outcome: RewriteResult | RewriteFailure) -> bool:
    return isinstance(outcome, RewriteFailure) and outcome.is_of_input


def _count(summary: CompactionSummary, result: RewriteResult) -> None:
    summary.source_bytes += result.source_bytes
    summary.keys.append(result.object.key)
    if result.merged_objects:
        summary.merged_objects += result.merged_objects
        summary.merged_bytes += result.object.size
        return
    if result.runs[0].drops is not None:
        summary.keyed.objects += 1
        summary.keyed.written_bytes += result.object.size
        return
    summary.objects += 1
    summary.runs_replaced += sum(len(run.replaced) for run in result.runs)
    summary.records += result.row_count
    summary.aborted_records += result.aborted_count
    summary.markers += result.marker_count
    summary.written_bytes += result.object.size
