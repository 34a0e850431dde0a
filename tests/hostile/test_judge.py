"""The judge of latencies can fail a run, and a busy machine does not mislead it. The latencies are made up."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

from tests.hostile.judge import (
    MAX_HELD_SECONDS,
    MAX_RATIO,
    Slice,
    longest_held_s,
    p99_ratio,
    stalls,
    was_busy,
)


def slices(latency: Callable[[random.Random], float], *, waited_s: float = 0.0) -> list[Slice]:
    luck = random.Random(7)
    return [Slice([latency(luck) for _ in range(80)], 0.5, waited_s) for _ in range(5)]


def usual(luck: random.Random) -> float:
    return 0.02 + 0.01 * luck.random()


def behind_a_slow_handler(luck: random.Random) -> float:
    return usual(luck) + (0.05 if luck.random() < 0.05 else 0.0)


def test_a_handler_that_holds_one_request_in_twenty_is_seen() -> None:
    assert p99_ratio(slices(usual), slices(behind_a_slow_handler)) > MAX_RATIO


def test_it_is_seen_on_a_busy_machine_too() -> None:
    quiet = slices(lambda luck: 1.5 * usual(luck), waited_s=0.25)
    hostile = slices(lambda luck: 3.0 * behind_a_slow_handler(luck), waited_s=1.0)

    assert p99_ratio(quiet, hostile) > MAX_RATIO


def test_handlers_that_are_a_little_slower_are_let_pass() -> None:
    assert p99_ratio(slices(usual), slices(lambda luck: 1.3 * usual(luck))) < MAX_RATIO


def test_a_broker_that_waits_for_a_processor_as_it_has_more_to_do_passes() -> None:
    hostile = slices(lambda luck: 3.0 * usual(luck), waited_s=1.0)

    assert p99_ratio(slices(usual), hostile) < MAX_RATIO


def test_a_broker_that_waits_for_more_than_half_as_long_as_it_runs_was_on_a_busy_machine() -> None:
    assert was_busy(slices(usual, waited_s=0.3))
    assert not was_busy(slices(usual, waited_s=0.2))
    assert not was_busy([Slice([0.02], 0.0, 0.0)])


def test_a_moment_in_which_all_was_slow_does_not_count() -> None:
    quiet, hostile = slices(usual), slices(usual)
    for kind, at in ((quiet, 0), (hostile, 1), (hostile, 4)):
        kind[at] = replace(kind[at], latencies_s=[10 * each for each in kind[at].latencies_s])

    assert p99_ratio(quiet, hostile) < MAX_RATIO
    assert stalls(quiet, hostile) == 0


def test_four_slices_of_five_in_which_every_record_takes_5_s_are_seen() -> None:
    quiet, hostile = slices(usual), slices(usual)
    for at in range(4):
        hostile[at] = Slice([5.0] * 80, 0.5, 0.0)

    assert p99_ratio(quiet, hostile) > MAX_RATIO
    assert stalls(quiet, hostile) == 4


def test_one_slice_in_which_records_stall_for_a_second_is_seen() -> None:
    quiet, hostile = slices(usual), slices(usual)
    hostile[3] = replace(hostile[3], latencies_s=[*hostile[3].latencies_s, 1.0, 0.95])

    assert p99_ratio(quiet, hostile) < MAX_RATIO
    assert stalls(quiet, hostile) == 1


def test_a_loop_that_one_request_holds_is_seen_on_a_busy_machine_too() -> None:
    hostile = slices(usual, waited_s=5.0)
    hostile[2] = replace(hostile[2], held_s=0.1)

    assert longest_held_s(hostile) >= MAX_HELD_SECONDS
    assert longest_held_s(slices(usual)) == 0.0


def test_a_time_in_which_nothing_was_answered_is_no_good_time() -> None:
    silent = Slice([], 0.5, 0.0)

    assert silent.p99_s == math.inf
    assert p99_ratio(slices(usual), [silent, silent]) > MAX_RATIO
    assert stalls(slices(usual), [silent]) == 1
    assert not p99_ratio([silent], [silent]) < MAX_RATIO
