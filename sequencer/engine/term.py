"""A committer's term: one lease on the database, under a fencing epoch that no other term has.

The lease is valid for the length of the last renewal that the database confirmed, counted from before the renewal was
sent. A separate task (`keep`) renews it three times per lease length, whatever else the process is doing.

A term may outlive its lease. If the database still shows the lease under this epoch, nobody else has committed since,
and one late renewal (`confirm`) makes the term valid again. The term is over when the database says that another
committer has the lease, or when this process ends it.

A database that answers slowly gets longer leases (`lease_for`), so that each renewal is answered while the previous one
is still valid. The row alone states the length of the lease: anybody who wants the lease waits until the end stated in
the row.

Invariant: `asked_at + lease` on this process's clock is never after the end in the row. The database adds the same
length to a later moment, and no renewal shortens an earlier one. So at most one term is valid.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog

from sequencer.api.errors import RequestFailed, SequencerError, SequencerUnavailable
from sequencer.observer import SequencerObserver, timed
from sequencer.store.row_store import LONGEST_LEASE_MS, RowStore
from tailrace.background_tasks import cancel_and_wait, log_and_continue, retrieve_error
from tailrace.clock import Clock, wait_for

T = TypeVar("T")
_log = structlog.get_logger(__name__)

ROUND_TRIPS_A_LEASE = 4
"""A renewal is sent one third of the lease after the answer to the previous one. So a lease of three round trips would
be renewed only just in time."""
REMEMBERED_ROUND_TRIPS = 4
RENEWALS_TO_CONFIRM = 3
"""The renewal in progress may have been sent before the database became slow. The next one still requests a short
lease, because one late answer does not lengthen it. The third one is long enough."""
MAX_LEASE_MS = LONGEST_LEASE_MS // 2
_MAX_PAUSE_S = 1.0
_STEP_S = 0.25


def lease_for(shortest_ms: int, round_trip_s: float) -> int:
    """Return the length of the next lease in ms, for a database with this round trip."""
    return max(shortest_ms, min(MAX_LEASE_MS, round(round_trip_s * 1000 * ROUND_TRIPS_A_LEASE)))


@contextmanager
def caused_by_no_request() -> Iterator[None]:
    """Turn the store's refusals into SequencerUnavailable: no request caused them, so all must retry."""
    try:
        yield
    except RequestFailed as error:
        raise SequencerUnavailable(str(error)) from error


class Term:
    """See the module. Call `begin`, then run `keep` as a task; call `stop_renewing` and `release` at the end.

    Args:
        holder: a name that no other term has, in this process or another.
        address: where others reach this committer.
        lease_ms: the shortest lease, for a database that answers at once.
    """

    def __init__(
        self,
        store: RowStore,
        clock: Clock,
        *,
        holder: str,
        address: str,
        lease_ms: int,
        observer: SequencerObserver,
    ) -> None:
        self._store = store
        self._clock = clock
        self._holder = holder
        self._address = address
        self._shortest_ms = self._lease_ms = lease_ms
        self._observer = observer
        self._round_trips: deque[float] = deque(maxlen=REMEMBERED_ROUND_TRIPS)
        self._valid_until = 0.0
        self._renewal: asyncio.Task[None] | None = None
        self._is_held = False
        self.over: str | None = None
        """The reason why this term is over; None if it is not."""
        self.epoch = 0

    async def begin(self) -> None:
        """Take the lease. Raises SequencerUnavailable while another committer holds it."""
        address = await self._measured(self._store.committer_address())
        if address is not None:
            raise SequencerUnavailable(f"another committer holds the lease: {address or 'address unknown'}")
        asked_at, lease_ms = self._clock.monotonic(), self._lease_ms
        taken = self._store.take_committer_lease(self._holder, self._address, lease_ms)
        epoch = await self._measured(taken)
        if epoch is None:
            raise SequencerUnavailable("another committer has just taken the lease")
        self.epoch = epoch
        self._is_held = True
        self._valid_until = asked_at + lease_ms / 1000

    @property
    def left_s(self) -> float:
        """Seconds for which no other process can be the committer; 0 if this is unknown."""
        if self.over is not None or not self._is_held:
            return 0.0
        return max(0.0, self._valid_until - self._clock.monotonic())

    @property
    def round_trip_s(self) -> float:
        """How long the database's recent answers took: the second slowest of the last answers, because one late answer
        should not make fail-overs slower."""
        return min(sorted(self._round_trips)[-2:], default=0.0)

    async def keep(self) -> None:
        """Renew the lease in time until the term is over."""
        pause = self._lease_ms / 3000
        while self.over is None:
            await self._clock.sleep(pause)
            # After a failure, retry several times in the remaining time.
            pause = min(_MAX_PAUSE_S, self._lease_ms / 10_000)
            with log_and_continue(_log, "the committer's lease could not be renewed", SequencerError):
                await self._renewed()
                pause = self._lease_ms / 3000

    async def confirm(self, margin_s: float = 0.0) -> None:
        """Return when the lease is valid for more than `margin_s`: at once, or after a renewal.

        If the database accepts no renewal, for example because its disk is full, also return if it says that nobody has
        taken the lease so far. What this process knows is true until then, and its writes are checked as usual.

        Raises SequencerUnavailable: the term is over, or the database does not answer.
        """
        for _ in range(RENEWALS_TO_CONFIRM):
            if self.left_s > margin_s:
                return
            try:
                await self._renewed()
            except SequencerUnavailable:
                if self.over is None and await self._store.is_lease_free(self.epoch):
                    return
                raise
            self.check()
        if self.left_s <= margin_s:
            raise SequencerUnavailable("the committer's lease was renewed too late; retry")

    async def _renewed(self) -> None:
        """Wait for the renewal in progress, or for a new one. The renewal continues if its waiters give up."""
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._renew(), name="sequencer: renewal of the lease")
            self._renewal.add_done_callback(retrieve_error)
        renewal = self._renewal
        await asyncio.wait([renewal])
        if renewal.cancelled():
            raise SequencerUnavailable("this committer's term has ended")
        renewal.result()

    async def _renew(self) -> None:
        if self.over is not None:
            return
        asked_at, lease_ms = self._clock.monotonic(), self._lease_ms
        renewed = self._store.renew_committer_lease(self.epoch, lease_ms)
        if await self._measured(timed(self._observer, self._clock, "lease", renewed)):
            self._valid_until = max(self._valid_until, asked_at + lease_ms / 1000)
        else:
            self.end(f"another committer has taken the lease from epoch {self.epoch}")

    async def _measured(self, asked: Coroutine[Any, Any, T]) -> T:
        """Return the database's answer, and record how long it took, which determines the length of the next lease.
        Time in which this process was stopped or its loop was blocked says nothing about the database and counts as one
        step."""
        answer = asyncio.ensure_future(asked)
        seconds = 0.0
        try:
            is_answered = False
            while not is_answered:
                began = self._clock.monotonic()
                is_answered = await wait_for(self._clock, answer, _STEP_S)
                seconds += min(_STEP_S, self._clock.monotonic() - began)
            with caused_by_no_request():
                value = answer.result()
        finally:
            await cancel_and_wait(answer)
        self._note_round_trip(seconds)
        return value

    def _note_round_trip(self, seconds: float) -> None:
        self._round_trips.append(seconds)
        was_ms, self._lease_ms = self._lease_ms, lease_for(self._shortest_ms, self.round_trip_s)
        if was_ms == self._shortest_ms < self._lease_ms:
            _log.warning(
                "the database is slow; the committer's lease is longer, and so is a fail-over",
                round_trip_s=round(self.round_trip_s, 3),
                lease_s=self._lease_ms / 1000,
            )

    def check(self) -> None:
        """Raise SequencerUnavailable if the term is over."""
        if self.over is not None:
            raise SequencerUnavailable(f"this committer's term is over: {self.over}")

    def end(self, reason: str) -> None:
        """End the term: from now on nothing is answered or renewed under it."""
        if self.over is None:
            self.over = reason

    async def stop_renewing(self) -> None:
        """Cancel the renewal in progress. Its waiters fail, because the term has ended."""
        await cancel_and_wait(self._renewal)

    async def release(self) -> None:
        """Release the lease, so that the next committer can begin at once. The last write of this term must have
        ended."""
        self.end("its lease was released")
        await self.stop_renewing()
        if not self._is_held:
            return
        self._is_held = False
        with log_and_continue(
            _log, "the committer's lease could not be released; it will expire", SequencerError
        ):
            await self._store.release_committer_lease(self.epoch)
