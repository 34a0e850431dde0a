"""Items in groups that are small enough to be handled at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def in_groups(
    items: Iterable[T], weight_of: Callable[[T], int], most_weight: int, most_items: int = sys.maxsize
) -> Iterator[list[T]]:
    """The items in their order, in groups of at most so much weight and so many items. One that is heavier is a group
    by itself."""
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
