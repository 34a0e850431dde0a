from __future__ import annotations

from tailrace.grouping import in_groups


def test_groups_are_full_and_in_order_and_a_heavy_item_is_alone() -> None:
    assert list(in_groups([3, 3, 4, 1, 20, 9, 1], int, 10)) == [[3, 3, 4], [1], [20], [9, 1]]


def test_groups_have_no_more_items_than_they_may() -> None:
    assert list(in_groups([0, 0, 0, 10, 1], int, 10, most_items=2)) == [[0, 0], [0, 10], [1]]


def test_an_empty_sequence_has_no_groups() -> None:
    assert list(in_groups([], int, 10)) == []
