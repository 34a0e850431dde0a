"""Producers that the sequencer does not know: when they are said to be forgotten."""

from __future__ import annotations

from uuid import UUID

from agent.produce.unknown_producers import MAX_KNOWN, UnknownProducers
from tailrace.ids import TopicPartition

HERE, THERE = TopicPartition(UUID(int=1), 0), TopicPartition(UUID(int=1), 1)


def is_forgotten(
    producers: UnknownProducers, now: float, producer: int = 7, at: TopicPartition = HERE
) -> bool:
    return producers.is_forgotten(at, producer, now=now, lease_seconds=30)


def test_a_producer_is_forgotten_once_it_was_refused_for_longer_than_a_lease() -> None:
    producers = UnknownProducers()
    assert [now for now in range(100, 160, 5) if is_forgotten(producers, now)] == [145, 150, 155]


def test_each_producer_is_refused_on_its_own_in_each_partition() -> None:
    producers = UnknownProducers()
    for now in range(0, 50, 5):
        is_forgotten(producers, now)
    assert not is_forgotten(producers, 50, producer=8)
    assert not is_forgotten(producers, 50, at=THERE)
    assert is_forgotten(producers, 50)


def test_a_refusal_long_after_the_last_one_is_the_first_again() -> None:
    producers = UnknownProducers()
    assert not is_forgotten(producers, 0)
    assert not is_forgotten(producers, 1_000)
    assert not is_forgotten(producers, 1_030)
    assert is_forgotten(producers, 1_045)


def test_so_many_producers_are_remembered_at_most() -> None:
    producers = UnknownProducers()
    for number in range(MAX_KNOWN + 1):
        is_forgotten(producers, 0, producer=number)
    for number in (0, MAX_KNOWN):
        is_forgotten(producers, 25, producer=number)
    assert not is_forgotten(producers, 45, producer=0), "its first refusal was dropped"
    assert is_forgotten(producers, 45, producer=MAX_KNOWN)
