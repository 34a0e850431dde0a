"""The compactor's lease and upload session, which are renewed while a round runs.

Invariants:
- one compactor at a time: the sequencer executes a swap only under the live lease's epoch, and each new holder has a
  higher epoch;
- another compactor can take over as soon as the lease of a dead holder expires, `LEASE_MS` after its last renewal;
- a holder whose renewal is late keeps the lease unless another compactor has taken it;
- with a slow database the lease is longer, like the committer's (decision 21).

A dead holder's session expires after the sequencer's `session_lease_ms`. The next holder does not wait for that,
because it opens a new session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from sequencer.api.commits import OpenSession, SessionGrant, SessionRef
from sequencer.api.compaction import TakeLease
from sequencer.api.errors import (
    IncarnationChanged,
    LeaseLost,
    SequencerError,
    SequencerOverloaded,
    SequencerUnavailable,
    SessionClosed,
)
from sequencer.api.interface import Sequencer
from sequencer.engine.term import REMEMBERED_ROUND_TRIPS, lease_for
from sequencer.rules.upload_sessions import COMPACTOR_BROKER_ID, COMPACTOR_LEASE
from tailrace.background_tasks import log_and_continue
from tailrace.clock import Clock

log = structlog.get_logger("tailrace.compactor")

LEASE_MS = 4_000
"""Other compactors ask for the lease every second, so one takes over within five seconds of a crash."""
RENEWALS_A_LEASE = 4


class HeldLease:
    """The lease of one epoch and the session that was opened under it."""

    def __init__(
        self,
        sequencer: Sequencer,
        clock: Clock,
        *,
        holder: str,
        epoch: int,
        lease_ms: int,
        session: SessionGrant,
        session_seen_ms: int,
    ) -> None:
        self._sequencer = sequencer
        self._clock = clock
        self._holder = holder
        self._shortest_ms = lease_ms
        self._round_trips: deque[float] = deque(maxlen=REMEMBERED_ROUND_TRIPS)
        self.epoch = epoch
        self.session = session
        self.session_seen_ms = session_seen_ms
        """When this process last sent a request for the session that succeeded, by its wall clock."""

    @property
    def lease_ms(self) -> int:
        """The lease to request: four times the second slowest of the last responses, or the shortest lease if
        longer."""
        return lease_for(self._shortest_ms, min(sorted(self._round_trips)[-2:], default=0.0))

    async def renew(self) -> None:
        """Extend the lease, even if it has expired. Raises LeaseLost if another compactor has it."""
        asked_at = self._clock.monotonic()
        await self._sequencer.take_lease(TakeLease(COMPACTOR_LEASE, self._holder, self.epoch, self.lease_ms))
        self.note_answer(self._clock.monotonic() - asked_at)

    def note_answer(self, seconds: float) -> None:
        """Record how long the sequencer took to answer a request for the lease."""
        self._round_trips.append(seconds)

    async def keep(self) -> None:
        """Renew the lease and the session until another compactor has the lease. From then on, the sequencer refuses
        this one's swaps."""
        while True:
            pause_ms = min(self.lease_ms / RENEWALS_A_LEASE, self.session.lease_ms / 3)
            await self._clock.sleep(pause_ms / 1000)
            # Separately: if the lease is not renewed in time, the session must still be renewed.
            for renew in (self._renew_session, self.renew):
                with log_and_continue(
                    log, "a lease was not renewed", SequencerUnavailable, SequencerOverloaded
                ):
                    try:
                        await renew()
                    except (LeaseLost, SessionClosed, IncarnationChanged):
                        return

    async def _renew_session(self) -> None:
        asked_ms = self._clock.wall_ms()
        await self._sequencer.renew_session(SessionRef(self.session.session_id))
        self.session_seen_ms = asked_ms

    async def give_back(self) -> None:
        """Release the session and the lease. It renews the lease for one ms, so that the next holder need not wait.

        An error is only logged, so that it does not hide how the round ended. The session or lease then expires.
        """
        with log_and_continue(log, "a session could not be released; it will expire", SequencerError):
            await self._sequencer.close_session(SessionRef(self.session.session_id))
        with log_and_continue(log, "a lease could not be released; it will expire", SequencerError):
            await self._sequencer.take_lease(TakeLease(COMPACTOR_LEASE, self._holder, self.epoch, 1))


@asynccontextmanager
async def held_lease(
    sequencer: Sequencer, clock: Clock, *, holder: str, lease_ms: int = LEASE_MS
) -> AsyncIterator[HeldLease]:
    """Hold the lease and a new session inside the block. Renews both, and releases both at the end.

    Raises LeaseLost if another compactor has the lease.
    """
    asked_at = clock.monotonic()
    lease = await sequencer.take_lease(TakeLease(COMPACTOR_LEASE, holder, 0, lease_ms))
    answered_in_s = clock.monotonic() - asked_at
    asked_ms = clock.wall_ms()
    session = await sequencer.open_session(OpenSession(COMPACTOR_BROKER_ID, lease.epoch))
    held = HeldLease(
        sequencer,
        clock,
        holder=holder,
        epoch=lease.epoch,
        lease_ms=lease_ms,
        session=session,
        session_seen_ms=asked_ms,
    )
    held.note_answer(answered_in_s)
    keeping = asyncio.create_task(held.keep())
    try:
        yield held
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError, SequencerError):
            await keeping
        await held.give_back()
