"""The order of swaps within a partition, for any order of outcomes."""

from __future__ import annotations

import random
from uuid import UUID

from compactor.order import SwapOrder
from compactor.plan import Piece, WorkItem, waves
from compactor.rewrite import RewriteFailure, RewriteResult, failure_of
from sequencer.api.commits import ObjectDescription, ObjectKind
from sequencer.api.compaction import ReplacementRun
from tests.support.row_samples import sample_run

TOPIC = UUID(int=5)


def item_at(partition: int, base_offset: int, size: int = 10) -> WorkItem:
    return WorkItem("t", [piece_at(partition, base_offset, size)])


def item_of(*places: tuple[int, int], kind: ObjectKind = ObjectKind.MIXED) -> WorkItem:
    """Pieces of several partitions."""
    return WorkItem("t", [piece_at(*place, kind=kind) for place in places])


def piece_at(partition: int, base_offset: int, size: int = 10, kind: ObjectKind = ObjectKind.MIXED) -> Piece:
    run = sample_run(
        base_offset,
        base_offset + 1,
        topic_id=TOPIC,
        partition=partition,
        object_id=UUID(int=1),
        kind=kind,
        object_size=size,
        length=size,
    )
    return Piece(partition, [run], [])


def result_of(item: WorkItem) -> RewriteResult:
    described = ObjectDescription(
        object_id=UUID(int=9),
        kind=ObjectKind.PARQUET,
        key="k",
        size=1,
        crc=0,
        index_start=0,
        created_ms=0,
    )
    runs = [
        ReplacementRun(
            topic_id=topic_id,
            partition=partition,
            base_offset=base_offset,
            end_offset=base_offset + 1,
            max_timestamp=0,
            length=1,
            replaced=[],
        )
        for topic_id, partition, base_offset in item.positions
    ]
    return RewriteResult(object=described, runs=runs, row_count=1, batch_count=1, source_bytes=1)


def bases(results: list[RewriteResult]) -> list[tuple[int, int]]:
    return [result.positions[0][1:] for result in results]


def test_merges_wait_for_nothing_so_two_never_wait_for_each_other() -> None:
    one = item_of((0, 13), (1, 0), kind=ObjectKind.PARQUET)
    other = item_of((0, 0), (1, 19), (2, 0), kind=ObjectKind.PARQUET)
    order = SwapOrder([one, other, item_at(1, 30)])
    assert bases(order.add(result_of(one))) == [(0, 13)]
    assert bases(order.add(result_of(other))) == [(0, 0)]
    assert bases(order.add(result_of(item_at(1, 30)))) == [(1, 30)]
    assert order.is_complete


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


def test_items_after_a_split_item_wait_for_all_its_parts() -> None:
    whole, after = item_at(0, 0), item_at(0, 2)
    order = SwapOrder([whole, after])
    assert order.add(result_of(after)) == []
    halves = [item_at(0, 0), item_at(0, 1)]
    order.split(whole, halves)
    assert bases(order.add(result_of(halves[0]))) == [(0, 0)]
    assert bases(order.add(result_of(halves[1]))) == [(0, 1), (0, 2)]
    assert order.is_complete


def test_an_item_of_several_partitions_waits_for_the_earlier_ones_of_each() -> None:
    first, second = item_of((0, 0), (1, 0)), item_of((1, 1), (2, 0))
    third, alone = item_of((0, 1), (1, 2), (2, 1)), item_at(3, 0)
    order = SwapOrder([first, second, third, alone])
    assert bases(order.add(result_of(third))) == []
    assert bases(order.add(result_of(second))) == []
    assert bases(order.add(result_of(alone))) == [(3, 0)]
    assert bases(order.add(result_of(first))) == [(0, 0), (1, 1), (0, 1)]
    assert order.is_complete


def test_the_parts_of_an_item_of_several_partitions_block_only_what_follows_them() -> None:
    whole, after = item_of((0, 0), (1, 0)), item_of((0, 1), (1, 1))
    order = SwapOrder([whole, after])
    order.split(whole, [item_at(0, 0), item_at(1, 0)])
    assert order.add(result_of(after)) == []
    assert bases(order.add(result_of(item_at(0, 0)))) == [(0, 0)]
    assert bases(order.add(failure_of(item_at(1, 0), MemoryError()))) == [(0, 1)]
    assert order.is_complete


def test_in_any_order_of_outcomes_offsets_of_a_partition_rise_and_nothing_is_left() -> None:
    for seed in range(200):
        luck = random.Random(seed)
        items = [
            item_of(*((partition, base) for partition in range(3) if luck.random() < 0.6))
            for base in range(luck.randint(1, 6))
        ]
        items = [item for item in items if item.pieces]
        luck.shuffle(items)
        order, swapped, failed = SwapOrder(items), list[list[tuple[int, int]]](), 0
        for item in items:
            outcome: RewriteResult | RewriteFailure = result_of(item)
            if luck.random() < 0.3:
                outcome, failed = failure_of(item, MemoryError()), failed + 1
            swapped += [[position[1:] for position in result.positions] for result in order.add(outcome)]
        assert order.is_complete and len(swapped) == len(items) - failed
        for partition in range(3):
            mine = [base for places in swapped for at, base in places if at == partition]
            assert mine == sorted(mine)


def test_waves_are_bounded_and_bring_the_first_items_of_all_partitions_first() -> None:
    items = [item_at(0, 0, 10), item_at(0, 1, 90), item_at(0, 2, 60), item_at(1, 0, 40), item_at(2, 5, 30)]
    found = [[item.positions[0][1:] for item in wave] for wave in waves(items, 100)]
    assert found == [[(1, 0), (2, 5), (0, 0)], [(0, 1)], [(0, 2)]]
    assert [len(wave) for wave in waves(items, 1)] == [1] * 5
    assert waves([], 1) == []
