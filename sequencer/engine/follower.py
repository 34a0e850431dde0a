"""A follower: a server's copy of the hot rows, which follows the committer through the journal.

It loads all rows once. Then it reads the new rows of the journal every `pause_s`, and whenever a caller needs an
up-to-date copy. So a takeover from the committer reads only the end of the journal and loads nothing. The copy also
answers queries, at the journal number that the caller states or a later one.

Invariants:
- at every moment the copy is the committer's state at one journal number, never half of a transaction;
- a copy that the journal does not continue (sequencer.reading.journal.JournalGap) is never used again; it is reloaded;
- no answer reflects a lower journal number than the caller has seen. Runs are looked up in the database, which is ahead
  of the copy, so an answer with runs waits until the copy has everything that was in the database then
  (queries.Reader's `settle`).

A database without a journal has no followers: if a copy was just loaded and the journal does not continue it, the
follower waits `RELOAD_PAUSE_S`.
"""

from __future__ import annotations

import asyncio
from typing import cast

import structlog

from sequencer.api.errors import IncarnationChanged, SequencerError, SequencerUnavailable
from sequencer.api.values import Value
from sequencer.engine.requests import QUERIES, QueryContext
from sequencer.methods import AS_NEWEST, Method
from sequencer.reading.journal import NOTHING_KNOWN, JournalGap, LastNumbers, changes_of, continuing
from sequencer.reading.recent_runs import RecentRuns
from sequencer.reading.view import ReadView
from sequencer.settings import SequencerSettings
from sequencer.store.row_store import RowStore
from sequencer.store.rows import Changes
from sequencer.store.state import JOURNAL_NUMBER, HotState
from tailrace.background_tasks import cancel_and_wait, log_and_continue
from tailrace.clock import Clock, wait_for
from tailrace.turns import Turns, in_turns

_log = structlog.get_logger(__name__)

ROWS_AT_ONCE = 16
"""Journal rows that one query reads; each may have some megabytes."""
DECODED_IN_A_TURN = 2_000
RELOAD_PAUSE_S = 10.0
PATIENCE_S = 0.5
"""How long a query waits for the journal before it is forwarded to the committer."""


class FollowerBehind(SequencerUnavailable):
    """The copy is older than the query requires."""


class Follower:
    """See the module. `run` is its task.

    Args:
        state: the initial copy, used instead of a load: the state of a committer whose term has ended.
    """

    def __init__(
        self,
        store: RowStore,
        clock: Clock,
        *,
        pause_s: float,
        settings: SequencerSettings | None = None,
        state: HotState | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._pause_s = pause_s
        self._settings = settings or SequencerSettings()
        self._given = state
        self._shown: ReadView | None = None
        self._lock = asyncio.Lock()
        self._begun = self._ended = 0
        self._loads_from: int | None = None
        """The newest journal number when the current load began; None if no load is running."""
        self.known = NOTHING_KNOWN
        """The newest numbers that a copy has had. A database with lower ones has lost transactions."""
        self.is_handed_over = False
        """Whether a committer has taken the copy, which ends this follower."""

    @property
    def state(self) -> HotState | None:
        """The copy; None if there is none."""
        return None if self._shown is None else self._shown.state

    @property
    def number(self) -> int:
        """The journal number that the copy reflects; -1 without a copy."""
        return -1 if self._shown is None else self._shown.state.counter(JOURNAL_NUMBER)

    async def answer(self, method: Method, request: Value, seen: int) -> Value:
        """Answer a query at journal number `seen` or later.

        Raises SequencerUnavailable (FollowerBehind, or what the database raises) and JournalGap: call the committer
        instead.
        """
        if method.name in AS_NEWEST or self.number < seen:
            await self._catch_up_in_time()
        shown = self._shown
        if shown is None or self.number < seen:
            raise FollowerBehind(f"this server's copy is as of {self.number}, and {seen} was seen")
        answer = QUERIES[method.name].answer(request, QueryContext(shown, self._store, self._settings))
        if not isinstance(answer, Value):
            answer = await answer
        if self._shown is not shown:
            raise FollowerBehind("this server's copy was replaced meanwhile")
        return cast("Value", answer)

    async def _catch_up_in_time(self) -> None:
        caught_up = asyncio.ensure_future(self.catch_up())
        try:
            if not await wait_for(self._clock, caught_up, PATIENCE_S):
                raise FollowerBehind("the journal was not read in time")
            await caught_up
        finally:
            await cancel_and_wait(caught_up)

    async def run(self) -> None:
        """Follow the journal until the copy is handed over."""
        while not self.is_handed_over:
            pause = self._pause_s
            with log_and_continue(_log, "the committer can't be followed for now", SequencerError):
                try:
                    await self.load()
                    if self._shown is not None:
                        await self.catch_up()
                except JournalGap as error:
                    _log.info("the copy of the rows can't be continued; it is reloaded", reason=str(error))
                    pause = RELOAD_PAUSE_S
            await self._clock.sleep(pause)

    async def catch_up(self) -> None:
        """Return when the copy has everything that was in the database when this was called. Concurrent callers share
        reads.

        Raises:
            SequencerUnavailable: there is no copy, or the database does not answer.
            JournalGap: the journal does not continue the copy, which is dropped.
        """
        asked = self._begun
        async with self._lock:
            if self._ended > asked:
                return  # a read that began after the call has ended
            self._begun += 1
            await self._read()
            self._ended = self._begun

    async def hand_over(self) -> HotState | None:
        """Return the copy with everything that is in the database, for a committer that has the lease, so that nobody
        writes now. Return None if the copy can't be continued. Afterwards this follower is over."""
        if self._shown is None:
            return None
        try:
            await self.catch_up()
        except JournalGap as error:
            _log.warning("the copy of the rows can't be continued; all are loaded", reason=str(error))
            return None
        state, self._shown = self.state, None
        self.is_handed_over = True
        return state

    def drop(self) -> None:
        """Drop the copy after `run` has ended, so that the garbage collector may skip this follower
        (tailrace.gc_freeze)."""
        self._shown = self._given = None

    async def load(self) -> None:
        """Load all rows if there is a journal to follow and no copy."""
        async with self._lock:
            await self._load_if_missing()

    async def _load_if_missing(self) -> None:
        if self._shown is not None or self.is_handed_over or not await self._store.journal_from(0, 1):
            return  # without a journal there is nothing to follow
        identity, state = await self._store.identity(), self._given
        self._given = None
        if state is None:
            state = await self._loaded()
            if await self._store.identity() != identity:
                raise SequencerUnavailable("the database was replaced while it was loaded")
        self._note_numbers(state)
        self._shown = ReadView(
            self._store,
            state,
            identity,
            recent=RecentRuns(0),
            catch_up=self._caught_up,
            settle=self._caught_up,
        )

    def _note_numbers(self, state: HotState) -> None:
        self.known = self.known.newest(LastNumbers.of(state))

    async def _loaded(self) -> HotState:
        self._loads_from = max(await self._store.journal_sizes(), default=-1)
        try:
            return await HotState.built(await self._store.load(), self._clock)
        finally:
            self._loads_from = None

    async def will_have_copy(self) -> bool:
        """Whether a load of all rows is running and the journal still has everything that follows it."""
        oldest = [] if self._loads_from is None else await self._store.journal_from(0, 1)
        return bool(oldest) and self._loads_from is not None and oldest[0].number <= self._loads_from

    async def _caught_up(self) -> None:
        try:
            await self.catch_up()
        except JournalGap as error:
            raise FollowerBehind(str(error)) from error

    def _apply(self, shown: ReadView, changes: Changes) -> None:
        try:
            shown.state.apply(changes)
            shown.topics.apply(changes)
            shown.security.apply(changes)
            self._note_numbers(shown.state)
        except BaseException:
            self._shown = None  # it may contain half of the transaction
            raise

    async def _read(self) -> None:
        shown = self._shown
        if shown is None:
            raise FollowerBehind("this server has no copy of the rows")
        try:
            turns = Turns(DECODED_IN_A_TURN)
            while True:
                rows = await self._store.journal_from(shown.state.counter(JOURNAL_NUMBER), ROWS_AT_ONCE)
                now = await self._store.identity()
                if now != shown.identity:
                    raise IncarnationChanged(
                        f"the database is {now} now, and was {shown.identity}: drop all state and restart"
                    )
                for row in continuing(shown.state, rows):
                    changes = await in_turns(changes_of(row, shown.state), turns)
                    self._apply(shown, changes)
                if len(rows) < ROWS_AT_ONCE:
                    return
        except (JournalGap, IncarnationChanged):
            self._shown = None
            raise
