"""The cache that drops the least recently used values."""

from __future__ import annotations

from compactor.lru_cache import LruCache


def test_a_value_that_is_kept_again_takes_its_bytes_once() -> None:
    held = LruCache[str, int](10)
    held.keep("a", 1, 4)
    for number in range(5):
        held.keep("b", number, 4)
    assert (held.get("a"), held.get("b")) == (1, 4)


def test_the_least_recently_used_values_are_dropped_but_the_last_one_stays() -> None:
    held = LruCache[str, int](10)
    held.keep("a", 1, 4)
    held.keep("b", 2, 4)
    held.get("a")
    held.keep("c", 3, 4)
    assert [held.get(key) for key in "abc"] == [1, None, 3]
    held.keep("d", 4, 100)
    assert [held.get(key) for key in "acd"] == [None, None, 4]
