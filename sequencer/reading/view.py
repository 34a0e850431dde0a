"""What readers see: the rows as of the newest transaction that was shown, and the in-memory data that belongs to them.

A transaction is shown in one turn of the event loop: readers see all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sequencer.checkpoint.checkpointer import Checkpointer
from sequencer.reading.feed import CommitFeed
from sequencer.reading.journal import Journal
from sequencer.reading.maintenance import Maintenance
from sequencer.reading.positions import Positions
from sequencer.reading.queries import Reader
from sequencer.reading.recent_runs import RecentRuns
from sequencer.reading.security_changes import SecurityChanges
from sequencer.reading.subscriptions import Subscriptions
from sequencer.reading.topic_changes import TopicChanges
from sequencer.rules import leases
from sequencer.rules.budgets import ClusterBudgets
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.row_store import DatabaseIdentity, RowStore
from sequencer.store.state import COMMIT_NUMBER, HotState
from tailrace.clock import Clock
from tailrace.turns import Turns, in_turns

REMEMBERED_IN_A_TURN = 2_000
"""Partitions whose newest runs are remembered in one turn of the event loop."""
QUEUED_IN_A_TURN = 20_000
"""Changes that are queued for subscribers in one turn of the event loop."""


class ReadView:
    """The rows that queries are answered from, and the data computed from them.

    `catch_up` returns when the state shows everything that was in the store when it was called. `settle`: see
    queries.Reader.
    """

    def __init__(
        self,
        reads: RowStore,
        state: HotState,
        identity: DatabaseIdentity,
        *,
        recent: RecentRuns,
        catch_up: Callable[[], Awaitable[None]],
        settle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.identity = identity
        """The identity of the database."""
        self.state = state
        self.topics = TopicChanges(state)
        self.security = SecurityChanges(state)
        self.recent = recent
        self.reader = Reader(
            store=reads, current=lambda: self.state, catch_up=catch_up, recent=recent, settle=settle
        )
        self.positions = Positions(reads, lambda: self.state, catch_up)


class CommitterView(ReadView):
    """The state of one committer. It is empty and stale until `replace`."""

    def __init__(
        self,
        reads: RowStore,
        clock: Clock,
        settings: SequencerSettings,
        *,
        checkpointer: Checkpointer | None,
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        unknown = DatabaseIdentity(cluster_id="", incarnation=0)
        recent = RecentRuns(settings.max_feed_runs)
        super().__init__(reads, HotState({}), unknown, recent=recent, catch_up=catch_up)
        self._clock = clock
        self._catch_up = catch_up
        self.checkpointer = checkpointer
        self.is_stale = True
        """Whether the state may differ from the store's; if so, it must be loaded before it is used."""
        self.heard = leases.LastHeard(clock.monotonic())
        self.budgets = ClusterBudgets(settings, clock.monotonic())
        self._settings = settings
        self.maintenance = Maintenance(self.state, settings)
        self.feed = CommitFeed(
            clock,
            max_commits=settings.max_feed_commits,
            max_runs=settings.max_feed_runs,
            max_waiters=settings.max_feed_waiters,
        )
        self.subscriptions = Subscriptions(clock, settings, self.recent)
        self.journal: Journal | None = None
        """None if the database has no journal."""

    def replace(self, loaded: HotState, epoch: int, journal: Journal | None = None) -> None:
        """Show a state that equals the store's, under this committer epoch."""
        self.state.unwatch()
        self.state = loaded
        self.journal = journal
        self.topics = TopicChanges(loaded)
        self.security = SecurityChanges(loaded)
        self.maintenance = Maintenance(loaded, self._settings)
        self.heard = leases.LastHeard(self._clock.monotonic())
        self.budgets = ClusterBudgets(self._settings, self._clock.monotonic())
        self.is_stale = False
        if self.checkpointer is not None:
            self.checkpointer.begin(self.identity, epoch, loaded, self._catch_up)
        self.recent.clear()
        self.feed.restart(loaded)
        self.subscriptions.restart(loaded, epoch)

    async def show(self, draft: Draft) -> None:
        """Show a transaction that was written: all of it, in one turn of the event loop."""
        state = draft.durable
        if state is not self.state:
            return  # the state was reloaded meanwhile
        turns = Turns(REMEMBERED_IN_A_TURN)
        replaced = await in_turns(self.recent.replaced_by(draft.changes), turns)
        state.apply(draft.changes)
        if self.checkpointer is not None:
            self.checkpointer.written(draft.changes)
        self.topics.apply(draft.changes)
        self.security.apply(draft.changes)
        self.maintenance.note(draft.changes)
        self.recent.forget(replaced)
        number = state.counter(COMMIT_NUMBER)
        self.feed.publish(number, draft.published)
        queued = self.subscriptions.publish(number, draft.published, replaced)
        await in_turns(queued, Turns(QUEUED_IN_A_TURN))
        # Until a run is remembered, reads look it up in the store.
        await in_turns(self.recent.add(draft.published), turns)
