"""Group commit: a bounded queue of requests that change rows, and the one task that decides and writes them.

The task takes what is queued as a group, decides each request on a draft over the durable state, writes all changes in
one transaction, and only then shows them to readers and answers. What arrives meanwhile is the next group.

Deciding takes as many turns of the loop as there is work: nobody sees the draft, and the state under it changes in no
other way. A group whose changes are many rows ends there, so that showing them stays short; the rest is the next group.

A write that fails leaves its outcome unknown: its requests are answered SequencerUnavailable (retry with the same ids),
and the state is loaded anew before anything else is decided.

A request that fails in an unforeseen way fails alone. An error while it is decided leaves nothing behind. A group whose
rows the store refuses is performed again in halves, until what is refused is one request: nothing was written, so the
state stays.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload
from uuid import UUID

import structlog

from sequencer.api import (
    CommitAnswer,
    CommitOutOfOrder,
    CommitRequest,
    IncarnationChanged,
    LeaseLost,
    RequestFailed,
    SequencerError,
    SequencerOverloaded,
    SequencerUnavailable,
    SessionClosed,
    Value,
)
from sequencer.engine.look_ups import LookUps, Sought
from sequencer.engine.term import Term
from sequencer.observer import SequencerObserver, timed
from sequencer.reading.view import View
from sequencer.rules import repeats, upload_sessions
from sequencer.settings import SequencerSettings
from sequencer.store.needed import Needed, Needs
from sequencer.store.rows import ProducerRow, RowStore, SessionRow
from sequencer.store.state import Draft
from tailrace.clock import Clock, wait_for
from tailrace.keepers import cause_of
from tailrace.turns import Steps, Turns, in_turns

_log = structlog.get_logger(__name__)

T = TypeVar("T")
V = TypeVar("V", bound=Value)
Decide = Callable[[Draft], Any]
"""Returns its answer, the `Steps` to it, or (of a request that is decided alone) an awaitable of it."""

WORK_IN_A_TURN = 200
"""What is decided in one turn of the loop, in runs of commits, which take some 30 us each."""
REQUEST_AS_RUNS = 10
"""A request takes as long as so many runs, besides its own content."""
CHANGED_ROWS_AS_A_RUN = 50
"""So many rows that a request changes take as long as one run, once they are decided."""
ROWS_OF_A_GROUP = 10_000
"""A group to whose changes a request has added so many rows takes no further one, nor one that has more rows than so
many looked up."""
BATCHES_CHECKED_IN_A_TURN = 10_000
JOURNALED_IN_A_TURN = 4_000
_NOTHING = Needed()


@dataclass(slots=True, eq=False)
class _Queued:
    """A request on its way to the committer's task: a `commit`, or another request and the function that decides it.

    `is_alone`: it awaits look-ups in the store, so it is a group of its own. `needs`: which rows its decision reads
    that may not be in memory; those of a commit follow from its batches. `is_taken`: by the task. Who gives up before
    that cancels the answer, and nothing is decided.
    """

    name: str
    answer: asyncio.Future[Any]
    decide: Decide | None = None
    is_alone: bool = False
    commit: CommitRequest | None = None
    needs: Needs | None = None
    is_taken: bool = False


@dataclass(slots=True)
class _Outcome:
    request: _Queued
    answer: Any = None
    error: BaseException | None = None


class EarlyCommits:
    """Commits that wait for an earlier number of their session."""

    def __init__(self) -> None:
        self._by_session: dict[UUID, dict[int, _Queued]] = {}

    def of(self, session_id: UUID) -> dict[int, _Queued]:
        """Those of one session, by number."""
        return self._by_session.get(session_id, {})

    def put(self, commit: CommitRequest, request: _Queued) -> None:
        """Have a commit wait."""
        self._by_session.setdefault(commit.session_id, {})[commit.number] = request

    def take(self, session_id: UUID, number: int) -> _Queued | None:
        """Take one out; None where it does not wait."""
        waiting = self._by_session.get(session_id)
        if waiting is None:
            return None
        taken = waiting.pop(number, None)
        if not waiting:
            del self._by_session[session_id]
        return taken

    def take_all(self, session_id: UUID) -> list[_Queued]:
        """Take out all of one session."""
        return list(self._by_session.pop(session_id, {}).values())

    def __iter__(self) -> Iterator[_Queued]:
        return (request for waiting in self._by_session.values() for request in waiting.values())

    def clear(self) -> None:
        """Take out all."""
        self._by_session.clear()


class GroupCommit:
    """See the module. `run` is the task; `stop` lets it end after the group that is being written.

    `ensure_ready` returns once the view is the store's and the lease holds, or raises SequencerUnavailable.
    """

    def __init__(
        self,
        view: View,
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
        self._look_ups = LookUps(view, store, clock, observer)
        self._ensure_ready = ensure_ready
        self._term: Term | None = None
        self._queue: deque[_Queued] = deque()
        self._arrived = asyncio.Event()
        self._early = EarlyCommits()
        self._is_stopped = False
        self._all_shown = asyncio.Event()
        """Not set while something may be in the store that is not shown, but for a stale view."""
        self._all_shown.set()

    # --- what callers wait for

    @overload
    async def decide(
        self, name: str, decide: Callable[[Draft], Steps[T]], *, needs: Needs | None = None
    ) -> T: ...

    @overload
    async def decide(self, name: str, decide: Callable[[Draft], T], *, needs: Needs | None = None) -> T: ...

    async def decide(self, name: str, decide: Decide, *, needs: Needs | None = None) -> Any:
        """Decide this in the committer's task; gives its answer once it is durable. `name` is for the log. `needs`:
        what the decision reads of rows that may not be in memory."""
        return await self._queued(_Queued(name, self._new_answer(), decide, needs=needs))

    async def decide_once(
        self,
        name: str,
        request_id: UUID,
        answer: type[V],
        decide: Callable[[Draft], V | Steps[V]],
        *,
        needs: Needs | None = None,
    ) -> V:
        """The same for a request that may be retried: every retry gets the first answer, which may be a refusal."""

        def once(draft: Draft) -> Any:
            return repeats.decide_once(draft, request_id, answer, decide)

        answered = await self.decide(name, once, needs=needs)
        if isinstance(answered, SequencerError):
            raise answered
        return cast("V", answered)

    async def decide_alone(self, name: str, decide: Callable[[Draft], Awaitable[T]]) -> T:
        """The same for a decision that looks rows up in the store: nothing else is decided meanwhile."""
        return cast("T", await self._queued(_Queued(name, self._new_answer(), decide, is_alone=True)))

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        """Decide a commit in the order of its session's numbers."""
        await in_turns(
            upload_sessions.check_commit(request, self._settings), Turns(BATCHES_CHECKED_IN_A_TURN)
        )
        queued = _Queued("commit", self._new_answer(), commit=request)
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
        """Wait until all is shown that is in the store now: for the write in progress, if there is one, and not for the
        requests that are queued. Raises SequencerUnavailable, also where another committer may have written."""
        await self._all_shown.wait()
        await self._ensure_ready()

    def _new_answer(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def _queued(self, request: _Queued) -> Any:
        self._enqueue(request)
        return await request.answer

    def _enqueue(self, request: _Queued) -> None:
        if self._is_stopped or self._term is None:
            raise SequencerUnavailable("the sequencer is not running; ask another")
        if len(self._queue) >= self._settings.max_queued_requests:
            raise SequencerOverloaded(f"{len(self._queue)} requests are queued (max_queued_requests)")
        self._queue.append(request)
        self._observer.queue_changed(len(self._queue))
        self._arrived.set()

    def _give_up(self, queued: _Queued, request: CommitRequest) -> bool:
        """Take an early or queued commit back; False once it is being decided."""
        if self._early.of(request.session_id).get(request.number) is queued:
            self._early.take(request.session_id, request.number)
        elif queued.is_taken:
            return False
        queued.answer.cancel()
        return True

    # --- the task

    def begin(self, term: Term) -> None:
        """Accept requests, under this term. `run` comes next."""
        self._term = term

    def stop(self) -> None:
        """Accept nothing more, and decide no further group."""
        self._is_stopped = True
        self._arrived.set()

    async def run(self) -> None:
        """Perform groups until `stop`; then refuse what waits."""
        while not self._is_stopped:
            await self._arrived.wait()
            self._arrived.clear()
            while self._queue and not self._is_stopped:
                group = self._next_group()
                try:
                    if group:
                        await self._perform(group)
                except Exception as error:  # noqa: BLE001 - a dead committer would keep its lease
                    _log.exception("the committer broke down: it ends", cause=cause_of(error))
                    self._end_term(f"it broke down: {cause_of(error)}")
                    self._fail_group(group, [], SequencerUnavailable("the committer ended; ask again"))
        self.refuse_waiting()

    def refuse_waiting(self) -> None:
        """Fail all requests that wait for their turn."""
        closing = SequencerUnavailable("the sequencer is closing; ask another")
        for request in [*self._queue, *self._early]:
            _fail(request, closing)
        self._queue.clear()
        self._early.clear()
        self._observer.queue_changed(0)

    def _end_term(self, reason: str) -> None:
        assert self._term is not None, "begin comes before run"
        self._term.end(reason)

    def _next_group(self) -> list[_Queued]:
        """What is decided next, without what its callers no longer wait for: that would only hold up the others."""
        group = [self._queue.popleft()]
        while self._queue and not group[0].is_alone and len(group) < self._settings.max_group_requests:
            if self._queue[0].is_alone:
                break
            group.append(self._queue.popleft())
        self._observer.queue_changed(len(self._queue))
        return [request for request in group if not request.answer.done()]

    async def _perform(self, group: list[_Queued]) -> None:
        """Perform a group; where its rows are refused, its halves, one after the other."""
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

    async def _perform_together(self, group: list[_Queued]) -> list[list[_Queued]]:
        """Decide a group, write it, show it and answer. Returns the parts that are performed next: those of a group
        that was refused, or the rest of one whose changes were many."""
        outcomes: list[_Outcome] = []
        rest: list[_Queued] = []

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
            fail(SequencerUnavailable(f"not committed, ask again: {error}"))
            return []
        except Exception as error:  # noqa: BLE001 - the outermost edge: the committer lives on
            _log.exception("a group failed in a way that was not foreseen", cause=cause_of(error))
            fail(SequencerUnavailable(f"not known to be committed: {cause_of(error)}"))
            return []
        try:
            await self._view.show(draft)
        except Exception as error:  # noqa: BLE001 - as above
            # It is written, but the view is no longer the store's, nor is the feed. Nobody may follow on from it.
            self._view.journal = None
            _log.exception("what was written can't be shown: this committer ends", cause=cause_of(error))
            self._end_term(f"what was written can't be shown: {cause_of(error)}")
            fail(SequencerUnavailable("the committer ended; ask again"))
            return []
        for outcome in outcomes:
            if outcome.error is not None:
                _fail(outcome.request, outcome.error)
            elif not outcome.request.answer.done():
                outcome.request.answer.set_result(outcome.answer)
        return [rest] if rest else []

    async def _decide_and_write(
        self, group: list[_Queued], outcomes: list[_Outcome], rest: list[_Queued]
    ) -> Draft:
        """The group's decisions, as they were written. Leaves in `rest` the requests that were not decided; the first
        may be an early commit, which is not in `group`. Takes those out of `group` for which nothing was looked up."""
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

    async def _drafted(self, group: list[_Queued], rest: list[_Queued], turns: Turns) -> Draft:
        """A draft with the rows that the group's decisions may need and that are not in memory; `rest`: see `_sought`.
        They are asked for together with the time, as each answer may take long. No write is under way, so they are as
        of the draft's state; they are kept no longer than the draft.

        Should another take the lease meanwhile, the store refuses this epoch: nothing that was decided on this state
        is written over what another committer wrote."""
        with _caused_by_no_request():
            await self._ensure_ready()
        sought = await self._sought(group, rest, turns)
        if not sought:
            return Draft(self._view.state, await self._now_ms())
        now_ms, looked_up = await asyncio.gather(self._now_ms(), self._look_ups.look_up(sought))
        draft = Draft(self._view.state, now_ms)
        await looked_up.note_in(draft, turns)
        return draft

    async def _sought(self, group: list[_Queued], rest: list[_Queued], turns: Turns) -> Sought:
        """What the group's decisions may need and that is not in memory. Moves requests from `group` to `rest`, from
        the first on that would have more than ROWS_OF_A_GROUP rows looked up: the first of all is never moved."""
        sought = Sought()
        for number, request in enumerate(group):
            unknown = await self._look_ups.unknown(await self._needed(request, turns), turns)
            if number and sought.rows + unknown.rows > ROWS_OF_A_GROUP:
                rest += group[number:]
                del group[number:]
                break
            sought.add(unknown)
        early = self._early_of(group)
        for commit in early:
            sought.add(await self._look_ups.unknown(await _producers_needed(commit, turns), turns))
        commits = [request.commit for request in group if request.commit is not None]
        sought.objects = self._named_objects(commits + early)
        return sought

    async def _needed(self, request: _Queued, turns: Turns) -> Needed:
        if request.commit is not None:
            return await _producers_needed(request.commit, turns)
        return _NOTHING if request.needs is None else request.needs(self._view.state)

    async def _now_ms(self) -> int:
        with _caused_by_no_request():
            return await self._store.now_ms()

    def _early_of(self, group: list[_Queued]) -> list[CommitRequest]:
        """The commits that wait for one of the group's."""
        sessions_of = dict.fromkeys(
            request.commit.session_id for request in group if request.commit is not None
        )
        early = (request for session_id in sessions_of for request in self._early.of(session_id).values())
        return [request.commit for request in early if request.commit is not None]

    def _named_objects(self, commits: list[CommitRequest]) -> list[UUID]:
        """The objects of earlier commits, as far as one can tell without the store."""
        named: dict[UUID, None] = {}
        for commit in commits:
            session = self._view.state.get(SessionRow, commit.session_id)
            if commit.object is not None and upload_sessions.names_earlier_object(session, commit):
                named[commit.object.object_id] = None
        return list(named)

    def _parts_of(
        self, group: list[_Queued], outcomes: list[_Outcome], error: RequestFailed
    ) -> list[list[_Queued]]:
        """The halves of a group that the store refused, in the order of decision. A single request is failed."""
        requests = [outcome.request for outcome in outcomes] or group
        if len(requests) > 1:
            middle = len(requests) // 2
            return [requests[:middle], requests[middle:]]
        for request in requests:
            _fail(request, self._failed_alone(request, error))
        return []

    def _not_decided(self, request: _Queued, error: Exception) -> SequencerError:
        """The error of a decision that failed in a way that was not foreseen: a bug. Or this process was stopped for
        longer than its lease, and what it read from the database before and after is of two terms."""
        assert self._term is not None, "begin comes before run"
        if not self._term.left_s:
            return SequencerUnavailable(
                f"the lease ran out during {request.name}; ask again: {cause_of(error)}"
            )
        return self._failed_alone(request, error)

    def _failed_alone(self, request: _Queued, error: Exception) -> RequestFailed:
        """The error that a request which failed alone is answered."""
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
            raise  # Nothing was written.
        except BaseException:
            self._view.is_stale = True  # Nobody knows what is in the store now.
            raise

    def _fail_group(self, group: list[_Queued], outcomes: list[_Outcome], error: Exception) -> None:
        """Fail all requests of the group but commits that wait for an earlier number: they go on waiting."""
        waiting = {id(request) for request in self._early}
        for request in [*group, *(outcome.request for outcome in outcomes)]:
            if id(request) not in waiting:
                _fail(request, error)

    async def _decide(
        self, draft: Draft, request: _Queued, outcomes: list[_Outcome], turns: Turns
    ) -> _Queued | None:
        """Decide one request. Returns the commit that waited for it, which is decided next."""
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
        """Raise SequencerUnavailable where this request assigns offsets that are not reserved: it alone waits."""
        if self._view.checkpointer is not None:
            self._view.checkpointer.check_reserved(savepoint.changes)

    # --- commits

    async def _decide_commit_in_turn(
        self,
        draft: Draft,
        request: _Queued,
        commit: CommitRequest,
        outcomes: list[_Outcome],
        turns: Turns,
    ) -> _Queued | None:
        """Decide a commit. Returns the one that waited for it."""
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
            outcomes.pop()  # It waits for an earlier number.
            return None
        savepoint.merge()
        session = draft.get(SessionRow, commit.session_id)
        return None if session is None else self._early.take(commit.session_id, session.next_number)

    async def _decide_commit(
        self, draft: Draft, request: _Queued, commit: CommitRequest, turns: Turns
    ) -> CommitAnswer | None:
        """The answer, or None when the commit now waits for an earlier number."""
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
        if commit.object is not None and self._view.is_collected(commit.object.object_id):
            # Its bytes were collected: a batch that is retried so late is refused.
            return upload_sessions.refuse_commit(draft, session, commit)
        return await in_turns(upload_sessions.apply_commit(draft, session, commit, self._settings), turns)


async def _producers_needed(commit: CommitRequest, turns: Turns) -> Needed:
    return Needed({ProducerRow: await in_turns(upload_sessions.producers_of(commit.runs), turns)})


def _fail(request: _Queued, error: BaseException) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
        request.answer.exception()  # mark it as retrieved: its caller may be gone


@contextmanager
def _caused_by_no_request() -> Iterator[None]:
    """What the store refuses here is no request's fault: all of the group are told to ask again."""
    try:
        yield
    except RequestFailed as error:
        raise SequencerUnavailable(str(error)) from error
