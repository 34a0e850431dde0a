"""A follower: a server's own copy of the hot rows, which follows the committer by the journal.

It loads all rows once, and then reads what is new in the journal: every `pause_s`, and whenever someone needs it up to
date. So taking over from the committer takes a look at the end of the journal, not a load.

Invariants:
- the copy is at each moment the committer's state as of one number of the journal, never half of a transaction;
- a copy that the journal does not continue (sequencer.journal.JournalGap) is never used again: it is loaded anew.

A database without a journal has no followers: a copy that was just loaded and is not continued waits `RELOAD_PAUSE_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from sequencer.api import IncarnationChanged, SequencerError, SequencerUnavailable
from sequencer.journal import NUMBER, JournalGap, changes_of, continuing
from sequencer.store.rows import Changes, Identity, RowStore
from sequencer.store.state import HotState
from tailrace.clock import Clock
from tailrace.keepers import outlived
from tailrace.turns import Turns, in_turns

_log = structlog.get_logger(__name__)

ROWS_AT_ONCE = 16
"""Rows of the journal that one query reads; each may have some megabytes."""
DECODED_IN_A_TURN = 2_000
RELOAD_PAUSE_S = 10.0


class Follower:
    """See the module. `run` is its task. `state` None: this server must be asked nothing.

    Args:
        state: a copy to begin with, in place of a load: of a committer whose term has ended.
        on_change: called with what a transaction changed, in the turn in which the copy shows it.
    """

    def __init__(
        self,
        store: RowStore,
        clock: Clock,
        *,
        pause_s: float,
        state: HotState | None = None,
        on_change: Callable[[Changes], None] = lambda changes: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._pause_s = pause_s
        self._on_change = on_change
        self._identity: Identity | None = None
        self._lock = asyncio.Lock()
        self._begun = self._ended = 0
        self._is_handed_over = False
        self.state = state
        self.loads = 0

    @property
    def number(self) -> int:
        """The number of the journal as of which the copy is; -1 without one."""
        return -1 if self.state is None else self.state.counter(NUMBER)

    async def run(self) -> None:
        """Follow until the copy is handed over."""
        while not self._is_handed_over:
            pause = self._pause_s
            with outlived(_log, "the committer is not followed for a while", SequencerError):
                try:
                    async with self._lock:
                        await self._load_if_missing()
                    if self.state is not None:
                        await self.catch_up()
                except JournalGap as error:
                    _log.info("the copy of the rows can't be continued; it is loaded anew", reason=str(error))
                    pause = RELOAD_PAUSE_S
            await self._clock.sleep(pause)

    async def catch_up(self) -> None:
        """Return once the copy has all that was in the database when this was called. Callers share reads.

        Raises:
            SequencerUnavailable: there is no copy, or the database does not answer.
            JournalGap: the copy can't be continued; there is none from now on.
        """
        asked = self._begun
        async with self._lock:
            if self._ended > asked:
                return  # a read that began after the call has ended
            self._begun += 1
            await self._read()
            self._ended = self._begun

    async def hand_over(self) -> HotState | None:
        """The copy with all that is in the database, for a committer under its lease: nobody writes now. None where it
        can't be continued. The follower is over then."""
        if self.state is None:
            return None
        try:
            await self.catch_up()
        except JournalGap as error:
            _log.warning("the copy of the rows can't be continued; all are loaded", reason=str(error))
            return None
        state, self.state = self.state, None
        self._is_handed_over = True
        return state

    async def _load_if_missing(self) -> None:
        if self.state is not None or self._is_handed_over or not await self._store.journal_from(0, 1):
            return  # without a journal there is nothing to follow
        identity = await self._store.identity()
        state = await HotState.built(await self._store.load(), self._clock)
        if await self._store.identity() != identity:
            raise SequencerUnavailable("the database was replaced while it was loaded")
        self.loads += 1
        self._identity, self.state = identity, state

    async def _read(self) -> None:
        state = self.state
        if state is None:
            raise SequencerUnavailable("this server has no copy of the rows")
        try:
            turns = Turns(DECODED_IN_A_TURN)
            while True:
                rows = await self._store.journal_from(state.counter(NUMBER), ROWS_AT_ONCE)
                await self._check_identity()
                for row in continuing(state, rows):
                    changes = await in_turns(changes_of(row, state), turns)
                    state.apply(changes)
                    self._on_change(changes)
                if len(rows) < ROWS_AT_ONCE:
                    return
        except (JournalGap, IncarnationChanged):
            self.state = None
            raise

    async def _check_identity(self) -> None:
        """Raise IncarnationChanged where the rows that were just read are of another database."""
        now = await self._store.identity()
        if self._identity is None:
            self._identity = now
        elif now != self._identity:
            raise IncarnationChanged(f"the database is {now} now, and was {self._identity}: start anew")
