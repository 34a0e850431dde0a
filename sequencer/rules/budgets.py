"""Budgets of the cluster, and each agent's share of them according to its demand. Pure.

Invariants, for a budget that does not change:
- the shares of all agents that were heard from within `keep_seconds` never exceed the budget: an agent whose share
  grows gets only what the others leave, until they have renewed and know their smaller shares;
- within two renewals of all agents, an agent's share becomes at least its demand or an equal part of the budget,
  whichever is less;
- budget without demand is divided equally, so that a burst finds some.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from sequencer.api.agents import AgentLease, RenewAgent
from sequencer.settings import SequencerSettings

WORK_OUT_SECONDS = 0.5
"""Least time between two computations of the shares' level; a single renewal looks at no other agent."""
LEARN_SECONDS = 2.0
"""A new committer hears from all agents first; they keep the shares of the previous committer. An agent that joins
keeps its own settings until its second renewal, because at its first the others may still hold the whole budget."""
LEAST_PART = 0.1
"""What an agent without demand gets, as a fraction of an equal part."""
LEAST_ROWS, MOST_ROWS = 2_000.0, 1_000_000.0
FEWER, MORE = 0.8, 1.1


def level_of(budget: float, wanted: Iterable[float]) -> tuple[float, float]:
    """Return the level up to which each agent gets its demand, and what each gets in addition.

    This is max-min fairness: no share can grow unless a smaller share shrinks.
    """
    left, sizes = budget, sorted(wanted)
    for index, size in enumerate(sizes):
        if size * (len(sizes) - index) > left:
            return left / (len(sizes) - index), 0.0
        left -= size
    return math.inf, left / len(sizes) if sizes else 0.0


@dataclass(slots=True)
class _Known:
    wanted: float
    given: float
    heard: float


class SharedBudget:
    """One budget, per second. Times are seconds on the monotonic clock."""

    def __init__(self, budget: float, keep_seconds: float) -> None:
        self.budget = budget
        self._keep_seconds = keep_seconds
        self._agents: dict[int, _Known] = {}
        self._given = 0.0
        self._level, self._spare = 0.0, 0.0
        self._next = -math.inf

    def knows(self, agent: int) -> bool:
        """Whether the agent was heard from recently."""
        return agent in self._agents

    def note(self, agent: int, wanted: float, now: float) -> None:
        """Note an agent's demand, without a change of its share."""
        known = self._agents.setdefault(agent, _Known(0.0, 0.0, now))
        known.wanted = min(wanted, self.budget) if wanted > 0 else 0.0
        known.heard = now

    def grant(self, agent: int, wanted: float, now: float) -> float:
        """Note an agent's demand and return its new share."""
        self.note(agent, wanted, now)
        if now >= self._next:
            self._compute_shares(now)
        known = self._agents[agent]
        others = self._given - known.given
        target = min(max(known.wanted, self._least), self._level) + self._spare
        share = max(0.0, min(target, self.budget - others))
        self._given, known.given = others + share, share
        return share

    @property
    def _least(self) -> float:
        return self.budget / len(self._agents) * LEAST_PART

    def _compute_shares(self, now: float) -> None:
        self._next = now + WORK_OUT_SECONDS
        gone = [agent for agent, known in self._agents.items() if now - known.heard > self._keep_seconds]
        for agent in gone:
            del self._agents[agent]
        self._given = sum(known.given for known in self._agents.values())
        least = self._least
        wanted = (max(known.wanted, least) for known in self._agents.values())
        self._level, self._spare = level_of(self.budget, wanted)


def next_rows(rows: float, busy: float, target: float) -> float:
    """Return the cluster's rows per second, given the fraction of time in which the committer was busy."""
    if busy > target:
        return max(LEAST_ROWS, rows * FEWER)
    return min(MOST_ROWS, rows * MORE) if busy < target * FEWER else rows


class ClusterBudgets:
    """The budgets that one committer divides during its term. They are in memory; the next committer learns the demand
    again."""

    def __init__(self, settings: SequencerSettings, now: float) -> None:
        keep_seconds = settings.agent_lease_ms / 1000
        puts, busy = settings.early_puts_per_second, settings.max_committer_busy
        self._puts = None if puts is None else SharedBudget(puts, keep_seconds)
        self._rows = None if busy is None else SharedBudget(MOST_ROWS, keep_seconds)
        self._max_busy = busy or 1.0
        self._knows_at = now + LEARN_SECONDS
        self._busy_seconds, self._measured_at = 0.0, now

    def worked(self, seconds: float) -> None:
        """Count the time that the committer spent on a group."""
        self._busy_seconds += seconds

    def answer(self, lease: AgentLease, request: RenewAgent, now: float) -> AgentLease:
        """Return the renewed lease with the agent's shares."""
        self._measure(now)
        return msgspec.structs.replace(
            lease,
            early_puts=self._share(self._puts, lease.broker_id, request.early_puts, now),
            rows=self._share(self._rows, lease.broker_id, request.rows, now),
        )

    def _share(self, budget: SharedBudget | None, agent: int, wanted: float, now: float) -> float:
        if budget is None:
            return -1.0
        if now < self._knows_at or not budget.knows(agent):
            budget.note(agent, wanted, now)
            return -1.0
        return budget.grant(agent, wanted, now)

    def _measure(self, now: float) -> None:
        seconds = now - self._measured_at
        if self._rows is None or seconds < 1.0:
            return
        self._rows.budget = next_rows(self._rows.budget, self._busy_seconds / seconds, self._max_busy)
        self._busy_seconds, self._measured_at = 0.0, now
