"""Splits items into groups that are small enough to handle at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def in_groups(
    items: Iterable[T], weight_of: Callable[[T], int], most_weight: int, most_items: int = sys.maxsize
) -> Iterator[list[T]]:
    """Yield the items in order, in groups of at most `most_weight` and `most_items`. A heavier item is one group."""
    group: list[T] = []
    weight = 0
    for item in items:
        added = weight_of(item)
        if group and (len(group) == most_items or weight + added > most_weight):
            yield group
            group, weight = [], 0
        group.append(item)
        weight += added
    if group:
        yield group
