"""Sealing: the decision for a buffer, given time, load and budgets."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.produce.active_buffer import ActiveBuffer
from agent.produce.sealing import (
    ROOM,
    SHORT,
    Budgets,
    GiveUp,
    LaneLoad,
    RateBudget,
    SealNow,
    Share,
    Wait,
    can_seal,
    next_seal,
)
from agent.settings import AgentSettings
from tailrace.configs.topic_config import Latency
from tailrace.ids import TopicPartition

SETTINGS = AgentSettings(
    flush_bytes=64 * 1024,
    linger_ms=200,
    quiet_ms=10,
    max_puts_per_second=4,
    max_rows_per_second=100,
    max_unanswered_commits=8,
    upload_deadline_ms=1_000,
    fast_dollars_per_day=0.864,
    put_dollars_per_1000=0.005,
)
"""2 PUTs a second of `fast`."""
IDLE = LaneLoad(has_session=True, uploads=0, unanswered=0)
UPLOADING = LaneLoad(has_session=True, uploads=1, unanswered=1)
OPENED = 50.0


def buffer_of(
    size: int = 100,
    *,
    last_added_at: float = OPENED,
    partitions: int = 1,
    latency: Latency = Latency.BALANCED,
) -> ActiveBuffer:
    batches = {TopicPartition(UUID(int=1), number): [] for number in range(partitions)}
    return ActiveBuffer(OPENED, last_added_at, size, batches=batches, latency=latency)


def decide(
    after: float, *, buffer: ActiveBuffer | None = None, lane: LaneLoad = IDLE, budgets: Budgets | None = None
) -> SealNow | GiveUp | Wait:
    """The decision so many seconds after the buffer was opened, by default with full budgets."""
    return next_seal(
        OPENED + after, buffer or buffer_of(), lane, budgets or Budgets.of(SETTINGS, 0.0), SETTINGS
    )


def budgets_without(*, puts: float = 0.0, rows: float = 0.0) -> Budgets:
    """Budgets that had so much spent when the buffer was opened."""
    budgets = Budgets.of(SETTINGS, OPENED)
    assert budgets.early_puts is not None
    budgets.early_puts.spend(puts, OPENED)
    budgets.rows.spend(rows, OPENED)
    return budgets


def seconds(decision: SealNow | GiveUp | Wait) -> float:
    assert isinstance(decision, Wait)
    return round(decision.seconds, 6)


# --- early ---------------------------------------------------------------------------------------------------


def test_a_lane_without_a_put_under_way_seals_at_once() -> None:
    assert decide(0.0) == SealNow("idle")


def test_a_lane_with_a_put_under_way_seals_once_nothing_came_for_quiet_ms() -> None:
    added_later = buffer_of(last_added_at=OPENED + 0.05)
    assert seconds(decide(0.053, buffer=added_later, lane=UPLOADING)) == 0.007
    assert decide(0.061, buffer=added_later, lane=UPLOADING) == SealNow("quiet")


def test_a_buffer_that_never_becomes_quiet_waits_for_its_linger_at_most() -> None:
    always_new = buffer_of(last_added_at=OPENED + 0.195)
    assert seconds(decide(0.195, buffer=always_new, lane=UPLOADING)) == 0.005


def test_without_budget_for_an_early_put_the_buffer_waits_for_it_or_for_its_linger() -> None:
    spent = budgets_without(puts=1)
    assert seconds(decide(0.0, budgets=spent)) == 0.2, "the linger; a PUT would be there after 0.25 s"
    assert seconds(decide(0.0, budgets=budgets_without(puts=0.4))) == 0.1
    assert decide(0.1, budgets=budgets_without(puts=0.4)) == SealNow("idle")


def test_past_half_of_the_bound_of_unanswered_commits_nothing_is_sealed_early() -> None:
    assert decide(0.05, lane=LaneLoad(True, 3, 3)) == SealNow("quiet")
    assert seconds(decide(0.05, lane=LaneLoad(True, 4, 4))) == 0.15
    assert decide(0.2, lane=LaneLoad(True, 4, 4)) == SealNow("linger")


def test_while_an_object_is_being_committed_nothing_is_sealed_early() -> None:
    assert seconds(decide(0.05, lane=LaneLoad(True, 0, 1))) == 0.15
    assert seconds(decide(0.05, lane=LaneLoad(True, 1, 2))) == 0.15
    assert decide(0.2, lane=LaneLoad(True, 0, 1)) == SealNow("linger")


# --- tailrace.latency ------------------------------------------------------------------------------------------

FAST, COST = buffer_of(latency=Latency.FAST), buffer_of(latency=Latency.COST)


def fast_budget_spent(puts: float) -> Budgets:
    budgets = budgets_without(puts=9)
    assert budgets.fast_puts is not None
    budgets.fast_puts.spend(puts, OPENED)
    return budgets


def test_a_buffer_of_cost_alone_waits_for_its_linger() -> None:
    assert seconds(decide(0.0, buffer=COST)) == 0.2
    assert decide(0.2, buffer=COST) == SealNow("linger")


@pytest.mark.parametrize("lane", [IDLE, UPLOADING, LaneLoad(True, 0, 1), LaneLoad(True, 3, 3)])
def test_a_buffer_with_a_fast_batch_is_sealed_at_once_whatever_is_under_way(lane: LaneLoad) -> None:
    assert decide(0.0, buffer=FAST, lane=lane) == SealNow("fast")


def test_fast_seals_within_its_own_budget_and_the_number_of_uploads() -> None:
    assert seconds(decide(0.0, buffer=FAST, budgets=fast_budget_spent(0.2))) == 0.1
    assert seconds(decide(0.0, buffer=FAST, budgets=fast_budget_spent(5))) == 0.2, "its linger"
    crowded = LaneLoad(True, SETTINGS.max_inflight_uploads, 4)
    roomy = SETTINGS.changed(max_unanswered_commits=100)
    busy = buffer_of(last_added_at=OPENED + 0.05, latency=Latency.FAST)
    assert seconds(next_seal(OPENED + 0.05, busy, crowded, Budgets.of(roomy, 0.0), roomy)) == 0.01


def test_fast_without_money_left_is_as_early_as_balanced() -> None:
    budgets = Budgets.of(SETTINGS, OPENED)
    assert budgets.fast_puts is not None
    budgets.fast_puts.spend(5, OPENED)
    assert decide(0.0, buffer=FAST, budgets=budgets) == SealNow("idle")


def test_where_puts_cost_nothing_fast_is_balanced() -> None:
    free = SETTINGS.changed(put_dollars_per_1000=0.0)
    assert seconds(next_seal(OPENED, FAST, UPLOADING, Budgets.of(free, 0.0), free)) == 0.01


def test_each_reason_spends_from_its_own_budget() -> None:
    budgets = Budgets.of(SETTINGS, OPENED)
    assert budgets.early_puts is not None and budgets.fast_puts is not None
    budgets.spend("fast", 1, OPENED)
    assert budgets.early_puts.wait(1, OPENED) == 0 < budgets.fast_puts.wait(1, OPENED)


def test_ten_dollars_a_day_are_23_puts_a_second_on_s3() -> None:
    fast = AgentSettings().on_store("s3://bucket", 0.005).fast_puts_per_second
    assert fast is not None and round(fast, 2) == 23.15
    assert AgentSettings().on_store("/data", 0.005).fast_puts_per_second is None


# --- shares of the cluster's budgets ------------------------------------------------------------------------------


def test_an_agent_wants_more_than_it_used_and_twice_as_much_where_buffers_had_to_wait() -> None:
    budgets = Budgets.of(SETTINGS, OPENED)
    for reason in ("idle", "quiet", "size"):
        budgets.spend(reason, 10, OPENED)
    assert budgets.demand(OPENED + 2) == Share(2 / 2 * ROOM, 30 / 2 * ROOM), (
        "a full buffer needs no early PUT"
    )
    budgets.spend("linger", 10, OPENED + 2)
    assert budgets.demand(OPENED + 3) == Share(SHORT, 10 * SHORT)
    assert budgets.demand(OPENED + 4) == Share(0, 0)


def test_a_share_bounds_early_puts_and_rows_and_the_settings_stay_the_most() -> None:
    budgets = Budgets.of(SETTINGS, OPENED)
    assert budgets.early_puts is not None
    budgets.take_share(Share(early_puts=0.5, rows=1_000.0), SETTINGS, OPENED)
    budgets.spend("idle", 1, OPENED)
    assert budgets.early_puts.wait(1, OPENED) == 2.0
    budgets.rows.spend(200, OPENED)
    assert budgets.rows.wait(1, OPENED) > 1.0, "100 a second are the most"
    budgets.take_share(Share(), SETTINGS, OPENED)
    assert budgets.early_puts.wait(1, OPENED) == 2.0, "nothing new"


def test_a_share_holds_where_an_agent_has_no_budget_of_its_own() -> None:
    free = SETTINGS.changed(max_puts_per_second=None)
    budgets = Budgets.of(free, OPENED)
    budgets.take_share(Share(early_puts=2.0), free, OPENED)
    assert budgets.early_puts is not None
    budgets.spend("idle", 1, OPENED)
    assert budgets.early_puts.wait(1, OPENED) == 0.5


# --- when it is due --------------------------------------------------------------------------------------------


def test_at_its_linger_a_buffer_is_sealed_whatever_the_puts_cost() -> None:
    assert decide(0.2, budgets=budgets_without(puts=100), lane=UPLOADING) == SealNow("linger")


def test_a_buffer_waits_for_its_rows_past_its_linger() -> None:
    spent = budgets_without(rows=130)
    many = buffer_of(partitions=5)
    assert seconds(decide(0.0, buffer=many, budgets=spent)) == 0.35
    assert seconds(decide(0.3, buffer=many, budgets=spent)) == 0.05
    assert decide(0.351, buffer=many, budgets=spent) == SealNow("linger")


def test_a_buffer_waits_for_its_rows_no_longer_than_the_stretched_linger() -> None:
    spent = budgets_without(rows=10_000)
    assert seconds(decide(0.7, budgets=spent)) == 0.1
    assert decide(0.8, budgets=spent) == SealNow("stretched")


# --- when it can't be sealed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", [LaneLoad(False, 0, 0), LaneLoad(True, 0, 8)])
def test_a_buffer_that_cannot_be_sealed_waits_for_the_upload_deadline_and_is_given_up(
    lane: LaneLoad,
) -> None:
    assert not can_seal(lane, SETTINGS)
    assert seconds(decide(0.4, lane=lane)) == 0.6
    assert decide(1.0, lane=lane) == GiveUp()


def test_a_full_buffer_that_could_not_be_sealed_is_sealed_as_soon_as_it_can_be() -> None:
    full = buffer_of(size=64 * 1024)
    assert isinstance(decide(0.0, buffer=full, lane=LaneLoad(True, 1, 8)), Wait)
    assert decide(0.0, buffer=full, lane=LaneLoad(True, 1, 7), budgets=budgets_without(puts=9)) == SealNow(
        "size"
    )


# --- what holds of every decision -----------------------------------------------------------------------------


@given(
    after=st.floats(0, 5),
    added=st.floats(0, 1),
    size=st.integers(0, 70_000),
    partitions=st.integers(1, 20),
    lane=st.builds(LaneLoad, st.booleans(), st.integers(0, 4), st.integers(0, 9)),
    puts=st.floats(0, 20),
    rows=st.floats(0, 1_000),
    latency=st.sampled_from(Latency),
)
def test_a_wait_ends_by_the_last_moment_and_a_decision_changes_nothing(
    after: float,
    added: float,
    size: int,
    partitions: int,
    lane: LaneLoad,
    puts: float,
    rows: float,
    latency: Latency,
) -> None:
    added_at = OPENED + min(added, after)
    buffer = buffer_of(size, last_added_at=added_at, partitions=partitions, latency=latency)
    budgets = budgets_without(puts=puts, rows=rows)
    decision = decide(after, buffer=buffer, lane=lane, budgets=budgets)
    assert decide(after, buffer=buffer, lane=lane, budgets=budgets) == decision
    if isinstance(decision, Wait):
        last = 0.8 if can_seal(lane, SETTINGS) else 1.0
        assert decision.seconds > 0 and after + decision.seconds <= last + 1e-6
    else:
        assert isinstance(decision, SealNow) == can_seal(lane, SETTINGS)


def test_a_budget_that_was_overdrawn_takes_longer_and_holds_no_more_than_its_most() -> None:
    budget = RateBudget(rate=2.0, most=4.0, now=10.0)
    assert budget.wait(4, 10.0) == 0.0
    budget.spend(5, 10.0)
    assert budget.wait(1, 10.0) == 1.0
    assert budget.wait(100, 10.0) == 2.5, "all that there can be"
    budget.spend(0, 1_000.0)
    assert budget.wait(4, 1_000.0) == 0.0 and budget.wait(5, 1_000.0) == 0.0
