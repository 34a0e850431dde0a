"""Decides when an active buffer is sealed. Pure: the lane asks after every change and acts on the decision.

A buffer is sealed when `linger_ms` have passed. It is sealed earlier, within the budget of PUTs, when no commit is in
progress and either no PUT is in progress or no batch arrived for `quiet_ms`. It is sealed later when it needs more rows
of the sequencer than the row budget has. The strictest `tailrace.latency` of its batches decides whether it may be
early: `cost` never is; `fast` has its own budget and does not wait for PUTs and commits in progress. Time since the
buffer was opened:

    0       early: idle, quiet, fast       linger          stretched: no row budget          MAX_STRETCH * linger
    |--------------------------------------|--------------------------------------------------|
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agent.produce.active_buffer import ActiveBuffer
from agent.settings import AgentSettings
from tailrace.configs.topic_config import Latency

MAX_STRETCH = 4
"""A buffer waits at most this many times its linger for rows."""

SealReason = Literal["idle", "quiet", "fast", "linger", "stretched", "size", "drain"]
"""The metric's label. size: the buffer is full; drain: the agent shuts down."""
EARLY: tuple[SealReason, ...] = ("idle", "quiet")
"""The reasons that spend from the budget of early PUTs. "fast" has its own budget."""


ROOM, SHORT = 1.25, 2.0
"""The factors by which an agent asks for more than it used: to have room, and after it had too little."""
LEAST_RATE = 0.01
"""The lowest rate of a budget, per second, so that every wait ends."""


@dataclass(frozen=True, slots=True)
class SealNow:
    """Seal the buffer and upload it."""

    reason: SealReason


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The buffer can't be sealed in time: fail its batches with a retriable error."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Decide again after `seconds`, or when the lane changes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """A lane's work in progress: PUTs, and numbers that the sequencer has not answered."""

    has_session: bool
    uploads: int
    unanswered: int

    @property
    def is_committing(self) -> bool:
        """Whether a commit is in progress, after its upload if it has an object."""
        return self.unanswered > self.uploads


class RateBudget:
    """A token bucket: refills at `rate` per second up to `most`. It may be overdrawn, and then takes longer to refill.

    All times are seconds on the monotonic clock.
    """

    def __init__(self, rate: float, most: float, now: float) -> None:
        self._rate = rate
        self._most = most
        self._left = most
        self._spent_at = now

    def wait(self, amount: float, now: float) -> float:
        """Return the seconds until `amount`, or the full budget if that is less, may be spent; 0 for now."""
        return max(0.0, min(amount, self._most) - self._left_at(now)) / self._rate

    def spend(self, amount: float, now: float) -> None:
        """Take the amount, even if less is left."""
        self._left = self._left_at(now) - amount
        self._spent_at = now

    def set_rate(self, rate: float, most: float, now: float) -> None:
        """Refill at another rate from now on. What is left stays, up to `most`."""
        self._left = min(most, self._left_at(now))
        self._spent_at, self._rate, self._most = now, rate, most

    def _left_at(self, now: float) -> float:
        return min(self._most, self._left + (now - self._spent_at) * self._rate)


@dataclass(frozen=True, slots=True)
class Share:
    """Rates per second: what an agent asks for, or what it may use of the cluster's budgets (-1: no change)."""

    early_puts: float = -1.0
    rows: float = -1.0

    def __mul__(self, factor: float) -> Share:
        return Share(self.early_puts * factor, self.rows * factor)


@dataclass(slots=True)
class Budgets:
    """The budgets that sealing spends. `early_puts`: PUTs before the linger is over; `fast_puts`: PUTs for topics with
    `tailrace.latency=fast`; None if PUTs cost nothing. `rows`: one row of the sequencer per sealed buffer and
    partition."""

    early_puts: RateBudget | None
    fast_puts: RateBudget | None
    rows: RateBudget
    _asked_at: float = 0.0
    _puts_since: int = 0
    _rows_since: int = 0
    _is_short: bool = False

    @classmethod
    def of(cls, settings: AgentSettings, now: float) -> Budgets:
        """Return one lane's full budgets: PUTs for a quarter of a second, rows for a second."""
        rows = settings.max_rows_per_second
        early, fast = (
            None if puts is None else RateBudget(puts, max(puts / 4, 1.0), now)
            for puts in (settings.max_puts_per_second, settings.fast_puts_per_second)
        )
        return cls(
            early_puts=early,
            fast_puts=fast,
            rows=RateBudget(rows, max(rows, 1.0), now),
            _asked_at=now,
        )

    def spend(self, reason: SealReason, rows: int, now: float) -> None:
        """Spend the cost of sealing a buffer with `rows` partitions."""
        self.rows.spend(rows, now)
        self._rows_since += rows
        self._puts_since += reason not in ("size", "drain")
        self._is_short |= reason in ("linger", "stretched")
        if self.early_puts is not None and reason in EARLY:
            self.early_puts.spend(1, now)
        if self.fast_puts is not None and reason == "fast":
            self.fast_puts.spend(1, now)

    def demand(self, now: float) -> Share:
        """Return what was used per second since the last call, times ROOM, or times SHORT if a buffer had to wait."""
        factor = (SHORT if self._is_short else ROOM) / max(now - self._asked_at, 1e-3)
        wanted = Share(self._puts_since * factor, self._rows_since * factor)
        self._asked_at, self._puts_since, self._rows_since, self._is_short = now, 0, 0, False
        return wanted

    def take_share(self, share: Share, settings: AgentSettings, now: float) -> None:
        """Set a lane's share of the cluster's budgets. The agent's own settings remain the upper limits."""
        if share.early_puts >= 0:
            puts = max(LEAST_RATE, min(settings.max_puts_per_second or math.inf, share.early_puts))
            if self.early_puts is None:
                self.early_puts = RateBudget(puts, max(puts / 4, 1.0), now)
            self.early_puts.set_rate(puts, max(puts / 4, 1.0), now)
        if share.rows >= 0:
            rows = max(LEAST_RATE, min(settings.max_rows_per_second, share.rows))
            self.rows.set_rate(rows, max(rows, 1.0), now)


def can_seal(lane: LaneLoad, settings: AgentSettings) -> bool:
    """Whether a buffer sealed now would get a number."""
    return lane.has_session and lane.unanswered < settings.max_unanswered_commits


def next_seal(
    now: float, buffer: ActiveBuffer, lane: LaneLoad, budgets: Budgets, settings: AgentSettings
) -> SealNow | GiveUp | Wait:
    """Decide what to do with the buffer at `now` (monotonic seconds).

    Early sealing helps clients with a closed window: they send five requests, then wait for the answers. The batches
    that arrive during a PUT and its commit form the next object, so there are no more objects than the store and the
    sequencer handle one after another. This matters because under load each object costs the agent as much as many
    requests. Once half of `max_unanswered_commits` numbers are unanswered, the store is slow, and nothing is sealed
    early.
    """
    if not can_seal(lane, settings):
        wait = buffer.opened_at + settings.upload_deadline_ms / 1000 - now
        return Wait(wait) if wait > 0 else GiveUp()
    if buffer.size >= settings.flush_bytes:  # it became full while it could not be sealed
        return SealNow("size")

    linger = settings.linger_ms / 1000
    rows_wait = budgets.rows.wait(len(buffer.batches), now)
    due, last_due = buffer.opened_at + linger, buffer.opened_at + MAX_STRETCH * linger
    if rows_wait:
        due = min(max(due, now + rows_wait), last_due)
    if now >= due:
        return SealNow("stretched" if now >= last_due else "linger")
    if rows_wait:
        return Wait(min(due - now, rows_wait))

    early = _next_early(now=now, buffer=buffer, lane=lane, budgets=budgets, settings=settings)
    return early if isinstance(early, SealNow) else Wait(min(due - now, early))


def _next_early(
    now: float, buffer: ActiveBuffer, lane: LaneLoad, budgets: Budgets, settings: AgentSettings
) -> SealNow | float:
    """Decide before the linger is over: seal, or return the seconds to wait; infinity waits for the lane to change."""
    if buffer.latency is Latency.COST or lane.unanswered >= settings.max_unanswered_commits // 2:
        return math.inf
    wait = math.inf
    if buffer.latency is Latency.FAST and budgets.fast_puts is not None:
        fast_wait = budgets.fast_puts.wait(1, now)
        if not fast_wait and lane.uploads < settings.max_inflight_uploads:
            return SealNow("fast")
        wait = fast_wait or wait
    if lane.is_committing:
        return wait
    quiet_at = buffer.last_added_at + settings.quiet_ms / 1000
    if lane.uploads and now < quiet_at:
        return min(wait, quiet_at - now)
    put_wait = 0.0 if budgets.early_puts is None else budgets.early_puts.wait(1, now)
    if put_wait:
        return min(wait, put_wait)
    return SealNow("quiet" if lane.uploads else "idle")
