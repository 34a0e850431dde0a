"""A cache that drops the least recently used values."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key. Above `most_bytes`, the least recently used are dropped, but at least one value stays."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: K) -> V | None:
        if key not in self._held:
            return None
        self._held.move_to_end(key)
        return self._held[key][0]

    def keep(self, key: K, value: V, size: int) -> None:
        """Keep the value, in place of an earlier one of the key."""
        self._bytes -= self._held.pop(key, (None, 0))[1]
        self._held[key] = value, size
        self._bytes += size
        while self._bytes > self._most_bytes and len(self._held) > 1:
            _, (_, gone) = self._held.popitem(last=False)
            self._bytes -= gone
