"""Gaps between acknowledgements."""

from __future__ import annotations

from tests.support.history.availability import Gap, find_gaps, flows_served
from tests.support.history.events import Acked, AnyEvent, Ended, Sent


def _acks(partition: int, *times: float, client: str = "p") -> list[AnyEvent]:
    events: list[AnyEvent] = []
    for at in times:
        record = f"{client}/{partition}/{at}"
        events.append(
            Sent(at=at - 0.1, client=client, topic="t", partition=partition, record=record, number=1)
        )
        events.append(Acked(at=at, client=client, record=record))
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


def test_no_end_at_all_is_a_gap_of_the_whole() -> None:
    ended: AnyEvent = Ended(at=1.0, client="p", transaction="1", outcome="committed")

    assert find_gaps([ended], 2, 8).transactions.seconds == 6


def test_a_client_that_is_stuck_is_not_hidden_by_another_of_its_partition() -> None:
    stuck = [*_acks(0, 1, 2, client="stuck"), *_acks(0, 9, client="stuck#2")]

    found = find_gaps([*stuck, *_acks(0, *range(1, 10), client="other")], 2, 10)

    assert found.by_partition["t", 0].seconds == 1
    assert found.by_flow == {("stuck", "t", 0): Gap(7.0, 2.0), ("other", "t", 0): Gap(1.0, 2.0)}


def test_a_client_that_sends_nothing_any_more_has_a_gap() -> None:
    assert find_gaps(_acks(0, 1, 2), 3, 8).by_flow["p", "t", 0].seconds == 5


def test_a_flow_is_served_by_what_was_sent_since() -> None:
    late = [*_acks(0, 5.05), *_acks(1, 6), *_acks(2, 4)]

    assert flows_served(late, 5.0) == {("p", "t", 1)}
