"""The committer: the sequencer's interface over a row store that only the committer writes.

It holds the committer's lease (term) and the state (sequencer.reading.view). All requests that change rows go through
one queue to a single task (group_commit); the other requests are answered from the view and the store. The tables in
`requests` define what each method does.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from sequencer.api.errors import IncarnationChanged, SequencerError, SequencerUnavailable, TopicExists
from sequencer.api.groups import GroupRef
from sequencer.api.retention import RetentionSummary
from sequencer.api.values import Empty, Value
from sequencer.checkpoint.checkpointer import FINISH_WAIT_S, Checkpointer
from sequencer.engine.expiry import Expiry
from sequencer.engine.follower import Follower
from sequencer.engine.group_commit import GroupCommit
from sequencer.engine.group_deletion import GroupDeletions, delete_positions_first
from sequencer.engine.requests import DECISIONS, QUERIES, CheckpointWait, Context, Decision, Query
from sequencer.engine.silent_agents import SilentAgentsLog
from sequencer.engine.term import Term, caused_by_no_request
from sequencer.methods import METHODS, Method, SequencerMethods
from sequencer.observer import SequencerObserver, timed, timed_reads
from sequencer.reading.journal import NOTHING_KNOWN, Journal, LastNumbers
from sequencer.reading.view import CommitterView
from sequencer.rules import leases, topics
from sequencer.settings import SequencerSettings
from sequencer.store.row_store import DatabaseIdentity, RowStore
from sequencer.store.state import JOURNAL_NUMBER, HotState
from tailrace.background_tasks import cancel_and_wait, log_and_continue
from tailrace.clock import Clock, Entropy, wait_for
from tailrace.object_store.api import StoreError

_log = structlog.get_logger(__name__)

LAST_WRITE_S = 30.0
"""How long the end of a term waits for its last write: longer than the database's own limits let a write take."""


class Committer(SequencerMethods):
    """The sequencer's interface over a row store. Call `start` before use and `close` at the end.

    `holder` names this process in the committer's lease; `address` is where others reach it. Each `start` begins a new
    term with a new epoch (`term`). `known` are the newest numbers that the caller knows of: a database with lower
    ones has lost transactions. `reads` is the same store over separate connections, so that readers do not delay the
    committer. `keeps_journal`: whether the database has a journal that followers read
    (sequencer.reading.journal). `follower`: this server's copy of the rows, used instead of the term's first load.
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
        known: LastNumbers = NOTHING_KNOWN,
        reads: RowStore | None = None,
        observer: SequencerObserver | None = None,
        keeps_journal: bool = False,
        follower: Follower | None = None,
    ) -> None:
        self._store = store
        self._keeps_journal = keeps_journal
        self._follower = follower
        self._observer = observer or SequencerObserver()
        self._clock = clock
        self._entropy = entropy
        self._settings = settings or SequencerSettings()
        self._holder = holder or str(entropy.uuid())
        self._address = address
        self._checkpointer = checkpointer
        self._known = known
        self._lost: SequencerError | None = None
        self._term = self._new_term()
        self._preparing = asyncio.Lock()
        self._committing: asyncio.Task[None] | None = None
        self._keeping: list[asyncio.Task[None]] = []
        self._is_closed = False
        timed_store = timed_reads(reads or store, self._observer, clock)
        self._view = CommitterView(
            timed_store, clock, self._settings, checkpointer=checkpointer, catch_up=self._catch_up
        )
        self._group_commit = GroupCommit(
            self._view,
            store,
            clock,
            settings=self._settings,
            observer=self._observer,
            ensure_ready=self.ensure_ready,
        )
        self._context = Context(
            view=self._view,
            store=store,
            reads=timed_store,
            clock=clock,
            entropy=entropy,
            settings=self._settings,
            validate_config=validate_config,
            slack_ms=lambda: leases.slack_ms(self._term.round_trip_s),
            silence=SilentAgentsLog(clock),
        )
        self._deletions = GroupDeletions()
        self._expiry = Expiry(self._context, self._group_commit, self.ensure_ready)
        self._calls: dict[str, Callable[[Any], Awaitable[Value]]] = {
            **{name: partial(self._decide, decision) for name, decision in DECISIONS.items()},
            **{name: partial(self._answer, query) for name, query in QUERIES.items()},
            "commit": self._group_commit.commit,
            "apply_retention": self._apply_retention,
            "delete_group": self._delete_group,
        }

    # --- answering

    async def call(self, method: Method, request: Value) -> Value:
        """Carry out any method."""
        return await self._calls[method.name](request)

    async def _answer(self, query: Query, request: Value) -> Value:
        await self.ensure_ready()
        answer = query.answer(request, self._context)
        if isinstance(answer, Value):
            return answer
        looked_up: Value = await answer
        return looked_up

    async def _decide(self, decision: Decision, request: Value) -> Value:
        try:
            answer = await self._decided(decision, request)
        except TopicExists:
            await self._wait_checkpointed(
                CheckpointWait.SAVED
            )  # this may be a retry of the request that created it
            raise
        if not getattr(request, "validate_only", False):
            await self._wait_checkpointed(decision.waits)
        return answer

    async def _decided(self, decision: Decision, request: Value) -> Value:
        context, name = self._context, decision.name
        if decision.is_alone:
            return await self._group_commit.decide_alone(
                name, lambda draft: decision.decide(draft, request, context)
            )
        request_id = decision.request_id(request)
        if request_id is None:
            return await self._group_commit.decide(
                name,
                lambda draft: decision.decide(draft, request, context),
                needs=decision.needs_of(request),
            )
        return await self._group_commit.decide_once(
            name,
            request_id,
            METHODS[name].answer,
            lambda draft: decision.decide(draft, request, context),
            needs=decision.needs_of(request),
        )

    async def _delete_group(self, request: GroupRef) -> Value:
        async with self._deletions.turn(request.group_id):
            await delete_positions_first(request, self._context, self._group_commit)
            return await self._decide(DECISIONS["delete_group"], request)

    async def _apply_retention(self, request: Empty) -> RetentionSummary:
        return await self._expiry.apply_retention()

    async def _wait_checkpointed(self, waits: CheckpointWait) -> None:
        """Wait until a checkpoint in the bucket contains the change. Raises SequencerUnavailable."""
        if self._checkpointer is None or waits is CheckpointWait.NOT:
            return
        if waits is CheckpointWait.SAVED:
            await self._checkpointer.saved()
        else:
            await self._checkpointer.recoverable()

    async def _catch_up(self) -> None:
        await self._group_commit.catch_up()

    # --- start and stop

    async def start(self, check: Callable[[DatabaseIdentity], None] | None = None) -> None:
        """Become the committer and load the state. Raises SequencerUnavailable while another process is the committer.

        `check` gets the database's identity before the lease is taken; if it raises, the lease is not taken.
        """
        self._view.identity = await self._store.open()
        if check is not None:
            check(self.identity)
        if self.identity.incarnation <= 0:
            raise IncarnationChanged("this database is being filled by `tailrace recover`; wait, or empty it")
        self._term = self._new_term()
        await self._term.begin()
        self._keeping = [asyncio.create_task(self._term.keep(), name="sequencer: lease")]
        try:
            await self.ensure_ready()
        except BaseException:
            await self._stop_renewing()
            raise
        self._observer.term_began()
        self._group_commit.begin(self._term)
        self._committing = asyncio.create_task(self._group_commit.run(), name="sequencer: commits")
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
        """Finish the write in progress, refuse all other requests, release the lease. The store stays open.

        The lease is renewed until the last write has ended and is released only then, whatever went wrong before. If
        the write does not end within LAST_WRITE_S, it is abandoned and the lease expires: once another term has begun,
        the store accepts no write with this term's epoch.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._group_commit.stop()
        self._view.feed.wake_all()
        self._view.subscriptions.wake_all()
        if self._committing is not None and not await wait_for(self._clock, self._committing, LAST_WRITE_S):
            await self._abandon_last_write(self._committing)
            return
        await self._finish_checkpoints()
        await self._stop_renewing()
        await self._term.release()

    async def _abandon_last_write(self, committing: asyncio.Task[None]) -> None:
        where = io.StringIO()
        committing.print_stack(file=where)
        _log.error("the last write of a term does not end; it is abandoned", where=where.getvalue())
        self._term.end("its last write did not end")
        committing.cancel()
        await self._stop_renewing()
        self._group_commit.refuse_waiting()

    async def _stop_renewing(self) -> None:
        keeping, self._keeping = self._keeping, []
        await cancel_and_wait(*keeping)
        await self._term.stop_renewing()

    @property
    def lost(self) -> SequencerError | None:
        """The reason why no process that knew this database may serve it any more; None if it may."""
        refusal = None if self._checkpointer is None else self._checkpointer.refusal
        return self._lost or refusal

    async def _finish_checkpoints(self) -> None:
        """Write a last checkpoint, which says that this term ended without writes of unknown outcome."""
        if self._checkpointer is None or self._view.is_stale or not self.is_committer:
            return
        finished = asyncio.ensure_future(self._checkpointer.finish())
        with (
            log_and_continue(_log, "a term's last checkpoint failed unexpectedly"),
            suppress(StoreError, SequencerError),
        ):
            if await wait_for(self._clock, finished, FINISH_WAIT_S):
                await finished
        await cancel_and_wait(finished)

    @property
    def identity(self) -> DatabaseIdentity:
        """The identity of the database; known after `start`."""
        return self._view.identity

    @property
    def known(self) -> LastNumbers:
        """The newest numbers that this process knows."""
        return self._known.newest(LastNumbers.of(self._view.state))

    @property
    def journal_number(self) -> int:
        """The journal number that answers reflect."""
        return self._view.state.counter(JOURNAL_NUMBER)

    @property
    def epoch(self) -> int:
        """The fencing epoch of the term."""
        return self._term.epoch

    @property
    def is_committer(self) -> bool:
        """Whether this process still holds the committer's lease, as far as it can tell."""
        return self._term.left_s > 0

    @property
    def lease_left_s(self) -> float:
        """Seconds for which this process is certain to remain the committer; 0 if it is not the committer."""
        return self._term.left_s

    @property
    def round_trip_s(self) -> float:
        """How long the database's recent answers took."""
        return self._term.round_trip_s

    async def confirm(self, margin_s: float) -> None:
        """Return when the lease is certain to hold for more than `margin_s`. Raises SequencerUnavailable."""
        await self._term.confirm(margin_s)

    # --- the state

    async def ensure_ready(self) -> None:
        """Return when the lease holds and the state equals the store's. Raises SequencerUnavailable."""
        if self._is_closed:
            raise SequencerUnavailable("the sequencer is closing; retry at another server")
        await self._term.confirm()
        if not self._view.is_stale:
            return
        async with self._preparing:
            if self._view.is_stale:
                with caused_by_no_request():
                    await self._load()

    async def _load(self) -> None:
        await self._check_identity()
        loaded = await self._followed() or await self._loaded()
        self._check_not_older(loaded)
        journal = None
        if self._keeps_journal:
            journal = Journal(await self._store.journal_sizes(), loaded.counter(JOURNAL_NUMBER) + 1)
        self._term.check()
        self._view.replace(loaded, self._term.epoch, journal)

    async def _followed(self) -> HotState | None:
        """Return the follower's copy. It is exact, because this server has the lease and nobody else writes."""
        follower, self._follower = self._follower, None
        return None if follower is None else await follower.hand_over()

    async def _loaded(self) -> HotState:
        rows = await timed(self._observer, self._clock, "load", self._store.load())
        return await HotState.built(rows, self._clock)

    def give_back(self) -> HotState | None:
        """Return the state at the end of the term, for a follower; None if it was never loaded. The committer keeps
        nothing of it, so the garbage collector may skip the committer (tailrace.gc_freeze)."""
        state = self._view.state.moved()
        state.unwatch()
        return state if self._view.journal is not None else None

    def _check_not_older(self, loaded: HotState) -> None:
        """Raise IncarnationChanged if the database has lost durable transactions, for example after a fail-over to a
        lagging standby."""
        if self._lost is not None:
            raise self._lost
        known, found = self.known, LastNumbers.of(loaded)
        if found.lacks(known):
            self._lost = IncarnationChanged(
                f"the database is at commit {found.commit} (journal number {found.journal}), and was at {known.commit}"
                f" ({known.journal}): it has lost the commits in between (a standby that lagged, an older copy). Bring"
                " the newer one back, or rebuild an empty one with `tailrace recover`"
            )
            raise self._lost

    async def _check_identity(self) -> None:
        """Raise IncarnationChanged if another database has replaced the one that was opened."""
        now = await self._store.identity()
        was = self.identity
        if (now.cluster_id, now.incarnation) != (was.cluster_id, was.incarnation):
            self._lost = IncarnationChanged(
                f"the database is incarnation {now.incarnation} of cluster {now.cluster_id!r} now, it was"
                f" {was.incarnation} of {was.cluster_id!r}: drop all state and restart"
            )
            raise self._lost

    async def _expire_in_time(self) -> None:
        """End expired agent leases, sessions and transactions, regularly."""
        while self._term.over is None:
            await self._clock.sleep(self._settings.committer_lease_ms / 3000)
            with log_and_continue(
                _log, "expired leases and transactions could not be ended yet", SequencerError
            ):
                try:
                    await self._expiry.end_expired()
                except SequencerUnavailable:
                    if self._is_closed:  # a normal stop: nothing to log
                        return
                    raise
