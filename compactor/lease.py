"""The compactor's lease and its upload session, renewed while a round runs.

Invariants:
- one compactor at a time: the sequencer applies a swap only under the live lease's epoch, and each holder after
  another has a higher epoch;
- a holder that died is followed as soon as its lease runs out: `LEASE_MS` after its last renewal;
- a holder whose renewal is late keeps the lease unless another compactor has taken it meanwhile;
- before a slow database the lease is longer, as the committer's own is (decision 21).

The dead holder's session ends by itself, after the sequencer's `session_lease_ms`. It does not keep the next holder
waiting: that one opens its own.
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
from tailrace.clock import Clock
from tailrace.keepers import outlived

log = structlog.get_logger("tailrace.compactor")

LEASE_MS = 4_000
"""With a second until another compactor asks again, a lease is handed on within five after a crash."""
RENEWALS_A_LEASE = 4


class HeldLease:
    """The lease under one epoch, and the session that was opened under it."""

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
        """By this process's wall clock, when it last asked for the session and then got it."""

    @property
    def lease_ms(self) -> int:
        """How long a lease to ask for: four times the second slowest of the last answers, or the shortest lease."""
        return lease_for(self._shortest_ms, min(sorted(self._round_trips)[-2:], default=0.0))

    async def renew(self) -> None:
        """Extend the lease, also one that ran out and that nobody took. Raises LeaseLost where another has it."""
        asked_at = self._clock.monotonic()
        await self._sequencer.take_lease(TakeLease(COMPACTOR_LEASE, self._holder, self.epoch, self.lease_ms))
        self.note_answer(self._clock.monotonic() - asked_at)

    def note_answer(self, seconds: float) -> None:
        """How long the sequencer took to answer about the lease."""
        self._round_trips.append(seconds)

    async def keep(self) -> None:
        """Renew lease and session until another compactor has the lease: this one's swaps are refused from then on."""
        while True:
            pause_ms = min(self.lease_ms / RENEWALS_A_LEASE, self.session.lease_ms / 3)
            await self._clock.sleep(pause_ms / 1000)
            # Each by itself: a lease that is not renewed in time must not cost the session, too.
            for renew in (self._renew_session, self.renew):
                with outlived(log, "a lease was not renewed", SequencerUnavailable, SequencerOverloaded):
                    try:
                        await renew()
                    except (LeaseLost, SessionClosed, IncarnationChanged):
                        return

    async def _renew_session(self) -> None:
        asked_ms = self._clock.wall_ms()
        await self._sequencer.renew_session(SessionRef(self.session.session_id))
        self.session_seen_ms = asked_ms

    async def give_back(self) -> None:
        """End the session and the lease. A lease of one ms is as good as none: the next holder need not wait.

        What can't be given back runs out by itself: it must not hide how the round ended.
        """
        with outlived(log, "a session was not given back; it runs out", SequencerError):
            await self._sequencer.close_session(SessionRef(self.session.session_id))
        with outlived(log, "a lease was not given back; it runs out", SequencerError):
            await self._sequencer.take_lease(TakeLease(COMPACTOR_LEASE, self._holder, self.epoch, 1))


@asynccontextmanager
async def held_lease(
    sequencer: Sequencer, clock: Clock, *, holder: str, lease_ms: int = LEASE_MS
) -> AsyncIterator[HeldLease]:
    """Hold the lease and a session of its own, both renewed; end both at the end.

    Raises LeaseLost while another compactor has it.
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
