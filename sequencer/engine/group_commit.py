"""Group commit: a bounded queue of requests that change rows, and the single task that decides and writes them.

The task takes the queued requests as a group. It decides each of them on a draft over the durable state, writes all
changes in one transaction, and only then shows the changes to readers and answers the requests. Requests that arrive
meanwhile form the next group.

Deciding a group takes as many turns of the event loop as there is work: nobody sees the draft, and nothing else changes
the state under it. A group ends early if its changes are many rows, so that showing them stays short; the remaining
requests form the next group.

If a write fails, its outcome is unknown: its requests are answered SequencerUnavailable (retry with the same ids), and
the state is reloaded before anything else is decided.

A request that fails unexpectedly fails alone. An error in its decision changes nothing. If the store refuses the rows
of a group, the group is performed again in halves, until the refused part is a single request; nothing was written, so
the state stays.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload
from uuid import UUID

import structlog

from sequencer.api.commits import CommitAnswer, CommitRequest
from sequencer.api.errors import (
    CommitOutOfOrder,
    IncarnationChanged,
    LeaseLost,
    RequestFailed,
    SequencerError,
    SequencerOverloaded,
    SequencerUnavailable,
    SessionClosed,
)
from sequencer.api.values import Value
from sequencer.engine.queued import Decide, EarlyCommits, QueuedRequest
from sequencer.engine.row_lookup import LookupKeys, RowLookup
from sequencer.engine.term import Term, caused_by_no_request
from sequencer.observer import SequencerObserver, timed
from sequencer.reading.view import CommitterView
from sequencer.rules import repeats, upload_sessions
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.required_rows import Needs, RequiredRows
from sequencer.store.row_store import RowStore
from sequencer.store.rows import ProducerRow, SessionRow
from tailrace.background_tasks import cause_of
from tailrace.clock import Clock, wait_for
from tailrace.turns import Steps, Turns, in_turns

_log = structlog.get_logger(__name__)

T = TypeVar("T")
V = TypeVar("V", bound=Value)
WORK_IN_A_TURN = 200
"""Work decided in one turn of the loop, in runs of commits; a run takes some 30 us."""
REQUEST_AS_RUNS = 10
"""The cost of a request in runs, in addition to its content."""
CHANGED_ROWS_AS_A_RUN = 50
"""The number of changed rows that cost as much as one run, after they are decided."""
ROWS_OF_A_GROUP = 4_000
"""A group takes no further request once its changes are this many rows, nor a request with which it would look up more
rows than this."""
BATCHES_CHECKED_IN_A_TURN = 10_000
JOURNALED_IN_A_TURN = 4_000
_NOTHING = RequiredRows()


@dataclass(slots=True)
class _Outcome:
    request: QueuedRequest
    answer: Any = None
    error: BaseException | None = None


class GroupCommit:
    """See the module. `run` is the task; `stop` ends it after the group that is being written.

    `ensure_ready` returns when the view equals the store and the lease holds, or raises SequencerUnavailable.
    """

    def __init__(
        self,
        view: CommitterView,
        store: RowStore,
        clock: Clock,
        *,
        settings: SequencerSettings,
        observer: SequencerObserver,
        ensure_ready: Callable[[], Awaitable[None]],
    ) -> None:
        self._view = view
        self._store = store
        self._clock = clock
        self._settings = settings
        self._observer = observer
        self._look_ups = RowLookup(view, store, clock, observer)
        self._ensure_ready = ensure_ready
        self._term: Term | None = None
        self._queue: deque[QueuedRequest] = deque()
        self._arrived = asyncio.Event()
        self._early = EarlyCommits()
        self._is_stopped = False
        self._all_shown = asyncio.Event()
        """Cleared while the store may contain changes that are not shown, except when the view is stale."""
        self._all_shown.set()

    # --- what callers wait for

    @overload
    async def decide(
        self, name: str, decide: Callable[[Draft], Steps[T]], *, needs: Needs | None = None
    ) -> T: ...

    @overload
    async def decide(self, name: str, decide: Callable[[Draft], T], *, needs: Needs | None = None) -> T: ...

    async def decide(self, name: str, decide: Decide, *, needs: Needs | None = None) -> Any:
        """Decide a request in the committer's task; return its answer when it is durable. `name` is for the log.
        `needs`: the rows that the decision reads and that may not be in memory."""
        return await self._queued(QueuedRequest(name, self._new_answer(), decide, needs=needs))

    async def decide_once(
        self,
        name: str,
        request_id: UUID,
        answer: type[V],
        decide: Callable[[Draft], V | Steps[V]],
        *,
        needs: Needs | None = None,
    ) -> V:
        """`decide` for a request that may be retried: every retry gets the first answer, which may be a refusal."""

        def once(draft: Draft) -> Any:
            return repeats.decide_once(draft, request_id, answer, decide)

        answered = await self.decide(name, once, needs=needs)
        if isinstance(answered, SequencerError):
            raise answered
        return cast("V", answered)

    async def decide_alone(self, name: str, decide: Callable[[Draft], Awaitable[T]]) -> T:
        """`decide` for a decision that looks rows up in the store; nothing else is decided at the same time."""
        return cast("T", await self._queued(QueuedRequest(name, self._new_answer(), decide, is_alone=True)))

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        """Decide a commit in the order of its session's commit numbers."""
        await in_turns(
            upload_sessions.check_commit(request, self._settings), Turns(BATCHES_CHECKED_IN_A_TURN)
        )
        queued = QueuedRequest("commit", self._new_answer(), commit=request)
        session = self._view.state.get(SessionRow, request.session_id)
        self._enqueue(queued)
        if session is not None and request.number <= session.next_number:
            return cast("CommitAnswer", await queued.answer)
        try:
            is_answered = await wait_for(self._clock, queued.answer, self._settings.commit_wait_ms / 1000)
        except asyncio.CancelledError:
            self._give_up(queued, request)
            raise
        if not is_answered and self._give_up(queued, request):
            session = self._view.state.get(SessionRow, request.session_id)
            expected = "none" if session is None else session.next_number
            raise CommitOutOfOrder(f"number {request.number} waited too long; expected {expected}")
        return cast("CommitAnswer", await queued.answer)

    async def catch_up(self) -> None:
        """Wait until everything that is in the store now is shown. This waits for a write in progress, but not for
        queued requests. Raises SequencerUnavailable, also if another committer may have written."""
        await self._all_shown.wait()
        await self._ensure_ready()

    def _new_answer(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def _queued(self, request: QueuedRequest) -> Any:
        self._enqueue(request)
        return await request.answer

    def _enqueue(self, request: QueuedRequest) -> None:
        if self._is_stopped or self._term is None:
            raise SequencerUnavailable("the sequencer is not running; retry at another server")
        if len(self._queue) >= self._settings.max_queued_requests:
            raise SequencerOverloaded(f"{len(self._queue)} requests are queued (max_queued_requests)")
        self._queue.append(request)
        self._observer.queue_changed(len(self._queue))
        self._arrived.set()

    def _give_up(self, queued: QueuedRequest, request: CommitRequest) -> bool:
        """Withdraw an early or queued commit; return False if it is already being decided."""
        if self._early.of(request.session_id).get(request.number) is queued:
            self._early.take(request.session_id, request.number)
        elif queued.is_taken:
            return False
        queued.answer.cancel()
        return True

    # --- the task

    def begin(self, term: Term) -> None:
        """Accept requests under this term. Call `run` next."""
        self._term = term

    def stop(self) -> None:
        """Accept no more requests and decide no further group."""
        self._is_stopped = True
        self._arrived.set()

    async def run(self) -> None:
        """Perform groups until `stop`; then refuse the waiting requests."""
        while not self._is_stopped:
            await self._arrived.wait()
            self._arrived.clear()
            while self._queue and not self._is_stopped:
                group = self._next_group()
                try:
                    if group:
                        await self._perform(group)
                except Exception as error:  # noqa: BLE001 - a dead committer would keep its lease
                    _log.exception("the committer failed unexpectedly: it ends", cause=cause_of(error))
                    self._end_term(f"it broke down: {cause_of(error)}")
                    self._fail_group(group, [], SequencerUnavailable("the committer has ended; retry"))
        self.refuse_waiting()

    def refuse_waiting(self) -> None:
        """Fail all requests that are still queued or early."""
        closing = SequencerUnavailable("the sequencer is closing; retry at another server")
        for request in [*self._queue, *self._early]:
            _fail(request, closing)
        self._queue.clear()
        self._early.clear()
        self._observer.queue_changed(0)

    def _end_term(self, reason: str) -> None:
        assert self._term is not None, "begin comes before run"
        self._term.end(reason)

    def _next_group(self) -> list[QueuedRequest]:
        """Take the next group from the queue. Leave out requests whose callers no longer wait, because they would only
        delay the others."""
        group = [self._queue.popleft()]
        while self._queue and not group[0].is_alone and len(group) < self._settings.max_group_requests:
            if self._queue[0].is_alone:
                break
            group.append(self._queue.popleft())
        self._observer.queue_changed(len(self._queue))
        return [request for request in group if not request.answer.done()]

    async def _perform(self, group: list[QueuedRequest]) -> None:
        """Perform a group; if the store refuses its rows, perform its halves one after the other."""
        began = self._clock.monotonic()
        for request in group:
            request.is_taken = True
        parts = deque([[*group]])
        while parts:
            try:
                parts.extendleft(reversed(await self._perform_together(parts.popleft())))
            finally:
                self._all_shown.set()
        seconds = self._clock.monotonic() - began
        self._view.budgets.worked(seconds)
        self._observer.group_performed(len(group), seconds)

    async def _perform_together(self, group: list[QueuedRequest]) -> list[list[QueuedRequest]]:
        """Decide a group, write it, show it and answer. Return the parts to perform next: the halves of a refused
        group, or the rest of a group with many changes."""
        outcomes: list[_Outcome] = []
        rest: list[QueuedRequest] = []

        def fail(error: Exception) -> None:
            self._fail_group([*group, *rest], outcomes, error)

        try:
            draft = await self._decide_and_write(group, outcomes, rest)
        except IncarnationChanged as error:
            fail(error)
            return []
        except RequestFailed as error:
            return [*self._parts_of(group, outcomes, error), *([rest] if rest else [])]
        except SequencerError as error:
            if not isinstance(error, SequencerUnavailable):
                self._end_term(cause_of(error))
            fail(SequencerUnavailable(f"not committed, retry: {error}"))
            return []
        except Exception as error:  # noqa: BLE001 - the outermost edge: the committer lives on
            _log.exception("a group of requests failed unexpectedly", cause=cause_of(error))
            fail(SequencerUnavailable(f"not known to be committed: {cause_of(error)}"))
            return []
        try:
            await self._view.show(draft)
        except Exception as error:  # noqa: BLE001 - as above
            # The changes are written, but neither the view nor the feed shows them. Nothing may be built on this state.
            self._view.journal = None
            _log.exception(
                "a written change can't be applied to the state: this committer's term ends",
                cause=cause_of(error),
            )
            self._end_term(f"a written change can't be applied to the state: {cause_of(error)}")
            fail(SequencerUnavailable("the committer has ended; retry"))
            return []
        for outcome in outcomes:
            if outcome.error is not None:
                _fail(outcome.request, outcome.error)
            elif not outcome.request.answer.done():
                outcome.request.answer.set_result(outcome.answer)
        return [rest] if rest else []

    async def _decide_and_write(
        self, group: list[QueuedRequest], outcomes: list[_Outcome], rest: list[QueuedRequest]
    ) -> Draft:
        """Decide the requests of a group and write the changes; return the draft. Put requests that were not decided
        into `rest`; the first may be an early commit that is not in `group`. Remove from `group` the requests whose
        rows were not looked up."""
        turns = Turns(WORK_IN_A_TURN)
        draft = await self._drafted(group, rest, turns)
        waiting = deque(group)
        while waiting and len(draft.changes) < ROWS_OF_A_GROUP:
            before = len(draft.changes)
            following = await self._decide(draft, waiting.popleft(), outcomes, turns)
            if following is not None:
                waiting.appendleft(following)
            changed = len(draft.changes) - before
            await turns.did(REQUEST_AS_RUNS + changed // CHANGED_ROWS_AS_A_RUN)
        rest[:0] = waiting
        draft.settle_sums()
        if draft.changes:
            if self._view.journal is not None:
                await in_turns(self._view.journal.add(draft), Turns(JOURNALED_IN_A_TURN))
            if self._view.checkpointer is not None:
                self._view.checkpointer.check_refusal()
            self._all_shown.clear()
            await self._write(draft)
        return draft

    async def _drafted(self, group: list[QueuedRequest], rest: list[QueuedRequest], turns: Turns) -> Draft:
        """Return a draft with the rows that the decisions may need and that are not in memory.

        Args:
            rest: see `_rows_to_look_up`.

        The rows are requested together with the time, because each answer may take long. No write is in progress, so
        the rows match the draft's state. They are dropped with the draft.

        If another committer takes the lease meanwhile, the store refuses this epoch, so nothing decided on this state
        overwrites what that committer wrote.
        """
        await self._ensure_ready()
        sought = await self._rows_to_look_up(group, rest, turns)
        if not sought:
            return Draft(self._view.state, await self._now_ms())
        now_ms, looked_up = await asyncio.gather(self._now_ms(), self._look_ups.look_up(sought))
        draft = Draft(self._view.state, now_ms)
        await looked_up.note_in(draft, turns)
        return draft

    async def _rows_to_look_up(
        self, group: list[QueuedRequest], rest: list[QueuedRequest], turns: Turns
    ) -> LookupKeys:
        """Return what the decisions may need and is not in memory. If the group would look up more than ROWS_OF_A_GROUP
        rows, move the request at which this happens and all after it from `group` to `rest`; the first request always
        stays."""
        sought = LookupKeys()
        for number, request in enumerate(group):
            unknown = await self._look_ups.unknown(await self._needed(request, turns), turns)
            if number and sought.rows + unknown.rows > ROWS_OF_A_GROUP:
                rest += group[number:]
                del group[number:]
                break
            sought.add(unknown)
        early = self._early_of(group)
        for commit in early:
            sought.add(await self._look_ups.unknown(await self._producers_needed(commit, turns), turns))
        commits = [request.commit for request in group if request.commit is not None]
        sought.objects = self._named_objects(commits + early)
        return sought

    async def _needed(self, request: QueuedRequest, turns: Turns) -> RequiredRows:
        if request.commit is not None:
            return await self._producers_needed(request.commit, turns)
        return _NOTHING if request.needs is None else request.needs(self._view.state)

    async def _producers_needed(self, commit: CommitRequest, turns: Turns) -> RequiredRows:
        keys = await in_turns(upload_sessions.producers_of(self._view.state, commit.runs), turns)
        return RequiredRows({ProducerRow: keys})

    async def _now_ms(self) -> int:
        with caused_by_no_request():
            return await self._store.now_ms()

    def _early_of(self, group: list[QueuedRequest]) -> list[CommitRequest]:
        """Return the commits that wait for one of the group's commits."""
        sessions_of = dict.fromkeys(
            request.commit.session_id for request in group if request.commit is not None
        )
        early = (request for session_id in sessions_of for request in self._early.of(session_id).values())
        return [request.commit for request in early if request.commit is not None]

    def _named_objects(self, commits: list[CommitRequest]) -> list[UUID]:
        """Return the objects of earlier commits that these commits name, as far as memory tells."""
        named: dict[UUID, None] = {}
        for commit in commits:
            session, stored = self._view.state.get(SessionRow, commit.session_id), commit.object
            if stored and upload_sessions.names_earlier_object(session, stored.key, commit.number):
                named[stored.object_id] = None
        return list(named)

    def _parts_of(
        self, group: list[QueuedRequest], outcomes: list[_Outcome], error: RequestFailed
    ) -> list[list[QueuedRequest]]:
        """Return the halves of a group that the store refused, in decision order. Fail it if it is a single request."""
        requests = [outcome.request for outcome in outcomes] or group
        if len(requests) > 1:
            middle = len(requests) // 2
            return [requests[:middle], requests[middle:]]
        for request in requests:
            _fail(request, self._failed_alone(request, error))
        return []

    def _not_decided(self, request: QueuedRequest, error: Exception) -> SequencerError:
        """Return the error for a decision that failed unexpectedly. Either it is a bug; or this process was stopped for
        longer than its lease, and its reads before and after belong to different terms."""
        assert self._term is not None, "begin comes before run"
        if not self._term.left_s:
            return SequencerUnavailable(f"the lease expired during {request.name}; retry: {cause_of(error)}")
        return self._failed_alone(request, error)

    def _failed_alone(self, request: QueuedRequest, error: Exception) -> RequestFailed:
        """Return the error for a request that failed alone, and log it."""
        self._observer.request_failed_alone(request.name)
        is_bug = not isinstance(error, RequestFailed)
        _log.error(
            "a request failed alone",
            request=request.name,
            cause=cause_of(error),
            exc_info=error if is_bug else None,
        )
        return RequestFailed(f"{request.name} can't be carried out: {cause_of(error)}")

    async def _write(self, draft: Draft) -> None:
        assert self._term is not None, "begin comes before run"
        writing = self._store.write(draft.changes, self._term.epoch)
        try:
            await timed(self._observer, self._clock, "write", writing)
        except (RequestFailed, LeaseLost):
            raise  # nothing was written
        except BaseException:
            self._view.is_stale = True  # it is unknown what is in the store now
            raise

    def _fail_group(self, group: list[QueuedRequest], outcomes: list[_Outcome], error: Exception) -> None:
        """Fail all requests of the group, except early commits, which continue to wait."""
        waiting = {id(request) for request in self._early}
        for request in [*group, *(outcome.request for outcome in outcomes)]:
            if id(request) not in waiting:
                _fail(request, error)

    async def _decide(
        self, draft: Draft, request: QueuedRequest, outcomes: list[_Outcome], turns: Turns
    ) -> QueuedRequest | None:
        """Decide one request. Return the commit that waited for it, which must be decided next."""
        if request.commit is not None:
            return await self._decide_commit_in_turn(draft, request, request.commit, outcomes, turns)
        assert request.decide is not None, "a request is a commit or has a decision"
        savepoint = draft.savepoint()
        try:
            answer = request.decide(savepoint)
            if isinstance(answer, Generator):
                answer = await in_turns(answer, turns)
            elif request.is_alone:
                answer = await cast("Awaitable[Any]", answer)
            self._check_reserved(savepoint)
        except SequencerUnavailable as error:
            if request.is_alone:
                raise
            outcomes.append(_Outcome(request, error=error))
        except SequencerError as error:
            outcomes.append(_Outcome(request, error=error))
        except Exception as error:  # noqa: BLE001 - it fails alone
            outcomes.append(_Outcome(request, error=self._not_decided(request, error)))
        else:
            savepoint.merge()
            outcomes.append(_Outcome(request, answer))
        return None

    def _check_reserved(self, savepoint: Draft) -> None:
        """Raise SequencerUnavailable if this request assigns offsets that are not reserved; other requests are not
        affected."""
        if self._view.checkpointer is not None:
            self._view.checkpointer.check_reserved(savepoint.changes)

    # --- commits

    async def _decide_commit_in_turn(
        self,
        draft: Draft,
        request: QueuedRequest,
        commit: CommitRequest,
        outcomes: list[_Outcome],
        turns: Turns,
    ) -> QueuedRequest | None:
        """Decide a commit. Return the commit that waited for it."""
        outcome = _Outcome(request)
        outcomes.append(outcome)
        savepoint = draft.savepoint()
        try:
            outcome.answer = await self._decide_commit(savepoint, request, commit, turns)
            self._check_reserved(savepoint)
        except SequencerError as error:
            outcome.error = error
            if isinstance(error, SessionClosed):
                waiting = self._early.take_all(commit.session_id)
                outcomes.extend(_Outcome(early, error=error) for early in waiting)
            return None
        except Exception as error:  # noqa: BLE001 - it fails alone; its number can be committed again
            outcome.error = self._not_decided(request, error)
            return None
        if outcome.answer is None:
            outcomes.pop()  # it waits for an earlier number
            return None
        savepoint.merge()
        session = draft.get(SessionRow, commit.session_id)
        return None if session is None else self._early.take(commit.session_id, session.next_number)

    async def _decide_commit(
        self, draft: Draft, request: QueuedRequest, commit: CommitRequest, turns: Turns
    ) -> CommitAnswer | None:
        """Return the answer; None if the commit now waits for an earlier number."""
        known = upload_sessions.known_answer(draft, commit)
        if known is not None:
            return known
        session = upload_sessions.live_session(draft, commit.session_id)
        if commit.number < session.next_number:
            raise CommitOutOfOrder(
                f"number {commit.number} was answered and is forgotten; expected {session.next_number}"
            )
        if commit.number > session.next_number:
            waiting = self._early.of(commit.session_id)
            before = waiting.get(commit.number)
            if before is None and len(waiting) >= self._settings.max_early_commits:
                raise CommitOutOfOrder(
                    f"number {commit.number} while {len(waiting)} wait; expected {session.next_number}"
                )
            if before is not None:
                _fail(before, SequencerUnavailable(f"number {commit.number} was retried meanwhile"))
            self._early.put(commit, request)
            return None
        return await in_turns(upload_sessions.apply_commit(draft, session, commit, self._settings), turns)


def _fail(request: QueuedRequest, error: BaseException) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
        request.answer.exception()  # mark it as retrieved: its caller may be gone
