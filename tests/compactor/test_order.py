"""The order of swaps within a partition, whatever the order of outcomes."""

from __future__ import annotations

import random
from uuid import UUID

from compactor.order import SwapOrder
from compactor.plan import Piece, WorkItem, waves
from compactor.rewrite import RewriteFailure, RewriteResult, failure_of
from sequencer.api import ObjectDescription, ObjectKind, ReplacementRun, Run

TOPIC = UUID(int=5)


def item_at(partition: int, base_offset: int, size: int = 10) -> WorkItem:
    run = Run(
        TOPIC, partition, base_offset, base_offset + 1, UUID(int=1), ObjectKind.MIXED, "k", size, 0, 0, size, 0, 0, 1,
        0, [],
    )  # fmt: skip
    return WorkItem("t", [Piece(partition, [run], [])])


def result_of(item: WorkItem) -> RewriteResult:
    described = ObjectDescription(UUID(int=9), ObjectKind.PARQUET, "k", 1, 0, 0, 0)
    runs = [
        ReplacementRun(topic_id, partition, base, base + 1, 0, 1, [])
        for topic_id, partition, base in item.places
    ]
    return RewriteResult(described, runs, 1, 1, 1)


def bases(results: list[RewriteResult]) -> list[tuple[int, int]]:
    return [result.places[0][1:] for result in results]


def test_a_result_waits_for_the_earlier_ones_of_its_partition_only() -> None:
    items = [item_at(0, 0), item_at(0, 1), item_at(0, 2), item_at(1, 0)]
    order = SwapOrder(items)
    assert bases(order.add(result_of(items[2]))) == []
    assert bases(order.add(result_of(items[3]))) == [(1, 0)]
    assert bases(order.add(result_of(items[0]))) == [(0, 0)]
    assert bases(order.add(result_of(items[1]))) == [(0, 1), (0, 2)]
    assert order.is_complete


def test_a_failure_lets_the_later_results_of_its_partition_go() -> None:
    items = [item_at(0, 0), item_at(0, 1)]
    order = SwapOrder(items)
    assert order.add(result_of(items[1])) == []
    assert bases(order.add(failure_of(items[0], MemoryError()))) == [(0, 1)]
    assert order.is_complete


def test_what_follows_a_split_item_waits_for_all_its_parts() -> None:
    whole, after = item_at(0, 0), item_at(0, 2)
    order = SwapOrder([whole, after])
    assert order.add(result_of(after)) == []
    halves = [item_at(0, 0), item_at(0, 1)]
    order.split(halves)
    assert bases(order.add(result_of(halves[0]))) == [(0, 0)]
    assert bases(order.add(result_of(halves[1]))) == [(0, 1), (0, 2)]
    assert order.is_complete


def test_in_any_order_of_outcomes_offsets_of_a_partition_rise_and_nothing_is_left() -> None:
    for seed in range(200):
        luck = random.Random(seed)
        items = [item_at(partition, base) for partition in range(3) for base in range(luck.randint(1, 6))]
        luck.shuffle(items)
        order, swapped, failed = SwapOrder(items), list[tuple[int, int]](), 0
        for item in items:
            outcome: RewriteResult | RewriteFailure = result_of(item)
            if luck.random() < 0.3:
                outcome, failed = failure_of(item, MemoryError()), failed + 1
            swapped += bases(order.add(outcome))
        assert order.is_complete and len(swapped) == len(items) - failed
        for partition in range(3):
            mine = [base for at, base in swapped if at == partition]
            assert mine == sorted(mine)


def test_waves_are_bounded_and_bring_the_first_items_of_all_partitions_first() -> None:
    items = [item_at(0, 0, 10), item_at(0, 1, 90), item_at(0, 2, 60), item_at(1, 0, 40), item_at(2, 5, 30)]
    found = [[item.places[0][1:] for item in wave] for wave in waves(items, 100)]
    assert found == [[(1, 0), (2, 5), (0, 0)], [(0, 1)], [(0, 2)]]
    assert [len(wave) for wave in waves(items, 1)] == [1] * 5
    assert waves([], 1) == []
