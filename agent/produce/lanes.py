"""Flush lanes: from batches to a sealed buffer, its upload, its commit, and the producers' results.

Invariants:
- a batch's result is given only after the commit that stored it was answered, or after it is certain that this
  buffer's number was committed without it; where neither is known by the deadline, the producer is told to retry and
  the lane goes on asking with the same number;
- a lane holds bytes only while their producers wait, and at most `max_unanswered_commits` numbers are unanswered;
- commits of a lane are applied in the order in which its buffers were sealed (the sequencer waits for the earlier
  number), and every number is committed, if need be as empty;
- a partition belongs to one lane, so its batches keep the order of arrival;
- no PUT starts after the session's lease minus the upload deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from uuid import UUID

import structlog

from agent.produce.active_buffer import (
    ActiveBuffer,
    BatchResult,
    BufferedBatch,
    FlushFailure,
    Submission,
    transactions_of,
)
from agent.produce.rate_budget import RateBudget
from agent.settings import AgentSettings
from agent.telemetry import AgentTelemetry
from sequencer.api import (
    BatchError,
    CommitAnswer,
    CommitExpected,
    CommitRequest,
    IncarnationChanged,
    LeaseLost,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    Sequencer,
    SequencerError,
    SequencerOverloaded,
    SequencerUnavailable,
    SessionClosed,
    SessionGrant,
    SessionRef,
)
from tailrace.buffers import Buffer
from tailrace.clock import Clock, Entropy, wait_for
from tailrace.ids import TopicPartition
from tailrace.keepers import outlived
from tailrace.mixed_object import SealedObject, seal
from tailrace.object_store.api import ObjectStore, StoreError, StoreFull, StoreRefused

log = structlog.get_logger("agent.flush")

MAX_ASKED_AGAIN = 1_000
MAX_PAUSE_SECONDS = 0.4
"""The longest pause (half as much again, by jitter) before the store or the sequencer is asked again: once they are
back after an outage, what waits goes on within that."""
CLOSE_SESSION_SECONDS = 1.0
"""How long closing a lane waits for the sequencer to take its session back; it expires anyway."""
SMALL_PART_BYTES = 2048
"""An object whose parts are smaller on average is kept in the cache as a copy: a view costs some 400 bytes."""
_SEALING_POLL_SECONDS = 0.01
_MAX_UNFORESEEN = 10
"""How often an empty commit may fail in a way that nobody foresaw before its session is given up."""
MAX_STRETCH = 4
"""How many times its linger a buffer may wait at most for its rows."""
MAY_CLOSE = (BatchError.SEQUENCE_GAP, BatchError.UNKNOWN_PRODUCER_ID)
"""Verdicts that another agent's commit may turn: the batches before these may still be on their way there."""


class WriteThrough(Protocol):
    """Where a fresh object goes so that its readers need no GET."""

    def write_through(self, key: str, parts: Sequence[Buffer]) -> None: ...


@dataclass(slots=True)
class Session:
    """An open upload session as its lane sees it. `no_put_after`: monotonic seconds."""

    session_id: UUID
    prefix: str
    opened_at: float
    no_put_after: float
    after: Session | None = None
    """The session before this one in the lane: its last number is answered before this one's first is asked."""
    next_number: int = 0
    unanswered: set[int] = field(default_factory=set)
    trouble: str = "the sequencer says nothing"
    """Why the last commit that had to be asked again was not answered."""

    @property
    def answered_below(self) -> int:
        return min(self.unanswered, default=self.next_number)


@dataclass(slots=True)
class Gap:
    """A batch that the sequencer wants to see again once the sequence before it has come."""

    partition: TopicPartition
    start: int
    object: ObjectDescription
    batch: BufferedBatch
    deadline: float
    verdict: BatchError


class Lane:
    """One active buffer, one upload session, one order of commits. All on one event loop.

    `broker_identity` gives (broker id, lease epoch) when a session is opened.
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
    ) -> None:
        self._number = number
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._store = store
        self._sequencer = sequencer
        self._cache = cache
        self._telemetry = telemetry
        self._broker_identity = broker_identity
        self._buffer: ActiveBuffer | None = None
        self._session: Session | None = None
        self._predecessor: UUID | None = None
        self._changed = asyncio.Event()
        self._session_is_gone: asyncio.Future[None] | None = None
        self._inflight: set[asyncio.Task[None]] = set()
        self._unanswered = 0
        self._uploads = asyncio.Semaphore(settings.max_inflight_uploads)
        self._uploading = 0
        self._upload_ended: asyncio.Future[None] | None = None
        puts, rows, now = settings.max_puts_per_second, settings.max_rows_per_second, clock.monotonic()
        self._early_puts = None if puts is None else RateBudget(puts, max(puts / 4, 1.0), now)
        self._rows = RateBudget(rows, max(rows, 1.0), now)
        self._sealer: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closing = False

    # --- in -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the session; raises what the sequencer raises."""
        await self._open_session()
        self._sealer = asyncio.create_task(self._seal_when_due(), name=f"lane {self._number}: sealing")
        self._keeper = asyncio.create_task(self._keep_session(), name=f"lane {self._number}: session")

    def add(self, partition: TopicPartition, topic_name: str, batch: BufferedBatch) -> None:
        """Take a batch. Its submission is settled later, whatever happens."""
        now = self._clock.monotonic()
        if self._closing:
            batch.settle(BatchResult(failure=FlushFailure("timeout", "this agent is shutting down")))
            return
        if self._buffer is None:
            self._buffer = ActiveBuffer(opened_at=now)
            self._changed.set()
        elif self._buffer.size >= self._settings.flush_bytes:  # it could not be sealed when it became full
            self._telemetry.flush_failures.labels("full").inc()
            batch.settle(BatchResult(failure=self._cannot_seal()))
            return
        self._buffer.add(partition, topic_name, batch, now)
        if self._buffer.size >= self._settings.flush_bytes and self._can_seal:
            self._seal("size")

    @property
    def buffered_bytes(self) -> int:
        return self._buffer.size if self._buffer is not None else 0

    @property
    def unanswered_commits(self) -> int:
        """Numbers that were given to a sealed buffer or to gaps and that the sequencer has not answered."""
        return self._unanswered

    async def flush(self, seconds: float) -> bool:
        """Seal what is there and wait until everything sealed is settled; False if that takes longer than `seconds`."""
        if self._buffer is not None:
            self._seal("drain")
        settling = asyncio.ensure_future(self._all_settled())
        try:
            return await wait_for(self._clock, settling, seconds)
        finally:
            settling.cancel()
            await asyncio.gather(settling, return_exceptions=True)

    async def _all_settled(self) -> None:
        while self._inflight:
            await asyncio.wait(self._inflight)

    async def close(self, seconds: float) -> None:
        """Take nothing more, flush for at most `seconds`, give the session back. What is not committed by then fails
        with a retriable error, whatever store and sequencer do."""
        self._closing = True
        tasks = [task for task in (self._sealer, self._keeper) if task is not None]
        if not await self.flush(seconds):
            log.warning(
                "a lane is closed with commits that were not answered; their producers are told to retry",
                lane=self._number,
                commits=self._unanswered,
            )
            tasks.extend(self._inflight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._close_session(self._session)

    async def _close_session(self, session: Session) -> None:
        closing = asyncio.ensure_future(self._sequencer.close_session(SessionRef(session.session_id)))
        try:
            if not await wait_for(self._clock, closing, CLOSE_SESSION_SECONDS):
                log.info("a session was not given back in time; it will expire", lane=self._number)
            elif (error := closing.exception()) is not None:
                log.info("a session was not given back; it will expire", lane=self._number, error=repr(error))
        finally:
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)

    # --- when to seal ---------------------------------------------------------------------------------

    async def _seal_when_due(self) -> None:
        """Seal at linger_ms; earlier, within the PUT budget, when no PUT is under way or nothing came for quiet_ms.

        Closed-window clients (five requests in flight, then silence) would otherwise wait out the whole linger. What
        comes during a PUT is the next object, so there are no more of them than the store takes one after the other.
        Later, up to MAX_STRETCH times the linger, when sealing would cost the sequencer more rows (one a partition)
        than the budget has: the scarcest thing there is.
        """
        while True:
            if self._buffer is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            buffer, now = self._buffer, self._clock.monotonic()
            linger = self._settings.linger_ms / 1000
            due = buffer.opened_at + linger
            rows_in = self._rows.wait(len(buffer.batches), now)
            if rows_in:
                due = min(max(due, now + rows_in), buffer.opened_at + MAX_STRETCH * linger)
            if not self._can_seal:
                if now >= buffer.opened_at + self._settings.upload_deadline_ms / 1000:
                    self._buffer = None
                    self._telemetry.flush_failures.labels("full").inc()
                    buffer.fail(self._cannot_seal())
                else:
                    await self._clock.sleep(_SEALING_POLL_SECONDS)
                continue
            if now >= due:
                self._seal("stretched" if now >= buffer.opened_at + MAX_STRETCH * linger else "linger")
                continue
            quiet_at = buffer.last_added_at + self._settings.quiet_ms / 1000
            wait = due - now
            if rows_in:
                wait = min(wait, rows_in)
            elif self._unanswered >= self._settings.max_unanswered_commits // 2:
                pass  # fewer, larger objects: the sequencer is slow
            elif not self._uploading or now >= quiet_at:
                put_in = 0.0 if self._early_puts is None else self._early_puts.wait(1, now)
                if not put_in:
                    if self._early_puts is not None:
                        self._early_puts.spend(1)
                    self._seal("quiet" if self._uploading else "idle")
                    continue
                wait = min(wait, put_in)
            else:
                wait = min(wait, quiet_at - now)
            self._upload_ended = asyncio.get_running_loop().create_future()
            await wait_for(self._clock, self._upload_ended, max(wait, 0.0005))

    @property
    def _can_seal(self) -> bool:
        return self._session is not None and self._unanswered < self._settings.max_unanswered_commits

    def _cannot_seal(self) -> FlushFailure:
        if self._session is None:
            return FlushFailure("storage", "no upload session is open; the sequencer is away")
        return FlushFailure("timeout", f"{self._unanswered} commits wait for the sequencer's answer")

    def _seal(self, reason: str) -> None:
        buffer, self._buffer = self._buffer, None
        assert buffer is not None
        session = self._session
        if session is None:
            buffer.fail(self._cannot_seal())
            return
        if self._clock.monotonic() >= session.no_put_after:  # no number is spent on what could only be empty
            self._telemetry.flush_failures.labels(_LEASE_ENDS.kind).inc()
            buffer.fail(_LEASE_ENDS)
            return
        self._rows.spend(len(buffer.batches))
        self._telemetry.flushes.labels(reason).inc()
        self._uploading += 1
        self._spawn(self._flush(session, self._take_number(session), buffer))

    def _take_number(self, session: Session) -> int:
        number = session.next_number
        session.next_number += 1
        session.unanswered.add(number)
        self._unanswered += 1
        return number

    def _answered(self, session: Session, number: int) -> None:
        session.unanswered.discard(number)
        self._unanswered -= 1

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._inflight.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._inflight.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a flush failed in a way that was not foreseen", exc_info=task.exception())

    # --- one sealed buffer ------------------------------------------------------------------------------

    async def _flush(self, session: Session, number: int, buffer: ActiveBuffer) -> None:
        """From a sealed buffer to its batches' results. Its bytes are let go of with the last result, or as soon as the
        upload's deadline or the commit's has its producers told to retry; the number is asked about all the same."""
        started = self._clock.monotonic()
        try:
            try:
                stored = await self._store_object(session, number, buffer)
            finally:
                self._end_upload()
            if stored is None:
                await self._commit(session, number, None, [], deadline=None)
                return
            description, proposals = stored
            deadline = started + self._settings.commit_deadline_ms / 1000
            answer = await self._commit(
                session, number, description, proposals, deadline, on_late=lambda: buffer.fail(_TOO_LATE)
            )
            if answer is None:
                buffer.fail(FlushFailure("timeout", "the upload session ended before the commit"))
                return
            self._settle(buffer, description, proposals, answer)
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
        self._uploading -= 1
        if not self._uploading and self._upload_ended is not None and not self._upload_ended.done():
            self._upload_ended.set_result(None)

    async def _store_object(
        self, session: Session, number: int, buffer: ActiveBuffer
    ) -> tuple[ObjectDescription, list[RunProposal]] | None:
        """Upload the buffer as an object: what is to be committed. None when that failed, and its producers know."""
        sealed, description = self._seal_object(session, number, buffer)
        failure = await self._upload(session, description.key, sealed)
        if failure is not None:
            self._telemetry.flush_failures.labels(failure.kind).inc()
            log.warning("a flush failed", key=description.key, bytes=sealed.size, error=failure.message)
            buffer.fail(failure)
            return None
        self._telemetry.flush_bytes.observe(sealed.size)
        proposals = [
            RunProposal(
                run.topic_id,
                run.partition,
                run.start,
                run.length,
                run.batches,
                transactions_of(buffer.batches[TopicPartition(run.topic_id, run.partition)]),
            )
            for run in sealed.footer.runs
        ]
        return description, proposals

    def _seal_object(
        self, session: Session, number: int, buffer: ActiveBuffer
    ) -> tuple[SealedObject, ObjectDescription]:
        object_id, created_ms = self._entropy.uuid(), self._clock.wall_ms()
        sealed = seal(
            [
                (
                    partition,
                    buffer.topic_names[partition],
                    [(each.coordinates, [each.data]) for each in batches],
                )
                for partition, batches in buffer.batches.items()
            ],
            object_id=object_id,
            session_id=session.session_id,
            number=number,
            created_ms=created_ms,
        )
        description = ObjectDescription(
            object_id=object_id,
            kind=ObjectKind.MIXED,
            key=f"{session.prefix}{number:012d}",
            size=sealed.size,
            crc=sealed.crc,
            index_start=sealed.footer.data_length,
            created_ms=created_ms,
        )
        return sealed, description

    async def _upload(self, session: Session, key: str, sealed: SealedObject) -> FlushFailure | None:
        """Put the object within the deadline, retrying what may pass; the reason when it could not be done."""
        deadline = self._clock.monotonic() + self._settings.upload_deadline_ms / 1000
        attempt, last = 0, "no try was made before the deadline"
        async with self._uploads:
            while (now := self._clock.monotonic()) < deadline:
                if now >= session.no_put_after:
                    return _LEASE_ENDS
                try:
                    async with asyncio.timeout(deadline - now):
                        await self._store.put(key, sealed.parts)
                    self._telemetry.upload_seconds.observe(self._clock.monotonic() - now)
                    self._cache.write_through(key, _without_small_parts(sealed))
                    return None
                except TimeoutError:
                    return FlushFailure(
                        "storage", f"the store took longer than {self._settings.upload_deadline_ms} ms"
                    )
                except (StoreFull, StoreRefused) as error:
                    return FlushFailure("storage", str(error))
                except StoreError as error:
                    last = str(error)
                attempt += 1
                await self._clock.sleep(min(0.05 * 2**attempt, 1.0) * (0.5 + self._entropy.fraction()))
        return FlushFailure("storage", last)

    async def _commit(
        self,
        session: Session,
        number: int,
        description: ObjectDescription | None,
        proposals: list[RunProposal],
        deadline: float | None,
        on_late: Callable[[], None] = lambda: None,
    ) -> CommitAnswer | None:
        """Have the number committed, asking again until the sequencer says; None when the session has ended.

        At `deadline` the producers are told to retry (`on_late`), and the asking goes on: later numbers need it.
        """
        asking = asyncio.ensure_future(self._ask_until_committed(session, number, description, proposals))
        try:
            if deadline is not None:
                left = deadline - self._clock.monotonic()
                if not await wait_for(self._clock, asking, left):
                    self._telemetry.flush_failures.labels("timeout").inc()
                    log.warning(
                        "no answer to a commit yet; its producers are told to retry",
                        number=number,
                        error=session.trouble,
                    )
                    on_late()
            return await asking
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    async def _ask_until_committed(
        self,
        session: Session,
        number: int,
        description: ObjectDescription | None,
        proposals: list[RunProposal],
    ) -> CommitAnswer | None:
        backoff = 0.005
        while session.after is not None and session.after.unanswered:
            await self._clock.sleep(backoff)
            backoff = min(backoff * 2, 0.1)
        session.after = None
        started = self._clock.monotonic()
        backoff = 0.02
        unforeseen = 0
        while True:
            request = CommitRequest(
                session.session_id, number, session.answered_below, description, proposals
            )
            try:
                answer = await self._sequencer.commit(request)
                self._telemetry.commit_seconds.observe(self._clock.monotonic() - started)
                return answer
            except (SessionClosed, IncarnationChanged) as error:
                log.warning("a commit came after its session's end", number=number, error=str(error))
                self._forget(session)
                return None
            except (SequencerUnavailable, SequencerOverloaded, CommitExpected) as error:
                session.trouble = str(error)
            except Exception as error:
                if description is not None:
                    raise
                unforeseen += 1
                log.warning("an empty commit failed", number=number, error=repr(error))
                if unforeseen >= _MAX_UNFORESEEN:
                    self._forget(session)
                    return None
            await self._clock.sleep(backoff * (0.5 + self._entropy.fraction()))
            backoff = min(backoff * 2, MAX_PAUSE_SECONDS)

    def _settle(
        self,
        buffer: ActiveBuffer,
        description: ObjectDescription,
        proposals: list[RunProposal],
        answer: CommitAnswer,
    ) -> None:
        assert len(answer.runs) == len(proposals), "one outcome a run"
        if not buffer.batches:
            return  # the answer came after the deadline: all were told to retry
        give_up_at = self._clock.monotonic() + self._settings.gap_deadline_ms / 1000
        gaps: list[Gap] = []
        for proposal, run in zip(proposals, answer.runs, strict=True):
            partition = TopicPartition(proposal.topic_id, proposal.partition)
            position = proposal.start
            for batch, outcome in zip(buffer.batches[partition], run.outcomes, strict=True):
                if outcome.error in MAY_CLOSE:
                    gaps.append(Gap(partition, position, description, batch, give_up_at, outcome.error))
                else:
                    batch.settle(BatchResult(outcome.error, outcome.base_offset, run.log_start_offset))
                position += batch.coordinates.length
        if gaps:
            self._spawn(self._ask_again(gaps))

    # --- gaps (correctness: idempotent producers that move between agents) --------------------------------

    async def _ask_again(self, gaps: list[Gap]) -> None:
        """Commit the gaps' batches by reference until the missing sequences have come or their time is over.

        One batch of a partition after another, in order: a gap behind a gap only closes after it.
        """
        backoff = 0.01
        while gaps:
            now = self._clock.monotonic()
            for gap in [gap for gap in gaps if now >= gap.deadline]:
                gap.batch.settle(BatchResult(gap.verdict))
            gaps = [gap for gap in gaps if now < gap.deadline]
            session = self._session
            if not gaps:
                return
            if self._closing and (session is None or not self._inflight):
                for gap in gaps:
                    gap.batch.settle(BatchResult(gap.verdict))
                return
            await self._clock.sleep(backoff)
            backoff = min(backoff * 2, 0.25)
            if session is None or session is not self._session or not self._can_seal:
                continue
            first_of: dict[TopicPartition, Gap] = {}
            for gap in gaps:
                first_of.setdefault(gap.partition, gap)
            asked = [gap for gap in first_of.values() if gap.object is gaps[0].object][:MAX_ASKED_AGAIN]
            number = self._take_number(session)
            proposals = [
                RunProposal(
                    gap.partition.topic_id,
                    gap.partition.partition,
                    gap.start,
                    gap.batch.coordinates.length,
                    [gap.batch.coordinates],
                    transactions_of([gap.batch]),
                )
                for gap in asked
            ]
            last_deadline = max(gap.deadline for gap in gaps)
            try:
                answer = await self._commit(
                    session,
                    number,
                    asked[0].object,
                    proposals,
                    last_deadline,
                    on_late=partial(_give_up, gaps),
                )
            except Exception:
                _give_up(gaps)
                await self._commit(session, number, None, [], deadline=None)  # as in _flush
                raise
            except asyncio.CancelledError:
                _give_up(gaps)
                raise
            finally:
                self._answered(session, number)
            if answer is None or not gaps:
                continue
            for gap, run in zip(asked, answer.runs, strict=True):
                outcome = run.outcomes[0]
                if outcome.error not in MAY_CLOSE:
                    gap.batch.settle(BatchResult(outcome.error, outcome.base_offset, run.log_start_offset))
                    gaps.remove(gap)
                    backoff = 0.01

    # --- the session ------------------------------------------------------------------------------------

    async def _open_session(self) -> None:
        broker_id, epoch = self._broker_identity()
        asked_at = self._clock.monotonic()
        grant = await self._sequencer.open_session(OpenSession(broker_id, epoch, self._predecessor))
        self._session = Session(
            grant.session_id, grant.prefix, asked_at, self._no_put_after(grant, asked_at), after=self._session
        )
        self._predecessor = grant.session_id

    def _no_put_after(self, grant: SessionGrant, asked_at: float) -> float:
        return asked_at + (grant.lease_ms - self._settings.upload_deadline_ms) / 1000

    async def _keep_session(self) -> None:
        """Renew the lease, rotate an old session, open a new one where there is none: at once when one is lost."""
        pause = 1.0
        while True:
            self._session_is_gone = asyncio.get_running_loop().create_future()
            await wait_for(self._clock, self._session_is_gone, pause)
            with outlived(log, "the upload session could not be renewed", SequencerError, lane=self._number):
                pause = await self._renew_session(pause)

    async def _renew_session(self, pause: float) -> float:
        """One turn of `_keep_session`; seconds until the next."""
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
                return min(max(grant.lease_ms / 5000, 0.05), 1.0)
        except SessionClosed as error:
            log.warning("the upload session was closed; opening another", lane=self._number, error=str(error))
            if self._session is session and session is not None:
                self._forget(session)
        except LeaseLost as error:
            log.warning("no upload session without the agent's lease", lane=self._number, error=str(error))
        return pause

    async def _retire(self, session: Session) -> None:
        """Close a rotated session once its last number is answered."""
        while session.unanswered:
            await self._clock.sleep(0.05)
        await self._close_session(session)

    def _forget(self, session: Session) -> None:
        if self._session is session:
            self._session = None
            if self._session_is_gone is not None and not self._session_is_gone.done():
                self._session_is_gone.set_result(None)


_TOO_LATE = FlushFailure("timeout", "the sequencer did not answer in time")
_LEASE_ENDS = FlushFailure("storage", "the upload session's lease is running out")


def _without_small_parts(sealed: SealedObject) -> Sequence[Buffer]:
    """The object's parts for the cache, which counts their bytes; small ones as one, as each costs more than it has."""
    if len(sealed.parts) * SMALL_PART_BYTES > sealed.size:
        return [b"".join(sealed.parts)]
    return sealed.parts


def _give_up(gaps: list[Gap]) -> None:
    """Tell the producers of all these to retry."""
    for gap in gaps:
        gap.batch.settle(BatchResult(failure=_TOO_LATE))
    gaps.clear()


class Lanes:
    """All lanes of an agent; a partition's lane is a pure function of the partition."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes

    async def start(self) -> None:
        for lane in self._lanes:
            await lane.start()

    def lane_of(self, partition: TopicPartition) -> Lane:
        if len(self._lanes) == 1:
            return self._lanes[0]
        return self._lanes[(partition.topic_id.int ^ partition.partition * 0x9E3779B1) % len(self._lanes)]

    def submit(self, batches: Sequence[tuple[TopicPartition, str, BufferedBatch]]) -> None:
        """Put the batches of one request into their lanes' buffers, in order."""
        for partition, topic_name, batch in batches:
            self.lane_of(partition).add(partition, topic_name, batch)

    @property
    def buffered_bytes(self) -> int:
        return sum(lane.buffered_bytes for lane in self._lanes)

    @property
    def unanswered_commits(self) -> int:
        return sum(lane.unanswered_commits for lane in self._lanes)

    async def flush(self, seconds: float) -> bool:
        """False if anything is not settled after `seconds`."""
        return all(await asyncio.gather(*(lane.flush(seconds) for lane in self._lanes)))

    async def close(self, seconds: float) -> None:
        """After at most `seconds` and what the sequencer may take to close the sessions."""
        await asyncio.gather(*(lane.close(seconds) for lane in self._lanes))


__all__ = ["Lane", "Lanes", "Submission"]
