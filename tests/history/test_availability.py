"""Gaps between acknowledgements."""

from __future__ import annotations

from math import inf

from tests.support.history.availability import find_gaps, find_recovery
from tests.support.history.events import Acked, AnyEvent, Ended, Sent


def _acks(partition: int, *times: float) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    for at in times:
        record = f"{partition}/{at}"
        events.append(Sent(at=at - 0.1, client="p", topic="t", partition=partition, record=record, number=1))
        events.append(Acked(at=at, client="p", record=record))
    return events


def test_the_longest_gap_is_found_over_all_and_for_each_partition() -> None:
    events = [*_acks(0, 1, 2, 3, 4, 5, 6), *_acks(1, 1.5, 5.5)]

    found = find_gaps(events, 1, 6)

    assert found.any.seconds == 1 and found.acks == 8
    assert found.worst_partition.seconds == 4 and found.worst_partition.began_at == 1.5


def test_a_partition_that_is_never_answered_again_has_a_gap_up_to_the_end() -> None:
    sent: AnyEvent = Sent(at=5, client="p", topic="t", partition=2, record="late", number=1)

    found = find_gaps([*_acks(0, *range(1, 10)), sent], 1, 9)

    assert found.by_partition["t", 2].seconds == 8 and found.any.seconds == 1


def test_ends_of_transactions_have_gaps_of_their_own() -> None:
    ends: list[AnyEvent] = [
        Ended(at=at, client="p", transaction=str(at), outcome="committed") for at in (1.0, 2.0, 7.0)
    ]

    assert find_gaps(ends, 0, 8).transactions.seconds == 5


def test_the_recovery_of_each_partition_is_the_time_to_its_first_acknowledgement() -> None:
    sent: AnyEvent = Sent(at=5, client="p", topic="t", partition=2, record="lost", number=1)
    events = [*_acks(0, 1, 4.9, 5.5, 6), *_acks(1, 8), sent]

    assert find_recovery(events, 5.0) == {("t", 0): 0.5, ("t", 1): 3.0, ("t", 2): inf}
