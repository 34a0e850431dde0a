"""The driver's side of compaction: lease, session, plan, tasks, swaps, again until nothing is left.

Who runs the tasks is a `TaskRunner`: Spark (compactor.job), or this process (`InProcess`), for tests, simulation
and stores too small for a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from compactor.plan import PlanSettings, WorkItem, parts, plan
from compactor.rewrite import RewriteFailure, RewriteResult, try_rewrite
from sequencer.api import (
    CompactionRequest,
    MetadataRequest,
    OpenSession,
    Sequencer,
    SequencerError,
    SequencerOverloaded,
    SequencerUnavailable,
    SessionGrant,
    SessionRef,
    SwapRefused,
    SwapRequest,
    TakeLease,
)
from sequencer.rules.sessions import COMPACTOR_BROKER_ID, COMPACTOR_LEASE
from tailrace.clock import Clock, Entropy
from tailrace.object_store.api import ObjectStore

MAX_UNREADABLE = 10_000
"""Single runs that are passed by; beyond, a partition with one more is left alone until the next job."""
SWAP_PATIENCE_S, SWAP_PAUSE_S = 60.0, 0.2
"""How long a swap is retried while no sequencer answers, and the pause between two tries."""


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """What is compacted: partitions with `min_bytes` of mixed runs, or any older than `min_age_ms`.

    `max_runs`: of one round, over all partitions. A larger backlog shrinks round by round."""

    min_bytes: int = 64 << 20
    min_age_ms: int = 3_600_000
    max_runs: int = 20_000
    lease_ms: int = 60_000
    max_rounds: int = 1_000
    plan: PlanSettings = field(default_factory=PlanSettings)


@dataclass(slots=True)
class CompactionSummary:
    """What a job did. `refused`: objects left as orphans; `failures`: items whose store was bad, and single runs
    whose bytes are: they stay as they are, and what follows them is compacted nevertheless.

    `aborted_records` and `markers` were dropped: their offsets stay empty.
    """

    rounds: int = 0
    objects: int = 0
    runs_replaced: int = 0
    partitions: int = 0
    records: int = 0
    aborted_records: int = 0
    markers: int = 0
    source_bytes: int = 0
    written_bytes: int = 0
    refused: list[str] = field(default_factory=list)
    failures: list[RewriteFailure] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OutputLocation:
    """Where a job's tasks write, and for which cluster."""

    prefix: str
    cluster_id: str


class TaskRunner(Protocol):
    """Rewrites items, in any order and place. An item may be tried more than once; one outcome each is given."""

    async def run(
        self, items: Sequence[WorkItem], output: OutputLocation
    ) -> list[RewriteResult | RewriteFailure]: ...


class InProcess:
    """Runs items one after the other on this loop."""

    def __init__(self, store: ObjectStore, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy

    async def run(
        self, items: Sequence[WorkItem], output: OutputLocation
    ) -> list[RewriteResult | RewriteFailure]:
        """Each item's outcome, in order."""
        return [
            await try_rewrite(
                item,
                self._store,
                prefix=output.prefix,
                cluster_id=output.cluster_id,
                clock=self._clock,
                entropy=self._entropy,
            )
            for item in items
        ]


async def run_cycle(
    sequencer: Sequencer,
    runner: TaskRunner,
    *,
    clock: Clock,
    entropy: Entropy,
    settings: CompactionSettings | None = None,
    holder: str | None = None,
) -> CompactionSummary:
    """Compact until nothing qualifies any more.

    Raises LeaseLost when another compactor is at work, SequencerError when the sequencer stays away. Whatever
    was swapped before that stays swapped.
    """
    settings = settings or CompactionSettings()
    summary = CompactionSummary()
    cluster_id = (await sequencer.metadata(MetadataRequest())).cluster_id
    async with _leased(sequencer, clock, settings, holder or str(entropy.uuid())) as (epoch, session):
        output = OutputLocation(session.prefix, cluster_id)
        touched: set[tuple[UUID, int]] = set()
        left_out: set[tuple[str, int]] = set()
        unreadable: list[tuple[UUID, int, int]] = []
        after: tuple[UUID, int] | None = None
        has_changed = False
        while summary.rounds < settings.max_rounds:
            answer = await sequencer.compaction_candidates(
                CompactionRequest(
                    min_bytes=settings.min_bytes,
                    min_age_ms=settings.min_age_ms,
                    max_runs=settings.max_runs,
                    skip=list(unreadable),
                    after=after,
                )
            )
            items = plan(
                (
                    candidate
                    for candidate in answer.candidates
                    if (candidate.topic.name, candidate.partition) not in left_out
                ),
                settings.plan,
            )
            summary.rounds += bool(items)
            for result in in_offset_order(await _rewritten(items, runner, output)):
                if isinstance(result, RewriteFailure):
                    summary.failures.append(result)
                    if result.is_of_input and len(unreadable) < MAX_UNREADABLE:
                        unreadable += result.places
                        has_changed = True
                    else:
                        left_out.update((result.topic_name, partition) for partition in result.partitions)
                    continue
                refusal = await swap_in(
                    sequencer, result, session_id=session.session_id, lease_epoch=epoch, clock=clock
                )
                if refusal is not None:
                    summary.refused.append(refusal)
                    continue
                has_changed = True
                touched.update((run.topic_id, run.partition) for run in result.runs)
                _count(summary, result)
            after = answer.next
            if after is None:  # all partitions were looked at: once more, as long as that helps
                if not has_changed:
                    break
                has_changed = False
        summary.partitions = len(touched)
    return summary


async def _rewritten(
    items: Sequence[WorkItem], runner: TaskRunner, output: OutputLocation
) -> list[RewriteResult | RewriteFailure]:
    """Each item's outcome. One with bad input is cut until the bad run stands alone: it holds nothing else up."""
    outcomes: list[RewriteResult | RewriteFailure] = []
    waiting = list(items)
    while waiting:
        asked = {item.places[0]: item for item in waiting}
        waiting = []
        for outcome in await runner.run(list(asked.values()), output):
            is_bad = isinstance(outcome, RewriteFailure) and outcome.is_of_input
            smaller = (
                parts(asked[outcome.places[0]]) if isinstance(outcome, RewriteFailure) and is_bad else []
            )
            if smaller:
                waiting += smaller
            else:
                outcomes.append(outcome)
    return outcomes


def in_offset_order(
    outcomes: Sequence[RewriteResult | RewriteFailure],
) -> list[RewriteResult | RewriteFailure]:
    """Failures first, then results so that those of one partition come with rising offsets.

    A transaction may lie in several items of its partition: its records must be gone before its marker goes,
    and the sequencer refuses a swap that comes too early. A partition that comes in several items is alone in
    each (see `plan`), so an item's first run says enough.
    """
    failures = [outcome for outcome in outcomes if isinstance(outcome, RewriteFailure)]
    results = [outcome for outcome in outcomes if isinstance(outcome, RewriteResult)]
    return [*failures, *sorted(results, key=lambda result: result.runs[0].base_offset)]


async def swap_in(
    sequencer: Sequencer, result: RewriteResult, *, session_id: UUID, lease_epoch: int, clock: Clock
) -> str | None:
    """Put a rewritten object in the place of its runs, exactly once; None when readers see it, else why it was refused.

    The object's id is the swap's id: retried after a lost answer, it gets the first answer. A refused
    object stays where it is, under a session that ends with the job, and is swept as an orphan.
    Raises SequencerUnavailable when nobody answered for SWAP_PATIENCE_S, SessionClosed.
    """
    request = SwapRequest(
        swap_id=result.object.object_id,
        lease_epoch=lease_epoch,
        session_id=session_id,
        object=result.object,
        runs=result.runs,
    )
    give_up_at = clock.monotonic() + SWAP_PATIENCE_S
    while True:
        try:
            await sequencer.swap(request)
            return None
        except SwapRefused as error:
            return str(error)
        except (SequencerUnavailable, SequencerOverloaded):
            if clock.monotonic() >= give_up_at:
                raise
            await clock.sleep(SWAP_PAUSE_S)


def _count(summary: CompactionSummary, result: RewriteResult) -> None:
    summary.objects += 1
    summary.runs_replaced += sum(len(run.replaced) for run in result.runs)
    summary.records += result.row_count
    summary.aborted_records += result.aborted_count
    summary.markers += result.marker_count
    summary.source_bytes += result.source_bytes
    summary.written_bytes += result.object.size
    summary.keys.append(result.object.key)


@asynccontextmanager
async def _leased(
    sequencer: Sequencer, clock: Clock, settings: CompactionSettings, holder: str
) -> AsyncIterator[tuple[int, SessionGrant]]:
    """Hold the compactor's lease and an upload session, both renewed; end both at the end."""
    lease = await sequencer.take_lease(TakeLease(COMPACTOR_LEASE, holder, 0, settings.lease_ms))
    session = await sequencer.open_session(OpenSession(COMPACTOR_BROKER_ID, lease.epoch))

    async def keep() -> None:
        pause_s = min(settings.lease_ms, session.lease_ms) / 3000
        while True:
            await clock.sleep(pause_s)
            # Unavailable for now is tried again; anything else ends the job, whose swaps would be refused.
            # Each by itself: a lease that is not renewed in time must not cost the session, too.
            with suppress(SequencerUnavailable, SequencerOverloaded):
                await sequencer.renew_session(SessionRef(session.session_id))
            with suppress(SequencerUnavailable, SequencerOverloaded):
                await sequencer.take_lease(TakeLease(COMPACTOR_LEASE, holder, lease.epoch, settings.lease_ms))

    keeping = asyncio.create_task(keep())
    try:
        yield lease.epoch, session
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError, SequencerError):
            await keeping
        await sequencer.close_session(SessionRef(session.session_id))
        # A lease of one ms is as good as given back: the next job need not wait.
        with suppress(SequencerError):
            await sequencer.take_lease(TakeLease(COMPACTOR_LEASE, holder, lease.epoch, 1))
