"""A flush lane: batches go into a buffer, which is sealed, uploaded and committed; then producers get their results.

Invariants:
- a batch gets its result only after the commit that stored it was answered, or once it is certain that its buffer's
  number was committed without it. If neither is known by the deadline, the producer is told to retry, and the lane
  keeps retrying the same number;
- a producer that is answered on receipt (agent.produce.receipts) is answered once its batch is in the buffer; the
  batch's result is then counted, not sent;
- a lane holds bytes only while their producers wait, or while they are charged to the memory budget. At most
  `max_unanswered_commits` numbers are unanswered;
- a lane's commits are applied in the order in which its buffers were sealed (the sequencer waits for the earlier
  number). Every number is committed, if necessary without an object;
- a partition belongs to one lane, so its batches keep their order of arrival;
- no PUT starts later than the end of the session's lease minus the upload deadline.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any
from uuid import UUID

import structlog

from agent.produce.active_buffer import ActiveBuffer, BatchResult, BufferedBatch, FlushFailure
from agent.produce.gaps import TOO_LATE, Gap, gaps_to_retry, give_up, give_up_late, may_close, settle_closed
from agent.produce.receipts import Receipts
from agent.produce.sealing import Budgets, LaneLoad, SealNow, SealReason, Share, Wait, can_seal, next_seal
from agent.produce.unknown_producers import UnknownProducers
from agent.produce.upload_session import UploadSession
from agent.produce.uploader import LEASE_ENDS, Uploader, WriteThrough
from agent.settings import AgentSettings
from agent.telemetry import AgentTelemetry
from sequencer.api.commits import (
    BatchError,
    CommitAnswer,
    CommitRequest,
    ObjectDescription,
    OpenSession,
    RunOutcome,
    RunProposal,
    SessionGrant,
    SessionRef,
)
from sequencer.api.errors import (
    CommitOutOfOrder,
    IncarnationChanged,
    LeaseLost,
    SequencerError,
    SequencerOverloaded,
    SequencerUnavailable,
    SessionClosed,
)
from sequencer.api.interface import Sequencer
from tailrace.background_tasks import cancel_and_wait, log_and_continue
from tailrace.batches.record_batch import MAX_RECORDS
from tailrace.clock import Clock, Entropy, wait_for, wait_until_set
from tailrace.configs.topic_config import Latency
from tailrace.ids import TopicPartition
from tailrace.object_store.api import ObjectStore

log = structlog.get_logger("agent.flush")

MAX_PAUSE_SECONDS = 0.4
"""The longest pause (up to half as much again, by jitter) before a request to the sequencer is retried. After an
outage, waiting requests go on within this time."""
MAX_BUFFERED_PARTITIONS = 4_000
"""A buffer with this many partitions is sealed, because sealing and settling each take one turn of the loop. The
sequencer refuses objects of more than `max_runs_per_commit` (20,000) runs, and then all their batches would fail."""
MAX_BUFFERED_RECORDS = MAX_RECORDS
"""A buffer with this many records is sealed, because a commit assigns at most `checkpoint_reservation` (16 million)
offsets in a partition. A batch of a hundred bytes may have MAX_RECORDS records if it is compressed."""
SESSION_PACE_SECONDS = 3.0
"""The longest pause between two renewals of a session: a tenth of the usual lease. Earlier renewals change no row."""
SESSION_RETRY_SECONDS = 1.0
CLOSE_SESSION_SECONDS = 1.0
"""How long closing a lane waits for the sequencer to close its session. An unclosed session expires."""
_LEAST_WAIT_SECONDS = 0.0005
"""Rounding may leave a shorter wait, which would only spin the loop."""
_MAX_UNFORESEEN = 10
"""How often an empty commit may fail with an unexpected error before its session is dropped."""
_FIRST_GAP_PAUSE_SECONDS, _MAX_GAP_PAUSE_SECONDS = 0.01, 0.25
"""The pauses between commits by reference. The missing batch arrives at another agent, so no event announces it."""

_NOT_SEALED = FlushFailure("storage", "the batches could not be sealed; the agent's log says why")


class LanePhase(enum.Enum):
    """What a lane does with batches; `Lane` has the table."""

    NEW = "new"
    OPEN = "open"
    SESSION_LOST = "session lost"
    CLOSING = "closing"
    CLOSED = "closed"


_ENDING = (LanePhase.CLOSING, LanePhase.CLOSED)
_NEXT_PHASES = {
    LanePhase.NEW: (LanePhase.OPEN, LanePhase.CLOSING),
    LanePhase.OPEN: (LanePhase.SESSION_LOST, LanePhase.CLOSING),
    LanePhase.SESSION_LOST: (LanePhase.OPEN, LanePhase.CLOSING),
    LanePhase.CLOSING: (LanePhase.CLOSING, LanePhase.CLOSED),
    LanePhase.CLOSED: (),
}


class Lane:
    """One active buffer, one upload session, one order of commits. All on one event loop.

    phase         session       a batch is              the buffer is                              next phase
    NEW           none          never added             none                                       OPEN
    OPEN          open          taken                   sealed when due (agent.produce.sealing)    SESSION_LOST
    SESSION_LOST  none          taken until it is full  kept for the upload deadline, then failed  OPEN
    CLOSING       open or none  told to retry           sealed at once, failed without a session   CLOSED
    CLOSED        closed        told to retry           none

    `start` opens a session. The lane opens another when the sequencer reports that the last one is closed. `close`
    leads from each of the first three phases to CLOSING. While `max_unanswered_commits` numbers are unanswered, an OPEN
    lane treats batches and buffer as in SESSION_LOST.

    The lane owns three kinds of tasks: one seals, one keeps the session, and one for each sealed buffer or set of gaps
    follows it to its end. `broker_identity` returns (broker id, lease epoch) when a session is opened.
    """

    def __init__(
        self,
        number: int,
        *,
        settings: AgentSettings,
        clock: Clock,
        entropy: Entropy,
        store: ObjectStore,
        sequencer: Sequencer,
        cache: WriteThrough,
        telemetry: AgentTelemetry,
        broker_identity: Callable[[], tuple[int, int]],
        receipts: Receipts,
    ) -> None:
        self._number = number
        self._receipts = receipts
        self.on_stored: Callable[[TopicPartition, int], None] = lambda partition, end_offset: None
        """Called with a partition and the end of the batches that were stored there, before their producers are
        answered."""
        self._settings = settings
        self._flush_bytes = settings.flush_bytes
        self._clock = clock
        self._entropy = entropy
        self._sequencer = sequencer
        self._telemetry = telemetry
        self._uploader = Uploader(
            settings=settings, clock=clock, entropy=entropy, store=store, cache=cache, telemetry=telemetry
        )
        self._broker_identity = broker_identity
        self._phase = LanePhase.NEW
        self._unknown_producers = UnknownProducers()
        self._session: UploadSession | None = None
        self._lease_seconds = inf
        """How long an upload session lives without a renewal."""
        self._last_session_id: UUID | None = None
        self._session_lost = asyncio.Event()
        self._buffer: ActiveBuffer | None = None
        self._buffer_changed = asyncio.Event()
        """Set when `next_seal` may decide differently before the wait that it returned is over."""
        self._budgets = Budgets.of(settings, clock.monotonic())
        self._uploads = 0
        self._unanswered = 0
        self._keepers: list[asyncio.Task[None]] = []
        self._inflight: set[asyncio.Task[None]] = set()

    def _enter(self, phase: LanePhase) -> None:
        assert phase in _NEXT_PHASES[self._phase], (
            f"a lane that is {self._phase.value} can't be {phase.value}"
        )
        self._phase = phase

    # --- batches -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the session and start the tasks. Raises the sequencer's errors."""
        await self._open_session()
        self._keepers = [
            asyncio.create_task(self._seal_when_due(), name=f"lane {self._number}: sealing"),
            asyncio.create_task(self._keep_session(), name=f"lane {self._number}: session"),
        ]

    def add(self, partition: TopicPartition, topic_name: str, batch: BufferedBatch) -> None:
        """Add a batch to the buffer. Its submission is settled later, whatever happens."""
        now, buffer = self._clock.monotonic(), self._buffer
        if self._phase in _ENDING:
            batch.settle(BatchResult(failure=FlushFailure("timeout", "this agent is shutting down")))
            return
        if buffer is not None and (
            buffer.size >= self._flush_bytes
            or len(buffer.batches) >= MAX_BUFFERED_PARTITIONS
            or buffer.records >= MAX_BUFFERED_RECORDS
        ):
            if not self._can_seal:
                self._telemetry.flush_failures.labels("full").inc()
                batch.settle(BatchResult(failure=self._cannot_seal()))
                return
            self._seal("size")
            buffer = None
        if buffer is None:
            buffer = self._buffer = ActiveBuffer(opened_at=now)
            self._buffer_changed.set()
        if buffer.add(partition, topic_name, batch, now):
            self._buffer_changed.set()
        if batch.is_answered_on_receipt:
            self._receipts.answer(topic_name, batch)
        if buffer.size >= self._flush_bytes and self._can_seal:
            self._seal("size")

    @property
    def buffered_bytes(self) -> int:
        return self._buffer.size if self._buffer is not None else 0

    @property
    def unanswered_commits(self) -> int:
        """How many numbers of sealed buffers or gaps the sequencer has not answered."""
        return self._unanswered

    def demand(self) -> Share:
        """Return what this lane can use per second, estimated from its use since the last call."""
        return self._budgets.demand(self._clock.monotonic())

    def take_share(self, share: Share) -> None:
        """Seal within this share of the cluster's budgets from now on."""
        self._budgets.take_share(share, self._settings, self._clock.monotonic())
        self._buffer_changed.set()

    async def flush(self, seconds: float) -> bool:
        """Seal the buffer and wait until everything sealed is settled. Return False if it isn't after `seconds`."""
        if self._buffer is not None:
            self._seal("drain")
        settling = asyncio.ensure_future(self._all_settled())
        try:
            return await wait_for(self._clock, settling, seconds)
        finally:
            await cancel_and_wait(settling)

    async def _all_settled(self) -> None:
        while self._inflight:
            await asyncio.wait(self._inflight)

    async def close(self, seconds: float) -> None:
        """Take no more batches, flush for at most `seconds`, and close the session. Batches that are not committed by
        then fail with a retriable error, whatever the store and the sequencer do. A second call does nothing."""
        if self._phase is LanePhase.CLOSED:
            return
        self._enter(LanePhase.CLOSING)
        tasks = list(self._keepers)
        if not await self.flush(seconds):
            log.warning(
                "a lane is closed with commits that were not answered; their producers are told to retry",
                lane=self._number,
                commits=self._unanswered,
            )
            tasks.extend(self._inflight)
        await cancel_and_wait(*tasks)
        if self._session is not None:
            await self._close_session(self._session)
            self._session = None
        self._enter(LanePhase.CLOSED)

    # --- when to seal ---------------------------------------------------------------------------------

    async def _seal_when_due(self) -> None:
        """Act on the active buffer as `next_seal` decides, as long as the lane lives."""
        while True:
            self._buffer_changed.clear()
            buffer = self._buffer
            if buffer is None:
                await self._buffer_changed.wait()
                continue
            wait = Wait(0.0)
            with log_and_continue(log, "a buffer could not be sealed", lane=self._number):
                try:
                    wait = self._seal_if_due(buffer)
                except Exception:
                    self._buffer = None
                    self._telemetry.flush_failures.labels(_NOT_SEALED.kind).inc()
                    buffer.fail(_NOT_SEALED)
                    raise
            if self._buffer is not None:
                await wait_until_set(
                    self._clock, self._buffer_changed, max(wait.seconds, _LEAST_WAIT_SECONDS)
                )

    def _seal_if_due(self, buffer: ActiveBuffer) -> Wait:
        """Run one turn of `_seal_when_due`. Return how long the buffer may wait, if the lane still has it."""
        decision = next_seal(
            self._clock.monotonic(),
            buffer=buffer,
            lane=LaneLoad(self._session is not None, self._uploads, self._unanswered),
            budgets=self._budgets,
            settings=self._settings,
        )
        if isinstance(decision, Wait):
            return decision
        if isinstance(decision, SealNow):
            self._seal(decision.reason)
        else:
            self._buffer = None
            self._telemetry.flush_failures.labels("full").inc()
            buffer.fail(self._cannot_seal())
        return Wait(0.0)

    @property
    def _can_seal(self) -> bool:
        return can_seal(LaneLoad(self._session is not None, self._uploads, self._unanswered), self._settings)

    def _cannot_seal(self) -> FlushFailure:
        if self._session is None:
            return FlushFailure("storage", "no upload session is open; the sequencer is unreachable")
        return FlushFailure("timeout", f"{self._unanswered} commits wait for the sequencer's answer")

    def _seal(self, reason: SealReason) -> None:
        buffer, self._buffer = self._buffer, None
        assert buffer is not None
        session, now = self._session, self._clock.monotonic()
        if session is None:
            buffer.fail(self._cannot_seal())
            return
        if now >= session.no_put_after:  # don't spend a number on an empty commit
            self._telemetry.flush_failures.labels(LEASE_ENDS.kind).inc()
            buffer.fail(LEASE_ENDS)
            return
        self._budgets.spend(reason, len(buffer.batches), now)
        self._telemetry.flushes.labels(reason).inc()
        self._uploads += 1
        self._spawn(self._flush(session, self._take_number(session), buffer))

    def _take_number(self, session: UploadSession) -> int:
        self._unanswered += 1
        return session.take_number()

    def _answered(self, session: UploadSession, number: int) -> None:
        session.answered(number)
        self._unanswered -= 1
        self._buffer_changed.set()  # a number is free, or no commit is in progress

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._inflight.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._inflight.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a flush failed unexpectedly", exc_info=task.exception())

    # --- one sealed buffer ------------------------------------------------------------------------------

    async def _flush(self, session: UploadSession, number: int, buffer: ActiveBuffer) -> None:
        """Upload and commit a sealed buffer, and give its batches their results. Its bytes are released with the last
        result, or when the upload's or the commit's deadline passes and its producers retry. The number is committed in
        any case."""
        started = self._clock.monotonic()
        try:
            try:
                stored = await self._uploader.store_buffer(session, number, buffer)
            finally:
                self._end_upload()
            if stored is None:
                await self._commit(session, number, None, [], deadline=None)
                return
            description, proposals = stored
            deadline = started + self._settings.commit_deadline_ms / 1000
            answer = await self._commit(
                session,
                number=number,
                description=description,
                proposals=proposals,
                deadline=deadline,
                on_late=lambda: buffer.is_late(TOO_LATE),
            )
            if answer is None:
                buffer.fail(FlushFailure("timeout", "the upload session ended before the commit"))
                return
            self._settle(session, buffer, description, proposals, answer=answer)
        except Exception:
            buffer.fail(FlushFailure("storage", "the flush was given up"))
            await self._commit(session, number, None, [], deadline=None)  # later numbers wait for this one
            raise
        except asyncio.CancelledError:
            buffer.fail(FlushFailure("storage", "the flush was given up"))
            raise
        finally:
            self._answered(session, number)

    def _end_upload(self) -> None:
        self._uploads -= 1
        is_fast = self._buffer is not None and self._buffer.latency is Latency.FAST
        if is_fast or not self._uploads:
            self._buffer_changed.set()

    async def _commit(
        self,
        session: UploadSession,
        number: int,
        description: ObjectDescription | None,
        proposals: list[RunProposal],
        deadline: float | None,
        on_late: Callable[[], None] = lambda: None,
    ) -> CommitAnswer | None:
        """Commit the number, retrying until the sequencer answers. Return None if the session has ended.

        At `deadline`, `on_late` tells the producers to retry. The commit goes on, because later numbers need it.
        """
        committing = asyncio.ensure_future(
            self._commit_until_answered(session, number, description, proposals)
        )
        try:
            if deadline is not None:
                remaining_s = deadline - self._clock.monotonic()
                if not await wait_for(self._clock, committing, remaining_s):
                    self._telemetry.flush_failures.labels("timeout").inc()
                    log.warning(
                        "no answer to a commit yet; its producers are told to retry",
                        number=number,
                        error=session.last_error,
                    )
                    on_late()
            return await committing
        finally:
            if not committing.done():
                await cancel_and_wait(committing)

    async def _commit_until_answered(
        self,
        session: UploadSession,
        number: int,
        description: ObjectDescription | None,
        proposals: list[RunProposal],
    ) -> CommitAnswer | None:
        await session.predecessors_answered()
        started = self._clock.monotonic()
        backoff = 0.02
        unforeseen = 0
        while True:
            request = CommitRequest(
                session_id=session.session_id,
                number=number,
                answered_below=session.answered_below,
                object=description,
                runs=proposals,
            )
            try:
                answer = await self._sequencer.commit(request)
                self._telemetry.commit_seconds.observe(self._clock.monotonic() - started)
                return answer
            except (SessionClosed, IncarnationChanged) as error:
                log.warning("a commit came after its session's end", number=number, error=str(error))
                self._lose_session(session)
                return None
            except (SequencerUnavailable, SequencerOverloaded, CommitOutOfOrder) as error:
                session.last_error = str(error)
            except Exception as error:
                if description is not None:
                    raise
                unforeseen += 1
                log.warning("an empty commit failed", number=number, error=repr(error))
                if unforeseen >= _MAX_UNFORESEEN:
                    self._lose_session(session)
                    return None
            await self._clock.sleep(backoff * (0.5 + self._entropy.fraction()))
            backoff = min(backoff * 2, MAX_PAUSE_SECONDS)

    def _settle(
        self,
        session: UploadSession,
        buffer: ActiveBuffer,
        description: ObjectDescription,
        proposals: list[RunProposal],
        answer: CommitAnswer,
    ) -> None:
        assert len(answer.runs) == len(proposals), "one outcome a run"
        if not buffer.batches:
            return  # the answer came after the deadline, and all producers were told to retry
        now, waits = self._clock.monotonic(), self._settings.gap_deadline_ms / 1000
        waits_on_receipt = min(waits, session.by_reference_s / 2)  # the other half is for skipping the gap
        gaps: list[Gap] = []
        for proposal, run in zip(proposals, answer.runs, strict=True):
            partition = TopicPartition(proposal.topic_id, proposal.partition)
            position = proposal.start
            self.on_stored(partition, _stored_end(buffer.batches[partition], run))
            for batch, outcome in zip(buffer.batches[partition], run.outcomes, strict=True):
                if may_close(outcome) and (batch.is_answered_on_receipt or not buffer.is_given_up):
                    gaps.append(
                        Gap(
                            partition=partition,
                            start=position,
                            object=description,
                            batch=batch,
                            deadline=now + (waits_on_receipt if batch.is_answered_on_receipt else waits),
                            error=outcome.error,
                            log_start_offset=run.log_start_offset,
                        )
                    )
                else:
                    batch.settle(BatchResult(outcome.error, outcome.base_offset, run.log_start_offset))
                position += batch.coordinates.length
        if gaps:
            self._spawn(self._retry_gaps(gaps))

    # --- gaps (see agent.produce.gaps) ----------------------------------------------------------------

    async def _retry_gaps(self, gaps: list[Gap]) -> None:
        """Commit the gaps' batches by reference until the missing sequences arrive or the deadlines pass."""
        pause = _FIRST_GAP_PAUSE_SECONDS
        while gaps := self._without_expired(gaps):
            if self._phase is LanePhase.CLOSING and self._session is None:
                for gap in gaps:
                    gap.batch.settle(BatchResult(gap.error))
                return
            await self._pause(pause, gaps)
            pause = min(pause * 2, _MAX_GAP_PAUSE_SECONDS)
            left = self._seconds_to_retry(gaps)
            if left < min(_MAX_GAP_PAUSE_SECONDS, self._settings.gap_deadline_ms / 4000):
                # A commit without an answer at the deadline would hide what is known: the gaps' errors.
                await self._pause(max(0.0, left), gaps)
                continue
            session = self._session
            if session is None or not self._can_seal:
                continue
            retried = gaps_to_retry(gaps)
            answer = await self._commit_gaps(session, retried, gaps)
            if answer is None:
                continue
            for gap, run in zip(retried, answer.runs, strict=True):
                self.on_stored(gap.partition, _stored_end([gap.batch], run))
            closed = settle_closed(retried, answer)
            if closed:
                gaps = [gap for gap in gaps if gap not in closed]
                pause = _FIRST_GAP_PAUSE_SECONDS

    async def _pause(self, seconds: float, gaps: list[Gap]) -> None:
        """Sleep. If the lane is closed meanwhile, tell the gaps' producers to retry."""
        try:
            await self._clock.sleep(seconds)
        except asyncio.CancelledError:
            give_up(gaps)
            raise

    def _seconds_to_retry(self, gaps: list[Gap]) -> float:
        return max(gap.deadline for gap in gaps) - self._clock.monotonic()

    def _without_expired(self, gaps: list[Gap]) -> list[Gap]:
        """Return the gaps that have time left. The producers of the others get their batch's error."""
        now, skip_seconds = self._clock.monotonic(), self._settings.commit_deadline_ms / 1000
        left: list[Gap] = []
        for gap in gaps:
            if gap.is_over(now, skip_seconds):
                gap.batch.settle(self._result_of_open_gap(gap, now))
            else:
                left.append(gap)
        return left

    def _result_of_open_gap(self, gap: Gap, now: float) -> BatchResult:
        """Return the result of a batch whose gap has not closed in time. It has the log start if the sequencer has
        forgotten the producer."""
        is_forgotten = gap.error is BatchError.UNKNOWN_PRODUCER_ID and self._unknown_producers.is_forgotten(
            gap.partition, gap.batch.coordinates.producer_id, now=now, lease_seconds=self._lease_seconds
        )
        return BatchResult(gap.error, log_start_offset=gap.log_start_offset if is_forgotten else -1)

    async def _commit_gaps(
        self, session: UploadSession, retried: list[Gap], gaps: list[Gap]
    ) -> CommitAnswer | None:
        """Commit gaps by reference, once. If there is no answer in time, the producers that wait are told to retry, and
        only the other gaps stay in `gaps`. If the commit fails, none does."""
        number = self._take_number(session)
        try:
            return await self._commit(
                session,
                number=number,
                description=retried[0].object,
                proposals=[gap.proposal() for gap in retried],
                deadline=max(gap.deadline for gap in gaps),
                on_late=partial(give_up_late, gaps),
            )
        except Exception:
            give_up(gaps)
            await self._commit(session, number, None, [], deadline=None)  # as in _flush
            raise
        except asyncio.CancelledError:
            give_up(gaps)
            raise
        finally:
            self._answered(session, number)

    # --- the session ------------------------------------------------------------------------------------

    async def _open_session(self) -> None:
        broker_id, epoch = self._broker_identity()
        asked_at = self._clock.monotonic()
        grant = await self._sequencer.open_session(OpenSession(broker_id, epoch, self._last_session_id))
        self._session = UploadSession(
            grant.session_id,
            grant.prefix,
            opened_at=asked_at,
            no_put_after=self._no_put_after(grant, asked_at),
            by_reference_s=grant.by_reference_ms / 1000 or inf,
            predecessor=self._session,
        )
        self._lease_seconds = grant.lease_ms / 1000
        self._last_session_id = grant.session_id
        if self._phase in (LanePhase.NEW, LanePhase.SESSION_LOST):
            self._enter(LanePhase.OPEN)
        self._buffer_changed.set()

    def _no_put_after(self, grant: SessionGrant, asked_at: float) -> float:
        return asked_at + (grant.lease_ms - self._settings.upload_deadline_ms) / 1000

    async def _keep_session(self) -> None:
        """Renew the session's lease, rotate an old session, and replace a lost one at once."""
        pause = SESSION_RETRY_SECONDS
        while True:
            await wait_until_set(self._clock, self._session_lost, pause)
            self._session_lost.clear()
            pause = min(pause, SESSION_RETRY_SECONDS)
            with log_and_continue(
                log, "the upload session could not be renewed", SequencerError, lane=self._number
            ):
                pause = await self._renew_session(pause)

    async def _renew_session(self, pause: float) -> float:
        """Run one turn of `_keep_session`. Return the seconds until the next: a fifth of the lease, at most
        SESSION_PACE_SECONDS; `pause` if nothing was renewed."""
        session, now = self._session, self._clock.monotonic()
        try:
            if session is None:
                await self._open_session()
            elif now - session.opened_at >= self._settings.session_rotation_seconds:
                await self._open_session()
                self._spawn(self._retire(session))
            else:
                grant = await self._sequencer.renew_session(SessionRef(session.session_id))
                session.no_put_after = self._no_put_after(grant, now)
                return min(max(grant.lease_ms / 5000, 0.05), SESSION_PACE_SECONDS)
        except SessionClosed as error:
            log.warning("the upload session was closed; opening another", lane=self._number, error=str(error))
            if session is not None:
                self._lose_session(session)
        except LeaseLost as error:
            log.warning("no upload session without the agent's lease", lane=self._number, error=str(error))
        return pause

    async def _retire(self, session: UploadSession) -> None:
        """Close a rotated session once all its numbers are answered."""
        await session.all_answered()
        await self._close_session(session)

    async def _close_session(self, session: UploadSession) -> None:
        closing = asyncio.ensure_future(self._sequencer.close_session(SessionRef(session.session_id)))
        try:
            if not await wait_for(self._clock, closing, CLOSE_SESSION_SECONDS):
                log.info("a session was not released in time; it will expire", lane=self._number)
            elif (error := closing.exception()) is not None:
                log.info(
                    "a session could not be released; it will expire", lane=self._number, error=repr(error)
                )
        finally:
            await cancel_and_wait(closing)

    def _lose_session(self, session: UploadSession) -> None:
        """Note that the session has ended and have another opened, unless that is already done."""
        if self._session is session:
            self._session = None
            self._session_lost.set()
            if self._phase is LanePhase.OPEN:
                self._enter(LanePhase.SESSION_LOST)


def _stored_end(batches: Sequence[BufferedBatch], run: RunOutcome) -> int:
    """Return the end of the batches that are stored; 0 if none is."""
    return max(
        (
            outcome.base_offset + batch.coordinates.record_count
            for batch, outcome in zip(batches, run.outcomes, strict=True)
            if outcome.base_offset >= 0
        ),
        default=0,
    )
