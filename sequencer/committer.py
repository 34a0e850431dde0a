"""The sequencer in one process: the only writer of its row store.

Whatever changes rows goes through one bounded queue to one task, the committer. It takes what is queued as a
group, decides each request on a draft over the durable state, has all changes written in one transaction, and
only then takes them into the state that readers see, publishes the feed and answers. What arrives meanwhile
is the next group.

Deciding takes as many turns of the loop as there is work: nobody sees the draft, and the state under it changes in
no other way. Showing takes one turn, whatever was decided: readers see all of a transaction or nothing of it. A group
whose changes are many rows ends there, so that this turn stays short; the rest is decided as the next.

A write that fails leaves its outcome unknown: its requests are answered SequencerUnavailable (ask again with
the same ids), and the state is loaded anew from the store before anything else is decided.

A request that can't be carried out, in a way that was not foreseen, fails alone. An error while it is decided leaves
nothing behind. A group whose rows the store refuses is performed again in halves, until what is refused is one
request; nothing was written, so the state stays.
"""

from __future__ import annotations

import asyncio
import io
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast, overload
from uuid import UUID

import structlog

from sequencer.api import (
    AbortedProducer,
    AbortProducer,
    AddToTransaction,
    AgentInfo,
    AgentLease,
    AgentRef,
    AlterConfig,
    BrokerConfigsRequest,
    CommitAnswer,
    CommitExpected,
    CommitOffsets,
    CommitRequest,
    CompactionCandidates,
    CompactionRequest,
    Configs,
    CreatePartitions,
    CreateTopic,
    DeletedRecords,
    DeleteOffsets,
    DeleteRecords,
    DeleteTopic,
    Empty,
    EndTransaction,
    EpochAnswer,
    EpochRequest,
    FeedAnswer,
    FeedRequest,
    FetchOffsets,
    FindAnswer,
    FindRequest,
    ForgetObjects,
    Garbage,
    GarbageRequest,
    GroupListings,
    GroupOwner,
    GroupRef,
    GroupState,
    IncarnationChanged,
    InitProducer,
    KnownKeys,
    Lags,
    LagsRequest,
    LeaseLost,
    ListGroups,
    LoadGroup,
    LocateGroup,
    Metadata,
    MetadataRequest,
    NamedLease,
    ObjectDescription,
    ObjectRecord,
    ObjectRef,
    ObjectsAnswer,
    ObjectsRequest,
    OffsetErrors,
    OffsetPositions,
    OffsetsAnswer,
    OffsetsRequest,
    OpenSession,
    ProducerGrant,
    ProducerQuery,
    ProducersAnswer,
    RenewAgent,
    RequestFailed,
    RetentionSummary,
    RunsAnswer,
    SaveGroup,
    SequencerError,
    SequencerOverloaded,
    SequencerUnavailable,
    SessionClosed,
    SessionGrant,
    SessionRef,
    SizesAnswer,
    SizesRequest,
    StampAnswer,
    StampRequest,
    Statistics,
    SwapAnswer,
    SwapRequest,
    SweptSession,
    TakeLease,
    Topic,
    TopicExists,
    TransactionDescriptions,
    TransactionsRequest,
    Value,
)
from sequencer.bounds import MAX_PAGE
from sequencer.checkpoint.checkpointer import FINISH_WAIT_S, Checkpointer
from sequencer.feed import CommitFeed
from sequencer.methods import Method
from sequencer.observer import DatabaseWork, SequencerObserver, Unobserved, timed, timed_reads
from sequencer.queries import Reader
from sequencer.recent_runs import RecentRuns
from sequencer.rules import (
    compaction,
    deleted_topics,
    garbage,
    groups,
    leases,
    repeats,
    retention,
    sessions,
    topics,
    transactions,
)
from sequencer.settings import SequencerSettings
from sequencer.store.rows import (
    AgentRow,
    BrokerConfigRow,
    GroupRow,
    Identity,
    ObjectRow,
    ProducerRow,
    Row,
    RowStore,
    SessionRow,
    TransactionRow,
)
from sequencer.store.state import (
    COMMIT_NUMBER,
    PRODUCER_ID,
    Draft,
    HotState,
    Key,
)
from sequencer.store.sums import statistics_of
from sequencer.term import Term
from sequencer.topic_changes import TopicChanges
from tailrace.clock import Clock, Entropy, wait_for
from tailrace.keepers import cause_of, outlived
from tailrace.object_store.api import StoreError
from tailrace.turns import Steps, Turns, in_turns

_log = structlog.get_logger(__name__)

T = TypeVar("T")
V = TypeVar("V", bound=Value)
Decide = Callable[[Draft], Any]
"""Gives its answer, or the `Steps` to it."""
DecideWithStore = Callable[[Draft], Awaitable[Any]]

GROUPS_PER_STEP = 500
"""Groups that one transaction of expiry looks at."""
WORK_IN_A_TURN = 200
"""What is decided in one turn of the loop, in runs of commits, which take some 30 us each."""
REQUEST_AS_RUNS = 10
"""A request takes as long as so many of them, besides what it says itself."""
KEPT_AS_A_RUN = 50
"""So many rows that a request changes take as long as one run, once they are decided."""
ROWS_OF_A_GROUP = 10_000
"""A group to whose changes a request has added so many rows takes no further one."""
BATCHES_CHECKED_IN_A_TURN = 10_000
STAMPED_IN_A_TURN = 2_000
REMEMBERED_IN_A_TURN = 2_000
"""Partitions whose newest runs are remembered in one turn of the loop."""
LAST_WRITE_S = 30.0
"""How long the end of a term waits for its last write: longer than a database's own bounds let one take."""
MAX_FORGOTTEN = 100_000
"""Objects remembered as collected: far more than go within the time in which a batch is asked again."""


@dataclass(slots=True, eq=False)
class _Change:
    """A request on its way to the committer. `is_alone`: it looks rows up in the store, so it is its own
    group."""

    decide: Decide | DecideWithStore | None
    answer: asyncio.Future[Any]
    is_alone: bool = False
    commit: CommitRequest | None = None
    is_taken: bool = False
    is_given_up: bool = False
    of: Decide | None = None

    @property
    def name(self) -> str:
        """The request's name, for the log."""
        if self.commit is not None:
            return "commit"
        return (
            getattr(self.of or self.decide, "__qualname__", "").removeprefix("Committer.").partition(".")[0]
        )


@dataclass(slots=True)
class _Outcome:
    change: _Change
    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class _Removal:
    """What `apply_retention` counts up over its steps."""

    runs: int = 0
    objects: int = 0
    partitions: int = 0
    offsets: int = 0
    producers: int = 0
    sessions: int = 0
    agents: int = 0


class Committer:
    """The sequencer's interface over a row store. `start` before use, `close` at the end.

    `holder` names this process in the committer's lease; `address` is where others reach it. Each `start` is a term of
    its own, under an epoch of its own (sequencer.term). `known_commit` is the newest commit that the caller knows of: a
    database that ends before it has lost what came after. `reads` is the same store by connections of its own: for what
    readers ask, so that it does not keep the committer waiting.
    """

    def __init__(
        self,
        store: RowStore,
        clock: Clock,
        entropy: Entropy,
        settings: SequencerSettings | None = None,
        validate_config: topics.ValidateConfig = topics.accept_any_config,
        *,
        holder: str | None = None,
        address: str = "",
        checkpointer: Checkpointer | None = None,
        known_commit: int = 0,
        reads: RowStore | None = None,
        observer: SequencerObserver | None = None,
    ) -> None:
        self._store = store
        self._observer = observer or Unobserved()
        self._reads = timed_reads(reads or store, self._observer, clock)
        self._clock = clock
        self._entropy = entropy
        self._settings = settings or SequencerSettings()
        self._validate_config = validate_config
        self._holder = holder or str(entropy.uuid())
        self._address = address
        self._checkpointer = checkpointer
        self._known_commit = known_commit
        self._lost: SequencerError | None = None
        self._identity = Identity(cluster_id="", incarnation=0, schema_version=0)
        self._state = HotState({})
        self._is_stale = True
        self._term = self._new_term()
        self._heard = leases.LastHeard(clock.monotonic())
        self._readying = asyncio.Lock()
        self._queue: deque[_Change] = deque()
        self._arrived = asyncio.Event()
        self._early: dict[UUID, dict[int, _Change]] = {}
        self._forgotten: dict[UUID, None] = {}
        self._committing: asyncio.Task[None] | None = None
        self._keeping: list[asyncio.Task[None]] = []
        self._is_closed = False
        self._topics = TopicChanges(self._state)
        self._recent = RecentRuns(self._settings.max_feed_runs)
        self._reader = Reader(self._reads, lambda: self._state, self._catch_up, self._recent)
        self._feed = CommitFeed(
            clock,
            max_commits=self._settings.max_feed_commits,
            max_runs=self._settings.max_feed_runs,
            max_waiters=self._settings.max_feed_waiters,
        )

    async def call(self, method: Method, request: Value) -> Value:
        """Carry out any method."""
        answer: Value = await getattr(self, method.name)(request)
        return answer

    # --- life

    async def start(self) -> None:
        """Become the committer and load the state. Raises SequencerUnavailable while another is."""
        self._identity = await self._store.open()
        if self._identity.incarnation <= 0:
            raise IncarnationChanged("this database is being filled by `tailrace recover`; wait, or empty it")
        self._term = self._new_term()
        await self._term.begin()
        self._keeping = [asyncio.create_task(self._term.keep(), name="sequencer: lease")]
        try:
            await self._be_ready()
        except BaseException:
            await self._end_keeping()
            raise
        self._observer.term_began()
        self._committing = asyncio.create_task(self._commit_groups(), name="sequencer: commits")
        self._keeping.append(asyncio.create_task(self._expire_in_time(), name="sequencer: expiry"))

    def _new_term(self) -> Term:
        return Term(
            self._store,
            self._clock,
            holder=f"{self._holder}#{self._entropy.uuid()}",
            address=self._address,
            lease_ms=self._settings.committer_lease_ms,
            observer=self._observer,
        )

    async def close(self) -> None:
        """Finish what is being written, refuse the rest, give the lease back. The store stays open.

        The lease is renewed until the last write has ended, and given back only then, whatever went wrong before. A
        write that doesn't end in LAST_WRITE_S is left to itself, and the lease to run out: the store takes no write of
        this term's epoch once another term has begun.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._arrived.set()
        self._feed.wake_all()
        if self._committing is not None and not await wait_for(self._clock, self._committing, LAST_WRITE_S):
            await self._leave_last_write(self._committing)
            return
        await self._finish_checkpoints()
        await self._end_keeping()
        await self._term.release()

    async def _leave_last_write(self, committing: asyncio.Task[None]) -> None:
        where = io.StringIO()
        committing.print_stack(file=where)
        _log.error("the last write of a term does not end; it is left to itself", where=where.getvalue())
        self._term.end("its last write did not end")
        committing.cancel()
        await self._end_keeping()
        self._refuse_what_waits()

    async def _end_keeping(self) -> None:
        keeping, self._keeping = self._keeping, []
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
        await self._term.stop_renewing()

    @property
    def lost(self) -> SequencerError | None:
        """Why this database may not be served any more, by any process that knew it: for good."""
        refusal = None if self._checkpointer is None else self._checkpointer.refusal
        return self._lost or refusal

    async def _finish_checkpoints(self) -> None:
        """Export that this committer's term ended with nothing unknown."""
        if self._checkpointer is None or self._is_stale or not self.is_committer:
            return
        finished = asyncio.ensure_future(self._checkpointer.finish())
        with suppress(StoreError, SequencerError):
            if await wait_for(self._clock, finished, FINISH_WAIT_S):
                await finished
        finished.cancel()
        await asyncio.gather(finished, return_exceptions=True)

    @property
    def identity(self) -> Identity:
        """Which database this is; known after `start`."""
        return self._identity

    @property
    def commit_number(self) -> int:
        """The newest commit that is known."""
        return max(self._known_commit, self._state.counter(COMMIT_NUMBER))

    @property
    def epoch(self) -> int:
        """The fencing epoch of the term."""
        return self._term.epoch

    @property
    def is_committer(self) -> bool:
        """Whether this process still holds the committer's lease, as far as it can know."""
        return self._term.left_s > 0

    @property
    def lease_left_s(self) -> float:
        """Seconds for which this process surely stays the committer; 0 when it is not."""
        return self._term.left_s

    @property
    def round_trip_s(self) -> float:
        """How long the database took to answer lately."""
        return self._term.round_trip_s

    async def confirm(self, margin_s: float) -> None:
        """Return once the lease surely holds for more than `margin_s`. Raises SequencerUnavailable."""
        await self._term.confirm(margin_s)

    async def _be_ready(self) -> None:
        """Hold the lease and a state that is the store's, or raise SequencerUnavailable."""
        if self._is_closed:
            raise SequencerUnavailable("the sequencer is closing; ask another")
        await self._term.confirm()
        if not self._is_stale:
            return
        async with self._readying:
            if self._is_stale:
                await self._load()

    async def _timed(self, work: DatabaseWork, answer: Awaitable[T]) -> T:
        return await timed(self._observer, self._clock, work, answer)

    async def _load(self) -> None:
        await self._check_identity()
        loaded = await HotState.built(await self._timed("load", self._store.load()), self._clock)
        self._check_not_older(loaded)
        self._term.check()
        self._state = loaded
        self._topics = TopicChanges(loaded)
        self._heard = leases.LastHeard(self._clock.monotonic())
        self._is_stale = False
        if self._checkpointer is not None:
            self._checkpointer.begin(self._identity, self._term.epoch, self._state)
        self._recent.clear()
        self._feed.restart(self._state)

    def _check_not_older(self, loaded: HotState) -> None:
        """Raise IncarnationChanged where the database has lost what was durable: a standby that lagged leads it now."""
        if self._lost is not None:
            raise self._lost
        known, found = self.commit_number, loaded.counter(COMMIT_NUMBER)
        if found < known:
            self._lost = IncarnationChanged(
                f"the database is at commit {found}, and was at {known}: it has lost what came between (a standby that"
                " lagged, an older copy). Bring the newer one back, or rebuild an empty one with `tailrace recover`"
            )
            raise self._lost

    async def _check_identity(self) -> None:
        """Raise IncarnationChanged where another database has taken the place of the one that was opened."""
        now = await self._store.identity()
        was = self._identity
        if (now.cluster_id, now.incarnation) != (was.cluster_id, was.incarnation):
            self._lost = IncarnationChanged(
                f"the database is incarnation {now.incarnation} of cluster {now.cluster_id!r} now, it was"
                f" {was.incarnation} of {was.cluster_id!r}: drop all state and start anew"
            )
            raise self._lost

    async def _expire_in_time(self) -> None:
        """End what ran out: leases of agents and sessions, transactions."""
        while self._term.over is None:
            await self._clock.sleep(self._settings.committer_lease_ms / 3000)
            with outlived(_log, "what ran out is not ended yet", SequencerError):
                try:
                    await self._be_ready()  # also without requests: know at once whose database this is
                    if self._has_expired(await self._store.now_ms()):
                        await self._change(self._expire)
                except SequencerUnavailable:
                    if self._is_closed:  # a normal stop: nothing to tell anybody
                        return
                    raise

    def _has_expired(self, now_ms: int) -> bool:
        return (
            (self._has_listened and any(0 < row.expires_ms <= now_ms for row in self._state.all(AgentRow)))
            or any(
                row.expires_ms <= now_ms for row in self._state.rows(SessionRow, self._state.open_sessions)
            )
            or transactions.has_timed_out(self._state, now_ms)
        )

    @property
    def _has_listened(self) -> bool:
        """Whether agents have had the time to renew their leases since the state was loaded."""
        return self._heard.has_listened_ms(self._clock.monotonic()) >= leases.silence_ms(self._settings)

    def _expire(self, draft: Draft) -> Steps[tuple[int, int]]:
        """End what ran out: how many agents' leases and how many sessions. Transactions are ended some at a time."""
        agents = leases.expire_agents(draft) if self._has_listened else 0
        sessions = leases.expire_sessions(draft)
        yield from transactions.abort_timed_out(draft, ROWS_OF_A_GROUP)
        return agents, sessions

    # --- the committer

    def _enqueue(self, change: _Change) -> None:
        if self._is_closed or self._committing is None:
            raise SequencerUnavailable("the sequencer is not running; ask another")
        if len(self._queue) >= self._settings.max_queued_requests:
            raise SequencerOverloaded(f"{len(self._queue)} requests are queued (max_queued_requests)")
        self._queue.append(change)
        self._observer.queue_changed(len(self._queue))
        self._arrived.set()

    @overload
    async def _change(self, decide: Callable[[Draft], Steps[T]]) -> T: ...

    @overload
    async def _change(self, decide: Callable[[Draft], T]) -> T: ...

    async def _change(self, decide: Callable[[Draft], Any]) -> Any:
        """Have the committer decide this, and give its answer once it is durable."""
        change = _Change(decide, asyncio.get_running_loop().create_future())
        self._enqueue(change)
        return await change.answer

    async def _once(
        self, request_id: UUID | None, answer: type[V], decide: Callable[[Draft], V | Steps[V]]
    ) -> V:
        """The same for a request that may be repeated: its first answer."""
        change = _Change(
            lambda draft: repeats.decide_once(draft, request_id, answer, decide),
            asyncio.get_running_loop().create_future(),
            of=decide,
        )
        self._enqueue(change)
        return cast("V", await change.answer)

    async def _catch_up(self) -> None:
        """Wait until what is being written is shown."""
        await self._change(lambda draft: None)

    async def _change_alone(self, decide: Callable[[Draft], Awaitable[T]]) -> T:
        """The same for a decision that looks rows up in the store: nothing else is decided meanwhile."""
        change = _Change(decide, asyncio.get_running_loop().create_future(), is_alone=True)
        self._enqueue(change)
        return cast("T", await change.answer)

    async def _commit_groups(self) -> None:
        while not self._is_closed:
            await self._arrived.wait()
            self._arrived.clear()
            while self._queue and not self._is_closed:
                group = self._next_group()
                try:
                    await self._perform(group)
                except Exception as error:  # noqa: BLE001 - a dead committer would keep its lease
                    _log.exception("the committer broke down: it ends", cause=cause_of(error))
                    self._term.end(f"it broke down: {cause_of(error)}")
                    self._fail_group(group, [], SequencerUnavailable("the committer ended; ask again"))
        self._refuse_what_waits()

    def _refuse_what_waits(self) -> None:
        closing = SequencerUnavailable("the sequencer is closing; ask another")
        early = [change for waiting in self._early.values() for change in waiting.values()]
        for change in [*self._queue, *early]:
            _fail(change, closing)
        self._queue.clear()
        self._early.clear()

    def _next_group(self) -> list[_Change]:
        group = [self._queue.popleft()]
        while self._queue and not group[0].is_alone and len(group) < self._settings.max_group_requests:
            if self._queue[0].is_alone:
                break
            group.append(self._queue.popleft())
        self._observer.queue_changed(len(self._queue))
        return [change for change in group if not change.is_given_up]

    async def _perform(self, group: list[_Change]) -> None:
        """Perform a group; where its rows are refused, its halves, one after the other."""
        began = self._clock.monotonic()
        for change in group:
            change.is_taken = True
        parts = deque([group])
        while parts:
            parts.extendleft(reversed(await self._perform_together(parts.popleft())))
        self._observer.group_performed(len(group), self._clock.monotonic() - began)

    async def _perform_together(self, group: list[_Change]) -> list[list[_Change]]:
        """Decide a group, write it, then show it and answer. Gives the parts that are to be performed now: those of a
        group that was refused, or the rest of one whose changes were many."""
        outcomes: list[_Outcome] = []
        rest: list[_Change] = []
        try:
            draft = await self._decide_and_write(group, outcomes, rest)
        except IncarnationChanged as error:
            self._fail_group(group, outcomes, error)
            return []
        except RequestFailed as error:
            return [*self._parts_of(group, outcomes, error), *([rest] if rest else [])]
        except SequencerError as error:
            if not isinstance(error, SequencerUnavailable):
                self._term.end(cause_of(error))
            self._fail_group(group, outcomes, SequencerUnavailable(f"not committed, ask again: {error}"))
            return []
        except Exception as error:  # noqa: BLE001 - the outermost edge: the committer lives on
            _log.exception("a group failed in a way that was not foreseen", cause=cause_of(error))
            self._fail_group(
                group, outcomes, SequencerUnavailable(f"not known to be committed: {cause_of(error)}")
            )
            return []
        try:
            await self._show(draft)
        except Exception as error:  # noqa: BLE001 - as above
            # It is written, but this state is not the store's any more, nor is the feed.
            _log.exception("what was written can't be shown: this committer ends", cause=cause_of(error))
            self._term.end(f"what was written can't be shown: {cause_of(error)}")
            self._fail_group(group, outcomes, SequencerUnavailable("the committer ended; ask again"))
            return []
        for outcome in outcomes:
            if outcome.error is not None:
                _fail(outcome.change, outcome.error)
            elif not outcome.change.answer.done():
                outcome.change.answer.set_result(outcome.value)
        return [rest] if rest else []

    async def _decide_and_write(
        self, group: list[_Change], outcomes: list[_Outcome], rest: list[_Change]
    ) -> Draft:
        """What the group decides, as it was written. Leaves in `rest` what is not decided with it."""
        try:
            await self._be_ready()
            now_ms = await self._store.now_ms()
        except RequestFailed as error:  # not for anything in this group
            raise SequencerUnavailable(str(error)) from error
        # Should another take the lease meanwhile, the store refuses this epoch: nothing that was decided on this
        # state is written over what another committer wrote.
        draft = Draft(self._state, now_ms)
        await self._look_up_objects(draft, group)
        turns = Turns(WORK_IN_A_TURN)
        waiting = deque(group)
        while waiting and len(draft.changes) < ROWS_OF_A_GROUP:
            before = len(draft.changes)
            following = await self._decide(draft, waiting.popleft(), outcomes, turns)
            if following is not None:
                waiting.appendleft(following)
            await turns.did(REQUEST_AS_RUNS + (len(draft.changes) - before) // KEPT_AS_A_RUN)
        rest += waiting
        draft.settle_sums()
        if draft.changes:
            if self._checkpointer is not None:
                self._checkpointer.check_refusal()
            await self._write(draft, self._term.epoch)
        return draft

    async def _show(self, draft: Draft) -> None:
        """Take what was written into the state that readers see: all of it, in one turn."""
        state = draft.durable
        if state is not self._state:
            return  # loaded anew meanwhile
        turns = Turns(REMEMBERED_IN_A_TURN)
        replaced = await in_turns(self._recent.replaced_by(draft.changes), turns)
        state.apply(draft.changes)
        if self._checkpointer is not None:
            self._checkpointer.written(draft.changes)
        self._topics.apply(draft.changes)
        self._recent.forget(replaced)
        self._feed.publish(state.counter(COMMIT_NUMBER), draft.published)
        # Until a run is remembered, it is looked up.
        await in_turns(self._recent.add(draft.published), turns)

    def _parts_of(
        self, group: list[_Change], outcomes: list[_Outcome], error: RequestFailed
    ) -> list[list[_Change]]:
        """The halves of what the store refused, in the order in which it was decided; one change alone is failed."""
        changes = [outcome.change for outcome in outcomes] or group
        if len(changes) > 1:
            middle = len(changes) // 2
            return [changes[:middle], changes[middle:]]
        for change in changes:
            _fail(change, self._failed(change, error))
        return []

    def _failed(self, change: _Change, error: Exception) -> RequestFailed:
        """The error that a change which failed alone is answered."""
        self._observer.request_failed_alone(change.name)
        is_bug = not isinstance(error, RequestFailed)
        _log.error(
            "a request failed alone",
            request=change.name,
            cause=cause_of(error),
            exc_info=error if is_bug else None,
        )
        return RequestFailed(f"{change.name} can't be carried out: {cause_of(error)}")

    async def _write(self, draft: Draft, epoch: int) -> None:
        try:
            await self._timed("write", self._store.write(draft.changes, epoch))
        except (RequestFailed, LeaseLost):
            raise  # Nothing was written.
        except BaseException:
            self._is_stale = True  # Nobody knows what is in the store now.
            raise

    def _fail_group(self, group: list[_Change], outcomes: list[_Outcome], error: Exception) -> None:
        """Fail all that was decided or not yet decided; what only waits for its turn goes on waiting."""
        waiting = {id(change) for early in self._early.values() for change in early.values()}
        for change in [*group, *(outcome.change for outcome in outcomes)]:
            if id(change) not in waiting:
                _fail(change, error)

    async def _look_up_objects(self, draft: Draft, group: list[_Change]) -> None:
        """Object rows that the group's commits may name, early ones included: a batch is asked again by its
        object."""
        commits = [change.commit for change in group if change.commit is not None]
        for session_id in dict.fromkeys(commit.session_id for commit in commits):
            commits += [
                change.commit
                for change in self._early.get(session_id, {}).values()
                if change.commit is not None
            ]
        named = dict.fromkeys(commit.object.object_id for commit in commits if commit.object is not None)
        if named:
            for row in await self._timed("look_up", self._store.object_rows(list(named))):
                draft.objects[row.object_id] = row

    async def _decide(
        self, draft: Draft, change: _Change, outcomes: list[_Outcome], turns: Turns
    ) -> _Change | None:
        """Decide one change; gives the commit that waited for it, and is to be decided next."""
        if change.commit is not None:
            return await self._decide_commit_in_turn(draft, change, change.commit, outcomes, turns)
        assert change.decide is not None, "a change is a commit or has a decision"
        savepoint = draft.savepoint()
        try:
            value = change.decide(savepoint)
            if isinstance(value, Generator):
                value = await in_turns(value, turns)
            elif change.is_alone:
                value = await cast("Awaitable[Any]", value)
            self._check_reserved(savepoint)
        except SequencerUnavailable as error:
            if change.is_alone:
                raise
            outcomes.append(_Outcome(change, error=error))
        except SequencerError as error:
            outcomes.append(_Outcome(change, error=error))
        except Exception as error:  # noqa: BLE001 - it fails alone
            outcomes.append(_Outcome(change, error=self._failed(change, error)))
        else:
            savepoint.merge()
            outcomes.append(_Outcome(change, value))
        return None

    def _check_reserved(self, savepoint: Draft) -> None:
        """Raise SequencerUnavailable where this request assigns offsets that are not reserved: it alone waits."""
        if self._checkpointer is not None:
            self._checkpointer.check(savepoint.changes)

    # --- commits

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        await in_turns(sessions.check_commit(request, self._settings), Turns(BATCHES_CHECKED_IN_A_TURN))
        change = _Change(None, asyncio.get_running_loop().create_future(), commit=request)
        session = self._state.get(SessionRow, request.session_id)
        self._enqueue(change)
        if session is not None and request.number <= session.next_number:
            return cast("CommitAnswer", await change.answer)
        try:
            is_answered = await wait_for(self._clock, change.answer, self._settings.commit_wait_ms / 1000)
        except asyncio.CancelledError:
            self._give_up(change, request)
            raise
        if not is_answered and self._give_up(change, request):
            session = self._state.get(SessionRow, request.session_id)
            expected = "none" if session is None else session.next_number
            raise CommitExpected(f"number {request.number} waited too long; expected {expected}")
        return cast("CommitAnswer", await change.answer)

    def _give_up(self, change: _Change, request: CommitRequest) -> bool:
        """Take an early or queued commit back; False once it is being decided."""
        waiting = self._early.get(request.session_id, {})
        if waiting.get(request.number) is change:
            del waiting[request.number]
            if not waiting:
                del self._early[request.session_id]
        elif change.is_taken:
            return False
        change.is_given_up = True
        return True

    async def _decide_commit_in_turn(
        self,
        draft: Draft,
        change: _Change,
        request: CommitRequest,
        outcomes: list[_Outcome],
        turns: Turns,
    ) -> _Change | None:
        """Decide a commit; gives the one that waited for it."""
        outcome = _Outcome(change)
        outcomes.append(outcome)
        savepoint = draft.savepoint()
        try:
            outcome.value = await self._decide_commit(savepoint, change, request, turns)
            self._check_reserved(savepoint)
        except SequencerError as error:
            outcome.error = error
            if isinstance(error, SessionClosed):
                waiting = self._early.pop(request.session_id, {})
                outcomes.extend(_Outcome(early, error=error) for early in waiting.values())
            return None
        except Exception as error:  # noqa: BLE001 - it fails alone; its number can be committed again
            outcome.error = self._failed(change, error)
            return None
        if outcome.value is None:
            outcomes.pop()  # It waits for its turn.
            return None
        savepoint.merge()
        return self._next_early(draft, request.session_id)

    def _next_early(self, draft: Draft, session_id: UUID) -> _Change | None:
        """The commit whose turn has come, taken out of those that wait."""
        session = draft.get(SessionRow, session_id)
        waiting = self._early.get(session_id)
        if session is None or waiting is None:
            return None
        found = waiting.pop(session.next_number, None)
        if not waiting:
            del self._early[session_id]
        return found

    async def _decide_commit(
        self, draft: Draft, change: _Change, request: CommitRequest, turns: Turns
    ) -> CommitAnswer | None:
        """The answer, or None when the commit now waits for an earlier number."""
        known = sessions.known_answer(draft, request)
        if known is not None:
            return known
        session = sessions.live_session(draft, request.session_id)
        if request.number < session.next_number:
            raise CommitExpected(
                f"number {request.number} was answered and is forgotten; expected {session.next_number}"
            )
        if request.number > session.next_number:
            waiting = self._early.setdefault(request.session_id, {})
            before = waiting.get(request.number)
            if before is None and len(waiting) >= self._settings.max_early_commits:
                raise CommitExpected(
                    f"number {request.number} while {len(waiting)} wait; expected {session.next_number}"
                )
            if before is not None:
                _fail(before, SequencerUnavailable(f"number {request.number} was asked again meanwhile"))
            waiting[request.number] = change
            return None
        if request.object is not None and request.object.object_id in self._forgotten:
            # Its bytes were collected: a batch that is asked again so late is refused.
            return sessions.refuse_commit(draft, session, request)
        return await in_turns(sessions.apply_commit(draft, session, request, self._settings), turns)

    # --- sessions, agents, topics

    async def open_session(self, request: OpenSession) -> SessionGrant:
        session_id = self._entropy.uuid()
        return await self._change(
            lambda draft: sessions.open_session(draft, request, session_id, self._identity, self._settings)
        )

    async def renew_session(self, request: SessionRef) -> SessionGrant:
        return await self._change(
            lambda draft: sessions.renew_session(draft, request, self._identity, self._settings)
        )

    async def close_session(self, request: SessionRef) -> Empty:
        return await self._change(lambda draft: sessions.close_session(draft, request))

    async def register_agent(self, request: AgentInfo) -> AgentLease:
        return await self._change(
            lambda draft: self._hear(leases.register_agent(draft, request, self._identity, self._settings))
        )

    async def renew_agent(self, request: RenewAgent) -> AgentLease:
        return await self._change(
            lambda draft: self._hear(
                leases.renew_agent(draft, request, self._identity, self._settings), is_renewal=True
            )
        )

    def _hear(self, lease: AgentLease, *, is_renewal: bool = False) -> AgentLease:
        self._heard.note(lease, self._clock.monotonic(), is_renewal=is_renewal)
        return lease

    async def release_agent(self, request: AgentRef) -> Empty:
        return await self._change(lambda draft: leases.release_agent(draft, request))

    async def suspect_agent(self, request: AgentRef) -> Empty:
        return await self._change(
            lambda draft: leases.suspect_agent(
                draft, request, self._heard.silent_ms(request, self._clock.monotonic()), self._settings
            )
        )

    async def metadata(self, request: MetadataRequest) -> Metadata:
        await self._be_ready()
        return self._topics.answer(request, self._identity)

    async def create_topic(self, request: CreateTopic) -> Topic:
        topic_id = self._entropy.uuid()
        try:
            topic = await self._once(
                request.request_id,
                Topic,
                lambda draft: topics.create_topic(
                    draft, request, topic_id, self._validate_config, self._settings
                ),
            )
        except TopicExists:
            await self._be_checkpointed()  # this may be its own request, asked again
            raise
        if not request.validate_only:
            await self._be_checkpointed()
        return topic

    async def _be_checkpointed(self) -> None:
        """Wait until the bucket too has what was just written. Raises SequencerUnavailable."""
        if self._checkpointer is not None:
            await self._checkpointer.saved()

    async def delete_topic(self, request: DeleteTopic) -> Empty:
        return await self._once(request.request_id, Empty, lambda draft: topics.delete_topic(draft, request))

    async def create_partitions(self, request: CreatePartitions) -> Topic:
        topic = await self._once(
            request.request_id, Topic, lambda draft: topics.create_partitions(draft, request, self._settings)
        )
        if not request.validate_only:
            await self._be_checkpointed()
        return topic

    async def alter_config(self, request: AlterConfig) -> Empty:
        return await self._once(
            request.request_id,
            Empty,
            lambda draft: topics.alter_config(draft, request, self._validate_config),
        )

    async def broker_configs(self, request: BrokerConfigsRequest) -> Configs:
        await self._be_ready()
        row = self._state.get(BrokerConfigRow, request.name)
        return Configs({} if row is None else row.configs)

    # --- reading

    async def find_batches(self, request: FindRequest) -> FindAnswer:
        await self._be_ready()
        return await self._reader.find_batches(request)

    async def list_offsets(self, request: OffsetsRequest) -> OffsetsAnswer:
        await self._be_ready()
        return await self._reader.list_offsets(request)

    async def offsets_for_epochs(self, request: EpochRequest) -> EpochAnswer:
        await self._be_ready()
        return self._reader.offsets_for_epochs(request)

    async def feed(self, request: FeedRequest) -> FeedAnswer:
        await self._be_ready()
        return await self._feed.follow(request, min(request.max_wait_ms, self._settings.max_feed_wait_ms))

    async def sizes(self, request: SizesRequest) -> SizesAnswer:
        await self._be_ready()
        return await self._reader.sizes(request)

    # --- producers

    async def init_producer(self, request: InitProducer) -> ProducerGrant:
        """A new id each time, as Kafka gives idempotent producers: a bumped epoch of theirs is judged by
        partition. A transactional id keeps its own."""
        if request.transactional_id is not None:
            return await self._once(
                request.request_id,
                ProducerGrant,
                lambda draft: transactions.init_producer(draft, request, self._settings),
            )
        return await self._change(lambda draft: ProducerGrant(draft.next_value(PRODUCER_ID), 0))

    async def describe_producers(self, request: ProducerQuery) -> ProducersAnswer:
        await self._be_ready()
        return self._reader.describe_producers(request)

    # --- transactions

    async def add_to_transaction(self, request: AddToTransaction) -> Empty:
        return await self._change(
            lambda draft: transactions.add_to_transaction(draft, request, self._settings)
        )

    async def stamp_batches(self, request: StampRequest) -> StampAnswer:
        await self._be_ready()
        return await in_turns(transactions.stamp_batches(self._state, request), Turns(STAMPED_IN_A_TURN))

    async def end_transaction(self, request: EndTransaction) -> ProducerGrant:
        return await self._change(lambda draft: transactions.end_transaction(draft, request))

    async def transactions(self, request: TransactionsRequest) -> TransactionDescriptions:
        await self._be_ready()
        return transactions.describe(self._state, request)

    async def abort_producer(self, request: AbortProducer) -> AbortedProducer:
        return await self._once(
            request.request_id, AbortedProducer, lambda draft: transactions.abort_producer(draft, request)
        )

    # --- groups

    async def locate_group(self, request: LocateGroup) -> GroupOwner:
        await self._be_ready()
        now = self._clock.monotonic()
        return leases.locate_group(
            self._state, request, lambda agent: self._heard.has_stopped(agent, now, self._settings)
        )

    async def load_group(self, request: LoadGroup) -> GroupState:
        return await self._change(lambda draft: groups.load_group(draft, request))

    async def save_group(self, request: SaveGroup) -> Empty:
        return await self._change(lambda draft: groups.save_group(draft, request, self._settings))

    async def delete_group(self, request: GroupRef) -> Empty:
        return await self._once(request.request_id, Empty, lambda draft: groups.delete_group(draft, request))

    async def list_groups(self, request: ListGroups) -> GroupListings:
        await self._be_ready()
        return groups.list_groups(self._state, request)

    async def commit_offsets(self, request: CommitOffsets) -> OffsetErrors:
        return await self._change(lambda draft: groups.commit_offsets(draft, request, self._settings))

    async def fetch_offsets(self, request: FetchOffsets) -> OffsetPositions:
        await self._be_ready()
        return groups.fetch_offsets(self._state, request)

    async def delete_offsets(self, request: DeleteOffsets) -> OffsetErrors:
        return await self._once(
            request.request_id, OffsetErrors, lambda draft: groups.delete_offsets(draft, request)
        )

    async def lags(self, request: LagsRequest) -> Lags:
        await self._be_ready()
        return groups.lags(self._state, request)

    # --- retention and garbage

    async def delete_records(self, request: DeleteRecords) -> DeletedRecords:
        return await self._once(
            request.request_id, DeletedRecords, lambda draft: topics.delete_records(draft, request)
        )

    async def apply_retention(self, request: Empty) -> RetentionSummary:
        """End what ran out and remove what is too old or too much, in steps of one bounded transaction
        each."""
        total = _Removal()
        settings = self._settings

        def expire(draft: Draft) -> Steps[None]:
            agents, sessions = yield from self._expire(draft)
            total.agents += agents
            total.sessions += sessions
            retention.expire_swaps(draft, settings.swap_answers_ms)
            leases.forget_agents(draft)
            repeats.forget_answers(draft, settings.request_answers_ms, settings.max_request_answers)

        await self._change(expire)
        total.offsets = await self._expire_groups()
        total.producers = await self._expire_unused(
            ProducerRow, settings.producer_expiry_ms, retention.expire_producers
        )
        await self._expire_unused(
            TransactionRow, settings.transactional_id_expiration_ms, transactions.expire_transactional_ids
        )
        while True:
            plan = await retention.plan_retention(self._state, self._reads, settings)
            removed = await self._remove_runs(plan.removable, total)
            moved = await self._move_log_starts(plan.due)
            total.partitions += moved
            if not removed and not moved:
                break
        await self._remove_deleted_topics()
        return RetentionSummary(
            total.runs,
            total.objects,
            total.partitions,
            total.offsets,
            total.producers,
            total.sessions,
            total.agents,
        )

    async def _remove_runs(self, partitions: list[tuple[UUID, int]], total: _Removal) -> int:
        """Remove what lies below the log start of these partitions, some runs at a time; how many went."""
        before = total.runs
        left = partitions
        while left:
            asked = left

            async def remove(draft: Draft, asked: list[tuple[UUID, int]] = asked) -> retention.Removed:
                return await retention.remove_runs(draft, self._store, asked, self._settings)

            removed = await self._change_alone(remove)
            total.runs += removed.runs
            total.objects += removed.objects
            left = removed.left
        return total.runs - before

    async def _remove_deleted_topics(self) -> None:
        """Remove what is left of deleted topics, some rows at a time: their partitions once they have no runs."""
        gone = await deleted_topics.deleted_topics(self._state)
        await self._remove_rows(await deleted_topics.rows_of(self._state, gone))
        await self._remove_rows(await deleted_topics.emptied_partitions(self._state, self._reads, gone))

    async def _remove_rows(self, found: list[deleted_topics.Found]) -> None:
        step = self._settings.removal_step
        for at in range(0, len(found), step):
            await self._change(partial(deleted_topics.remove, found=found[at : at + step]))

    async def _move_log_starts(self, due: list[retention.DueLogStart]) -> int:
        """Move the log starts that were planned, some at a time; how many moved."""
        step = self._settings.removal_step
        return sum(
            [
                await self._change(
                    partial(retention.move_log_starts, planned=due[at : at + step], settings=self._settings)
                )
                for at in range(0, len(due), step)
            ]
        )

    async def _expire_unused(
        self, kind: type[Row], kept_ms: int, expire: Callable[[Draft, list[Key], int], int]
    ) -> int:
        """Forget the rows that were not used for so long, some at a time; how many went."""
        step = self._settings.removal_step
        left = await retention.keys_not_used_since(self._state, kind, await self._store.now_ms() - kept_ms)

        def forgetting(keys: list[Key]) -> Callable[[Draft], int]:
            return lambda draft: expire(draft, keys, kept_ms)

        return sum([await self._change(forgetting(left[at : at + step])) for at in range(0, len(left), step)])

    async def _expire_groups(self) -> int:
        """Let go what nobody comes back for, some groups at a time; how many positions went."""
        left = await groups.expiring_groups(self._state, await self._store.now_ms(), self._settings)
        offsets = 0
        while left:
            expired = await self._change(
                partial(
                    groups.expire_groups,
                    group_ids=left[:GROUPS_PER_STEP],
                    settings=self._settings,
                    max_offsets=self._settings.removal_step,
                )
            )
            offsets += expired.offsets
            left = left[expired.groups :]
        return offsets

    async def garbage(self, request: GarbageRequest) -> Garbage:
        await self._be_ready()
        found = await garbage.find_garbage(self._state, self._reads, request.limit, self._settings)
        if self._checkpointer is None:
            return found
        # What the last durable checkpoint still names is needed for a recovery from it.
        saved = [named for named in found.objects if self._checkpointer.is_saved(ObjectRow, (named[0],))]
        return Garbage(saved, found.sessions)

    async def forget_objects(self, request: ForgetObjects) -> Empty:
        async def forget(draft: Draft) -> Empty:
            answer = await garbage.forget_objects(
                draft, self._store, request, self._settings.deletion_grace_ms
            )
            # Remembered even if the write fails: the caller has deleted the bytes already.
            for object_id in request.object_ids:
                self._forgotten[object_id] = None
            while len(self._forgotten) > MAX_FORGOTTEN:
                del self._forgotten[next(iter(self._forgotten))]
            return answer

        return await self._change_alone(forget)

    async def known_keys(self, request: KnownKeys) -> KnownKeys:
        await self._be_ready()
        return KnownKeys(await self._reads.keys_known(request.keys))

    async def session_swept(self, request: SweptSession) -> Empty:
        return await self._change(lambda draft: garbage.session_swept(draft, request, self._settings))

    # --- compaction and audit

    async def take_lease(self, request: TakeLease) -> NamedLease:
        return await self._change(lambda draft: leases.take_lease(draft, request))

    async def compaction_candidates(self, request: CompactionRequest) -> CompactionCandidates:
        await self._be_ready()
        return await compaction.find_candidates(self._state, self._reads, request)

    async def swap(self, request: SwapRequest) -> SwapAnswer:
        return await self._change_alone(lambda draft: compaction.swap(draft, self._store, request))

    async def objects(self, request: ObjectsRequest) -> ObjectsAnswer:
        await self._be_ready()
        rows = await self._reads.objects_after(request.after_key, max(1, min(request.limit, MAX_PAGE)))
        return ObjectsAnswer([ObjectRecord(_description(row), row.live_runs, row.retired_ms) for row in rows])

    async def object_runs(self, request: ObjectRef) -> RunsAnswer:
        await self._be_ready()
        return RunsAnswer(await self._reads.runs_of_object(request.object_id))

    async def statistics(self, request: Empty) -> Statistics:
        await self._be_ready()
        held = statistics_of(self._state.counter)
        now = await self._reads.now_ms()
        open_rows = (self._state.get(TransactionRow, name) for name in self._state.open_transactions)
        started = [row.started_ms for row in open_rows if row is not None]
        opened = len(self._state.open_sessions)
        return Statistics(
            held.runs,
            held.objects,
            held.retired_objects,
            held.retired_bytes,
            held.live_bytes,
            opened,
            self._state.count(SessionRow) - opened,
            self._state.count(ProducerRow),
            self._state.count(GroupRow),
            self._state.counter(COMMIT_NUMBER),
            held.uncompacted_bytes,
            len(started),
            max(0, now - min(started)) if started else 0,
        )


def _fail(change: _Change, error: BaseException) -> None:
    if not change.answer.done():
        change.answer.set_exception(error)
        change.answer.exception()  # seen: whoever asked may be gone, and then nobody would look


def _description(row: ObjectRow) -> ObjectDescription:
    return ObjectDescription(
        row.object_id,
        row.kind,
        row.key,
        row.size,
        row.crc,
        row.index_start,
        row.created_ms,
        row.format_version,
        row.index_crc,
    )
