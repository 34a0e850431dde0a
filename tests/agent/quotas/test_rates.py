"""A rate over a sliding window, as Kafka measures it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.quotas.rates import FULL_SECONDS, SAMPLE_MS, SAMPLES, SlidingRate, TokenBucket


def test_a_new_client_may_begin_with_what_full_samples_allow() -> None:
    rate = SlidingRate()
    rate.record(5_000, 100 * FULL_SECONDS)
    assert rate.excess_ms(5_000, 100) == 0
    rate.record(5_000, 50)
    assert rate.excess_ms(5_000, 100) == 500


def test_a_wait_that_is_kept_brings_the_rate_to_its_bound() -> None:
    rate = SlidingRate()
    rate.record(0, 3_000)
    wait = rate.excess_ms(0, 200)
    assert wait == 5_000
    assert rate.excess_ms(wait, 200) == wait  # as Kafka's, the wait is taken over the window's full samples
    assert rate.excess_ms(SAMPLES * SAMPLE_MS - 1, 1_000) == 0


def test_samples_older_than_the_window_are_forgotten() -> None:
    rate = SlidingRate()
    rate.record(0, 1e9)
    assert rate.used(SAMPLES * SAMPLE_MS - 1) == 1e9
    assert rate.used(SAMPLES * SAMPLE_MS) == 0
    assert rate.excess_ms(SAMPLES * SAMPLE_MS, 1) == 0


def test_a_withdrawn_charge_counts_as_never_used() -> None:
    rate = SlidingRate()
    rate.record(0, 1_000)
    rate.record(1, -1_000)
    assert rate.excess_ms(1, 1) == 0


@given(st.lists(st.tuples(st.floats(1, 4_000), st.integers(1, 10_000)), min_size=60, max_size=120))
def test_a_client_that_obeys_the_throttle_time_is_held_to_its_rate(uses: list[tuple[float, int]]) -> None:
    rate, now, used, bound = SlidingRate(), 0.0, 0.0, 1_000.0
    for pause, amount in uses:
        rate.record(now, amount)
        used += amount
        now += pause + rate.excess_ms(now, bound)
    largest = max(amount for _, amount in uses)
    assert used <= bound * (now / 1_000 + FULL_SECONDS + 1) + 2 * largest


def test_a_bucket_gives_a_burst_once_and_refills_at_its_bound() -> None:
    bucket = TokenBucket()
    assert bucket.excess_ms(0, 2) == 0
    bucket.record(0, 2 * SAMPLES + 4)
    assert bucket.excess_ms(0, 2) == 2_000
    assert bucket.excess_ms(1_500, 2) == 500
    assert bucket.excess_ms(2_000, 2) == 0
    assert bucket.used(2_000 + SAMPLES * 1_000) == 0
