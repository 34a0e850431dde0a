"""Budgets of the cluster: never granted twice, no agent starves, all is used, and a silent agent's share returns."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.api.agents import AgentLease, RenewAgent
from sequencer.rules.budgets import (
    LEARN_SECONDS,
    LEAST_PART,
    LEAST_ROWS,
    MOST_ROWS,
    ClusterBudgets,
    SharedBudget,
    level_of,
    next_rows,
)
from sequencer.settings import SequencerSettings

KEEP = 10.0
ANY = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 100)


def rounds(
    budget: SharedBudget, wanted: dict[int, float], count: int, began: float = 0.0
) -> dict[int, float]:
    """Each agent renews once a second, so many times; their shares."""
    shares: dict[int, float] = {}
    for number in range(count):
        for agent, wants in wanted.items():
            shares[agent] = budget.grant(agent, wants, began + number)
    return shares


@given(st.lists(st.tuples(st.integers(0, 9), ANY, st.floats(0, 3)), max_size=60))
def test_the_shares_of_all_agents_are_never_above_the_budget(
    renewals: list[tuple[int, float, float]],
) -> None:
    budget, shares, heard, now = SharedBudget(5.0, KEEP), dict[int, float](), dict[int, float](), 0.0
    for agent, wanted, pause in renewals:
        now += pause
        shares[agent], heard[agent] = budget.grant(agent, wanted, now), now
        assert shares[agent] >= 0
        held = sum(share for each, share in shares.items() if now - heard[each] <= KEEP)
        assert held <= 5.0 + 1e-9


@given(st.dictionaries(st.integers(0, 50), st.floats(0, 100), min_size=1, max_size=20), st.floats(0.1, 100))
def test_within_three_renewals_nobody_has_less_than_it_wants_and_an_equal_part_and_all_is_used(
    wanted: dict[int, float], size: float
) -> None:
    shares = rounds(SharedBudget(size, KEEP), wanted, 3)
    for agent, wants in wanted.items():
        assert shares[agent] >= min(wants, size / len(wanted)) - 1e-6
        assert shares[agent] >= size / len(wanted) * LEAST_PART - 1e-6
    assert math.isclose(sum(shares.values()), size, rel_tol=1e-6)


def test_shares_follow_demand_when_it_moves() -> None:
    budget = SharedBudget(10.0, KEEP)
    before = rounds(budget, {1: 9.0, 2: 0.0}, 3)
    assert before[1] > 9 > 1 > before[2]
    after = rounds(budget, {1: 0.0, 2: 9.0}, 3, began=10.0)
    assert after[2] > 9 > 1 > after[1]


def test_a_budget_of_a_thousand_agents_is_worked_out_once_in_half_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget, worked = SharedBudget(5.0, KEEP), list[float]()
    really = budget._compute_shares
    monkeypatch.setattr(budget, "_compute_shares", lambda now: (worked.append(now), really(now)))
    for number in range(3_000):
        budget.grant(number % 1_000, 1.0, number / 1_000)
    assert len(worked) <= 7


def test_the_share_of_an_agent_that_is_gone_returns() -> None:
    budget = SharedBudget(4.0, KEEP)
    rounds(budget, {1: 10.0, 2: 10.0}, 3)
    assert budget.grant(1, 10.0, KEEP) == pytest.approx(2.0), "agent 2 may still use its share"
    assert budget.grant(1, 10.0, KEEP + 3.1) == pytest.approx(4.0)


def test_the_level_is_max_min_fair() -> None:
    assert level_of(10.0, [1.0, 2.0, 30.0, 40.0]) == (3.5, 0.0)
    assert level_of(10.0, [1.0, 2.0]) == (math.inf, 3.5)
    assert level_of(10.0, []) == (math.inf, 0.0)


def test_rows_become_fewer_while_the_committer_is_too_busy_and_more_when_it_is_not() -> None:
    assert next_rows(10_000, 0.9, 0.7) == 8_000
    assert next_rows(10_000, 0.65, 0.7) == 10_000
    assert next_rows(10_000, 0.2, 0.7) == 11_000
    assert next_rows(LEAST_ROWS, 1.0, 0.7) == LEAST_ROWS and next_rows(MOST_ROWS, 0.0, 0.7) == MOST_ROWS


def test_a_new_committer_shares_nothing_out_before_it_has_heard_of_all() -> None:
    budgets = ClusterBudgets(SequencerSettings().on_store("s3://bucket"), 0.0)
    lease = AgentLease(1, 1, 10_000, 1)
    assert budgets.answer(lease, RenewAgent(1, 1, False, 9.0, 9.0), 0.5) == lease
    later = budgets.answer(lease, RenewAgent(1, 1, False, 9.0, 9.0), LEARN_SECONDS)
    assert later.early_puts == pytest.approx(5.0) and later.rows > 0


def test_a_committer_that_is_busy_gives_fewer_rows() -> None:
    budgets = ClusterBudgets(SequencerSettings().on_store(None), 0.0)
    lease, wants = AgentLease(1, 1, 10_000, 1), RenewAgent(1, 1, False, 0.0, 1e6)
    assert budgets.answer(lease, wants, 0.0) == lease
    first = budgets.answer(lease, wants, LEARN_SECONDS).rows
    for second in range(1, 6):
        budgets.worked(0.95)
        last = budgets.answer(lease, wants, LEARN_SECONDS + second).rows
    assert last < first / 2
    assert budgets.answer(lease, wants, LEARN_SECONDS).early_puts == -1, "no PUT costs anything"


def test_an_agent_that_joins_is_not_blocked_until_the_others_have_given_up_a_part() -> None:
    """What the others hold would leave it nothing: its buffers would wait for rows for a second."""
    budgets = ClusterBudgets(SequencerSettings().on_store("s3://bucket"), 0.0)
    old, new = AgentLease(1, 1, 10_000, 1), AgentLease(2, 1, 10_000, 1)
    for second in range(10):
        share = budgets.answer(old, RenewAgent(1, 1, False, 9.0, 9.0), float(second))
    assert share.early_puts == pytest.approx(5.0) and share.rows == pytest.approx(MOST_ROWS)
    first = budgets.answer(new, RenewAgent(2, 1, False, 9.0, 9.0), 9.5)
    assert first == new, "it keeps its own settings"
    share = budgets.answer(old, RenewAgent(1, 1, False, 9.0, 9.0), 10.0)
    assert share.early_puts == pytest.approx(2.5)
    second_share = budgets.answer(new, RenewAgent(2, 1, False, 9.0, 9.0), 10.5)
    assert second_share.early_puts == pytest.approx(2.5) and second_share.rows > MOST_ROWS / 3


def test_without_budgets_nothing_is_shared_out() -> None:
    lease = AgentLease(1, 1, 10_000, 1)
    assert ClusterBudgets(SequencerSettings(), 0.0).answer(lease, RenewAgent(1, 1), 100.0) == lease
