"""Keys in order are those that were added and not removed, from wherever they are read."""

from __future__ import annotations

from itertools import islice
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sequencer.store.ordered as ordered
from sequencer.store.ordered import Names, Ordered, PartitionKeys

NUMBERS = st.integers(0, 30)


@given(st.lists(NUMBERS), NUMBERS)
def test_keys_that_come_and_go_are_read_in_order_from_any_place(changed: list[int], least: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered, "MOST_IN_A_CHUNK", 3)
        keys, known = Ordered[int](), set[int]()
        for key in changed:
            if key in known:
                known.remove(key)
                keys.remove(key)
            else:
                known.add(key)
                keys.add(key)
            assert list(keys) == sorted(known)
            assert (len(keys), bool(keys)) == (len(known), bool(known))
            assert list(keys.starting_at(least)) == sorted(key for key in known if key >= least)


def test_names_follow_a_name_whether_or_not_it_is_there() -> None:
    names = Names()
    for name in ("b", "a", "a\0", "ab"):
        names.add(name)
    assert list(names.after(None)) == ["a", "a\0", "ab", "b"]
    assert list(names.after("a")) == ["a\0", "ab", "b"]
    assert list(names.after("aa")) == ["ab", "b"]


def test_partitions_follow_a_partition_by_their_topics_and_numbers() -> None:
    keys = [("g", UUID(int=topic), partition) for topic in (2, 1 << 127) for partition in (0, 9, 10)]
    ordered = PartitionKeys()
    for key in reversed(keys):
        ordered.add(key)
    assert list(ordered) == list(ordered.after(None)) == keys
    assert list(ordered.after((UUID(int=2), 9))) == keys[2:]
    assert list(ordered.after((UUID(int=3), 0))) == keys[3:]


def test_a_page_of_200_000_keys_compares_a_few_of_them() -> None:
    compared = 0

    class Counted(int):
        def __lt__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) < int(other)

    keys = Ordered[int]()
    for key in range(200_000):
        keys.add(Counted(key))
    compared = 0
    assert list(islice(keys.starting_at(100_000), 3)) == [100_000, 100_001, 100_002]
    assert compared < 40
